"""Tables as streams of rows: what a table holds, found before the run, and the rows of one chunk of it."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.pipelines.arrow_tables import read_arrow, scan_arrow
from headrace.pipelines.dataset_tables import is_dataset, read_dataset, scan_dataset
from headrace.pipelines.errors import InputError
from headrace.pipelines.files import without_query
from headrace.pipelines.line_tables import (
    read_csv,
    read_jsonl,
    read_text,
    scan_csv,
    scan_jsonl,
    scan_text,
)
from headrace.pipelines.parquet_tables import read_parquet, scan_parquet
from headrace.pipelines.scans import TableRow, TableScan
from headrace.pipelines.tar_tables import read_tar, scan_tar

TABLE_FORMATS = ("parquet", "jsonl", "jsonl.gz", "json", "csv", "arrow", "tar", "txt")


def table_format(path: str) -> str | None:
    """The format of a table by the end of its name, None for a file that is not a table."""
    if is_dataset(path):
        return "dataset"
    name = without_query(path).lower()
    return next((ending for ending in TABLE_FORMATS if name.endswith(f".{ending}")), None)


def scan_table(path: str, *, stride: int, typed: Sequence[str]) -> TableScan:
    """Counts a table's rows, finds its columns and the types of the columns `typed`.

    `stride` is the number of rows from one entry of the scan's `offsets` to the next.

    Raises:
      InputError: the table cannot be read.
    """
    try:
        match table_format(path):
            case "parquet":
                return scan_parquet(path, typed=typed)
            case "dataset":
                return scan_dataset(path, typed=typed)
            case "arrow":
                return scan_arrow(path, typed=typed)
            case "tar":
                return scan_tar(path, stride=stride, typed=typed)
            case "csv":
                return scan_csv(path, stride=stride, typed=typed)
            case "txt":
                return scan_text(path, stride=stride)
            case _:
                return scan_jsonl(path, stride=stride, typed=typed)
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"cannot read the table {without_query(path)}: {' '.join(str(error).split())}"
        ) from error


def read_rows(path: str, start: int, stop: int, *, offset: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a table, as a stream; values of other columns than `columns` may be left out.

    `offset` is the byte where row `start` begins, for formats of lines.
    """
    match table_format(path):
        case "parquet":
            return read_parquet(path, start, stop, columns)
        case "dataset":
            return read_dataset(path, start, stop, columns)
        case "arrow":
            return read_arrow(path, start, stop, columns)
        case "tar":
            return read_tar(path, start, stop, offset, columns)
        case "csv":
            return read_csv(path, start, stop, offset)
        case "txt":
            return read_text(path, start, stop, offset)
        case _:
            return read_jsonl(path, start, stop, offset)

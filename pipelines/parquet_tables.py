"""Parquet files as tables: a scan reads the footer alone, a chunk reads only its row groups and columns."""

from collections.abc import Iterator, Sequence

from pyarrow.parquet import FileMetaData

from headrace.pipelines.files import open_parquet
from headrace.pipelines.scans import TableRow, TableScan

# Rows decoded at once: small, since a row may hold a recording of many megabytes.
_BATCH_ROWS = 64


def scan_parquet(path: str, *, typed: Sequence[str]) -> TableScan:
    """What a Parquet file holds, from its footer."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        types = {name: schema.field(name).type for name in typed if name in schema.names}
        return TableScan(rows=file.metadata.num_rows, columns=tuple(schema.names), types=types)


def read_parquet(path: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a Parquet file, with the values of `columns` only."""
    with open_parquet(path) as file:
        groups, row = _overlapping_groups(file.metadata, start, stop)
        for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(columns)):
            after = row + batch.num_rows
            if after > start:
                first = max(start, row)
                wanted = batch.slice(first - row, min(stop, after) - first)
                for number, values in enumerate(wanted.to_pylist(), start=first):
                    yield TableRow(number, values)
            row = after
            if row >= stop:
                return


def _overlapping_groups(metadata: FileMetaData, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold rows `start` to `stop`, and the row that the first of them begins with."""
    groups, first_row, row = [], 0, 0
    for group in range(metadata.num_row_groups):
        after = row + metadata.row_group(group).num_rows
        if row < stop and after > start:
            if not groups:
                first_row = row
            groups.append(group)
        row = after
    return groups, first_row

"""Parquet files as tables: a scan reads the footer alone, a chunk reads only its row groups and columns."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyarrow.parquet import FileMetaData, ParquetFile

from headrace.pipelines.files import open_parquet
from headrace.pipelines.scans import TableRow, TableScan, malformed

# Rows decoded at once: small, since a row may hold a recording of many megabytes.
_BATCH_ROWS = 64


def scan_parquet(path: str, *, typed: Sequence[str]) -> TableScan:
    """What a Parquet file holds, from its footer."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        found = dict(zip(schema.names, schema.types, strict=True))
        types = {name: writable_type(found[name]) for name in typed if name in found}
        return TableScan(rows=file.metadata.num_rows, columns=tuple(schema.names), types=types)


def read_parquet(path: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of a Parquet file, with the values of `columns` only.

    Rows that are damaged, or whose values Python cannot hold, come with an error.
    """
    with open_parquet(path) as file:
        for group, first, after in _overlapping_groups(file.metadata, start, stop):
            row = max(first, start)
            end = min(after, stop)
            try:
                for batch in _batches(file, group, columns, row - first, end - first):
                    yield from table_rows(batch, row)
                    row += batch.num_rows
            except (OSError, pa.ArrowException) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # the disk's fault or the network's: another try may find the rows
                for number in range(row, end):
                    yield malformed(number, f"row group {group} of the file is damaged from here on")


def writable_type(kind: pa.DataType) -> pa.DataType:
    """The type with plain lists for those of a fixed size: Arrow cannot read these back where one is null."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(writable_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(writable_type(field.type)) for field in kind])
    return kind


def _overlapping_groups(metadata: FileMetaData, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The row groups that hold rows `start` to `stop`, each with its first row and the row after its last."""
    row = 0
    for group in range(metadata.num_row_groups):
        after = row + metadata.row_group(group).num_rows
        if row < stop and after > start:
            yield group, row, after
        row = after


def _batches(
    file: ParquetFile, group: int, columns: Sequence[str], start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """Rows `start` to `stop` of a row group."""
    row = 0
    for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=list(columns)):
        after = row + batch.num_rows
        if after > start:
            first = max(start, row)
            yield batch.slice(first - row, min(stop, after) - first)
        row = after
        if row >= stop:
            return


def table_rows(batch: pa.RecordBatch, first: int) -> Iterator[TableRow]:
    """The rows of a batch, the first of which has the number `first`."""
    try:
        rows = batch.to_pylist()
    except (ValueError, OverflowError):  # a date, say, that lies beyond Python's
        if batch.num_rows == 1:
            yield malformed(first, "a value of it lies beyond what Python can hold")
            return
        for at in range(batch.num_rows):
            yield from table_rows(batch.slice(at, 1), first + at)
        return
    for number, values in enumerate(rows, start=first):
        yield TableRow(number, values)

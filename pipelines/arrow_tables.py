"""Arrow IPC files and streams as tables, the files of the `datasets` library among them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from headrace.pipelines.files import is_local, open_input
from headrace.pipelines.parquet_tables import table_rows, writable_type
from headrace.pipelines.scans import TableRow, TableScan

# Rows made into Python values at once: small, since a row may hold a recording of many megabytes.
_BATCH_ROWS = 64


def scan_arrow(path: str, *, typed: Sequence[str]) -> TableScan:
    """What an Arrow file holds: its batches are counted without their values."""
    with _opened(path) as (schema, batches):
        found = dict(zip(schema.names, schema.types, strict=True))
        types = {name: writable_type(found[name]) for name in typed if name in found}
        rows = sum(batch.num_rows for batch in batches)
        return TableScan(rows=rows, columns=tuple(schema.names), types=types)


def read_arrow(path: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[TableRow]:
    """Rows `start` to `stop` of an Arrow file, with the values of `columns` only."""
    with _opened(path) as (_, batches):
        first = 0
        for batch in batches:
            after = first + batch.num_rows
            if after > start:
                chosen = batch.select(list(columns))
                for row in range(max(first, start), min(after, stop), _BATCH_ROWS):
                    size = min(_BATCH_ROWS, after - row, stop - row)
                    yield from table_rows(chosen.slice(row - first, size), row)
            first = after
            if first >= stop:
                return


@contextmanager
def _opened(path: str) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """The schema and the batches of an Arrow file, mapped into memory where it is on this machine."""
    with pa.memory_map(path) if is_local(path) else pa.PythonFile(open_input(path)) as file:
        try:
            reader = pa.ipc.open_file(file)
        except pa.ArrowInvalid:  # not the format with a footer
            file.seek(0)
            stream = pa.ipc.open_stream(file)
            yield stream.schema, iter(stream)
            return
        yield reader.schema, (reader.get_batch(number) for number in range(reader.num_record_batches))

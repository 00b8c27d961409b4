"""What of a run is committed: its parts, as files of their own or inside the large files of `compact`."""

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headrace.pipelines.commit import Footer, read_footer
from headrace.pipelines.files import join, list_directory, open_parquet
from headrace.pipelines.fingerprint import SCHEMA_VERSION

PARTS_KEY = b"headrace-parts"
"""Key of a compacted file's metadata: the footers of the parts in it."""

# Rows of a compacted file that are read at once.
_BATCH_ROWS = 8192


def committed_footers(output: str) -> dict[str, Footer]:
    """Footers of the whole parts of a directory, by the parts' names, in the order of shards and chunks."""
    footers = {part.part: part for parts in compacted_parts(output).values() for part in parts}
    for name in list_directory(output, "part-"):
        footer = read_footer(output, name)
        if footer is not None:
            footers[name] = footer
    ordered = sorted(footers.values(), key=lambda footer: (footer.shard, footer.chunk))
    return {footer.part: footer for footer in ordered}


def compacted_parts(output: str) -> dict[str, list[Footer]]:
    """The footers of the parts in each compacted file of a directory, by the file's name."""
    found = {}
    for name in list_directory(output, "compact-"):
        parts = _parts_inside(output, name)
        if parts:
            found[name] = parts
    return found


def result_tables(output: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a directory, some at a time, with those of `columns` that the results have."""
    compacted = compacted_parts(output)
    inside = {part.part for parts in compacted.values() for part in parts}
    loose = [name for name in list_directory(output, "part-") if name not in inside]
    for name in [*compacted, *(name for name in loose if read_footer(output, name) is not None)]:
        with open_parquet(join(output, name)) as file:
            wanted = [column for column in columns if column in file.schema_arrow.names]
            for batch in file.iter_batches(_BATCH_ROWS, columns=wanted):
                yield pa.Table.from_batches([batch])


def number_columns(output: str, names: Sequence[str]) -> dict[str, list[float]]:
    """The numbers of the rows of a directory by column, without nulls."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for table in result_tables(output, names):
        for name in table.column_names:
            found[name] += table.column(name).drop_null().cast(pa.float64()).to_pylist()
    return found


def leftovers(output: str, compacted: Mapping[str, Sequence[Footer]]) -> list[str]:
    """Parts that lie beside the compacted file which holds them: a compaction was broken off."""
    inside = {part.part for parts in compacted.values() for part in parts}
    return [name for name in list_directory(output, "part-") if name in inside]


def _parts_inside(output: str, name: str) -> list[Footer]:
    """Nothing where the file is broken or not of this version."""
    try:
        with open_parquet(join(output, name)) as file:
            listed = json.loads((file.schema_arrow.metadata or {}).get(PARTS_KEY, b"[]"))
            num_rows = file.metadata.num_rows
        parts = [Footer(**each) for each in listed]
    except (OSError, pa.ArrowException, ValueError, TypeError):
        return []
    is_ours = all(part.schema_version == SCHEMA_VERSION for part in parts)
    return parts if is_ours and sum(part.rows for part in parts) == num_rows else []

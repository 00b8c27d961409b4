"""What of a run is committed: the footers of the parts in an output directory."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headrace.pipelines.commit import Footer, read_footer
from headrace.pipelines.files import join, list_directory, open_parquet


def committed_footers(output: str) -> dict[str, Footer]:
    """Footers of the whole parts of a directory, by the parts' names, in the order of shards and chunks."""
    found = [read_footer(output, name) for name in list_directory(output, "part-")]
    footers = [footer for footer in found if footer is not None]
    footers.sort(key=lambda footer: (footer.shard, footer.chunk))
    return {footer.part: footer for footer in footers}


def result_tables(output: str, parts: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of parts, a part at a time, with those of `columns` that the results have."""
    for name in parts:
        with open_parquet(join(output, name)) as file:
            wanted = [column for column in columns if column in file.schema_arrow.names]
            yield file.read(columns=wanted)

"""Parts: written whole under __run/tmp, renamed into place, and known by their footer ever after."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipelines.files import join, open_parquet, write_whole
from headrace.pipelines.fingerprint import SCHEMA_VERSION
from headrace.pipelines.shards import Chunk

_FOOTER_KEY = b"headrace"


@dataclass(frozen=True, kw_only=True, slots=True)
class Footer:
    """What a part says of itself; one row of metrics.parquet. It holds nothing of any row's content."""

    part: str
    """File name of the part."""
    schema_version: int = SCHEMA_VERSION
    """Version of the columns and of this footer."""
    job: str
    """generate or transcribe."""
    fingerprint: str
    """Fingerprint of the chunk."""
    shard: int
    """Number of the shard in the run."""
    chunk: int
    """Number of the chunk in the shard."""
    start: int
    """First place in the shard."""
    stop: int
    """Place after the last."""
    rows: int
    """Rows of the part."""
    num_inputs: int | None = None
    """Rows of the input, where each may give several rows; None: as many."""
    rows_failed: int
    """Rows whose result is an error."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """Failed rows by the kind of error."""
    units: float
    """Tokens generated, or seconds of audio transcribed."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Sums, rates and percentiles of the part's rows."""
    engine: Mapping[str, float] = field(default_factory=dict)
    """Counters of the engine that ran it, since its start."""
    device: str = ""
    """Kind of the device that ran it."""
    worker: str = ""
    """Host and process that ran it."""
    finished_at: float
    """Time of the commit, in seconds since 1970."""
    wall_s: float
    """Seconds from the chunk's first row to its commit."""


def input_rows(footer: Footer) -> int:
    """Rows of the input that a part has the results of."""
    return footer.rows if footer.num_inputs is None else footer.num_inputs


def run_directory(output: str, *names: str) -> str:
    """A path in the directory beside the results that tells of the run."""
    return join(output, "__run", *names)


def scratch_directory(output: str) -> str:
    """Where files are written before they are renamed into place."""
    return run_directory(output, "tmp")


def write_part(output: str, rows: Sequence[Mapping[str, Any]], schema: pa.Schema, footer: Footer) -> None:
    """Commits a part: when this returns it is in place for good, whatever happens next.

    Raises:
      OSError: it cannot be written; nothing is in place.
    """
    footers = {_FOOTER_KEY: json.dumps(asdict(footer)).encode()}
    table = pa.Table.from_pylist(list(rows), schema=schema.with_metadata(footers))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    path = join(output, footer.part)
    write_whole(path, memoryview(sink.getvalue()), scratch=scratch_directory(output))


def read_footer(output: str, name: str) -> Footer | None:
    """The footer of a part, None where the file is not a part that this version wrote, or is broken."""
    try:
        with open_parquet(join(output, name)) as file:
            content = json.loads((file.schema_arrow.metadata or {}).get(_FOOTER_KEY, b"{}"))
            if content.get("schema_version") != SCHEMA_VERSION or content["rows"] != file.metadata.num_rows:
                return None
        return Footer(**content)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def read_part(output: str, name: str) -> list[dict[str, Any]]:
    """The rows of a part, in their order.

    Raises:
      OSError: it cannot be read.
    """
    with open_parquet(join(output, name)) as file:
        return file.read().to_pylist()


def is_part_of(footer: Footer | None, chunk: Chunk) -> bool:
    """Whether a footer is that of the chunk's finished part."""
    return (
        footer is not None
        and footer.fingerprint == chunk.fingerprint
        and (footer.shard, footer.chunk) == (chunk.shard, chunk.index)
        and (footer.start, footer.stop, input_rows(footer)) == (chunk.start, chunk.stop, chunk.rows)
    )

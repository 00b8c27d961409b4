"""Few large files made of many parts; the run can be read, resumed and looked at as before."""

import io
import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.pipelines.commit import Footer, read_footer, scratch_directory
from headrace.pipelines.committed import PARTS_KEY, compacted_parts, leftovers
from headrace.pipelines.errors import InputError, RunError
from headrace.pipelines.files import (
    delete,
    file_size,
    join,
    list_directory,
    normalise,
    open_parquet,
    write_whole,
)
from headrace.pipelines.fingerprint import digest
from headrace.pipelines.output_directory import claim_output
from headrace.pipelines.run_record import read_record

logger = logging.getLogger(__name__)

DEFAULT_BYTES = 256 << 20
# Memory that rows may take before they are written as a row group.
_GROUP_BYTES = 64 << 20


class Compaction(NamedTuple):
    """What a compaction did."""

    num_parts: int
    """Parts that went into large files."""
    num_files: int
    """Large files that were written."""


def compact(output: str, *, target_bytes: int = DEFAULT_BYTES) -> Compaction:
    """Puts neighbouring parts together into files of about `target_bytes`, then deletes the parts.

    A file is renamed into place before its parts are deleted. Where that was broken off, rows are there
    twice until the next compaction or launch of the run deletes the rest.

    Raises:
      InputError: there is no run.
      OutputError: another process has the directory.
      RunError: a file cannot be written or read; the parts are as they were.
    """
    output = normalise(output)
    if target_bytes < 1:
        raise InputError(f"target_bytes is {target_bytes}: give at least 1")
    if read_record(output) is None:
        raise InputError(f"{output} holds no run of headrace: give the --output of one")
    with claim_output(output):
        delete_leftovers(output)
        num_parts = num_files = 0
        for group in _groups(output, target_bytes):
            try:
                _write(output, group)
            except (OSError, pa.ArrowException) as error:
                raise RunError(f"cannot compact {output}: {error}: what is there stays as it was") from error
            delete_leftovers(output)
            num_parts += len(group)
            num_files += 1
    return Compaction(num_parts, num_files)


def delete_leftovers(output: str) -> None:
    """Deletes parts whose rows a compacted file holds too."""
    for name in leftovers(output, compacted_parts(output)):
        delete(join(output, name))


def _groups(output: str, target_bytes: int) -> Iterator[list[Footer]]:
    """Neighbouring parts that are large enough together; a part that would be alone stays as it is."""
    found = [read_footer(output, name) for name in list_directory(output, "part-")]
    footers = sorted((each for each in found if each is not None), key=lambda each: (each.shard, each.chunk))
    group: list[Footer] = []
    group_bytes = 0
    for footer in footers:
        group.append(footer)
        group_bytes += file_size(join(output, footer.part))
        if group_bytes >= target_bytes:
            if len(group) > 1:
                yield group
            group, group_bytes = [], 0
    if len(group) > 1:
        yield group


def _write(output: str, group: Sequence[Footer]) -> None:
    name = (
        f"compact-{group[0].shard:05d}-{group[0].chunk:05d}-{digest([each.part for each in group])}.parquet"
    )
    with open_parquet(join(output, group[0].part)) as first:
        schema = first.schema_arrow.with_metadata(
            {PARTS_KEY: json.dumps([asdict(each) for each in group]).encode()}
        )
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in _row_groups(output, group, schema):
            writer.write_table(table)
    write_whole(join(output, name), sink.getbuffer(), scratch=scratch_directory(output))
    logger.info("%s: %d parts, %d rows", name, len(group), sum(each.rows for each in group))


def _row_groups(output: str, group: Sequence[Footer], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of the parts, in tables that are large enough to be a row group."""
    tables: list[pa.Table] = []
    for footer in group:
        with open_parquet(join(output, footer.part)) as file:
            tables.append(file.read().replace_schema_metadata(schema.metadata))
        if sum(table.nbytes for table in tables) >= _GROUP_BYTES:
            yield pa.concat_tables(tables).combine_chunks()
            tables = []
    if tables:
        yield pa.concat_tables(tables).combine_chunks()

"""Shards and chunks: how an input is cut, in a way that stays as it is when the input grows."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.pipelines.fingerprint import digest
from headrace.pipelines.listing import InputFile


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardFile:
    """One file of a shard, as it is kept in run.json."""

    source: str
    """Path relative to the common root of the input."""
    size: int | None
    """Size in bytes when it was listed."""
    modified: float | None = None
    """When it was last modified, in seconds since 1970, where that is known."""
    gone: bool = False
    """Whether it went before any part of it was committed; it keeps its place, so that no chunk moves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One table, or a group of audio files."""

    index: int
    """Number of the shard in the run."""
    is_table: bool
    """Whether it is one table file, whose rows are the shard's, or audio files, each of them a row."""
    files: tuple[ShardFile, ...]
    """The table, or the audio files sorted by source."""
    table_rows: int | None = None
    """Rows of the table; None for audio files, and for a table that was not scanned yet."""

    @property
    def rows(self) -> int:
        """Places of the shard: rows of the table, or audio files with those that are gone."""
        if not self.is_table:
            return len(self.files)
        assert self.table_rows is not None, "the table was not scanned"
        return 0 if self.files[0].gone else self.table_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of a shard's rows: the unit of work, of commit and of resume."""

    shard: int
    """Number of the shard in the run."""
    index: int
    """Number of the chunk in the shard."""
    start: int
    """First place in the shard."""
    stop: int
    """Place after the last."""
    files: tuple[ShardFile, ...]
    """The table, or the audio files from `start` to `stop` without those that are gone."""
    is_table: bool
    """Whether `start` and `stop` are rows of the one file, or places of files."""
    fingerprint: str
    """Hash of the run's fingerprint and of the chunk's own input."""

    @property
    def rows(self) -> int:
        """Rows that the chunk's part has."""
        return self.stop - self.start if self.is_table else len(self.files)

    @property
    def part_name(self) -> str:
        """File name of the chunk's part."""
        return f"part-{self.shard:05d}-{self.index:05d}-{self.fingerprint}.parquet"


def group_files(
    files: Sequence[InputFile], tables: set[str], *, first_index: int, files_per_shard: int
) -> list[Shard]:
    """Shards of files that have none yet: each source in `tables` is one, the others are grouped."""
    shards: list[Shard] = []
    audio = [file for file in files if file.source not in tables]
    groups: list[tuple[bool, Sequence[InputFile]]] = [(True, [f]) for f in files if f.source in tables]
    groups += [(False, audio[at : at + files_per_shard]) for at in range(0, len(audio), files_per_shard)]
    for index, (is_table, group) in enumerate(groups, start=first_index):
        listed = tuple(
            ShardFile(source=file.source, size=file.size, modified=file.modified) for file in group
        )
        shards.append(Shard(index=index, is_table=is_table, files=listed))
    return shards


def cut_chunks(
    shards: Iterable[Shard], *, rows_per_part: int, run_fingerprint: str, limit: int | None = None
) -> Iterator[Chunk]:
    """Chunks of at most `rows_per_part` rows; one that is left without a row is passed over.

    `limit` is the number of places after which no more are taken.
    """
    left = sys.maxsize if limit is None else limit
    for shard in shards:
        places_left, left = left, max(left - shard.rows, 0)
        for index, start in enumerate(range(0, min(shard.rows, places_left), rows_per_part)):
            stop = min(start + rows_per_part, shard.rows, places_left)
            places = shard.files if shard.is_table else shard.files[start:stop]
            files = tuple(file for file in places if not file.gone)
            if files:
                yield Chunk(
                    shard=shard.index,
                    index=index,
                    start=start,
                    stop=stop,
                    files=files,
                    is_table=shard.is_table,
                    fingerprint=_chunk_fingerprint(run_fingerprint, files, start, stop),
                )


def _chunk_fingerprint(run_fingerprint: str, files: Sequence[ShardFile], start: int, stop: int) -> str:
    return digest([run_fingerprint, [(file.source, file.size) for file in files], start, stop])

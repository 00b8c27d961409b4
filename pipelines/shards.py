"""Shards and chunks: how an input is cut, in a way that stays as it is when the input grows."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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


class Cut(NamedTuple):
    """Where a chunk ends that was cut by work."""

    stop: int
    """Place after its last."""
    work: float
    """Work that was estimated for it, in the units of the job."""


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
    taken: int | None = None
    """Rows of the table that the run takes, where it does not take all."""
    cuts: tuple[Cut, ...] = ()
    """Where its chunks end, where they were cut by work; they stay when the estimates change."""

    @property
    def rows(self) -> int:
        """Places of the shard: rows of the table that are taken, or audio files with those that are gone."""
        if not self.is_table:
            return len(self.files)
        assert self.table_rows is not None, "the table was not scanned"
        if self.files[0].gone:
            return 0
        return self.table_rows if self.taken is None else self.taken


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
    work: float = 0.0
    """Work that was estimated for it; 0 where none was."""

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


def cut_chunks(shards: Iterable[Shard], *, rows_per_part: int, run_fingerprint: str) -> Iterator[Chunk]:
    """Chunks of a shard's own cuts, else of `rows_per_part` rows; one without a row is passed over."""
    for shard in shards:
        cuts = shard.cuts if shard.rows else ()
        stops = [cut.stop for cut in cuts] or [*range(rows_per_part, shard.rows, rows_per_part), shard.rows]
        for index, (start, stop) in enumerate(pairwise((0, *stops))):
            places = shard.files if shard.is_table else shard.files[start:stop]
            files = tuple(file for file in places if not file.gone)
            if files and stop > start:
                yield Chunk(
                    shard=shard.index,
                    index=index,
                    start=start,
                    stop=stop,
                    files=files,
                    is_table=shard.is_table,
                    fingerprint=_chunk_fingerprint(run_fingerprint, files, start, stop),
                    work=cuts[index].work if cuts else 0.0,
                )


def cut_by_work(works: Sequence[float], *, max_rows: int, max_work: float) -> tuple[Cut, ...]:
    """Cuts into chunks of at most `max_rows` rows and `max_work` work, or of one row that is more.

    e.g. of works 2, 2, 9, 1, with at most 4 work: 2 + 2, 9, 1.
    """
    cuts: list[Cut] = []
    start, total = 0, 0.0
    for place, work in enumerate(works):
        if place > start and (total + work > max_work or place - start == max_rows):
            cuts.append(Cut(place, total))
            start, total = place, 0.0
        total += work
    if len(works) > start:
        cuts.append(Cut(len(works), total))
    return tuple(cuts)


def _chunk_fingerprint(run_fingerprint: str, files: Sequence[ShardFile], start: int, stop: int) -> str:
    return digest([run_fingerprint, [(file.source, file.size) for file in files], start, stop])

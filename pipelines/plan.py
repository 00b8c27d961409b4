"""What is to be done: the input against what an output directory holds already."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.pipelines.commit import Footer, is_part_of, read_footer
from headrace.pipelines.committed import compacted_parts
from headrace.pipelines.errors import InputError, OutputError
from headrace.pipelines.files import list_directory
from headrace.pipelines.listing import InputFile, Listing
from headrace.pipelines.row_filter import read_condition
from headrace.pipelines.row_work import Picks, estimate_works
from headrace.pipelines.run_record import RunRecord
from headrace.pipelines.scans import TableScan, wider_type
from headrace.pipelines.selection import select_rows
from headrace.pipelines.shards import Chunk, Shard, ShardFile, cut_by_work, cut_chunks, group_files
from headrace.pipelines.tables import scan_table
from headrace.pipelines.work import Work, require_columns

# Files that an error names before it says that there are more.
_MAX_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkTask:
    """A chunk and how to read it: an element of the pipeline."""

    chunk: Chunk
    """The work."""
    paths: tuple[str, ...]
    """Where the chunk's files are read."""
    first_row: int = 0
    """Row of the table at which reading begins: the chunk's first, or one before it."""
    offset: int = 0
    """Byte where that row begins, for a table of lines."""
    picked: tuple[int, ...] | None = None
    """Rows of the table that are the chunk's, where they are not those from `start` to `stop`."""
    content: tuple[str, ...] = ()
    """Columns that requests are made from."""
    columns: tuple[str, ...] = ()
    """Columns that are read at all."""
    retry: bool = False
    """Whether the chunk has a part, of which only the failed rows are run again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A run as it will be."""

    shards: tuple[Shard, ...]
    """The listing, for run.json."""
    chunks: tuple[Chunk, ...]
    """Every chunk of the run."""
    tasks: tuple[ChunkTask, ...]
    """The chunks that have no part yet."""
    reused: Mapping[str, Footer] = field(default_factory=dict)
    """Footers of the parts that are there, by name."""
    kept: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Input columns that are carried through, with their types."""


def make_plan(
    work: Work, listing: Listing, output: str, run_fingerprint: str, record: RunRecord | None
) -> Plan:
    """The plan of a run, new or taken up again.

    Raises:
      InputError: a table cannot be read, lacks a column, or nothing has a row.
      OutputError: a file that results were committed of has changed or went, or there is a strange part.
    """
    planner = _Planner(work, listing, output, run_fingerprint)
    shards = planner.old_shards(record.shards if record else ())
    num_old = len(shards)
    shards += planner.new_shards(shards)
    scans = planner.scan(shards)
    shards = [_with_rows(shard, scans) for shard in shards]
    selected = select_rows(work.config, shards, num_old, scans, planner.paths)
    shards = [planner.with_cuts(shard, scans, selected.picks) for shard in selected.shards]
    chunks = planner.cut(shards)
    if not chunks:
        raise InputError("the input has no rows: there is nothing to do")
    planner.refuse_strange_parts(chunks)
    valid = planner.valid_parts(chunks)
    retried = planner.retried(valid)
    reused = {name: footer for name, footer in valid.items() if name not in retried}
    kept = _kept_schema(work.config.keep_columns, scans, record.kept if record else pa.schema([]))
    tasks = tuple(
        replace(planner.task(chunk, scans, selected.picks), retry=chunk.part_name in retried)
        for chunk in chunks
        if chunk.part_name not in reused
    )
    ordered = _in_order(tasks, work.config.shuffle_seed)
    return Plan(shards=tuple(shards), chunks=tuple(chunks), tasks=ordered, reused=reused, kept=kept)


class _Planner:
    """The steps of a plan, over what they all look at."""

    def __init__(self, work: Work, listing: Listing, output: str, run_fingerprint: str) -> None:
        self.work = work
        self.files: Mapping[str, InputFile] = {file.source: file for file in listing.files}
        self.output = output
        self.run_fingerprint = run_fingerprint
        self.compacted: dict[str, Footer] = {}
        self.parts: set[str] = set()
        self.changed: list[str] = []
        if not work.config.overwrite:  # else what is there goes before the run begins
            self.compacted = {part.part: part for parts in compacted_parts(output).values() for part in parts}
            self.parts = {*list_directory(output, "part-"), *self.compacted}

    @property
    def paths(self) -> dict[str, str]:
        """Where the files are read, by source."""
        return {source: file.path for source, file in self.files.items()}

    def cut(self, shards: Sequence[Shard]) -> list[Chunk]:
        stride = self.work.config.rows_per_part
        return list(cut_chunks(shards, rows_per_part=stride, run_fingerprint=self.run_fingerprint))

    def with_cuts(self, shard: Shard, scans: Mapping[str, TableScan], picks: Picks) -> Shard:
        """A shard that has none yet with cuts by work, where its work can be told."""
        config = self.work.config
        if config.work_per_part is None or shard.cuts or not shard.rows:
            return shard
        works = estimate_works(self.work, shard, scans, self.paths, picks)
        cuts = cut_by_work(works, max_rows=config.rows_per_part, max_work=config.work_per_part)
        return replace(shard, cuts=cuts)

    def old_shards(self, before: Sequence[Shard]) -> list[Shard]:
        """The shards of the earlier run, with what has happened to files that have no part yet."""
        chunks = [chunk for chunk in self.cut(before) if chunk.part_name in self.parts]
        committed = {file.source for chunk in chunks for file in chunk.files}
        shards = [self._old_shard(shard, committed) for shard in before]
        if self.changed:
            more = f" (and {len(self.changed) - _MAX_NAMED} more)" if len(self.changed) > _MAX_NAMED else ""
            raise OutputError(
                f"{self.output} has results of {'; of '.join(self.changed[:_MAX_NAMED])}{more}: "
                "put it back as it was, choose another output directory, or begin anew with overwrite"
            )
        return shards

    def _old_shard(self, shard: Shard, committed: set[str]) -> Shard:
        files = tuple(file if file.gone else self._old_file(file, committed) for file in shard.files)
        if files == shard.files:
            return shard
        if not shard.is_table or files[0].source in committed:
            return replace(shard, files=files)
        return replace(shard, files=files, table_rows=None, taken=None, cuts=())

    def _old_file(self, file: ShardFile, committed: set[str]) -> ShardFile:
        now = self.files.get(file.source)
        if now is not None and now.size == file.size and self._has_time_of(file, now):
            return replace(file, modified=now.modified)
        if file.source in committed:
            self.changed.append(f"{file.source}, which {_change(file, now)}")
        if now is None:
            return replace(file, gone=True)
        return replace(file, size=now.size, modified=now.modified)

    def _has_time_of(self, file: ShardFile, now: InputFile) -> bool:
        known = file.modified is not None and now.modified is not None
        return self.work.config.ignore_mtime or not known or file.modified == now.modified

    def new_shards(self, before: Sequence[Shard]) -> list[Shard]:
        known = {file.source for shard in before for file in shard.files if not file.gone}
        new = [file for file in self.files.values() if file.source not in known]
        tables = {file.source for file in new if self.work.is_table(file.path)}
        return group_files(new, tables, first_index=len(before), files_per_shard=self.work.files_per_shard)

    def scan(self, shards: Sequence[Shard]) -> dict[str, TableScan]:
        """What the tables hold that have work left, by their sources."""
        config = self.work.config
        wanted = [each for each in (config.id_column, *config.keep_columns) if each]
        asked = read_condition(config.where).columns if config.where is not None else ()
        tables = [shard for shard in shards if shard.is_table]
        if wanted and not tables:
            raise InputError(f"audio files have no column {wanted[0]!r}: give a table that names them")
        scans: dict[str, TableScan] = {}
        for shard in tables:
            source = shard.files[0].source
            if shard.files[0].gone or self._is_done(shard) or self._is_past_limit(scans):
                continue
            scan = self._scan(source)
            if shard.table_rows not in (None, scan.rows) and self._is_begun(shard):
                raise OutputError(
                    f"{self.output} has results of {source}, which had {shard.table_rows} rows and has "
                    f"{scan.rows}: put it back as it was, or choose another output directory"
                )
            if scan.rows:
                require_columns([*wanted, *asked], source, scan.columns)
            scans[source] = scan
        return scans

    def _is_past_limit(self, scans: Mapping[str, TableScan]) -> bool:
        """Whether the first rows that a limit takes are all in tables that were scanned."""
        config = self.work.config
        is_of_first = config.limit is not None and config.where is None and config.shuffle_seed is None
        return is_of_first and sum(scan.rows for scan in scans.values()) >= (config.limit or 0)

    def _scan(self, source: str) -> TableScan:
        config = self.work.config
        path = self.files[source].path
        typed = tuple(dict.fromkeys((*config.keep_columns, *self.work.typed_columns)))
        return scan_table(path, stride=config.rows_per_part, typed=typed)

    def _is_done(self, shard: Shard) -> bool:
        names = [chunk.part_name for chunk in self.cut([shard])] if shard.table_rows is not None else [""]
        return all(name in self.parts for name in names)

    def _is_begun(self, shard: Shard) -> bool:
        return any(chunk.part_name in self.parts for chunk in self.cut([shard]))

    def refuse_strange_parts(self, chunks: Sequence[Chunk]) -> None:
        strange = sorted(self.parts - {chunk.part_name for chunk in chunks})
        if strange:
            raise OutputError(
                f"{self.output} holds {strange[0]}, which is no part of this run: "
                "remove it or choose another output directory"
            )

    def valid_parts(self, chunks: Sequence[Chunk]) -> dict[str, Footer]:
        """Footers of the parts that are whole; one that is broken is written again."""
        found = {}
        for chunk in chunks:
            if chunk.part_name in self.parts:
                footer = self.compacted.get(chunk.part_name) or read_footer(self.output, chunk.part_name)
                if footer is not None and is_part_of(footer, chunk):
                    found[chunk.part_name] = footer
        return found

    def retried(self, reused: Mapping[str, Footer]) -> set[str]:
        """The parts whose failed rows are to be run again."""
        if not self.work.config.retry_errors:
            return set()
        found = {name for name, footer in reused.items() if footer.rows_failed}
        if not found.isdisjoint(self.compacted):
            raise OutputError(
                f"{self.output} was compacted: the failed rows in its large files cannot be run again there"
            )
        return found

    def task(self, chunk: Chunk, scans: Mapping[str, TableScan], picks: Picks) -> ChunkTask:
        paths = tuple(self.files[file.source].path for file in chunk.files)
        if not chunk.is_table:
            return ChunkTask(chunk=chunk, paths=paths)
        source = chunk.files[0].source
        config = self.work.config
        if source not in scans:  # every part was there, but one of them is broken
            scans = {source: self._scan(source)}
        scan = scans[source]
        content = self.work.content_columns(source, scan.columns)
        extra = [each for each in (config.id_column, *config.keep_columns) if each]
        picked = tuple(map(int, picks[source][chunk.start : chunk.stop])) if source in picks else None
        first_row = picked[0] if picked else chunk.start
        at = first_row // config.rows_per_part
        return ChunkTask(
            chunk=chunk,
            paths=paths,
            first_row=at * config.rows_per_part if scan.offsets else first_row,
            offset=scan.offsets[at] if scan.offsets else 0,
            picked=picked,
            content=content,
            columns=tuple(dict.fromkeys((*content, *extra))),
        )


def _in_order(tasks: Sequence[ChunkTask], shuffle_seed: int | None) -> tuple[ChunkTask, ...]:
    """Tasks in a random order, or with most work first, so that a large one is not the tail of the run."""
    if shuffle_seed is not None:
        return tuple(random.Random(shuffle_seed).sample(tasks, len(tasks)))
    return tuple(sorted(tasks, key=lambda task: -task.chunk.work))


def _change(before: ShardFile, now: InputFile | None) -> str:
    if now is None:
        return "is gone"
    if now.size != before.size:
        return f"was {before.size} bytes and is {now.size}"
    return "was modified since, its size unchanged (ignore_mtime takes it for unchanged)"


def _with_rows(shard: Shard, scans: Mapping[str, TableScan]) -> Shard:
    scan = scans.get(shard.files[0].source) if shard.is_table else None
    if scan is not None:
        return replace(shard, table_rows=scan.rows)
    return replace(shard, table_rows=0) if shard.is_table and shard.table_rows is None else shard


def _kept_schema(names: Sequence[str], scans: Mapping[str, TableScan], before: pa.Schema) -> pa.Schema:
    """Types of the kept columns, the same in all tables and in all launches of a run."""
    fields = []
    for name in names:
        earlier = before.field(name).type if name in before.names else None
        chosen = earlier or pa.null()
        for source, scan in scans.items():
            found = scan.types.get(name, pa.null())
            wider = wider_type(chosen, found)
            if wider is None or (earlier is not None and wider != earlier):
                raise InputError(
                    f"the kept column {name!r} is {found} in {source} and {chosen} elsewhere: "
                    "give it one type, or do not keep it"
                )
            chosen = wider
        fields.append(pa.field(name, pa.string() if pa.types.is_null(chosen) else chosen))
    return pa.schema(fields)

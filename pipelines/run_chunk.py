"""The DoFn that runs a chunk: its rows through the resident engine, its part committed, a manifest out."""

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.shared import Shared
from apache_beam.utils.windowed_value import WindowedValue

from headrace.audio import HeadraceError
from headrace.engines import EngineError
from headrace.pipelines.beam_metrics import increase, observe
from headrace.pipelines.budget import HaltedError, check_budget, check_halt
from headrace.pipelines.commit import Footer, is_part_of, read_footer, read_part, write_part
from headrace.pipelines.dataset_tables import is_dataset
from headrace.pipelines.files import is_local
from headrace.pipelines.in_flight import IN_FLIGHT
from headrace.pipelines.journal import attempt, forget, past_attempts
from headrace.pipelines.metrics import count_errors, memory_metrics, part_metrics, rate_metrics
from headrace.pipelines.persistence import failure_reason, persist, refuse_full_disk
from headrace.pipelines.plan import ChunkTask
from headrace.pipelines.prometheus import METRICS_SERVER
from headrace.pipelines.resident import Resident, acquire_resident, retire
from headrace.pipelines.side_by_side import SideBySide
from headrace.pipelines.stall_watch import STALLS, Watched
from headrace.pipelines.suspects import Verdict, judge, trials
from headrace.pipelines.tables import read_rows
from headrace.pipelines.window import ChunkProgress, Lane, PlacedRow, Window
from headrace.pipelines.work import ResultRow, Work, WorkRow

logger = logging.getLogger(__name__)

MISSING = "missing: "
"""Beginning of the counters of parts that could not be committed; the rest says why."""

# Engines that a chunk may be the death of: enough to find one culprit in groups, then alone.
_MAX_ENGINES = 6


class InputChangedError(HeadraceError, RuntimeError):
    """A table is not as it was when the run began; the chunk is not committed."""


class Manifest(NamedTuple):
    """What comes out of the pipeline for each chunk; `missing` says why its part could not be committed."""

    part: str
    rows: int
    missing: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """What a launch tells its workers, besides the work."""

    output: str
    """Directory of the results."""
    is_strict: bool = False
    """Whether an end of a worker that nobody saw is held for a row's doing at once."""
    deadline: float | None = None
    """Time from which on no chunk is begun, in seconds since 1970."""
    chunks_at_once: int = 1
    """Chunks of a bundle that run beside each other: as one runs out of rows, the next fill the engine."""


class Committed(NamedTuple):
    """What is told of a part that was committed just now."""

    footer: Footer
    results: list[ResultRow]
    resident: Resident


class Ended(NamedTuple):
    """How a chunk ended; nothing was committed where the part was there before, or is missing."""

    manifest: Manifest
    committed: Committed | None = None


class RunChunk(beam.DoFn):
    """Chunks in, a manifest of the committed parts out."""

    def __init__(self, work: Work, launch: Launch, shared: Shared) -> None:
        self._work = work
        self._launch = launch
        self._output = launch.output
        self._shared = shared
        self._resident: Resident | None = None

    def start_bundle(self) -> None:
        self._chunks = SideBySide[Ended](self._launch.chunks_at_once)

    def process(self, element: ChunkTask) -> Iterator[Manifest]:
        self._chunks.begin(partial(self._try, element))
        while self._chunks.is_full:
            yield self._tell(self._chunks.take())

    def finish_bundle(self) -> Iterator[WindowedValue]:
        while self._chunks.is_busy:
            yield GlobalWindows.windowed_value(self._tell(self._chunks.take()))

    def teardown(self) -> None:
        self._resident = None

    def _try(self, task: ChunkTask) -> Ended:
        """Commits a chunk, or says why it cannot be, where the others go on."""
        name, rows = task.chunk.part_name, task.chunk.rows
        try:
            if not task.retry and is_part_of(read_footer(self._output, name), task.chunk):
                return Ended(Manifest(name, rows))
            check_budget(self._work.config, self._launch.deadline, self._output)
            refuse_full_disk(self._output)
            return Ended(Manifest(name, rows), self._run_until_engine_lives(task))
        except HaltedError as error:
            return Ended(Manifest(name, rows, str(error)))
        except (OSError, pa.ArrowException, InputChangedError) as error:
            reason = failure_reason(error)
            logger.error("%s: %s", name, reason)
            return Ended(Manifest(name, rows, reason))

    def _tell(self, ended: Ended) -> Manifest:
        """Adds to Beam's metrics how a chunk ended: in the bundle's thread, or they are lost."""
        manifest = ended.manifest
        if manifest.missing is not None:
            IN_FLIGHT.miss(self._output, manifest.part, manifest.missing)
            increase(f"{MISSING}{manifest.missing}", 1)
        if ended.committed is not None:
            self._count(*ended.committed)
        return manifest

    def _run_until_engine_lives(self, task: ChunkTask) -> Committed:
        """Runs a chunk, with another engine where one dies; the journal says which rows to suspect."""
        for tries_left in reversed(range(_MAX_ENGINES)):
            resident = self._acquire()
            try:
                return self._run(task, resident)
            except EngineError as error:
                is_worth_it = retire(resident) and tries_left > 0
                # It may have died of a row of another chunk; with no row in it at all, none did it.
                if not is_worth_it or not any(each.in_flight for each in past_attempts(self._output)):
                    raise
                logger.warning("the engine has died and is loaded again: %s", error)
        raise AssertionError("the last try returns or raises")

    def _acquire(self) -> Resident:
        """The living engine of the process, which this DoFn keeps alive from now on."""
        resident = acquire_resident(self._shared, self._work.load)
        port = self._work.config.prometheus_port
        if resident is not self._resident and port is not None:
            METRICS_SERVER.show(port, resident, self._output)
        self._resident = resident
        return resident

    def _run(self, task: ChunkTask, resident: Resident) -> Committed:
        started_s = time.monotonic()
        name = task.chunk.part_name
        verdict = judge(past_attempts(self._output, name), strict=self._launch.is_strict)
        with IN_FLIGHT.part(self._output, name) as add, attempt(self._output, name) as journal:
            config = self._work.config
            watched = Watched(resident.engine, journal, config.row_timeout_s or None)
            progress = ChunkProgress(add, lambda: check_halt(config, self._output))
            shared = resident.shared_outputs(self._output) if config.dedupe else None
            lane = Lane(self._work, resident.engine, progress, journal, watched, shared)
            try:
                with STALLS.watching(watched):
                    results = run_rows(lane, task, verdict, self._results_to_keep(task))
            finally:
                resident.has_served = resident.has_served or watched.rows_out > 0
            footer = self._footer(task, results, resident, time.monotonic() - started_s)
            rows = [each.values for each in results]
            persist(lambda: write_part(self._output, rows, self._work.schema, footer), self._output)
        forget(self._output, [name])
        return Committed(footer, results, resident)

    def _results_to_keep(self, task: ChunkTask) -> dict[int, ResultRow]:
        """Rows without an error of the part that is there, by their places, where the others are retried."""
        rows = read_part(self._output, task.chunk.part_name) if task.retry else []
        unit = "completion_tokens" if self._work.unit == "tokens" else "duration_s"
        kept = {}
        for place, (_, group) in enumerate(groupby(rows, key=lambda row: (row["source"], row["row"]))):
            first, *further = [ResultRow(row, None, float(row[unit] or 0.0)) for row in group]
            if all(each.values["error"] is None for each in (first, *further)):
                kept[place] = first._replace(further=tuple(further))
        return kept

    def _footer(self, task: ChunkTask, results: list[ResultRow], resident: Resident, wall_s: float) -> Footer:
        chunk, work = task.chunk, self._work
        errors = count_errors(each.error.kind for each in results if each.error is not None)
        return Footer(
            part=chunk.part_name,
            job=work.job,
            fingerprint=chunk.fingerprint,
            shard=chunk.shard,
            chunk=chunk.index,
            start=chunk.start,
            stop=chunk.stop,
            rows=len(results),
            num_inputs=None if len(results) == chunk.rows else chunk.rows,
            rows_failed=sum(errors.values()),
            errors=errors,
            units=math.fsum(each.units for each in results),
            metrics={
                **part_metrics([each.values for each in results], sums=work.sums, times=work.times),
                **rate_metrics(math.fsum(each.units for each in results), work.unit, wall_s),
                **memory_metrics(),
                "deduplicated_rows": float(sum(each.is_copy for each in results)),
            },
            engine={name: float(value) for name, value in resident.engine.counters().items()},
            device=resident.device,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            finished_at=time.time(),
            wall_s=wall_s,
        )

    def _count(self, footer: Footer, results: list[ResultRow], resident: Resident) -> None:
        increase("parts", 1)
        increase("rows", footer.rows)
        increase("rows_failed", footer.rows_failed)
        increase("model_loads", resident.take_loads())
        for kind, count in footer.errors.items():
            increase(f"errors_{kind}", count)
        for name in ("deduplicated_rows", *self._work.sums):
            increase(name, footer.metrics[name])
        for name, growth in resident.take_growth().items():
            increase(f"engine_{name}", growth)
        for name in self._work.times:
            for each in results:
                if each.values.get(name) is not None:
                    observe(name, each.values[name])


def run_rows(lane: Lane, task: ChunkTask, verdict: Verdict, kept: Mapping[int, ResultRow]) -> list[ResultRow]:
    """Results of a chunk's rows, in their order, with a bounded number of rows in the engine at a time.

    Of one row there may be several results.

    Rows whose places are in `kept` have their results already.

    Rows that are suspected of having ended an earlier attempt come last, with the engine to themselves.

    Raises:
      EngineError: the engine has failed.
      StoppedError: the run was told to stop.
      HaltedError: the run is over its budget.
      InputChangedError: the table is not as it was when the run began.
    """
    window = Window(lane)
    suspects: dict[int, WorkRow] = {}
    try:
        with window.bringing():
            for place, row in enumerate(work_rows(lane.work, task)):
                if place in kept:
                    window.keep(place, kept[place])
                elif place in verdict.condemned:
                    window.submit(place, replace(row, error=row.error or verdict.condemned[place]))
                elif place in verdict.suspects:
                    suspects[place] = row
                else:
                    window.submit(place, row)
        window.finish()
        for group in trials({place: verdict.suspects[place] for place in suspects}, strict=verdict.is_strict):
            window.try_alone([PlacedRow(place, suspects[place]) for place in group])
    except BaseException:
        window.abandon()
        raise
    results = window.results
    if len(results) != task.chunk.rows:
        raise _changed(task.chunk.files[0].source)
    return [each for place in range(len(results)) for each in _rows_of(results[place])]


def _rows_of(result: ResultRow) -> Iterator[ResultRow]:
    yield result._replace(further=())
    for each in result.further:
        yield each._replace(is_copy=result.is_copy)


def work_rows(work: Work, task: ChunkTask) -> Iterator[WorkRow]:
    """The rows of a chunk, ready to be submitted.

    Raises:
      InputChangedError: the table is not as it was when the run began.
    """
    chunk = task.chunk
    if not chunk.is_table:
        for path, file in zip(task.paths, chunk.files, strict=True):
            yield work.prepare_file(path, file.source)
        return
    path, source = task.paths[0], chunk.files[0].source
    numbers = task.picked or range(chunk.start, chunk.stop)
    wanted = range(chunk.start, chunk.stop) if task.picked is None else frozenset(task.picked)
    for row in read_rows(path, task.first_row, numbers[-1] + 1, offset=task.offset, columns=task.columns):
        if row.row in wanted:
            yield work.prepare(row, path, source, task.content)
    size = chunk.files[0].size
    if size is not None and is_local(path) and not is_dataset(path) and os.path.getsize(path) != size:
        raise _changed(source)


def _changed(source: str) -> InputChangedError:
    return InputChangedError(f"{source} was changed while it was read: put it back as it was")

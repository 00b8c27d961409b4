"""The DoFn that runs a chunk: its rows through the resident engine, its part committed, a manifest out."""

import logging
import math
import os
import queue
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.utils.shared import Shared

from headrace.audio import HeadraceError
from headrace.engines import EngineError, RowError
from headrace.pipelines.beam_metrics import increase, observe
from headrace.pipelines.commit import Footer, is_part_of, read_footer, write_part
from headrace.pipelines.files import is_local
from headrace.pipelines.in_flight import IN_FLIGHT, Tally
from headrace.pipelines.metrics import count_errors, part_metrics
from headrace.pipelines.plan import ChunkTask
from headrace.pipelines.resident import Resident, acquire_resident
from headrace.pipelines.tables import read_rows
from headrace.pipelines.work import ResultRow, Work, WorkRow

logger = logging.getLogger(__name__)

# Requests in the engine's hands, for each of its slots: enough that a slot never waits for a row to be read.
_WINDOW_PER_SLOT = 3
_MAX_WINDOW_BYTES = 256 << 20
_POLL_S = 0.5


class StoppedError(HeadraceError, RuntimeError):
    """The run was told to stop; the chunk is not committed."""


class InputChangedError(HeadraceError, RuntimeError):
    """A table is not as it was when the run began; the chunk is not committed."""


class Manifest(NamedTuple):
    """What comes out of the pipeline for each chunk."""

    part: str
    rows: int


class ChunkProgress(NamedTuple):
    """How a chunk tells what it has done, and learns that it is to stop."""

    add: Callable[[Tally], None]
    is_stopped: Callable[[], bool]


class _Submitted(NamedTuple):
    place: int
    row: WorkRow
    future: "Future[Any]"


class RunChunk(beam.DoFn):
    """Chunks in, a manifest of the committed parts out."""

    def __init__(self, work: Work, output: str, shared: Shared) -> None:
        self._work = work
        self._output = output
        self._shared = shared
        self._resident: Resident | None = None

    def process(self, element: ChunkTask) -> Iterable[Manifest]:
        chunk = element.chunk
        if not is_part_of(read_footer(self._output, chunk.part_name), chunk):
            if self._resident is None:
                self._resident = acquire_resident(self._shared, self._work.load)
            self._run(element, self._resident)
        yield Manifest(chunk.part_name, chunk.rows)

    def teardown(self) -> None:
        self._resident = None

    def _run(self, task: ChunkTask, resident: Resident) -> None:
        started_s = time.monotonic()
        with IN_FLIGHT.part(self._output, task.chunk.part_name) as add:
            progress = ChunkProgress(add, lambda: IN_FLIGHT.is_stopped(self._output))
            results = run_rows(self._work, resident.engine, task, progress)
            footer = self._footer(task, results, resident, time.monotonic() - started_s)
            write_part(self._output, [each.values for each in results], self._work.schema, footer)
        self._count(footer, results, resident)

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
            rows_failed=sum(errors.values()),
            errors=errors,
            units=math.fsum(each.units for each in results),
            metrics=part_metrics([each.values for each in results], sums=work.sums, times=work.times),
            engine={name: float(value) for name, value in resident.engine.metrics().items()},
            device=resident.device,
            worker=f"{socket.gethostname()}:{os.getpid()}",
            finished_at=time.time(),
            wall_s=wall_s,
        )

    def _count(self, footer: Footer, results: list[ResultRow], resident: Resident) -> None:
        """Adds a part to Beam's metrics; they are lost without a word in any thread but the bundle's."""
        increase("parts", 1)
        increase("rows", footer.rows)
        increase("rows_failed", footer.rows_failed)
        increase("model_loads", resident.take_loads())
        for kind, count in footer.errors.items():
            increase(f"errors_{kind}", count)
        for name in self._work.sums:
            increase(name, footer.metrics[name])
        for name, growth in resident.take_growth().items():
            increase(f"engine_{name}", growth)
        for name in self._work.times:
            for each in results:
                if each.values.get(name) is not None:
                    observe(name, each.values[name])


def run_rows(work: Work, engine: Any, task: ChunkTask, progress: ChunkProgress) -> list[ResultRow]:
    """Results of a chunk's rows, in their order, with a bounded number of them in the engine at a time.

    Raises:
      EngineError: the engine has failed.
      StoppedError: the run was told to stop.
      InputChangedError: the table is not as it was when the run began.
    """
    window = _Window(work, engine, progress)
    try:
        for place, row in enumerate(_work_rows(work, task)):
            window.submit(place, row)
        window.finish()
    except BaseException:
        window.abandon()
        raise
    results = window.results
    if len(results) != task.chunk.rows:
        raise _changed(task.chunk.files[0].source)
    return [results[place] for place in range(len(results))]


class _Window:
    """Rows on their way through the engine; results come back in any order."""

    def __init__(self, work: Work, engine: Any, progress: ChunkProgress) -> None:
        self.results: dict[int, ResultRow] = {}
        self._work = work
        self._engine = engine
        self._progress = progress
        self._max_rows = max(2, _WINDOW_PER_SLOT * engine.num_slots)
        self._num_rows = 0
        self._num_bytes = 0
        self._finished: queue.SimpleQueue[_Submitted] = queue.SimpleQueue()

    def submit(self, place: int, row: WorkRow) -> None:
        """Hands a row to the engine, after waiting for room."""
        if row.error is not None:
            self._keep(place, self._work.fail(row))
            return
        while self._num_rows and not self._has_room(row):
            self._collect()
        try:
            future = self._work.submit(self._engine, row)
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - one row must not stop the rest
            self._keep(place, self._work.fail(_with_unexpected(row, error)))
            return
        self._num_rows += 1
        self._num_bytes += row.payload_bytes
        submitted = _Submitted(place, row, future)
        future.add_done_callback(lambda _: self._finished.put(submitted))

    def finish(self) -> None:
        """Waits for the rows that are in the engine."""
        while self._num_rows:
            self._collect()

    def abandon(self) -> None:
        """Waits for the rows in the engine without results, so that a retry may submit the same rows."""
        while self._num_rows and not self._progress.is_stopped():
            try:
                self._finished.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._num_rows -= 1

    def _has_room(self, row: WorkRow) -> bool:
        return self._num_rows < self._max_rows and self._num_bytes + row.payload_bytes <= _MAX_WINDOW_BYTES

    def _collect(self) -> None:
        while True:
            if self._progress.is_stopped():
                raise StoppedError("the run was told to stop")
            try:
                place, row, future = self._finished.get(timeout=_POLL_S)
                break
            except queue.Empty:
                continue
        self._num_rows -= 1
        self._num_bytes -= row.payload_bytes
        error = future.exception()
        if isinstance(error, EngineError):
            raise error
        if error is not None:
            self._keep(place, self._work.fail(_with_unexpected(row, error)))
        else:
            self._keep(place, self._work.finish(row, future.result()))

    def _keep(self, place: int, result: ResultRow) -> None:
        self.results[place] = result
        self._progress.add(Tally(1, int(result.error is not None), result.units))


def _with_unexpected(row: WorkRow, error: BaseException) -> WorkRow:
    """The row with an error that no engine should give: the log gets its type, the row its text."""
    logger.warning("a row failed unexpectedly: %s", type(error).__name__)
    text = " ".join(str(error).split())
    return replace(row, error=RowError("unexpected", f"{type(error).__name__}: {text}"))


def _work_rows(work: Work, task: ChunkTask) -> Iterator[WorkRow]:
    chunk = task.chunk
    if not chunk.is_table:
        for path, file in zip(task.paths, chunk.files, strict=True):
            yield work.prepare_file(path, file.source)
        return
    path, source = task.paths[0], chunk.files[0].source
    rows = read_rows(path, chunk.start, chunk.stop, offset=task.offset, columns=task.columns)
    for row in rows:
        yield work.prepare(row, path, source, task.content)
    if is_local(path) and os.path.getsize(path) != chunk.files[0].size:
        raise _changed(source)


def _changed(source: str) -> InputChangedError:
    return InputChangedError(f"{source} was changed while it was read: put it back as it was")

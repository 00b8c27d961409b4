"""The rows of one chunk on their way through the engine: a bounded number at a time, back in any order."""

import logging
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from headrace.engines import EngineError, RowError
from headrace.pipelines.budget import HaltedError, StoppedError
from headrace.pipelines.duplicates import Sent, SharedOutputs, content_key
from headrace.pipelines.in_flight import Tally
from headrace.pipelines.journal import Journal
from headrace.pipelines.stall_watch import Watched
from headrace.pipelines.turnstile import TURNSTILE, Turn
from headrace.pipelines.work import ResultRow, Work, WorkRow

logger = logging.getLogger(__name__)

# Requests in the engine's hands, for each of its slots: enough that a slot never waits for a row to be read.
_WINDOW_PER_SLOT = 3
_BUSY_PER_SLOT = 1.5  # an engine with so many rows is busy for a while
_MAX_WINDOW_BYTES = 256 << 20
_POLL_S = 0.5


class ChunkProgress(NamedTuple):
    """How a chunk tells what it has done, and learns that it is to stop."""

    add: Callable[[Tally], None]
    check: Callable[[], None]
    """Raises StoppedError or HaltedError where the run is to stop."""


class PlacedRow(NamedTuple):
    """A row and its place in the chunk."""

    place: int
    row: WorkRow


class _Submitted(NamedTuple):
    place: int
    row: WorkRow
    future: "Future[Any]"
    is_first: bool


class Lane(NamedTuple):
    """What a window works with."""

    work: Work
    """The job."""
    engine: Any
    """The engine that the process shares."""
    progress: ChunkProgress
    """Where it tells what it has done."""
    journal: Journal
    """Where it notes which rows are in the engine."""
    watched: Watched
    """What the stall watch sees of it."""
    shared: SharedOutputs | None = None
    """Outputs that rows of equal content share; None where each row is sent."""


class Window:
    """Rows on their way through the engine; `results` are keyed by the rows' places."""

    def __init__(self, lane: Lane) -> None:
        self.results: dict[int, ResultRow] = {}
        self._lane = lane
        self._max_rows = max(2, _WINDOW_PER_SLOT * lane.engine.num_slots)
        self._turn: Turn | None = None
        self._num_rows = 0
        self._num_bytes = 0
        self._finished: queue.SimpleQueue[_Submitted] = queue.SimpleQueue()

    @contextmanager
    def bringing(self) -> Iterator[None]:
        """While the chunk's rows are submitted: they go in after those of chunks that began before it."""
        with TURNSTILE.turn(round(_BUSY_PER_SLOT * self._lane.engine.num_slots)) as self._turn:
            yield
        self._turn = None

    def submit(self, place: int, row: WorkRow) -> None:
        """Hands a row to the engine, after waiting for room."""
        self._lane.progress.check()
        if row.error is not None:
            self.keep(place, self._lane.work.fail(row))
            return
        while self._num_rows and not self._has_room(row):
            self._collect()
        TURNSTILE.enter(self._lane.progress.check, self._turn)
        try:
            future, is_first = self._send(place, row)
        except EngineError:  # it had ended before this row
            raise
        except Exception as error:  # noqa: BLE001 - one row must not stop the rest
            self.keep(place, self._lane.work.fail(_with_unexpected(row, error)))
            return
        if not is_first:
            TURNSTILE.leave()
        self._num_rows += 1
        self._num_bytes += row.payload_bytes
        submitted = _Submitted(place, row, future, is_first)
        future.add_done_callback(lambda _: self._came_back(submitted))

    def finish(self) -> None:
        """Waits for the rows that are in the engine."""
        while self._num_rows:
            self._collect()

    def try_alone(self, rows: Sequence[PlacedRow]) -> None:
        """Runs suspects with nothing else in the engine, so that its end would show who they are."""
        with TURNSTILE.alone(self._lane.progress.check):
            self._lane.journal.trial([each.place for each in rows])
            for each in rows:
                self.submit(each.place, each.row)
            self.finish()
            self._lane.journal.trial([])

    def abandon(self) -> None:
        """Waits for the rows in the engine without results, so that a retry may submit the same rows."""
        while self._num_rows:
            try:
                self._lane.progress.check()
                self._finished.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            except (StoppedError, HaltedError):
                return
            self._num_rows -= 1

    def _send(self, place: int, row: WorkRow) -> Sent:
        """The future of a row's output, with the work sent to the engine where no other row's is the same."""

        def submit() -> "Future[Any]":
            self._lane.journal.submitted(place)
            self._lane.watched.went_in()
            try:
                return self._lane.work.submit(self._lane.engine, row)
            except BaseException:
                self._came_out(place)
                raise

        shared = self._lane.shared
        return Sent(submit(), True) if shared is None else shared.send(content_key(row), submit)

    def _came_back(self, submitted: _Submitted) -> None:
        """Called by the engine's thread."""
        if not submitted.is_first:
            self._finished.put(submitted)
            return
        if isinstance(submitted.future.exception(), EngineError):
            TURNSTILE.leave()  # the journal keeps it: it was there when the engine ended
        else:
            self._came_out(submitted.place)
        self._finished.put(submitted)

    def _came_out(self, place: int) -> None:
        self._lane.journal.finished(place)
        self._lane.watched.came_out()
        TURNSTILE.leave()

    def _has_room(self, row: WorkRow) -> bool:
        return self._num_rows < self._max_rows and self._num_bytes + row.payload_bytes <= _MAX_WINDOW_BYTES

    def _collect(self) -> None:
        while True:
            self._lane.progress.check()
            try:
                place, row, future, is_first = self._finished.get(timeout=_POLL_S)
                break
            except queue.Empty:
                continue
        self._num_rows -= 1
        self._num_bytes -= row.payload_bytes
        error = future.exception()
        if isinstance(error, EngineError):
            raise error
        if error is not None:
            self.keep(place, self._lane.work.fail(_with_unexpected(row, error)))
        else:
            result = self._lane.work.finish(row, future.result())
            self.keep(place, result._replace(is_copy=not is_first))

    def keep(self, place: int, result: ResultRow) -> None:
        """Takes the result of a row that needs no engine, or has left it."""
        self.results[place] = result
        all_rows = (result, *result.further)
        failed = any(each.error is not None for each in all_rows)
        self._lane.progress.add(Tally(1, int(failed), sum(each.units for each in all_rows)))


def _with_unexpected(row: WorkRow, error: BaseException) -> WorkRow:
    """The row with an error that no engine should give: the log gets its type, the row its text."""
    logger.warning("a row failed unexpectedly: %s", type(error).__name__)
    text = " ".join(str(error).split())
    return replace(row, error=RowError("unexpected", f"{type(error).__name__}: {text}"))

"""What a run would cost: some of its rows, taken from all over the input, run here and measured."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headrace.pipelines.errors import InputError
from headrace.pipelines.plan import ChunkTask
from headrace.pipelines.prepared_run import PreparedRun
from headrace.pipelines.run_chunk import work_rows
from headrace.pipelines.work import ResultRow, ServingEngine, Work, WorkRow

# Rows of one place in the input; more of them would be alike.
_ROWS_A_PLACE = 4
# Two standard errors: 95 of 100 such ranges hold the true mean.
_WIDTH = 1.96


class Range(NamedTuple):
    """A value with the range that the sample leaves it."""

    low: float
    middle: float
    high: float

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, self.middle * factor, self.high * factor)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """What the sample says of the whole run."""

    num_rows: int
    """Rows of the sample."""
    num_failed: int
    """Rows of the sample that failed."""
    rows_left: int
    """Rows of the run that have no result yet."""
    units_per_row: Range
    """Tokens, or seconds of audio, of a row."""
    units_per_s: float
    """Units a second of this machine once it was warm, its last rows running out included."""
    load_s: float
    """Seconds to load the model and to warm up."""

    @property
    def seconds(self) -> Range:
        """Seconds that the run would take on one machine like this one."""
        if self.units_per_s <= 0:
            return Range(math.nan, math.nan, math.nan)
        computing = self.units_per_row.times(self.rows_left / self.units_per_s)
        return Range(*(value + self.load_s for value in computing))


def estimate(run: PreparedRun, num_rows: int) -> Estimate:
    """Runs `num_rows` rows of a planned run through the engine, without a pipeline, and keeps no result.

    The first half warms the engine up; the time of the second counts.

    Raises:
      InputError: fewer than 2 rows are wanted, or the run is done.
    """
    if num_rows < 2:
        raise InputError(f"a sample of {num_rows} rows tells nothing: give at least 2")
    if not run.plan.tasks:
        raise InputError(f"{run.output} has every row already: there is nothing to estimate")
    rows = list(_sample(run, num_rows))
    started_s = time.monotonic()
    engine = run.work.load()
    try:
        # Every other row, so that both halves are of all places.
        results = _run(run.work, engine, rows[::2])
        warm_s = time.monotonic()
        timed = _run(run.work, engine, rows[1::2])
        ended_s = time.monotonic()
    finally:
        engine.close()
    results += timed
    units = math.fsum(each.units for each in timed)
    return Estimate(
        num_rows=len(results),
        num_failed=sum(each.error is not None for each in results),
        rows_left=sum(task.chunk.rows for task in run.plan.tasks),
        units_per_row=_mean([each.units for each in results]),
        units_per_s=units / max(ended_s - warm_s, 1e-9),
        load_s=warm_s - started_s,
    )


def _sample(run: PreparedRun, num_rows: int) -> Iterator[WorkRow]:
    """Rows from the beginnings of chunks that lie evenly over the run."""
    tasks = run.plan.tasks
    num_places = min(len(tasks), -(-num_rows // _ROWS_A_PLACE))
    each = -(-num_rows // num_places)
    left = num_rows
    for place in range(num_places):
        task = _beginning(tasks[place * len(tasks) // num_places], min(each, left))
        for row in work_rows(run.work, task):
            left -= 1
            yield row


def _beginning(task: ChunkTask, num_rows: int) -> ChunkTask:
    chunk = task.chunk
    if chunk.is_table:
        shorter = replace(chunk, stop=min(chunk.start + num_rows, chunk.stop))
        return replace(task, chunk=shorter, picked=task.picked and task.picked[:num_rows])
    files = chunk.files[:num_rows]
    return replace(task, chunk=replace(chunk, files=files), paths=task.paths[: len(files)])


def _run(work: Work, engine: ServingEngine, rows: Sequence[WorkRow]) -> list[ResultRow]:
    submitted: list[tuple[WorkRow, Future[Any] | None]] = [
        (row, None if row.error is not None else work.submit(engine, row)) for row in rows
    ]
    return [
        work.fail(row) if future is None else work.finish(row, future.result()) for row, future in submitted
    ]


def _mean(values: Sequence[float]) -> Range:
    middle = statistics.fmean(values)
    half = _WIDTH * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else middle
    return Range(max(middle - half, 0.0), middle, middle + half)

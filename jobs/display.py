"""Progress and summary of a run on stderr: one live line on a terminal, plain log lines elsewhere."""

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from headrace.engines.ratios import RATIOS
from headrace.jobs.logs import print_line, stderr_console
from headrace.pipelines import Progress, RunSummary

if TYPE_CHECKING:
    import rich.progress

logger = logging.getLogger(__name__)

LOG_EVERY_S = 10.0
"""Time between progress lines where stderr is not a terminal."""
SHORT_UNITS = {"tokens": "tokens/s", "audio seconds": "audio s/s"}


class ProgressDisplay:
    """Shows each Progress that it is called with; a context manager that clears its line at the end."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._logged_at = -LOG_EVERY_S
        self._live = _live_line() if is_live() else None

    def __enter__(self) -> "ProgressDisplay":
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        text = progress_text(progress, self._unit)
        if self._live is not None:
            self._live.update(
                self._live.task_ids[0],
                total=progress.rows_total,
                completed=progress.rows_done,
                description=text,
            )
        elif time.monotonic() - self._logged_at >= LOG_EVERY_S:
            self._logged_at = time.monotonic()
            logger.info("%s", text)


def is_live() -> bool:
    """Whether stderr is a terminal that can redraw a line."""
    console = stderr_console()
    return console.is_terminal and not console.is_dumb_terminal


def progress_text(progress: Progress, unit: str) -> str:
    """`120 of 400 rows, 2 failed, 310 tokens/s, 1 min 20 s left`."""
    parts = [
        f"{progress.rows_done:,} of {progress.rows_total:,} rows",
        f"{progress.rows_failed:,} failed",
    ]
    if progress.units_per_s > 0:
        parts.append(f"{format_rate(progress.units_per_s)} {SHORT_UNITS[unit]}")
    if progress.eta_s is not None:
        parts.append(f"{format_seconds(progress.eta_s)} left")
    return ", ".join(parts)


def print_summary(summary: RunSummary) -> None:
    for line in summary_lines(summary):
        print_line(line)


def summary_lines(summary: RunSummary) -> list[str]:
    """Rows, errors by kind, throughput, parts and place of the output, one a line."""
    lines = [f"rows        {summary.rows:,}, {summary.rows_failed:,} failed"]
    by_count = sorted(summary.errors_by_kind.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"  {kind:<9} {count:,}" for kind, count in by_count]
    if summary.rows_run:
        lines.append(
            f"throughput  {format_rate(summary.units_per_s)} {SHORT_UNITS[summary.unit]}: "
            f"{summary.units_run:,.0f} {summary.unit} in {format_seconds(summary.wall_s)}"
        )
    lines += ratio_lines(summary.ratios)
    lines.append(f"parts       {summary.parts_total:,}, of which {summary.parts_reused:,} were there already")
    lines.append(f"output      {summary.output}")
    return lines


def ratio_lines(ratios: Mapping[str, float]) -> list[str]:
    """`speculation 62% of the proposed tokens accepted, ...`; nothing where no token was proposed."""
    parts = [f"{RATIOS[name].form.format(value)} {RATIOS[name].label}" for name, value in ratios.items()]
    return [f"speculation {', '.join(parts)}"] if parts else []


def format_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def format_seconds(seconds: float) -> str:
    """`3.2 s`, `45 s`, `1 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, rest_min = divmod(minutes, 60)
    if hours:
        return f"{hours} h {rest_min} min"
    return f"{minutes} min {rest_s} s" if minutes else f"{rest_s} s"


def _live_line() -> "rich.progress.Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=stderr_console(),
        transient=True,
        redirect_stdout=False,
    )
    bar.add_task("starting", total=None)
    return bar

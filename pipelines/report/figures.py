"""The figures of a report: out of run.json, the footers of the parts, and the numbers in the results."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.pipelines.commit import Footer
from headrace.pipelines.committed import result_tables
from headrace.pipelines.run_view import RunView

_KEY = ("id", "source", "row")
_LENGTHS = {"generate": ("prompt_tokens", "completion_tokens"), "transcribe": ("duration_s", "num_tokens")}
_TIMES = ("latency_s", "ttft_s", "queue_s")
_NUM_EXTREMES = 10
_NUM_ERRORS = 20
_NUM_BINS = 48
_QUERY = re.compile(r"(https?://[^\s?#]+)[?#][^\s'\"]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFigures:
    """One row of the results, without its content."""

    id: str
    """Its id."""
    source: str
    """File that it came from."""
    row: int
    """Row in that file."""
    latency_s: float | None
    """Seconds from its submission to its end."""
    length: float | None
    """Tokens that it was answered with, or its seconds of audio."""
    error: str | None
    """Why it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a report shows besides the run's own record."""

    throughput: Sequence[tuple[float, float]]
    """Seconds since the first work, and units a second then."""
    at_work: Sequence[tuple[float, float]]
    """Seconds since the first work, and rows in the engines' hands then."""
    occupancy: Sequence[tuple[float, float]]
    """Seconds since the first work, and the share of the engine's slots that were at work then."""
    page_use: Sequence[tuple[float, float]]
    """Seconds since the first work, and the share of the engine's KV pages that rows held then."""
    columns: dict[str, list[float]]
    """Numbers of the rows by column: times and lengths."""
    slowest: Sequence[RowFigures]
    """The rows of the longest latency."""
    longest: Sequence[RowFigures]
    """The rows of the greatest length."""
    failed: Sequence[RowFigures]
    """Some of the rows that failed."""


def read_figures(view: RunView) -> Figures:
    """The figures of a run; reads no column of content."""
    length = length_column(view)
    wanted = [*_KEY, *_TIMES, *_LENGTHS[view.record.job], "error"]
    columns: dict[str, list[float]] = {name: [] for name in (*_TIMES, *_LENGTHS[view.record.job])}
    slowest: list[RowFigures] = []
    longest: list[RowFigures] = []
    failed: list[RowFigures] = []
    for table in result_tables(view.output, wanted):
        for name in columns:
            if name in table.column_names:
                columns[name] += table.column(name).drop_null().cast(pa.float64()).to_pylist()
        slowest = _most(slowest, table, "latency_s", length)
        longest = _most(longest, table, length, length)
        if len(failed) < _NUM_ERRORS:
            failed += [_row(each, length) for each in table.to_pylist() if each["error"] is not None]
    return Figures(
        throughput=throughput(view.footers),
        at_work=rows_at_work(view.footers),
        occupancy=share_in_use(view.footers, "slot_steps"),
        page_use=share_in_use(view.footers, "page_steps"),
        columns={name: values for name, values in columns.items() if values},
        slowest=slowest,
        longest=longest,
        failed=failed[:_NUM_ERRORS],
    )


def length_column(view: RunView) -> str:
    """The column of a row's length."""
    return "completion_tokens" if view.record.job == "generate" else "duration_s"


def throughput(footers: Sequence[Footer]) -> list[tuple[float, float]]:
    """Units a second over time."""
    return spread(footers, [footer.units for footer in footers])


def rows_at_work(footers: Sequence[Footer]) -> list[tuple[float, float]]:
    """Rows in the hands of all engines over time; none where the parts do not tell."""
    busy = [footer.metrics.get("busy_s") for footer in footers]
    return spread(footers, [value for value in busy if value is not None]) if None not in busy else []


def spread(footers: Sequence[Footer], amounts: Sequence[float]) -> list[tuple[float, float]]:
    """Amounts a second over time: that of a part is spread evenly over the time that the part took."""
    if not footers:
        return []
    start = min(footer.finished_at - footer.wall_s for footer in footers)
    stop = max(footer.finished_at for footer in footers)
    width = max((stop - start) / _NUM_BINS, 1e-3)
    bins = [0.0] * _NUM_BINS
    for footer, amount in zip(footers, amounts, strict=True):
        first = footer.finished_at - footer.wall_s - start
        last = max(footer.finished_at - start, first + 1e-6)
        for number in range(int(first / width), min(int(last / width), _NUM_BINS - 1) + 1):
            shared = min(last, (number + 1) * width) - max(first, number * width)
            bins[number] += amount * max(shared, 0.0) / (last - first)
    return [((number + 0.5) * width, amount / width) for number, amount in enumerate(bins)]


def share_in_use(footers: Sequence[Footer], counter: str) -> list[tuple[float, float]]:
    """Share of what an engine counts that was busy, between each part of a worker and the one before it.

    e.g. of `slot_steps` the slots at work. Nothing where an engine has no such counter.
    """
    if not footers:
        return []
    start = min(footer.finished_at - footer.wall_s for footer in footers)
    before: dict[str, tuple[float, float]] = {}
    found = []
    for footer in sorted(footers, key=lambda each: each.finished_at):
        busy, there = footer.engine.get(f"busy_{counter}"), footer.engine.get(counter)
        if busy is None or there is None:
            continue
        busy_before, there_before = before.get(footer.worker, (0.0, 0.0))
        if there > there_before:
            found.append((footer.finished_at - start, (busy - busy_before) / (there - there_before)))
            before[footer.worker] = (busy, there)
    return found


def without_queries(text: str) -> str:
    """A text with the queries of its addresses cut off: signatures lie there."""
    return _QUERY.sub(r"\1?...", text)


def _most(best: list[RowFigures], table: pa.Table, name: str, length: str) -> list[RowFigures]:
    ordered = table.filter(table.column(name).is_valid()).sort_by([(name, "descending")])
    rows = [_row(each, length) for each in ordered.slice(0, _NUM_EXTREMES).to_pylist()]
    attribute = "latency_s" if name == "latency_s" else "length"
    return sorted([*best, *rows], key=lambda row: -(getattr(row, attribute) or 0.0))[:_NUM_EXTREMES]


def _row(values: dict[str, Any], length: str) -> RowFigures:
    return RowFigures(
        id=values["id"],
        source=values["source"],
        row=values["row"],
        latency_s=values.get("latency_s"),
        length=None if values.get(length) is None else float(values[length]),
        error=values["error"],
    )


def flat_configuration(view: RunView, *, with_content: bool) -> Iterator[tuple[str, str]]:
    """The configuration in lines; texts of the user's are only counted unless content is wanted."""
    for name, value in view.record.config.items():
        if value in (None, [], ""):
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if name in ("system", "template", "stop") and not with_content:
            shown = f"given, {len(shown)} characters"
        yield name, without_queries(shown)

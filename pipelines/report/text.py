"""A run as lines of text for a terminal: the page's figures, with bars of characters."""

from collections.abc import Iterator, Sequence

from headrace.pipelines.report.charts import Bar, histogram, plain
from headrace.pipelines.report.figures import RowFigures, length_column, read_figures, without_queries
from headrace.pipelines.run_view import RunView

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_BAR_WIDTH = 40


def report_text(view: RunView) -> Iterator[str]:
    """Throughput, histograms, errors, the slowest and the longest rows, a line at a time."""
    figures = read_figures(view)
    unit = "tokens/s" if view.record.job == "generate" else "audio s/s"
    if figures.throughput:
        rates = [rate for _, rate in figures.throughput]
        yield f"throughput over {plain(figures.throughput[-1][0])} s, at most {plain(max(rates))} {unit}"
        yield f"  {sparkline(rates)}"
    for title, points in (("occupancy", figures.occupancy), ("page use", figures.page_use)):
        if points:
            shares = [share for _, share in points]
            yield f"{title}, mean {sum(shares) / len(shares):.0%}"
            yield f"  {sparkline(shares, top=1.0)}"
    for name, values in figures.columns.items():
        yield f"{name}: {len(values):,} rows"
        yield from _bars(histogram(values, max_bars=8))
    if figures.failed:
        yield "failed"
        yield from (f"  {each.id}: {without_queries(each.error or '')}" for each in figures.failed)
    yield from _rows("slowest", view, figures.slowest)
    yield from _rows("longest", view, figures.longest)


def sparkline(values: Sequence[float], *, top: float | None = None) -> str:
    """The values as a line of blocks, from nothing to the highest."""
    top = top or max(values) or 1.0
    return "".join(_EIGHTHS[min(round(8 * max(value, 0.0) / top), 8)] for value in values)


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    top = max(bar.height for bar in bars)
    for bar in bars:
        drawn = "█" * round(_BAR_WIDTH * bar.height / top)
        yield f"  {plain(bar.start):>8} to {plain(bar.stop):<8} {drawn} {bar.height:,.0f}"


def _rows(title: str, view: RunView, rows: Sequence[RowFigures]) -> Iterator[str]:
    if rows:
        yield f"{title}: latency_s, {length_column(view)}, id"
    for each in rows:
        yield f"  {each.latency_s or 0.0:10.2f} {each.length or 0.0:10,.6g}  {without_queries(each.id)}"

"""A run as one HTML page that needs no other file, no script and no network."""

import time
from collections.abc import Iterable, Sequence
from html import escape

from headrace.engines.ratios import RATIOS
from headrace.pipelines.report.charts import Axis, bar_chart, histogram, line_chart, plain
from headrace.pipelines.report.content import RowContent, read_content
from headrace.pipelines.report.figures import (
    Figures,
    RowFigures,
    flat_configuration,
    length_column,
    read_figures,
    without_queries,
)
from headrace.pipelines.report.style import STYLE
from headrace.pipelines.run_view import RunView

_NAMES = {
    "latency_s": ("Latency", "seconds from submission to the end"),
    "ttft_s": ("Time to first token", "seconds from submission to the first token"),
    "queue_s": ("Time in the queue", "seconds from submission to the first work"),
    "prompt_tokens": ("Prompts", "tokens of the prompt"),
    "completion_tokens": ("Answers", "tokens of the answer"),
    "duration_s": ("Recordings", "seconds of audio"),
    "num_tokens": ("Transcripts", "tokens of the transcript"),
}
# The browser itself keeps the page from loading anything: there is nothing that it could send away.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; media-src data:"


def report_page(view: RunView, *, with_content: bool) -> str:
    """The page; texts and recordings are in it only `with_content`."""
    figures = read_figures(view)
    content = read_content(view) if with_content else []
    title = f"{view.record.job} with {view.record.model.spec}"
    body = [
        _head(view, title),
        f'<div class="tiles">{"".join(_tiles(view))}</div>',
        f'<h2>Charts</h2><div class="charts">{"".join(_charts(view, figures))}</div>',
        *_errors(view, figures),
        *_rows("Slowest rows", view, figures.slowest),
        *_rows("Longest rows", view, figures.longest),
        *_contents(content),
        *_configuration(view, with_content=with_content),
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _head(view: RunView, title: str) -> str:
    bad = "" if view.state in ("done", "running") else " bad"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(view.started_at))
    return (
        f'<h1>{escape(title)}</h1><p class="lead"><span class="state{bad}">{view.state}</span> '
        f"last launch {when}, output {escape(view.output)}</p>"
    )


def _tiles(view: RunView) -> Iterable[str]:
    wall_s = sum(float(launch.get("wall_s", 0.0)) for launch in view.record.launches)
    real_time = view.record.job == "transcribe"
    rate = f"{view.units_per_s:,.1f}" if view.units_per_s < 100 else f"{view.units_per_s:,.0f}"
    yield _tile(f"{view.rows:,}", f"of {view.rows_total:,} rows")
    yield _tile(f"{view.rows_failed:,}", "rows failed")
    yield _tile(f"{view.units:,.0f}", view.unit)
    yield _tile(rate, "audio seconds a second" if real_time else "tokens a second")
    if real_time and view.units_per_s > 0:
        yield _tile(f"{1 / view.units_per_s:.3g}", "real-time factor")
    for name, value in view.ratios.items():
        yield _tile(RATIOS[name].form.format(value), RATIOS[name].label)
    num_launches = len(view.record.launches)
    yield _tile(f"{wall_s:,.0f} s", "in one launch" if num_launches == 1 else f"in {num_launches} launches")
    yield _tile(f"{len(view.footers):,}", f"of {view.parts_total:,} parts")


def _tile(figure: str, name: str) -> str:
    return f'<div class="tile"><b>{escape(figure)}</b><span>{escape(name)}</span></div>'


def _charts(view: RunView, figures: Figures) -> Iterable[str]:
    seconds = Axis("seconds since the first work", plain)
    if figures.throughput:
        unit = "tokens a second" if view.record.job == "generate" else "audio seconds a second"
        yield line_chart("Throughput", figures.throughput, seconds, Axis(unit, plain))
    if figures.at_work:
        yield line_chart("At work", figures.at_work, seconds, Axis("rows in the engine", plain))
    for title, shares, name in (
        ("Occupancy", figures.occupancy, "share of slots at work"),
        ("Page use", figures.page_use, "share of KV pages that rows held"),
    ):
        if len(shares) > 1:
            share = Axis(name, lambda value: f"{value:.0%}")
            yield line_chart(title, shares, seconds, share, top=1.0)
    for name, values in figures.columns.items():
        title, axis = _NAMES[name]
        yield bar_chart(title, histogram(values), Axis(axis, plain), Axis("rows", plain))


def _errors(view: RunView, figures: Figures) -> Iterable[str]:
    if not view.errors:
        return
    by_count = sorted(view.errors.items(), key=lambda item: (-item[1], item[0]))
    yield "<h2>Errors</h2>"
    yield _table(("kind", "rows"), [(kind, f"{count:,}") for kind, count in by_count])
    rows = [(each.id, without_queries(each.error or "")) for each in figures.failed]
    yield _table((f"first {len(rows)} that failed", "why"), rows, numbers=())


def _rows(title: str, view: RunView, rows: Sequence[RowFigures]) -> Iterable[str]:
    if not rows:
        return
    length = _NAMES[length_column(view)][1]
    cells = [
        (without_queries(each.id), f"{each.latency_s or 0.0:,.2f}", f"{each.length or 0.0:,.6g}")
        for each in rows
    ]
    yield f"<h2>{title}</h2>"
    yield _table(("id", "latency, s", length), cells)


def _contents(rows: Sequence[RowContent]) -> Iterable[str]:
    if not rows:
        return
    yield f"<h2>Content of the first {len(rows)} rows</h2>"
    for row in rows:
        prompt = f'<p class="text prompt">{escape(row.prompt)}</p>' if row.prompt is not None else ""
        yield (
            f"<article><small>{escape(without_queries(row.id))}</small>{prompt}{row.recording}"
            f'<p class="text">{escape(row.text)}</p></article>'
        )


def _configuration(view: RunView, *, with_content: bool) -> Iterable[str]:
    record = view.record
    yield "<h2>Configuration</h2>"
    yield _table(("option", "value"), list(flat_configuration(view, with_content=with_content)), numbers=())
    about = [("model fingerprint", record.model.fingerprint), ("devices", ", ".join(record.devices) or "-")]
    yield _table(("about", ""), [*about, *record.versions.items()], numbers=())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] | None = None) -> str:
    """A table that scrolls by itself where it is too wide; all columns but the first hold numbers."""
    right = set(range(1, len(head)) if numbers is None else numbers)
    kinds = [' class="number"' if column in right else "" for column in range(len(head))]
    top = "".join(f"<th{kind}>{escape(name)}</th>" for kind, name in zip(kinds, head, strict=True))
    lines = [
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    ]
    body = f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table>{body}</table></div>'

"""The curves of scale.py as one SVG: throughput above, peak memory below, a column a curve."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WIDTH, HEIGHT = 230, 170
"""Of one panel, with its axes."""
LEFT, RIGHT, TOP, BOTTOM = 48, 16, 26, 34
LABEL_WIDTH = 34
STYLE = (
    "text{font:10px sans-serif;fill:#444}.title{font-size:11px;font-weight:bold}"
    ".axis{stroke:#999;fill:none}.rate{stroke:#1f6fb4;fill:none;stroke-width:1.8}"
    ".memory{stroke:#c1571b;fill:none;stroke-width:1.8}.dot{fill:#fff;stroke-width:1.5}"
)


class Panel(NamedTuple):
    """One plot."""

    title: str
    kind: str
    """Class of its line."""
    sizes: Sequence[float]
    values: Sequence[float]
    label: str


def draw(curves: Mapping[str, Mapping[str, Any]]) -> str:
    """The figure; sizes on a logarithmic axis, values from zero."""
    pieces = []
    for column, curve in enumerate(curves.values()):
        sizes = [one["size"] for one in curve["points"]]
        rates, memory = ([one[key] for one in curve["points"]] for key in ("rate", "peak_mib"))
        panels = (
            Panel(curve["unit"], "rate", sizes, rates, curve["title"]),
            Panel("peak memory, MiB", "memory", sizes, memory, curve["title"]),
        )
        for row, panel in enumerate(panels):
            pieces.append(f'<g transform="translate({column * WIDTH},{row * HEIGHT})">{_panel(panel)}</g>')
    width, height = max(len(curves), 1) * WIDTH, 2 * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n' + "\n".join(pieces) + "\n</svg>\n"
    )


def _panel(panel: Panel) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    top = _round_up(max(panel.values))
    low, high = math.log(min(panel.sizes)), math.log(max(panel.sizes))
    places = [
        (
            LEFT + (right - LEFT) * ((math.log(size) - low) / (high - low) if high > low else 0.5),
            bottom - (bottom - TOP) * value / top,
        )
        for size, value in zip(panel.sizes, panel.values, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    parts = [
        f'<text class="title" x="{LEFT}" y="16">{panel.title}</text>',
        f'<path class="axis" d="M{LEFT},{TOP}V{bottom}H{right}"/>',
        *(
            f'<text x="{LEFT - 4}" y="{bottom - (bottom - TOP) * share + 3:.0f}" text-anchor="end">'
            f"{top * share:,.10g}</text>"
            for share in (0, 0.5, 1)
        ),
        f'<polyline class="{panel.kind}" points="{line}"/>',
        *(f'<circle class="{panel.kind} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in places),
        *(
            f'<text x="{x:.1f}" y="{bottom + 13}" text-anchor="middle">{size:,}</text>'
            for x, size in _labelled([x for x, _ in places], panel.sizes)
        ),
        f'<text x="{(LEFT + right) / 2}" y="{bottom + 27}" text-anchor="middle">{panel.label}</text>',
    ]
    return "".join(parts)


def _labelled(places: Sequence[float], sizes: Sequence[float]) -> list[tuple[float, float]]:
    """Places and sizes that have room for their labels, the last one always."""
    kept: list[tuple[float, float]] = []
    for place, size in zip(reversed(places), reversed(sizes), strict=True):
        if not kept or kept[-1][0] - place >= LABEL_WIDTH:
            kept.append((place, size))
    return kept


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten. e.g. 1135 -> 2000, 61 -> 80"""
    power = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value)

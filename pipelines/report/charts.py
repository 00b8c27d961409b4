"""Charts as inline SVG: they scale with the page, take its colours, and need no script."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 460, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 10, 10, 34
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

Format = Callable[[float], str]


class Bar(NamedTuple):
    """A bar over a stretch of the x axis."""

    start: float
    stop: float
    height: float


class Axis(NamedTuple):
    """One axis: its name, with the unit, and how its numbers are written."""

    name: str
    write: Format


def plain(value: float) -> str:
    """A number with as many figures as an axis needs: 0.25, 3, 1,200, 45k, 3.2M."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scaled = value / (limit if suffix != "k" else 1e3)
            return f"{scaled:.3g}{suffix}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.2g}" if abs(value) < 100 else f"{value:,.0f}"


def bar_chart(title: str, bars: Sequence[Bar], x_axis: Axis, y_axis: Axis) -> str:
    """Bars of counts from zero up, each with its figures as a tooltip."""
    top = 4.0 * math.ceil(nice_ceiling(max(bar.height for bar in bars) / 4))
    start, stop = bars[0].start, bars[-1].stop
    shapes = []
    for bar in bars:
        left, right = _x(bar.start, start, stop), _x(bar.stop, start, stop)
        height = _PLOT_HEIGHT * bar.height / top
        label = escape(f"{x_axis.write(bar.start)} to {x_axis.write(bar.stop)}: {y_axis.write(bar.height)}")
        shapes.append(
            f'<rect class="bar" x="{left + 0.5:.1f}" y="{_TOP + _PLOT_HEIGHT - height:.1f}" '
            f'width="{max(right - left - 1, 0.5):.1f}" height="{height:.1f}">'
            f"<title>{label}</title></rect>"
        )
    return _frame(title, "".join(shapes), (start, stop, x_axis), (top, y_axis))


def line_chart(
    title: str, points: Sequence[tuple[float, float]], x_axis: Axis, y_axis: Axis, *, top: float | None = None
) -> str:
    """A line with the area below it; `top` fixes the end of the y axis."""
    top = top or 4 * nice_ceiling(max(y for _, y in points) / 4)
    start, stop = points[0][0], points[-1][0]
    places = [(_x(x, start, stop), _TOP + _PLOT_HEIGHT * (1 - min(y / top, 1.0))) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    floor = _TOP + _PLOT_HEIGHT
    area = f"{places[0][0]:.1f},{floor} {line} {places[-1][0]:.1f},{floor}"
    shapes = f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>'
    return _frame(title, shapes, (start, stop, x_axis), (top, y_axis))


def histogram(values: Sequence[float], *, max_bars: int = 24) -> list[Bar]:
    """Counts of the values in at most `max_bars` stretches of equal and round width."""
    if not values:
        return []
    low, high = min(values), max(values)
    width = nice_ceiling((high - low) / max_bars if high > low else abs(high) / 10)
    first = math.floor(low / width)
    counts = [0] * (math.floor(high / width) - first + 1)
    for value in values:
        counts[math.floor(value / width) - first] += 1
    return [Bar((first + n) * width, (first + n + 1) * width, float(count)) for n, count in enumerate(counts)]


def nice_ceiling(value: float) -> float:
    """The smallest of 1, 2, 2.5, 5 times a power of ten that is not below a value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value * (1 - 1e-9))


def _frame(title: str, shapes: str, x: tuple[float, float, Axis], y: tuple[float, Axis]) -> str:
    """The chart with grid, numbers and the axes' names."""
    (start, stop, x_axis), (top, y_axis) = x, y
    floor = _TOP + _PLOT_HEIGHT
    parts = []
    for step in range(5):
        height = floor - _PLOT_HEIGHT * step / 4
        label = escape(y_axis.write(top * step / 4))
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}"/>'
            f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{label}</text>'
        )
    for step in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[step]
        place = _LEFT + _PLOT_WIDTH * step / 4
        label = escape(x_axis.write(start + (stop - start) * step / 4))
        parts.append(f'<text x="{place:.1f}" y="{floor + 15}" text-anchor="{anchor}">{label}</text>')
    center = f'x="{_LEFT + _PLOT_WIDTH / 2:.1f}" y="{HEIGHT - 4}" text-anchor="middle"'
    parts.append(f"<text {center}>{escape(x_axis.name)}</text>")
    label = escape(f"{title}: {y_axis.name} over {x_axis.name}")
    return (
        f"<figure><figcaption>{escape(title)} <small>{escape(y_axis.name)}</small></figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{''.join(parts)}{shapes}</svg></figure>"
    )


def _x(value: float, start: float, stop: float) -> float:
    return _LEFT + (_PLOT_WIDTH * (value - start) / (stop - start) if stop > start else 0.0)

"""Makes small charts as inline SVG without scripts, fonts or external assets.

Colours come from the page's style sheet by class (``c0`` to ``c5`` for series), so that one chart
serves light and dark pages. Every mark has a title, which a browser shows while the pointer is on
the mark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = [
    "Bar",
    "Dot",
    "Line",
    "bar_chart",
    "line_chart",
    "log_ticks",
    "nice_ticks",
    "strip_chart",
]

_WIDTH = 760
_LABEL_WIDTH = 190
_VALUE_WIDTH = 130
_BAR_HEIGHT = 18
_ROW_HEIGHT = 26
_AXIS_HEIGHT = 28
_MARGIN = 30.0
_DOT_RADIUS = 4.0
_PLOT_HEIGHT, _TOP, _LEVEL_WIDTH = 240, 18, 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of a bar chart. Each part is a (series, value) pair; parts are drawn from left to
    right. ``text`` is written after the last part."""

    label: str
    parts: Sequence[tuple[int, float]]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A measurement of a series and its title."""

    series: int
    value: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The measurements of a series over time: (x, y) in ascending x."""

    series: int
    label: str
    points: Sequence[tuple[float, float]]


def nice_ticks(limit: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to at least ``limit`` in about ``count`` steps."""
    if limit <= 0:
        return [0.0, 1.0]
    rough = limit / count
    magnitude = 1.0
    while magnitude * 10 <= rough:
        magnitude *= 10
    while magnitude > rough:
        magnitude /= 10
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    ticks = [0.0]
    while ticks[-1] < limit:
        ticks.append(round(step * len(ticks), 10))
    return ticks


def bar_chart(
    bars: Sequence[Bar],
    series: Sequence[str],
    shown: Callable[[float], str],
    title: str,
    *,
    base: float = 10.0,
) -> str:
    """Return a chart of horizontal bars that start at zero, one per row. With ``base`` 1024, the
    axis has round numbers of bytes."""
    longest = max((sum(value for _, value in bar.parts) for bar in bars), default=0.0)
    ticks = _based_ticks(longest, base)
    height = len(bars) * _ROW_HEIGHT + _AXIS_HEIGHT
    scale = (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH) / ticks[-1]
    parts = [_open(height, title)]
    parts += _grid([(_LABEL_WIDTH + tick * scale, shown(tick)) for tick in ticks], height)
    for row, bar in enumerate(bars):
        parts += _bar(bar, row * _ROW_HEIGHT, scale, series, shown)
    return "".join([*parts, "</svg>"])


def line_chart(
    lines: Sequence[Line],
    marks: Sequence[tuple[str, float]],
    shown_x: Callable[[float], str],
    shown_y: Callable[[float], str],
    title: str,
    *,
    base: float = 10.0,
) -> str:
    """Return a chart of lines, with a dashed level for each mark. Both axes begin at zero.

    With ``base`` 1024, the upright axis has round numbers of bytes.
    """
    right = max((x for line in lines for x, _ in line.points), default=0.0)
    values = [y for line in lines for _, y in line.points] + [value for _, value in marks]
    x_ticks, y_ticks = nice_ticks(right), _based_ticks(max(values, default=0.0), base)
    height = _PLOT_HEIGHT + _AXIS_HEIGHT
    wide = (_WIDTH - _LEVEL_WIDTH - _MARGIN) / x_ticks[-1]
    high = (_PLOT_HEIGHT - _TOP) / y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEVEL_WIDTH + x * wide, _PLOT_HEIGHT - y * high

    parts = [_open(height, title)]
    parts += _grid([(place(tick, 0)[0], shown_x(tick)) for tick in x_ticks], height)
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts.append(f'<text class="label" x="{_LEVEL_WIDTH - 8}" y="{y + 4:.1f}">')
        parts.append(f"{escape(shown_y(tick))}</text>")
    for name, value in marks:
        y = place(0, value)[1]
        parts.append(
            f'<line class="mark" x1="{_LEVEL_WIDTH}" x2="{_WIDTH - _MARGIN}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><text class="marked" x="{_LEVEL_WIDTH + 6}" y="{y - 5:.1f}">'
            f"{escape(name)} {escape(shown_y(value))}</text>"
        )
    for line in lines:
        at = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points)
        about = f"<title>{escape(line.label)}</title>"
        parts.append(f'<polyline class="l{line.series}" points="{at}">{about}</polyline>')
    return "".join([*parts, "</svg>"])


def _based_ticks(longest: float, base: float) -> list[float]:
    unit = 1.0
    while base > 10 and unit * base <= longest:
        unit *= base
    return [tick * unit for tick in nice_ticks(longest / unit)]


def log_ticks(lowest: float, highest: float) -> list[float]:
    """Return the numbers 1, 2 and 5 times a power of ten that enclose ``lowest`` and ``highest``;
    [0.1, 1] if there are no values."""
    if not 0 < lowest <= highest:
        return [0.1, 1.0]
    exponents = range(math.floor(math.log10(lowest)) - 1, math.ceil(math.log10(highest)) + 2)
    ticks = [float(f"{factor}e{exponent}") for exponent in exponents for factor in (1, 2, 5)]
    first = max(index for index, tick in enumerate(ticks) if tick <= lowest)
    last = min(index for index, tick in enumerate(ticks) if tick >= highest)
    return ticks[first : max(last, first + 1) + 1]


def strip_chart(
    dots: Sequence[Dot],
    marks: Sequence[tuple[str, float]],
    shown: Callable[[float], str],
    title: str,
) -> str:
    """Return a chart with a logarithmic axis, a dot for each measurement and a line for each mark.
    Dots that would overlap are stacked. All values must be above zero."""
    values = [dot.value for dot in dots]
    ticks = log_ticks(min(values, default=0.0), max(values, default=0.0))
    low, span = math.log(ticks[0]), math.log(ticks[-1]) - math.log(ticks[0])

    def place(value: float) -> float:
        return _MARGIN + (math.log(value) - low) / span * (_WIDTH - 2 * _MARGIN)

    placed = list(_stacked(dots, place))
    rows = max((row for _, row in placed), default=0) + 1
    top = 14 * len(marks) + 6
    base = top + rows * 2.2 * _DOT_RADIUS
    height = int(base) + _AXIS_HEIGHT
    parts = [_open(height, title)]
    parts += _grid([(place(tick), shown(tick)) for tick in ticks], height)
    for index, (name, value) in enumerate(marks):
        x, y = place(value), 14 * (index + 1)
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 8}" y2="{base:.1f}"/>')
        text = f"{escape(name)} {escape(shown(value))}"
        parts.append(f'<text class="marked" x="{x + 5:.1f}" y="{y}">{text}</text>')
    for dot, row in placed:
        x, y_dot = place(dot.value), base - (row + 0.6) * 2.2 * _DOT_RADIUS
        parts.append(
            f'<circle class="c{dot.series}" cx="{x:.1f}" cy="{y_dot:.1f}" r="{_DOT_RADIUS}">'
            f"<title>{escape(dot.title)}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def _open(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'


def _grid(ticks: Sequence[tuple[float, str]], height: int) -> Iterator[str]:
    bottom = height - _AXIS_HEIGHT + 4
    for x, text in ticks:
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">{escape(text)}</text>'


def _bar(
    bar: Bar, top: int, scale: float, series: Sequence[str], shown: Callable[[float], str]
) -> Iterator[str]:
    middle = top + _ROW_HEIGHT / 2 + 4
    yield f'<text class="label" x="{_LABEL_WIDTH - 8}" y="{middle}">{escape(bar.label)}</text>'
    x = float(_LABEL_WIDTH)
    for index, value in bar.parts:
        if value <= 0:
            continue
        about = escape(f"{bar.label}, {series[index]}: {shown(value)}")
        yield (
            f'<rect class="c{index}" x="{x:.1f}" y="{top + 4}" width="{value * scale:.1f}" '
            f'height="{_BAR_HEIGHT}"><title>{about}</title></rect>'
        )
        x += value * scale
    yield f'<text class="value" x="{x + 6:.1f}" y="{middle}">{escape(bar.text)}</text>'


def _stacked(dots: Sequence[Dot], place: Callable[[float], float]) -> Iterator[tuple[Dot, int]]:
    """Yield each dot with the lowest row in which it touches no earlier dot."""
    ends: list[float] = []
    for dot in sorted(dots, key=lambda one: one.value):
        x = place(dot.value)
        row = next((row for row, end in enumerate(ends) if end <= x), len(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = x + 2.1 * _DOT_RADIUS
        yield dot, row

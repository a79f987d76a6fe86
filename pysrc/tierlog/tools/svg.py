"""Small charts as inline SVG: no script, no font, nothing from elsewhere.

Colours come from the page's style sheet by class (``c0`` to ``c5`` for series), so that one chart
serves light and dark pages. Every mark has a title, which browsers show under the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Dot", "bar_chart", "nice_ticks", "strip_chart"]

_WIDTH = 760
_LABEL_WIDTH = 190
_VALUE_WIDTH = 90
_BAR_HEIGHT = 18
_ROW_HEIGHT = 26
_AXIS_HEIGHT = 28
_DOT_RADIUS = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of stacked parts: (series, value) each, drawn from the left; ``text`` follows them."""

    label: str
    parts: Sequence[tuple[int, float]]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A measurement of a series, and what to say about it."""

    series: int
    value: float
    title: str


def nice_ticks(limit: float, count: int = 5) -> list[float]:
    """Round numbers from 0 up to at least ``limit``, about ``count`` steps."""
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
    """Horizontal bars from zero, one row each; ``base`` 1024 for round numbers of bytes."""
    longest = max((sum(value for _, value in bar.parts) for bar in bars), default=0.0)
    unit = 1.0
    while base > 10 and unit * base <= longest:
        unit *= base
    ticks = [tick * unit for tick in nice_ticks(longest / unit)]
    height = len(bars) * _ROW_HEIGHT + _AXIS_HEIGHT
    scale = (_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH) / ticks[-1]
    parts = [_open(height, title)]
    parts += _grid(ticks, scale, height, shown)
    for row, bar in enumerate(bars):
        parts += _bar(bar, row * _ROW_HEIGHT, scale, series, shown)
    return "".join([*parts, "</svg>"])


def strip_chart(
    dots: Sequence[Dot],
    marks: Sequence[tuple[str, float]],
    shown: Callable[[float], str],
    title: str,
) -> str:
    """Each measurement as a dot on one axis, dots that would overlap stacked; lines for marks."""
    longest = max((dot.value for dot in dots), default=0.0)
    ticks = nice_ticks(longest)
    left = 30.0
    scale = (_WIDTH - 2 * left) / ticks[-1]
    placed = list(_stacked(dots, scale))
    rows = max((row for _, row in placed), default=0) + 1
    base = 24 + rows * 2.2 * _DOT_RADIUS
    height = int(base) + _AXIS_HEIGHT
    parts = [_open(height, title)]
    parts += _grid(ticks, scale, height, shown, left=left)
    for name, value in marks:
        x = left + value * scale
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{base:.1f}"/>')
        parts.append(
            f'<text class="marked" x="{x + 4:.1f}" y="14">{escape(name)} {shown(value)}</text>'
        )
    for dot, row in placed:
        x, y = left + dot.value * scale, base - (row + 0.6) * 2.2 * _DOT_RADIUS
        parts.append(
            f'<circle class="c{dot.series}" cx="{x:.1f}" cy="{y:.1f}" r="{_DOT_RADIUS}">'
            f"<title>{escape(dot.title)}</title></circle>"
        )
    return "".join([*parts, "</svg>"])


def _open(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'


def _grid(
    ticks: Sequence[float],
    scale: float,
    height: int,
    shown: Callable[[float], str],
    left: float = _LABEL_WIDTH,
) -> Iterator[str]:
    bottom = height - _AXIS_HEIGHT + 4
    for tick in ticks:
        x = left + tick * scale
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">{escape(shown(tick))}</text>'


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


def _stacked(dots: Sequence[Dot], scale: float) -> Iterator[tuple[Dot, int]]:
    """Each dot with the lowest row in which it touches none before it."""
    ends: list[float] = []
    for dot in sorted(dots, key=lambda one: one.value):
        x = dot.value * scale
        row = next((row for row, end in enumerate(ends) if end <= x), len(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = x + 2.1 * _DOT_RADIUS
        yield dot, row

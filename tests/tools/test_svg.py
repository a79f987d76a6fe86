"""Charts are well-formed, keep to scale and let no text become markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.tools.svg import (
    Bar,
    Dot,
    Line,
    bar_chart,
    line_chart,
    log_ticks,
    nice_ticks,
    strip_chart,
)

NASTY = "<script>&\"'"


@pytest.mark.parametrize(
    ("limit", "ticks"),
    [
        (0, [0, 1]),
        (1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0.009, [0, 0.002, 0.004, 0.006, 0.008, 0.01]),
        (99, [0, 20, 40, 60, 80, 100]),
        (1e9, [0, 2e8, 4e8, 6e8, 8e8, 1e9]),
    ],
)
def test_ticks(limit: float, ticks: list[float]) -> None:
    assert nice_ticks(limit) == ticks


@given(st.floats(min_value=1e-6, max_value=1e15))
def test_ticks_reach_the_limit_in_a_few_round_steps(limit: float) -> None:
    ticks = nice_ticks(limit)
    assert ticks[0] == 0
    assert ticks[-1] >= limit * (1 - 1e-9)
    assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (0.3, 2.2, [0.2, 0.5, 1, 2, 5]),
        (1, 1, [1, 2]),
        (0.05, 0.06, [0.05, 0.1]),
        (0, 0, [0.1, 1]),
    ],
)
def test_logarithmic_ticks(lowest: float, highest: float, ticks: list[float]) -> None:
    assert log_ticks(lowest, highest) == ticks


@given(st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=1, max_value=1e6))
def test_logarithmic_ticks_enclose_the_values(lowest: float, factor: float) -> None:
    ticks = log_ticks(lowest, lowest * factor)
    assert ticks[0] <= lowest
    assert ticks[-1] >= lowest * factor


def test_bars_are_to_scale() -> None:
    bars = [
        Bar(label="a", parts=[(0, 100), (1, 300)], text="four"),
        Bar(label=NASTY, parts=[(0, 200)], text=NASTY),
        Bar(label="none", parts=[(0, 0)], text=""),
    ]
    chart = bar_chart(bars, ["x", NASTY], lambda value: f"{value:g}", NASTY)
    root = ElementTree.fromstring(chart)
    widths = [float(rect.attrib["width"]) for rect in root.iter("rect")]
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.2)
    assert widths[2] == pytest.approx(2 * widths[0], abs=0.2)
    assert len(widths) == 3
    texts = [text.text for text in root.iter("text")]
    assert texts.count(NASTY) == 2


def test_bytes_have_binary_ticks() -> None:
    bars = [Bar(label="a", parts=[(0, 1_500_000)], text="")]
    chart = bar_chart(bars, ["x"], lambda value: f"{value / 2**20:g} MiB", "t", base=1024)
    assert re.findall(r">([0-9.]+) MiB</text>", chart) == ["0", "0.5", "1", "1.5"]


def test_dots_that_would_overlap_are_stacked() -> None:
    dots = [Dot(series=0, value=5.0, title=f"{NASTY} {index}") for index in range(4)]
    dots.append(Dot(series=1, value=9.0, title="far"))
    chart = strip_chart(dots, [("median", 5.0)], lambda value: f"{value:g} ms", "t")
    root = ElementTree.fromstring(chart)
    places = [(circle.attrib["cx"], circle.attrib["cy"]) for circle in root.iter("circle")]
    assert len(set(places)) == 5
    assert len({x for x, _ in places}) == 2
    assert "median 5 ms" in chart


def test_nothing_to_show_is_still_a_chart() -> None:
    for chart in (bar_chart([], [], str, "t"), strip_chart([], [], str, "t")):
        ElementTree.fromstring(chart)


def test_lines_stand_in_proportion_to_their_axes() -> None:
    """From zero on both axes; a mark is a level across the whole chart."""
    line = Line(series=2, label="<broker 1>", points=[(0, 0), (10, 50), (20, 100)])
    chart = line_chart([line], [("limit", 100)], str, str, "rates")
    root = ElementTree.fromstring(chart)
    (drawn,) = root.iter("polyline")
    assert drawn.attrib["class"] == "l2"
    points = [tuple(map(float, one.split(","))) for one in drawn.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    (mark,) = (one for one in root.iter("line") if one.attrib["class"] == "mark")
    assert float(mark.attrib["y1"]) == float(mark.attrib["y2"]) == y2
    assert "&lt;broker 1&gt;" in chart


def test_lines_without_points_make_a_chart() -> None:
    ElementTree.fromstring(line_chart([], [], str, str, "nothing", base=1024))

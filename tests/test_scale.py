"""The page about very many segments: its figures are those that its own formulas make."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from benches.scale import Assumed, Figures, Prices, extrapolated, tables

PAGE = (Path(__file__).parents[1] / "docs" / "SCALE.md").read_text(encoding="utf-8")
FIGURES = Figures(
    **{
        one.name: float(re.findall(rf"^\| {one.name} \| (\S+) \|$", PAGE, re.MULTILINE)[0])
        for one in fields(Figures)
    }
)


def test_the_page_has_the_tables_that_its_figures_make() -> None:
    for line in tables(FIGURES, Assumed(), Prices()):
        assert line in PAGE


def test_money_by_hand() -> None:
    """A thousand segments of 8 MiB, at prices that leave one kind of request each."""
    small = Assumed(segments=1000, segment_bytes=8 << 20, slots=1)

    def dollars(**price: float) -> dict[str, float]:
        free = {one.name: 0.0 for one in fields(Prices)}
        lines = extrapolated(FIGURES, small, Prices(**(free | price)))
        return {one.work: round(one.dollars, 9) for one in lines}

    assert dollars(per_1000_get=1.0) == {
        "listing": 0,
        "plan of an audit": 0,
        "plan of a rebuild": 0,
        "audit": 2,
        "deep audit": 4,
        "rebuild": 1,
    }
    puts = dollars(per_1000_put_or_list=1.0)
    assert (puts["listing"], puts["rebuild"], puts["audit"]) == (0.002, 1, 0)

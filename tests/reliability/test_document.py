"""What RELIABILITY.md says is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "RELIABILITY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (P\d+) \| (.*) \| (.*) \|$", TEXT, re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_every_promise_names_tests_that_exist() -> None:
    assert len(ROWS) >= 14
    for promise, _, tests in ROWS:
        named = NAMED.findall(tests)
        assert named, f"{promise} names no test"
        for path, name in named:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), f"{promise}: {name}"


def test_every_file_that_is_named_exists() -> None:
    for path in re.findall(r"`((?:tests|docs)/[\w/.]+)(?:::\w+)?`", TEXT):
        assert (ROOT / path).exists(), path


def test_the_figures_are_those_of_a_run_that_lost_nothing() -> None:
    figures = TEXT.partition("<!-- figures -->")[2].partition("<!-- /figures -->")[0]
    assert "cycles that lost, changed, orphaned or left something | 0 |" in figures
    (cycles,) = re.findall(r"\| cycles \| ([\d,]+) \|", figures)
    assert int(cycles.replace(",", "")) >= 1_000
    points, killed = (
        int(re.findall(rf"\| {name} \| (\d+) \|", figures)[0])
        for name in ("named points", "of these killed at")
    )
    assert points == killed

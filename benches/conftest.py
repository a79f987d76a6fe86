"""Gives every ``bench_*.py`` one test for each side of its cases; see ``benches/__init__.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import items_of
from .__main__ import CACHE_DIR, QUICK
from .corpus import Corpora
from .frame import Bench, Case, Pace


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bench-quick", action="store_true", help="tiny input")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect ``bench_*.py``, which pytest's own patterns do not include."""
    if file_path.match("bench_*.py") and not parent.session.isinitpath(file_path):
        module: pytest.Module = pytest.Module.from_parent(parent, path=file_path)
        return module
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    group = metafunc.module.__name__.rpartition("bench_")[2]
    quick: bool = metafunc.config.getoption("--bench-quick")
    corpora = Corpora(directory=CACHE_DIR, quick=quick)
    bench = Bench(corpora=corpora, pace=QUICK if quick else Pace())
    cases = [item for item in items_of(group, bench) if isinstance(item, Case)]
    sides = [
        pytest.param(case, side, id=f"{case.name}, {side}".replace(" ", "_"))
        for case in cases
        for side in case.sides
    ]
    metafunc.parametrize(("case", "side"), sides)

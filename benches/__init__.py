"""Measures tierlog against its peers in the same run: ``python -m benches --help``.

A module ``bench_<group>`` has a function ``items(bench)``, which returns the cases and limits of
the group. ``pytest benches --benchmark-enable --benchmark-only`` runs each side of the same cases
separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .frame import Bench, Case, Limit

GROUPS = tuple(
    sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
)


def items_of(group: str, bench: Bench) -> Sequence[Case | Limit]:
    """Return the cases and limits of one group."""
    module = import_module(f"{__name__}.bench_{group}")
    items: Sequence[Case | Limit] = module.items(bench)
    return items

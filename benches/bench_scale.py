"""Measures whether a rebuild on Spark takes longer per byte if there are many segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .frame import Bench, Case, Limit
from .scale import FLAT_BYTES, FLAT_SEGMENTS, cost_per_gib


def items(bench: Bench) -> Sequence[Case | Limit]:
    many = (2, 20) if bench.corpora.quick else FLAT_SEGMENTS

    def measure() -> float:
        """Return the largest factor by which ten times as many segments raise the cost of a
        byte."""
        costs = [*cost_per_gib(bench.corpora, many, FLAT_BYTES).values()]
        return max(after / before for before, after in pairwise(costs))

    return [
        Limit(
            operation="rebuild on Spark, time per byte, for ten times the segments",
            shape=f"{many[0]:,} to {many[-1]:,} of 4 MiB",
            unit="x",
            at_most=1.1,
            measure=measure,
        )
    ]

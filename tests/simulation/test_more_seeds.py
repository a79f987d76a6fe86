"""More seeds of the simulation, in a file of their own for another worker."""

from __future__ import annotations

import pytest

from tests.simulation.run import simulate

SEEDS, GROUPS = 1_000, 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_must_hold_holds(group: int) -> None:
    for seed in range(SEEDS + group, 2 * SEEDS, GROUPS):
        simulate(seed)

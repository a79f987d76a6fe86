"""The simulation finds fixes that are taken back, at the seed that found them first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.reverted import FIRST_SEEDS, OUT_OF_REACH, taken_back
from tests.simulation.run import fails, plan


@pytest.mark.parametrize("name", sorted(FIRST_SEEDS))
def test_a_fix_that_is_taken_back_is_found(name: str) -> None:
    setup, actions = plan(FIRST_SEEDS[name])
    assert fails(setup, actions) is None
    with taken_back(name):
        assert fails(setup, actions) is not None


def test_what_is_out_of_reach_has_another_test() -> None:
    for path in OUT_OF_REACH.values():
        assert (Path(__file__).parents[2] / path).is_file()

"""Seeds of the simulation hold (``make simulate``). `test_more_seeds` has the other half."""

from __future__ import annotations

import pytest

from tests.simulation.run import fails, plan, run, shorten, simulate
from tests.simulation.world import Action

SEEDS, GROUPS = 1_000, 10


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_must_hold_holds(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        simulate(seed)


def test_a_seed_does_the_same_again() -> None:
    for seed in range(20):
        assert simulate(seed) == simulate(seed)


def test_a_run_without_some_of_its_actions_is_a_run() -> None:
    setup, actions = plan(3)
    assert run(setup, actions[::2]) == run(setup, actions[::2])


def test_failing_actions_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """A breach that needs one action keeps this action alone."""
    setup, actions = plan(5)
    monkeypatch.setattr("tests.simulation.cluster.Cluster.change_leader", _break)
    chosen = [*actions[:20], Action("change leader", 1), *actions[20:]]
    assert fails(setup, chosen) is not None
    assert [one.name for one in shorten(setup, chosen)] == ["change leader"]


def _break(*_: object) -> None:
    raise RuntimeError("broken on purpose")

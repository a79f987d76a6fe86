"""Seeds of the simulation hold, and it finds fixes that are taken back (``make simulate``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.run import BreachError, simulate
from tierlog.sidecar import Sidecar
from tierlog.tiering.copy_task import CopyTask

SEEDS, GROUPS = 180, 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_what_must_hold_holds(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        simulate(seed)


def test_a_seed_does_the_same_again() -> None:
    assert simulate(7) == simulate(7)


def no_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sidecars that share only the store do not see each other."""
    options: Callable[..., Any] = Sidecar._manager_options
    monkeypatch.setattr(Sidecar, "_claims", lambda self: None)
    monkeypatch.setattr(
        Sidecar,
        "_manager_options",
        lambda self, *args: replace(options(self, *args), claim_in_store=False),
    )


def a_missing_leader_is_this_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without a leader makes the follower's sidecar copy."""
    monkeypatch.setattr("tierlog.sidecar.watch._leader_unknown", lambda log: None)


def topics_are_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that was created again is taken for the one that was deleted."""
    monkeypatch.setattr("tierlog.sidecar.watch._same_topic", lambda *_: True)


def interrupted_copies_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is neither finished nor removed before the next one."""
    monkeypatch.setattr(CopyTask, "_resume_copy", lambda *_: True)


@pytest.mark.parametrize(
    "take_back",
    [
        no_claims,
        a_missing_leader_is_this_broker,
        topics_are_known_by_name,
        interrupted_copies_are_forgotten,
    ],
)
def test_a_fix_that_is_taken_back_is_found(
    monkeypatch: pytest.MonkeyPatch, take_back: Callable[[pytest.MonkeyPatch], None]
) -> None:
    take_back(monkeypatch)
    assert any(map(fails, range(2_000)))


def fails(seed: int) -> bool:
    try:
        simulate(seed)
    except BreachError:
        return True
    return False

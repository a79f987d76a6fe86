"""Errors keep what they say when they go from one process to another."""

from __future__ import annotations

import pickle

import pytest

from tierlog import GapError, TierlogError


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (30, 49, "orders-3: offsets 30 to 49 are in no segment"),
        (30, 30, "orders-3: offset 30 is in no segment"),
        (30, None, "orders-3: the offsets from 30 on are in no segment"),
    ],
)
def test_a_gap_error_names_the_missing_offsets(first: int, last: int | None, said: str) -> None:
    error = GapError("orders", 3, first, last, hint="run tierlog verify")
    assert isinstance(error, TierlogError)
    assert str(error) == f"{said} (run tierlog verify)"
    assert str(GapError("orders", 3, first, last)) == said


def test_a_gap_error_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(GapError("orders", 3, 30, 49, hint="run tierlog verify")))
    assert str(error) == str(GapError("orders", 3, 30, 49, hint="run tierlog verify"))
    assert (error.topic, error.partition) == ("orders", 3)
    assert (error.first_offset, error.last_offset) == (30, 49)

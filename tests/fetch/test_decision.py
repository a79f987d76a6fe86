"""Where a fetch is answered from: every combination, and what it costs to decide."""

from __future__ import annotations

from itertools import product

import pytest

from tierlog.fetch.decision import decide_fetch, decide_leader_epoch
from tierlog.reader.types import FetchError, FetchSource

START, LOCAL_START, END = 10, 20, 30


@pytest.mark.parametrize("offset", [-1, 0, 9, 10, 11, 19, 20, 21, 29, 30, 31, 2**63 - 1])
def test_every_combination(offset: int) -> None:
    for tiered, follower, throttled, left_bytes in product(
        (False, True), (False, True), (False, True), (-1, 0, 1)
    ):
        source, error = decide_fetch(
            offset, START, LOCAL_START, END, tiered, follower, throttled, left_bytes
        )
        expected: tuple[FetchSource, FetchError]
        if not START <= offset <= END or (offset < LOCAL_START and not tiered):
            expected = FetchSource.ERROR, FetchError.OFFSET_OUT_OF_RANGE
        elif offset >= LOCAL_START:
            expected = FetchSource.LOCAL, FetchError.NONE
        elif follower:
            expected = FetchSource.ERROR, FetchError.OFFSET_MOVED_TO_TIERED_STORAGE
        elif throttled:
            expected = FetchSource.THROTTLED, FetchError.NONE
        elif left_bytes <= 0:
            expected = FetchSource.NO_BUDGET, FetchError.NONE
        else:
            expected = FetchSource.REMOTE, FetchError.NONE
        assert (source, error) == expected


def test_nothing_below_the_log_start_even_where_the_local_log_begins_there() -> None:
    # A log whose start was moved into its local part.
    assert decide_fetch(15, 25, 10, 30, True, False, False, 1)[1] is FetchError.OFFSET_OUT_OF_RANGE
    assert decide_fetch(25, 25, 10, 30, True, False, False, 1)[0] is FetchSource.LOCAL


@pytest.mark.parametrize(
    ("asked", "here", "expected"),
    [
        (-1, 5, None),
        (5, 5, None),
        (4, 5, FetchError.FENCED_LEADER_EPOCH),
        (6, 5, FetchError.UNKNOWN_LEADER_EPOCH),
        (0, -1, FetchError.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epochs(asked: int, here: int, expected: FetchError | None) -> None:
    decision = decide_leader_epoch(asked, here)
    assert (decision and decision[1]) == expected

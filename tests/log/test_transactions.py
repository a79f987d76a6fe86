"""Open transactions from batch headers, against a replay of one batch at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from tierlog.log.transactions import OpenTransactions

DATA, MARKER, PLAIN, KRAFT = 0x10, 0x30, 0x00, 0x20


@dataclass(frozen=True)
class Columns:
    base_offset: npt.NDArray[np.int64]
    producer_id: npt.NDArray[np.int64]
    attributes: npt.NDArray[np.int16]


def columns(rows: list[tuple[int, int, int]]) -> Columns:
    """From (offset, producer id, attributes)."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Columns(table[:, 0], table[:, 1], table[:, 2].astype(np.int16))


def replay(rows: list[tuple[int, int, int]], end_offset: int | None = None) -> dict[int, int]:
    """The open transactions after these batches, one at a time."""
    state: dict[int, int] = {}
    for offset, producer, attributes in rows:
        if (
            producer < 0
            or not attributes & 0x10
            or (end_offset is not None and offset >= end_offset)
        ):
            continue
        if attributes & 0x20:
            state.pop(producer, None)
        else:
            state.setdefault(producer, offset)
    return state


def test_commit_and_abort_close_a_transaction() -> None:
    rows = [(0, 7, DATA), (5, 8, DATA), (9, 7, DATA), (12, 7, MARKER)]
    state = OpenTransactions().after(columns(rows))
    assert state.first_offsets == {8: 5}
    assert state.first_offset == 5
    assert state.after(columns([(13, 8, MARKER)])).first_offset is None


def test_a_marker_above_the_end_does_not_count() -> None:
    rows = [(0, 7, DATA), (12, 7, MARKER)]
    assert OpenTransactions().after(columns(rows), end_offset=12).first_offset == 0
    assert OpenTransactions().after(columns(rows), end_offset=13).first_offset is None


def test_a_transaction_goes_on_in_the_next_segment() -> None:
    first = OpenTransactions().after(columns([(3, 7, DATA)]))
    assert first.after(columns([(10, 7, DATA)])).first_offset == 3
    assert first.after(columns([(10, 7, MARKER), (11, 7, DATA)])).first_offset == 11


def test_other_batches_open_nothing() -> None:
    rows = [(0, 7, PLAIN), (1, -1, PLAIN), (2, -1, KRAFT), (3, -1, DATA), (4, 7, MARKER)]
    assert OpenTransactions().after(columns(rows)).first_offset is None
    assert OpenTransactions().after(columns([])).first_offset is None


batches = st.lists(
    st.tuples(st.integers(-1, 4), st.sampled_from([DATA, DATA, MARKER, PLAIN, KRAFT])), max_size=40
)


@given(batches, st.integers(0, 40), st.none() | st.integers(0, 45))
def test_as_replayed_batch_by_batch(
    pairs: list[tuple[int, int]], split: int, end_offset: int | None
) -> None:
    rows = [(offset, producer, kind) for offset, (producer, kind) in enumerate(pairs)]
    state = OpenTransactions()
    for part in (rows[:split], rows[split:]):
        state = state.after(columns(part), end_offset=end_offset)
    assert state.first_offsets == replay(rows, end_offset)

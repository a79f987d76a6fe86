"""Where a later leader cut what was tiered: cases, and the rule against a log known offset by
offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.testing.segments import PARTITION, segment
from tierlog.tiering.truncation import truncation_offset, truncations

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def lineage(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(epoch, start) for epoch, start in entries))


def test_cases() -> None:
    whole = segment("a", 0, 99, epochs=((0, 0), (2, 60)), state=FINISHED)
    for history, expected in [
        (lineage((0, 0), (2, 60), (3, 100)), None),
        (lineage((0, 0), (2, 60)), None),  # the last epoch is open: it may reach further
        (lineage((0, 0), (2, 60), (3, 80)), 80),
        (lineage((0, 0), (3, 40)), 40),
        (lineage((0, 0), (3, 60)), 60),  # epoch 2 is no part of the log at all
        (lineage((1, 0), (3, 50)), 60),  # epoch 0 is older than what is known, epoch 2 is lost
        (lineage((4, 200)), None),  # all of it is older than what is known
        (lineage((0, 0)), None),  # a later leader knows more than we do
        (lineage(), None),
    ]:
        assert truncation_offset(whole, history) == expected, history


def test_what_is_cut_already_or_not_finished_is_left_out() -> None:
    history = lineage((0, 0), (3, 40))
    found = truncations(
        [
            segment("a", 0, 99, state=FINISHED),
            segment("started", 0, 99),
            segment("cut here", 0, 99, state=FINISHED, truncation_offset=40),
            segment("cut before", 0, 99, state=FINISHED, truncation_offset=10),
            segment("cut behind", 0, 99, state=FINISHED, truncation_offset=70),
            segment("below", 0, 39, state=FINISHED),
        ],
        history,
    )
    assert [(one.truncation_offset, cut) for one, cut in found] == [(None, 40), (70, 40)]
    assert found[0][0].topic_id_partition == PARTITION


def runs(epoch_of: list[int], begin: int, end: int) -> tuple[tuple[int, int], ...]:
    """(epoch, first offset) of the offsets [begin, end)."""
    return tuple(
        (epoch_of[offset], offset)
        for offset in range(begin, end)
        if offset == begin or epoch_of[offset] != epoch_of[offset - 1]
    )


@given(st.data())
def test_cut_is_the_first_offset_that_the_log_holds_otherwise(data: st.DataObject) -> None:
    """The old leader's log and the new one's share a beginning; each offset knows its epoch."""
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=5))
    old = [2 * epoch for epoch, length in enumerate(lengths) for _ in range(length)]
    kept = data.draw(st.integers(0, len(old)))
    newest = max(old) + 1
    more = data.draw(st.integers(1, 20))
    new = [*old[:kept], *[newest] * more]
    begin = data.draw(st.integers(0, len(old) - 1))
    end = data.draw(st.integers(begin + 1, len(old)))
    tiered = segment("old", begin, end - 1, epochs=runs(old, begin, end), state=FINISHED)
    start = data.draw(st.integers(0, len(new) - 1))  # what was below is deleted
    history = lineage(*runs(new, start, len(new)))
    cut = truncation_offset(tiered, history)
    first_known = new[start]
    differs = [
        offset for offset in range(begin, end) if offset >= kept and old[offset] >= first_known
    ]
    assert cut == (differs[0] if differs else None)

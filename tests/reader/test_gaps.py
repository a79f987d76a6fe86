"""Offsets that a store should have and lacks end a read, wherever it enters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tierlog
from tests.fetch.tier import FIRST_TIMESTAMP_MS, Tier, made_batch
from tierlog.errors import GapError
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.reader.gaps import OnGap, missing_offsets
from tierlog.reader.open import open_reader
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.testing.segments import segment

SEGMENTS, RECORDS = 5, 10


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Five segments of ten records."""
    tier = Tier(tmp_path / "tier")
    for start in range(0, SEGMENTS * RECORDS, RECORDS):
        tier.add([made_batch(offset) for offset in range(start, start + RECORDS)])
    return tier


def remove(tier: Tier, *numbers: int) -> None:
    """Delete both objects of these segments, as something outside does."""
    for number in numbers:
        for key in tier.keys(number):
            tier.store.path(key).unlink()


def read(tier: Tier, start: int = 0, end: int | None = None, **options: object) -> list[int]:
    """The offsets that `tierlog.read` finds; those before an error stay in the list."""
    found: list[int] = []
    try:
        for piece in tierlog.read(tier.store.root.as_uri(), "made", 0, start, end, **options):  # type: ignore[arg-type]
            found += piece.offset.tolist()
    except GapError as error:
        error.add_note(str(found))
        raise
    return found


def test_a_read_ends_with_an_error_where_a_segment_is_missing(tier: Tier) -> None:
    remove(tier, 1, 2)
    with pytest.raises(GapError, match="made-0: offsets 10 to 29 are in no segment") as caught:
        read(tier)
    assert (caught.value.first_offset, caught.value.last_offset) == (10, 29)
    # The sound records come first.
    assert caught.value.__notes__ == [str(list(range(10)))]


@pytest.mark.parametrize(("start", "end"), [(0, 15), (12, 15), (29, 31), (25, None), (9, 11)])
def test_a_read_that_touches_missing_offsets_is_an_error(
    tier: Tier, start: int, end: int | None
) -> None:
    remove(tier, 1, 2)
    with pytest.raises(GapError, match="offsets 10 to 29"):
        read(tier, start, end)


@pytest.mark.parametrize(("start", "end"), [(0, 10), (30, 50), (30, None), (5, 10)])
def test_a_read_beside_missing_offsets_is_whole(tier: Tier, start: int, end: int | None) -> None:
    remove(tier, 1, 2)
    assert read(tier, start, end) == list(range(start, end or 50))


def test_a_read_goes_on_behind_a_gap_when_told_to(tier: Tier) -> None:
    remove(tier, 1, 3)
    wanted = [*range(10), *range(20, 30), *range(40, 50)]
    assert read(tier, on_gap="skip") == wanted
    told: list[GapError] = []
    assert read(tier, on_gap=told.append) == wanted
    assert [(one.first_offset, one.last_offset) for one in told] == [(10, 19), (30, 39)]


def test_retention_leaves_no_gap(tier: Tier) -> None:
    """Segments that go from the front are no longer part of the log."""
    remove(tier, 0, 1)
    assert read(tier) == list(range(20, 50))


def test_a_compacted_segment_leaves_no_gap(tmp_path: Path) -> None:
    tier = Tier(tmp_path / "tier")
    tier.add([made_batch(2), made_batch(7)], base_offset=0, next_base=10)
    tier.add([made_batch(15)], base_offset=10, next_base=20)
    tier.add([made_batch(20)])
    assert read(tier) == [2, 7, 15, 20]


def test_an_unknown_word_for_gaps_is_refused(tier: Tier) -> None:
    with pytest.raises(tierlog.ConfigError, match="on_gap: expected fail, skip or a function"):
        read(tier, on_gap="ignore")


@given(data=st.data())
def test_gaps_against_a_log_known_offset_by_offset(data: st.DataObject) -> None:
    """Segments anywhere, some of which know what the log had deleted right before them."""
    segments: list[RemoteLogSegmentMetadata] = []
    starts: dict[int, int | None] = {}
    held: set[int] = set()
    deleted: set[int] = set()
    for number in range(data.draw(st.integers(0, 6))):
        first = data.draw(st.integers(0, 40))
        last = data.draw(st.integers(first, 45))
        one = segment(f"s{number}", first, last, epochs=((0, 0),))
        segments.append(one)
        held |= set(range(first, last + 1))
    # Of copies that begin with one offset the first that is listed is asked.
    for one in sorted(segments, key=lambda one: (one.start_offset, one.end_offset)):
        start = data.draw(st.none() | st.integers(0, one.start_offset))
        known = starts.setdefault(one.start_offset, start)
        offset = one.start_offset - 1
        while known is not None and offset >= known and offset not in held:
            deleted.add(offset)
            offset -= 1
    log_start = data.draw(st.none() | st.integers(0, 45))
    end = data.draw(st.none() | st.integers(0, 50))
    gaps = missing_offsets(
        segments,
        data.draw(st.sampled_from([None, LeaderEpochs((EpochEntry(0, 0),))])),
        log_start_offset=log_start,
        end_offset=end,
        gap_start_of=lambda one: starts[one.start_offset],
    )
    found = [offset for one in gaps for offset in range(one.first_offset, one.last_offset + 1)]
    begin = min(held, default=0 if log_start is None else log_start)
    begin = begin if log_start is None else log_start
    after = max([*(one + 1 for one in held), end or 0, begin])
    if not held and log_start is None:
        after = begin
    assert found == [one for one in range(begin, after) if one not in held | deleted]


def test_a_time_that_lies_in_a_gap_is_an_error(tier: Tier) -> None:
    """The first record from then on may be one that is missing."""
    remove(tier, 1, 2)

    def at(offset: int, on_gap: OnGap = "fail") -> int | None:
        reader = open_reader(tier.store.root.as_uri(), on_gap=on_gap)
        return reader.offset_for_timestamp("made", 0, FIRST_TIMESTAMP_MS + offset)

    for offset in (10, 20, 29, 30):
        with pytest.raises(GapError, match="offsets 10 to 29 are in no segment"):
            at(offset)
        assert at(offset, "skip") == 30
    for offset in (0, 5, 9, 31, 45):
        assert at(offset) == offset
    assert at(50) is None

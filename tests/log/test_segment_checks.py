"""Batches against the segment they are in: its name, the next segment, the leader epochs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vectors import VECTORS
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.segment import scan_segment
from tierlog.log.segment_checks import MAX_PROBLEMS, Problem, check_batches, is_plain

BATCH_BYTES = 100
LINEAGE = LeaderEpochs((EpochEntry(0, 0), EpochEntry(3, 110), EpochEntry(4, 200)))


@dataclass(frozen=True)
class Rows:
    """(first offset, last offset, leader epoch) of batches of 100 bytes each."""

    rows: list[tuple[int, int, int]]

    def check(
        self,
        segment_base: int = 100,
        next_base: int | None = 130,
        lineage: LeaderEpochs | None = LINEAGE,
        allow_gaps: bool = False,
        magic: npt.NDArray[np.int8] | None = None,
        epoch_before: int = -1,
    ) -> list[Problem]:
        table = np.array(self.rows, dtype=np.int64).reshape(-1, 3)
        return check_batches(
            base_offset=table[:, 0],
            last_offset=table[:, 1],
            position=np.arange(len(table), dtype=np.int64) * BATCH_BYTES,
            leader_epoch=table[:, 2].astype(np.int32),
            segment_base=segment_base,
            next_base=next_base,
            lineage=lineage,
            allow_gaps=allow_gaps,
            magic=magic,
            epoch_before=epoch_before,
        )


GOOD = [(100, 104, 0), (105, 109, 0), (110, 129, 3)]


def changed(row: int, **fields: int) -> Rows:
    rows = list(GOOD)
    base, last, epoch = rows[row]
    rows[row] = (fields.get("base", base), fields.get("last", last), fields.get("epoch", epoch))
    return Rows(rows)


@pytest.mark.parametrize("allow_gaps", [False, True])
def test_a_good_segment(allow_gaps: bool) -> None:
    assert Rows(GOOD).check(allow_gaps=allow_gaps) == []
    assert Rows(GOOD).check(allow_gaps=allow_gaps, next_base=None) == []
    assert Rows(GOOD).check(allow_gaps=allow_gaps, lineage=None) == []


# What is wrong, with the position and field it must be found at; the last: also when gaps may be.
FAULTS = [
    ("first batch below the segment's base", changed(0, base=99), 0, "base_offset", True),
    ("first batch above the segment's base", changed(0, base=101), 0, "base_offset", False),
    ("gap between batches", changed(1, base=106), 100, "base_offset", False),
    ("overlap of batches", changed(1, base=104), 100, "base_offset", True),
    ("batch that ends before it starts", changed(2, last=109), 223, "last_offset", True),
    ("batch that reaches into the next segment", changed(2, last=130), 223, "last_offset", True),
    ("segment that ends early", changed(2, last=128), 223, "last_offset", False),
    ("epoch too low", changed(2, epoch=0), 212, "leader_epoch", True),
    ("epoch too high", changed(0, epoch=3), 12, "leader_epoch", True),
    ("epoch nobody knows", changed(1, epoch=2), 112, "leader_epoch", True),
    ("no epoch", changed(1, epoch=-1), 112, "leader_epoch", True),
    ("one bit of the epoch", changed(1, epoch=1 << 30), 112, "leader_epoch", True),
]


@pytest.mark.parametrize("allow_gaps", [False, True])
@pytest.mark.parametrize(
    ("rows", "position", "field", "always"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_faults_are_located(
    rows: Rows, position: int, field: str, always: bool, allow_gaps: bool
) -> None:
    problems = rows.check(allow_gaps=allow_gaps)
    found = [(problem.position, problem.field) for problem in problems]
    assert ((position, field) in found) == (always or not allow_gaps)
    assert (problems == []) == (not always and allow_gaps)


def test_texts_name_both_values() -> None:
    (problem,) = changed(2, epoch=0).check()
    assert str(problem) == (
        "leader_epoch at byte 212: expected 3, as in the leader epoch checkpoint, found 0"
    )
    error = problem.as_error("00000000000000000100.log")
    assert (error.reason, error.position, error.path) == (
        "leader_epoch",
        212,
        "00000000000000000100.log",
    )
    (problem,) = changed(2, last=128).check()
    assert (problem.expected, problem.found) == ("129 exactly", "128")
    assert problem.as_error().reason == "offset_order"


def test_a_segment_without_batches() -> None:
    (problem,) = Rows([]).check()
    assert (problem.position, problem.found) == (0, "no batch")
    assert Rows([]).check(next_base=None) == []
    assert Rows([]).check(allow_gaps=True) == []


def test_an_epoch_that_starts_inside_a_batch_is_a_fault() -> None:
    (problem,) = Rows([(100, 129, 0)]).check()
    assert "0 and then 3" in problem.expected


def test_below_the_lineage_only_the_order_is_known() -> None:
    """After DeleteRecords the first entry starts at the log start, above older batches."""
    cut = LeaderEpochs((EpochEntry(3, 115),))
    assert Rows(GOOD).check(lineage=cut) == []
    (problem,) = changed(0, epoch=4).check(lineage=cut)[:1]
    assert (problem.position, problem.expected) == (12, "0 to 3")
    falling = Rows([(100, 104, 2), (105, 109, 1), (110, 129, 3)]).check(lineage=cut)
    assert [problem.position for problem in falling] == [112]
    assert Rows([(100, 104, 2), (105, 129, 1)]).check(lineage=None)[0].position == 112
    assert Rows([(100, 129, 7)]).check(lineage=LeaderEpochs()) == []


def test_legacy_messages_have_no_epoch() -> None:
    rows = Rows([(100, 109, -1), (110, 129, 3)])
    assert rows.check(magic=np.array([1, 2], dtype=np.int8)) == []
    assert [p.position for p in rows.check(magic=np.array([2, 2], dtype=np.int8))] == [12]
    short = Rows([(100, 128, -1)]).check(magic=np.array([0], dtype=np.int8))
    assert [(p.position, p.field) for p in short] == [(0, "last_offset")]


def test_no_more_than_a_hundred_findings() -> None:
    rows = Rows([(100 + i, 100 + i, 9) for i in range(1000)])
    problems = rows.check(next_base=1100)
    assert len(problems) == MAX_PROBLEMS
    assert problems == sorted(problems)


def test_offsets_at_the_edge_of_64_bits() -> None:
    top = 2**63 - 1
    assert Rows([(top, top, 4)]).check(segment_base=top, next_base=None) == []
    assert Rows([(top, top, 4), (0, 0, 0)]).check(segment_base=top, next_base=None) != []
    assert Rows([(0, top, 4)]).check(segment_base=top, next_base=None, lineage=None) != []


@st.composite
def segments(draw: st.DrawFn) -> tuple[Rows, LeaderEpochs, int]:
    """A sound segment from offset 100, its lineage, and the next base."""
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    steps = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    rows: list[tuple[int, int, int]] = []
    entries: list[EpochEntry] = []
    offset, epoch = 100, 0
    for length, step in zip(lengths, steps, strict=True):
        epoch += step
        if not entries or step:
            entries.append(EpochEntry(epoch, offset))
        rows.append((offset, offset + length - 1, epoch))
        offset += length
    return Rows(rows), LeaderEpochs(tuple(entries)), offset


@given(segments(), st.data())
def test_a_falling_epoch_is_noticed_wherever_a_segment_is_cut(
    segment: tuple[Rows, LeaderEpochs, int], data: st.DataObject
) -> None:
    rows = [(base, last, 9 - epoch) for base, last, epoch in segment[0].rows]
    whole = Rows(rows).check(next_base=None, lineage=None)
    cut = data.draw(st.integers(1, len(rows)))
    parts = Rows(rows[:cut]).check(next_base=None, lineage=None)
    if cut < len(rows):
        base, before = rows[cut][0], rows[cut - 1][2]
        parts += Rows(rows[cut:]).check(base, next_base=None, lineage=None, epoch_before=before)
    assert [one.found for one in parts] == [one.found for one in whole]


@given(segments())
def test_sound_segments_pass(segment: tuple[Rows, LeaderEpochs, int]) -> None:
    rows, lineage, next_base = segment
    assert rows.check(next_base=next_base, lineage=lineage) == []


@given(segments(), st.data())
def test_any_lost_batch_is_noticed(
    segment: tuple[Rows, LeaderEpochs, int], data: st.DataObject
) -> None:
    rows, lineage, next_base = segment
    lost = data.draw(st.integers(0, len(rows.rows) - 1))
    left = Rows(rows.rows[:lost] + rows.rows[lost + 1 :])
    assert left.check(next_base=next_base, lineage=lineage)
    assert left.check(next_base=next_base, lineage=lineage, allow_gaps=True) == []


@given(segments(), st.data())
def test_any_flipped_bit_of_offset_or_epoch_is_noticed(
    segment: tuple[Rows, LeaderEpochs, int], data: st.DataObject
) -> None:
    """These two fields lie outside of a batch's checksum."""
    rows, lineage, next_base = segment
    row = data.draw(st.integers(0, len(rows.rows) - 1))
    base, last, epoch = rows.rows[row]
    if data.draw(st.booleans()):
        flipped = int(np.int32(np.uint32(epoch ^ (1 << data.draw(st.integers(0, 31)))).view("i4")))
        bad, at = (base, last, flipped), 12
    else:
        by = (base ^ (1 << data.draw(st.integers(0, 62)))) - base
        bad, at = (base + by, min(last + by, 2**63 - 1), epoch), 0
    damaged = Rows([*rows.rows[:row], bad, *rows.rows[row + 1 :]])
    problems = damaged.check(next_base=next_base, lineage=lineage)
    assert row * BATCH_BYTES + at in [problem.position for problem in problems]


def batches(rows: list[tuple[int, int]]) -> bytes:
    """Batches of three records, by base offset and leader epoch: both lie outside of their CRC."""
    batch = bytes.fromhex(VECTORS["v2_none"])
    return b"".join(
        base.to_bytes(8) + batch[8:12] + epoch.to_bytes(4, signed=True) + batch[16:]
        for base, epoch in rows
    )


@st.composite
def nearly_plain(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Batches from offset 100 on, most of them where the one before ends, in one epoch."""
    rows: list[tuple[int, int]] = []
    base, epoch = 100, draw(st.integers(-1, 4))
    for _ in range(draw(st.integers(1, 8))):
        rows.append((base, epoch))
        base += draw(st.sampled_from((3, 3, 3, 3, 3, 3, 3, 3, 4)))
        epoch += draw(st.sampled_from((0, 0, 0, 0, 0, 1, 2, -1)))
    return rows


LINEAGES = (
    None,
    LeaderEpochs(),
    LeaderEpochs((EpochEntry(2, 0),)),
    LeaderEpochs((EpochEntry(0, 0), EpochEntry(3, 106))),
    LeaderEpochs((EpochEntry(3, 109),)),
)


@given(
    rows=nearly_plain(),
    segment_base=st.sampled_from((100, 100, 99)),
    past_end=st.sampled_from((0, 0, 1, -1, None)),
    lineage=st.sampled_from(LINEAGES),
    epoch_before=st.integers(-1, 3),
    allow_gaps=st.booleans(),
)
def test_what_fits_plainly_has_no_problem(
    rows: list[tuple[int, int]],
    segment_base: int,
    past_end: int | None,
    lineage: LeaderEpochs | None,
    epoch_before: int,
    allow_gaps: bool,
) -> None:
    table = scan_segment(batches(rows))
    next_base = None if past_end is None else int(table.last_offset[-1]) + 1 + past_end
    plain = is_plain(
        table.summary,
        segment_base=segment_base,
        next_base=next_base,
        lineage=lineage,
        epoch_before=epoch_before,
    )
    problems = check_batches(
        base_offset=table.base_offset,
        last_offset=table.last_offset,
        position=table.position,
        leader_epoch=table.leader_epoch,
        segment_base=segment_base,
        next_base=next_base,
        lineage=lineage,
        allow_gaps=allow_gaps,
        magic=table.magic,
        epoch_before=epoch_before,
    )
    assert not (plain and problems)
    epochs = {epoch for _, epoch in rows}
    if not lineage and not allow_gaps and len(epochs) == 1:
        # In one epoch that nobody contradicts, the one is the other.
        assert plain == (not problems)


@pytest.mark.parametrize("lineage", [None, LINEAGES[2]])
def test_what_is_plain(lineage: LeaderEpochs | None) -> None:
    summary = scan_segment(batches([(100, 2), (103, 2), (106, 2)])).summary
    assert is_plain(summary, segment_base=100, next_base=109, lineage=lineage)
    assert is_plain(summary, segment_base=100, next_base=None, lineage=lineage)
    assert not is_plain(scan_segment(b"").summary, segment_base=0, next_base=None, lineage=lineage)


def test_what_is_not_plain() -> None:
    def plain(rows: list[tuple[int, int]], lineage: LeaderEpochs | None) -> bool:
        summary = scan_segment(batches(rows)).summary
        return is_plain(summary, segment_base=100, next_base=None, lineage=lineage)

    assert not plain([(100, -1), (103, -1)], None)
    assert not plain([(100, 2), (103, 3)], LINEAGES[2])
    # The epoch that the lineage has where they begin, not that where they end; and the other way.
    assert not plain([(100, 0), (103, 0), (106, 0)], LINEAGES[3])
    assert not plain([(100, 3), (103, 3), (106, 3)], LINEAGES[3])

"""A segment of too many batches for one table: counted and checked as one, wherever it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from tests.oracle import batches as oracle
from tests.oracle.build import batch, legacy_message
from tests.oracle.model import Record
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.segment_files import SegmentFiles
from tierlog.tools.rebuild.segment import Examined, examine

BASE = 100
RECORDS = 3
TIME_MS = 1_700_000_000_000
# Batches of about 150 bytes, messages of about 50: one to a part, a few, all of them.
PART_BYTES = (1, 120, 400, 100_000)


def made(
    base_offset: int, *, epoch: int = 4, time_ms: int = TIME_MS, codec: int = 0, ends: bool = False
) -> bytes:
    """A batch of `RECORDS` records; `ends`: in a transaction."""
    return batch(
        [
            Record(
                offset=base_offset + number,
                timestamp_ms=time_ms + number,
                key=None,
                value=b"of a record",
                headers=(),
            )
            for number in range(RECORDS)
        ],
        leader_epoch=epoch,
        codec=codec,
        producer_id=7 if ends else -1,
        producer_epoch=0 if ends else -1,
        base_sequence=0 if ends else -1,
        transactional=ends,
    )


def looked_at(
    folder: Path,
    batches: Sequence[bytes],
    *,
    next_base: int,
    lineage: LeaderEpochs | None = None,
    allow_gaps: bool = False,
) -> Examined:
    path = folder / f"{BASE:020d}.log"
    path.write_bytes(b"".join(batches))
    segment = SegmentFiles(
        base_offset=BASE,
        next_base_offset=next_base,
        log_path=str(path),
        size_bytes=path.stat().st_size,
    )
    with segment.open() as handle:
        return examine(
            handle,
            base_offset=BASE,
            next_base_offset=next_base,
            is_active=False,
            lineage=lineage,
            allow_gaps=allow_gaps,
            producer_snapshot=None,
            index_interval_bytes=4096,
        )


@pytest.fixture(params=PART_BYTES)
def _parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tierlog.tools.rebuild.segment.MAX_TABLE_ROWS", 2)
    monkeypatch.setattr("tierlog.tiering.copy.PART_BYTES", request.param)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("special", range(6))
@pytest.mark.parametrize("gaps", [False, True])
def test_all_parts_count(tmp_path: Path, special: int, gaps: bool) -> None:
    """One batch is compressed, in a transaction and the oldest: it shows wherever it lies."""
    batches = [
        made(
            BASE + row * (RECORDS + gaps),
            codec=4 if row == special else 0,
            time_ms=TIME_MS - 1_000 if row == special else TIME_MS + row * 10,
            ends=row == special,
        )
        for row in range(6)
    ]
    found = looked_at(
        tmp_path, batches, next_base=BASE + 6 * (RECORDS + gaps) - gaps, allow_gaps=gaps
    )
    truth, _reason, _position = oracle.scan(b"".join(batches))
    assert found.damage is None
    assert found.batches == len(truth)
    assert found.records == sum(len(oracle.records(one)) for one in truth)
    assert found.first_timestamp_ms == min(one.base_timestamp_ms for one in truth)
    assert found.codecs == ("none", "zstd")
    assert found.has_transactions
    assert found.end_offset == truth[-1].last_offset


@pytest.mark.usefixtures("_parts")
def test_nothing_special_in_any_part(tmp_path: Path) -> None:
    batches = [made(BASE + row * RECORDS) for row in range(6)]
    found = looked_at(tmp_path, batches, next_base=BASE + 6 * RECORDS)
    assert (found.damage, found.codecs, found.has_transactions) == (None, ("none",), False)


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("row", range(6))
@pytest.mark.parametrize("compacted", [False, True])
def test_a_gap_is_found_at_its_batch(tmp_path: Path, row: int, compacted: bool) -> None:
    batches = [made(BASE + one * RECORDS + (one >= row)) for one in range(6)]
    next_base = BASE + 6 * RECORDS + 1
    found = looked_at(tmp_path, batches, next_base=next_base, allow_gaps=compacted)
    if compacted:
        assert found.damage is None
        return
    assert found.damage is not None
    assert (found.damage.reason, found.damage.position) == ("offset_order", starts(batches)[row])
    assert str(BASE + row * RECORDS) in str(found.damage.expected)


@pytest.mark.usefixtures("_parts")
def test_of_several_gaps_the_first_is_told(tmp_path: Path) -> None:
    batches = [made(BASE + one * (RECORDS + 1)) for one in range(6)]
    found = looked_at(tmp_path, batches, next_base=BASE + 6 * (RECORDS + 1) - 1)
    assert found.damage is not None
    assert found.damage.position == starts(batches)[1]


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("row", range(1, 6))
def test_epochs_do_not_go_back(tmp_path: Path, row: int, gap: bool) -> None:
    """Neither within a part nor between two; without a lineage their order is all there is."""
    batches = [
        made(BASE + one * (RECORDS + gap), epoch=9 if one == row - 1 else 4 + one // 2)
        for one in range(6)
    ]
    found = looked_at(tmp_path, batches, next_base=BASE + 6 * (RECORDS + gap) - gap, allow_gaps=gap)
    assert found.damage is not None
    assert found.damage.reason == "leader_epoch"
    # The field is told, 12 bytes into its batch.
    assert found.damage.position is not None
    assert 0 <= found.damage.position - starts(batches)[row] <= 12


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("row", range(1, 6))
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_from_before_batches(tmp_path: Path, magic: int, row: int) -> None:
    """They are no run of batches, and follow on each other all the same."""
    for gap in (0, 1):
        messages = [
            legacy_message(
                BASE + one + (gap if one >= row else 0), TIME_MS, None, b"of a message", magic=magic
            )
            for one in range(6)
        ]
        damage = looked_at(tmp_path, messages, next_base=BASE + 6 + gap).damage
        if gap:
            assert damage is not None
            assert (damage.reason, damage.position) == ("offset_order", starts(messages)[row])
        else:
            assert damage is None


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("row", range(6))
def test_epochs_are_those_of_the_lineage(tmp_path: Path, row: int) -> None:
    batches = [made(BASE + one * RECORDS, epoch=4 + (one >= row)) for one in range(6)]
    next_base = BASE + 6 * RECORDS
    right = LeaderEpochs((EpochEntry(4, 0), EpochEntry(5, BASE + row * RECORDS)))
    assert looked_at(tmp_path, batches, next_base=next_base, lineage=right).damage is None
    wrong = LeaderEpochs((EpochEntry(4, 0), EpochEntry(5, BASE + (row + 1) * RECORDS)))
    damage = looked_at(tmp_path, batches, next_base=next_base, lineage=wrong).damage
    assert damage is not None
    assert damage.reason == "leader_epoch"


@pytest.mark.usefixtures("_parts")
@pytest.mark.parametrize("moved", [-1, 1])
def test_the_end_is_that_of_the_last_part(tmp_path: Path, moved: int) -> None:
    batches = [made(BASE + one * RECORDS) for one in range(6)]
    found = looked_at(tmp_path, batches, next_base=BASE + 6 * RECORDS + moved)
    assert found.damage is not None
    assert found.damage.reason == "offset_order"
    assert found.damage.position is not None
    assert found.damage.position >= starts(batches)[5]


def starts(batches: Sequence[bytes]) -> list[int]:
    """The position of each batch."""
    return [0, *accumulate(len(one) for one in batches)]

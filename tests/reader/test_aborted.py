"""Aborted transactions where leaders changed without all of the log: by lineage, not by segment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fetch.tier import PARTITION, Tier, made_batch, tier_only
from tests.fetch.views import Row, consumed, truth
from tests.reader.lineages import lineage_of
from tests.reader.transactions import data, marker, snapshot_after
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.aborted import TransactionReader

PRODUCER, EARLIER, OTHER = 7, 8, 9
CUT = 50


def log_of(begin: int, end: int, epoch: int, special: dict[int, bytes]) -> list[bytes]:
    """One batch an offset, plain ones where there is no `special` one."""
    return [special.get(one) or made_batch(one, epoch=epoch) for one in range(begin, end)]


def log_on(folder: Path, batches: Sequence[bytes], tier: Tier) -> PartitionLog:
    """These batches as a directory's only segment."""
    folder.mkdir()
    path = folder / f"{0:020d}.log"
    path.write_bytes(b"".join(batches))
    segment = SegmentFiles(
        base_offset=0, next_base_offset=None, log_path=str(path), size_bytes=path.stat().st_size
    )
    return PartitionLog(
        topic=PARTITION.topic,
        partition=PARTITION.partition,
        topic_id=PARTITION.topic_id,
        directory=str(folder),
        segments=(segment,),
        leader_epochs=tier.lineage,
        log_start_offset=0,
        high_watermark=len(batches),
    )


def read_all(tier: Tier, end: int) -> list[Row]:
    """What a consumer of committed records makes of the tier, read by read."""
    view = tier_only(tier, end)
    transactions = TransactionReader(tier.storage, tier.metadata)
    reader = tier.reader()
    rows: list[Row] = []
    offset = 0
    while offset < end:
        read = tier.read(reader, offset, 1_000, end)
        rows += consumed(read.records, offset, transactions.of_remote(view, PARTITION, read))
        offset = read.next_offset
    reader.close()
    return rows


@pytest.mark.parametrize("cut_off", [None, False, True])
@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_how_a_transaction_ended_is_what_the_lineage_says(
    tmp_path: Path, cut_off: bool | None, commit: bool, later: bool
) -> None:
    """The first leader's segment goes on behind the offset where the next one began, and may end
    the transaction there in its own way (`cut_off`); the log ends it by `commit`, in a segment that
    lies behind that offset as a whole but before the end of the first one's. `later`: the segment
    after both has an aborted transaction of its own."""
    tier = Tier(tmp_path / "tier")
    special = {
        20: data(20, EARLIER, 0),
        30: marker(30, EARLIER, 0, commit=False),
        40: data(40, PRODUCER, 0),
    }
    if cut_off is not None:
        special[70] = marker(70, PRODUCER, 0, commit=cut_off)
    deposed = log_of(0, 100, 0, special)
    tier.add(deposed, lineage=lineage_of((0, 0)))
    tier.lineage = lineage_of((0, 0), (1, CUT))
    second = log_of(CUT, 90, 1, {60: marker(60, PRODUCER, 1, commit=commit)})
    third = log_of(90, 120, 1, {})
    if later:
        third[5:11] = [
            data(95, OTHER, 1),
            *third[6:10],
            marker(100, OTHER, 1, commit=False),
        ]
    history = deposed[:CUT] + second + third
    tier.add(second, producer_snapshot=snapshot_after(tmp_path / "before 50", history[:CUT]))
    tier.add(third, producer_snapshot=snapshot_after(tmp_path / "before 90", history[:90]))
    expected = truth(log_on(tmp_path / "log", history, tier), committed=True)
    assert (40 in [row[0] for row in expected]) is commit
    assert read_all(tier, 120) == expected


def test_a_deposed_leaders_later_segments_are_passed_over(tmp_path: Path) -> None:
    """What the first leader wrote after the next one began says nothing about the log, and does not
    hide what the next one wrote at the same offsets."""
    tier = Tier(tmp_path / "tier")
    first = log_of(0, 30, 0, {20: data(20, PRODUCER, 0)})
    plain = log_of(30, CUT, 0, {})
    tier.add(first, lineage=lineage_of((0, 0)))
    tier.add(plain, lineage=lineage_of((0, 0)))
    snapshot = snapshot_after(tmp_path / "before 50", first + plain)
    deposed = log_of(CUT, 80, 0, {55: marker(55, PRODUCER, 0, commit=False)})
    tier.add(deposed, lineage=lineage_of((0, 0)), producer_snapshot=snapshot)
    tier.lineage = lineage_of((0, 0), (1, CUT))
    second = log_of(CUT, 70, 1, {60: marker(60, PRODUCER, 1, commit=False)})
    tier.add(second, producer_snapshot=snapshot)
    expected = truth(log_on(tmp_path / "log", first + plain + second, tier), committed=True)
    assert 20 not in [row[0] for row in expected]
    assert read_all(tier, 70) == expected

"""Without the segment that says how a transaction ended, no reader of committed records goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import tierlog
from tests.fetch.tier import Tier, made_batch, tier_only
from tests.reader.transactions import data, marker, snapshot_after
from tierlog.cli import main
from tierlog.errors import GapError
from tierlog.log.files import read_small
from tierlog.reader.aborted import TransactionReader
from tierlog.remote.segment.layout import claim_cluster
from tierlog.testing.segments import uuid_of

PRODUCER = 7


def tier_with(folder: Path, *, marker_at: int) -> Tier:
    """Three segments of ten offsets; 0 to 8 in a transaction that the marker aborts."""
    tier = Tier(folder / "tier")
    claim_cluster(tier.store, uuid_of("cluster"))
    log = [made_batch(offset) for offset in range(30)]
    for offset in range(9):
        log[offset] = data(offset, PRODUCER, 0)
    log[marker_at] = marker(marker_at, PRODUCER, 0, commit=False)
    for start in (0, 10, 20):
        snapshot = snapshot_after(folder / f"before-{start}", log[:start]) if start else None
        tier.add(log[start : start + 10], producer_snapshot=snapshot)
    return tier


def committed(tier: Tier, start: int = 0, end: int | None = None, **options: object) -> list[int]:
    pieces = tierlog.read(
        tier.store.root.as_uri(),
        "made",
        0,
        start,
        end,
        isolation_level="read_committed",
        **options,  # type: ignore[arg-type]
    )
    return [offset for piece in pieces for offset in piece.offset.tolist()]


def test_aborted_records_are_left_out_while_all_is_there(tmp_path: Path) -> None:
    tier = tier_with(tmp_path, marker_at=15)
    assert committed(tier) == [9, *range(10, 15), *range(16, 30)]


@pytest.mark.parametrize("on_gap", ["fail", "skip"])
@pytest.mark.parametrize("end", [None, 10, 5])
def test_the_segment_of_the_marker_is_gone(tmp_path: Path, on_gap: str, end: int | None) -> None:
    """Passing over offsets does not allow to serve what may have been aborted."""
    tier = tier_with(tmp_path, marker_at=15)
    for key in tier.keys(1):
        tier.store.path(key).unlink()
    with pytest.raises(GapError, match="offsets 10 to 19 are in no segment"):
        committed(tier, 0, end, on_gap=on_gap)
    assert committed(tier, 20) == list(range(20, 30))


@pytest.mark.parametrize("damage", ["gone", "refused"])
def test_the_indexes_of_the_marker_are_gone_or_refused(
    tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = tier_with(tmp_path, marker_at=15)
    indexes = tier.store.path(tier.keys(1)[1])
    if damage == "gone":
        indexes.unlink()
    else:
        indexes.write_bytes(b"\xff" + read_small(os.fspath(indexes), 1 << 20)[1:])
    command = ["cat", os.fspath(tier.store.root), "made:0", "--read-committed", "-f", "%o "]
    for more in ([], ["-o", ":10"], ["-c", "3"]):
        assert main([*command, *more]) == 1
        assert capsys.readouterr().out == ""


def test_a_gap_behind_all_transactions_hides_none(tmp_path: Path) -> None:
    tier = tier_with(tmp_path, marker_at=9)
    for key in tier.keys(1):
        tier.store.path(key).unlink()
    assert committed(tier, 0, 10) == []
    assert committed(tier, on_gap="skip") == list(range(20, 30))
    with pytest.raises(GapError, match="offsets 10 to 19"):
        committed(tier)


def test_a_fetch_is_told(tmp_path: Path) -> None:
    """The metadata lost the segment: the answer for the partition is an error."""
    tier = tier_with(tmp_path, marker_at=15)
    for state in (2, 3):
        tier.metadata.update(
            tier.segments[1].update_to(type(tier.segments[1].state)(state), event_timestamp_ms=1)
        )
    transactions = TransactionReader(tier.storage, tier.metadata)
    read = tier.read(tier.reader(), 0)
    with pytest.raises(GapError, match="offsets 10 to 19"):
        transactions.of_remote(tier_only(tier, 30), tier.partition, read)

"""Copies under a quota: what they wait for, what a failed one counts, what a stopped one leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.tiering.copying import FailingStore, Tier
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment_files import SegmentFiles
from tierlog.quota import QuotaManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import CopyFailedError


@pytest.fixture(scope="module")
def log() -> PartitionLog:
    return open_log_dir(str(DATA_DIR / "clean" / "disk1")).partition("codec-none", 0)


def quota_of(limit: int | None, clock: ManualClock, mode: QuotaMode) -> QuotaManager:
    config = QuotaConfig(copy_max_bytes_per_second=limit, copy_quota_mode=mode)
    return QuotaManager.for_copies(config, clock)


def copy(tier: Tier, quota: QuotaManager, log: PartitionLog, segment: SegmentFiles) -> int:
    """How long it waited."""
    with quota.transfer(segment.size_bytes) as transfer:
        tier.copy(log, segment, transfer.before_piece)
    return transfer.waited_ms


def stored_bytes(store: ObjectStore) -> int:
    return sum(info.size_bytes for info in store.list())


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_copy_counts_both_its_objects(mode: QuotaMode, log: PartitionLog, tmp_path: Path) -> None:
    clock = ManualClock()
    quota = quota_of(100, clock, mode)
    tier = Tier(tmp_path / "store")
    waits = [copy(tier, quota, log, segment) for segment in log.rolled_segments]
    snapshot = quota.snapshot()
    assert snapshot.total_bytes == stored_bytes(tier.store)
    assert snapshot.reserved_bytes == 0
    assert sum(waits) == clock.monotonic_ms()
    if mode is QuotaMode.PACE:
        # The indexes of the first one wait for its log.
        assert all(waits)
    else:
        assert [wait > 0 for wait in waits] == [False, True, True, True]


@pytest.mark.parametrize("mode", QuotaMode)
@pytest.mark.parametrize(
    ("verb", "after", "sent"),
    [("put_stream", False, 0), ("put_stream", True, 1), ("put_bytes", False, 2), ("head", True, 2)],
)
def test_what_a_failed_copy_had_sent_stays_counted(
    verb: str, after: bool, sent: int, mode: QuotaMode, log: PartitionLog, tmp_path: Path
) -> None:
    """And the retry counts again: the quota is about bytes that went out, not about segments."""
    quota = quota_of(None, ManualClock(), mode)
    real = open_store((tmp_path / "store").as_uri())
    tier = Tier(tmp_path / "store", FailingStore(real, verb, 1, after=after))
    segment = log.rolled_segments[0]
    with pytest.raises(CopyFailedError):
        copy(tier, quota, log, segment)
    assert stored_bytes(real) == 0
    first = quota.snapshot()
    copy(tier, quota, log, segment)
    whole = stored_bytes(real)
    assert first.total_bytes == [0, segment.size_bytes, whole][sent]
    snapshot = quota.snapshot()
    assert snapshot.total_bytes == first.total_bytes + whole
    assert (first.reserved_bytes, snapshot.reserved_bytes) == (0, 0)


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_a_copy_that_is_stopped_while_it_is_paced_leaves_nothing(
    scheme: str, log: PartitionLog, tmp_path: Path
) -> None:
    """The indexes wait for quota, and get none any more."""
    clock = ManualClock()
    quota = quota_of(1, clock, QuotaMode.PACE)
    store = open_store("memory:///stopped") if scheme == "memory" else None
    tier = Tier(tmp_path / "store", store)

    def close(_: int) -> None:
        keys = tier.keys()
        assert any(key.endswith(".log") for key in keys)
        quota.close()

    segment = log.rolled_segments[0]
    with (
        pytest.raises(ClosedError),
        quota.transfer(segment.size_bytes, on_wait=close) as transfer,
    ):
        tier.copy(log, segment, transfer.before_piece)
    assert tier.keys() == []
    assert tier.states() == []
    assert quota.snapshot().total_bytes == segment.size_bytes

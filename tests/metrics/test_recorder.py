"""What is counted, summed, unknown and gone."""

from __future__ import annotations

import select
import threading
from pathlib import Path

import pytest

import tierlog
from tests.metrics.support import Pool, partition, set_all
from tierlog.clock import ManualClock
from tierlog.metrics import PartitionMetrics, RemoteEvent, RemoteLogMetrics
from tierlog.types import random_kafka_uuid

THREADS = 8
ROUNDS = 2_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> RemoteLogMetrics:
    return RemoteLogMetrics(clock)


def count(metrics: RemoteLogMetrics, event: RemoteEvent, topic: str | None = None) -> int | None:
    found = metrics.meter(event, topic)
    return None if found is None else found.count


def test_events_count_for_their_topic_and_over_all(metrics: RemoteLogMetrics) -> None:
    orders, clicks = metrics.partition(partition()), metrics.partition(partition("clicks"))
    orders.copy_started()
    orders.copied(100)
    clicks.copy_started()
    clicks.copy_failed()
    orders.delete_started()
    orders.delete_failed()
    orders.deleted(40)
    orders.log_start_offset_advanced()
    metrics.fetch_started("orders")
    metrics.fetched("orders", 7)
    metrics.fetch_failed("orders")

    found = metrics.snapshot()
    by_event = dict(zip(RemoteEvent, found.topics["orders"], strict=True))
    assert {event.name: value for event, value in by_event.items() if value} == {
        "COPY_BYTES": 100,
        "COPY_REQUESTS": 1,
        "FETCH_BYTES": 7,
        "FETCH_REQUESTS": 1,
        "FETCH_ERRORS": 1,
        "DELETE_REQUESTS": 1,
        "DELETE_ERRORS": 1,
    }
    assert [meter.count for meter in found.totals] == [
        sum(counts) for counts in zip(*found.topics.values(), strict=True)
    ]
    assert count(metrics, RemoteEvent.COPY_REQUESTS) == 2
    assert (found.counts.segments_copied, found.counts.segments_deleted) == (1, 1)
    assert (found.counts.deleted_bytes, found.counts.log_start_advances) == (40, 1)


def test_rates_are_of_the_clock_given(metrics: RemoteLogMetrics, clock: ManualClock) -> None:
    handle = metrics.partition(partition())
    handle.copied(1_000)
    clock.advance(5_000)
    found = metrics.meter(RemoteEvent.COPY_BYTES, "orders")
    assert found is not None
    assert (found.one_minute_rate, found.mean_rate) == (200, 200)
    clock.jump_wall(-3_600_000)
    assert metrics.meter(RemoteEvent.COPY_BYTES, "orders") == found


def test_gauges_are_summed_by_topic_and_over_all(metrics: RemoteLogMetrics) -> None:
    names = (("orders", 0), ("orders", 1), ("clicks", 0))
    for place, (topic, number) in enumerate(names, 1):
        handle = metrics.partition(partition(topic, number))
        handle.set_copy_lag(size_bytes=100 * place, segments=place)
        handle.set_delete_lag(size_bytes=10 * place, segments=1)
        handle.set_remote_log(size_bytes=1000, metadata_count=5, computation_ms=0.5)
        handle.set_retention_percent(total_percent=place, local_percent=2 * place)
    found = metrics.snapshot()
    assert found.topic_sums["orders"].copy_lag == (300, 3)
    assert found.topic_sums["clicks"].delete_lag == (30, 1)
    assert found.total_sums.copy_lag == (600, 6)
    assert found.total_sums.delete_lag == (60, 3)
    assert found.total_sums.remote_log == (3000, 15, 1.5)
    assert found.retention_percent == {
        ("orders", 0): (1, 2),
        ("orders", 1): (2, 4),
        ("clicks", 0): (3, 6),
    }
    assert (found.partitions, found.copy_lag_unknown) == (3, 0)


def test_what_is_unknown_is_absent(metrics: RemoteLogMetrics) -> None:
    known, unknown = metrics.partition(partition()), metrics.partition(partition("clicks"))
    found = metrics.snapshot()
    assert found.total_sums.copy_lag is None
    assert found.copy_lag_unknown == 2
    known.set_copy_lag(size_bytes=5, segments=1)
    known.set_delete_lag(size_bytes=5, segments=1)
    known.set_remote_log(size_bytes=5, metadata_count=1, computation_ms=1)
    found = metrics.snapshot()
    assert found.topic_sums["clicks"].copy_lag is None
    assert found.total_sums.copy_lag == (5, 1)
    assert found.copy_lag_unknown == 1
    known.set_copy_lag(size_bytes=0, segments=0)
    assert metrics.snapshot().total_sums.copy_lag is None, "0 would say that all is well"
    known.copy_lag_unknown()
    known.delete_lag_unknown()
    known.remote_log_unknown()
    found = metrics.snapshot()
    assert found.total_sums.copy_lag is found.total_sums.delete_lag is None
    assert found.total_sums.remote_log is None
    unknown.close()
    known.close()
    assert metrics.snapshot().total_sums.copy_lag == (0, 0), "nobody leads: nothing lags"


def test_no_gauge_is_negative(metrics: RemoteLogMetrics) -> None:
    handle = metrics.partition(partition())
    handle.set_copy_lag(size_bytes=-1, segments=-1)
    handle.set_delete_lag(size_bytes=-1, segments=-1)
    handle.set_remote_log(size_bytes=-1, metadata_count=-1, computation_ms=-0.5)
    handle.set_retention_percent(total_percent=-1, local_percent=-1)
    found = metrics.snapshot()
    assert found.total_sums.copy_lag == (0, 0)
    assert found.total_sums.delete_lag == (0, 0)
    assert found.total_sums.remote_log == (0, 0, 0.0)
    assert found.retention_percent == {("orders", 0): (0, 0)}


def test_a_late_task_brings_nothing_back(metrics: RemoteLogMetrics) -> None:
    handle = metrics.partition(partition())
    set_all(handle)
    handle.close()
    set_all(handle)
    found = metrics.snapshot()
    assert (found.topics, found.topic_sums, found.retention_percent) == ({}, {}, {})
    assert found.total_sums.copy_lag == (0, 0)
    assert found.totals[RemoteEvent.COPY_BYTES].count == 20, "what was copied was copied"
    handle.close()


def test_a_later_leadership_is_not_disturbed_by_the_former(metrics: RemoteLogMetrics) -> None:
    former = metrics.partition(partition())
    set_all(former)
    later = metrics.partition(partition(topic_id=random_kafka_uuid()))
    assert metrics.snapshot().copy_lag_unknown == 1
    later.set_copy_lag(size_bytes=1, segments=1)
    set_all(former)
    former.close()
    found = metrics.snapshot()
    assert found.partitions == 1
    assert found.total_sums.copy_lag == (1, 1)
    assert found.total_sums.remote_log is None
    assert found.topics["orders"][RemoteEvent.COPY_BYTES] == 20
    later.close()
    assert metrics.snapshot().topics == {}


def test_a_topic_lives_as_long_as_its_last_partition(metrics: RemoteLogMetrics) -> None:
    handles = [metrics.partition(partition(number=number)) for number in range(3)]
    handles[0].copied(5)
    for handle in handles:
        assert count(metrics, RemoteEvent.COPY_BYTES, "orders") == 5
        handle.close()
    assert count(metrics, RemoteEvent.COPY_BYTES, "orders") is None
    metrics.partition(partition())
    assert count(metrics, RemoteEvent.COPY_BYTES, "orders") == 0
    assert count(metrics, RemoteEvent.COPY_BYTES) == 5


def test_a_deleted_topic_takes_its_fetches_along(metrics: RemoteLogMetrics) -> None:
    metrics.fetched("read-only", 5)
    metrics.forget_topic("read-only")
    metrics.forget_topic("never-heard-of")
    assert metrics.snapshot().topics == {}
    assert count(metrics, RemoteEvent.FETCH_BYTES) == 5


def test_a_topic_made_again_outlives_the_deletion_of_the_former(metrics: RemoteLogMetrics) -> None:
    handle = metrics.partition(partition())
    handle.copied(5)
    metrics.forget_topic("orders")
    handle.set_copy_lag(size_bytes=1, segments=1)
    assert count(metrics, RemoteEvent.COPY_BYTES, "orders") == 5
    assert metrics.snapshot().topic_sums["orders"].copy_lag == (1, 1)


def test_deletions_of_a_whole_topic_count_without_a_leader(metrics: RemoteLogMetrics) -> None:
    metrics.delete_started("orders")
    metrics.deleted(70)
    metrics.delete_failed("orders")
    found = metrics.snapshot()
    assert found.topics == {}, "the topic is gone"
    assert found.totals[RemoteEvent.DELETE_REQUESTS].count == 1
    assert found.totals[RemoteEvent.DELETE_ERRORS].count == 1
    assert (found.counts.segments_deleted, found.counts.deleted_bytes) == (1, 70)


def test_pools_are_asked_when_somebody_looks(metrics: RemoteLogMetrics) -> None:
    metrics.watch_pool("copy", Pool(1, 600_000, 600_001))
    metrics.watch_pool("expiration", Pool(1, 2), stuck_after_ms=1)
    for error in (ValueError(), OSError(), ValueError()):
        metrics.task_failed("copy", error)
    pools = metrics.snapshot().pools
    assert (pools["copy"].running, pools["copy"].stuck, pools["copy"].queued) == (3, 1, 3)
    usual = {"RemoteMetadataError": 0, "RemoteStorageError": 0}
    assert pools["copy"].failures == {"ValueError": 2, "OSError": 1, **usual}
    assert (pools["expiration"].stuck, pools["expiration"].failures) == (1, usual)


def in_threads(work: list[threading.Thread]) -> None:
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()


class Interrupted(int):
    """An amount in whose addition another thread gets its turn."""

    def __radd__(self, other: int) -> int:
        select.select([], [], [], 0)
        return other + int(self)


def test_an_addition_is_not_interrupted(metrics: RemoteLogMetrics) -> None:
    handle = metrics.partition(partition())

    def record() -> None:
        for _ in range(100):
            handle.copied(Interrupted(1))
            handle.deleted(Interrupted(1))
            metrics.fetched("orders", Interrupted(1))

    in_threads([threading.Thread(target=record) for _ in range(4)])
    found = metrics.snapshot()
    assert found.topics["orders"][RemoteEvent.COPY_BYTES] == 400
    assert found.totals[RemoteEvent.COPY_BYTES].count == 400
    assert found.topics["orders"][RemoteEvent.FETCH_BYTES] == 400
    assert (found.counts.segments_copied, found.counts.deleted_bytes) == (400, 400)


def test_threads_lose_no_event(metrics: RemoteLogMetrics) -> None:
    """Totals are exact, and so is each topic, while others look and leaderships change."""
    handles = [metrics.partition(partition(f"topic-{number % 4}", number)) for number in range(8)]
    over = threading.Event()
    torn = []

    def record(handle: PartitionMetrics) -> None:
        for _ in range(ROUNDS):
            handle.copy_started()
            handle.copied(3)
            handle.set_copy_lag(size_bytes=700, segments=7)
            metrics.fetched("read", 2)
            metrics.copy_throttled(5)

    def change() -> None:
        while not over.is_set():
            handle = metrics.partition(partition("changing"))
            set_all(handle)
            handle.close()

    def look() -> None:
        while not over.is_set():
            found = metrics.snapshot()
            whole = all(
                total.count >= sum(counts)
                for total, counts in zip(
                    found.totals, zip(*found.topics.values(), strict=True), strict=True
                )
            )
            lag = found.total_sums.copy_lag
            if not whole or (lag is not None and lag.size_bytes != 100 * lag.segments):
                torn.append(found)

    others = [threading.Thread(target=target) for target in (change, look)]
    for thread in others:
        thread.start()
    in_threads([threading.Thread(target=record, args=(handle,)) for handle in handles])
    over.set()
    for thread in others:
        thread.join()
    assert torn == []
    found = metrics.snapshot()
    expected = 2 * ROUNDS
    for number in range(4):
        assert found.topics[f"topic-{number}"][RemoteEvent.COPY_REQUESTS] == expected
        assert found.topics[f"topic-{number}"][RemoteEvent.COPY_BYTES] == 3 * expected
    assert found.topics["read"][RemoteEvent.FETCH_BYTES] == 2 * ROUNDS * THREADS
    assert found.copy_throttle_ms == (5.0, 5.0)
    assert "changing" not in found.topics


def test_everything_that_is_recorded_is_recorded_by_shipped_code() -> None:
    """A metric that nothing feeds would be a promise on docs/METRICS.md alone."""
    package = Path(tierlog.__file__).parent
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path.parent.name != "metrics"
    )
    read = {"meter", "snapshot", "close"}
    recorded = {
        name
        for kind in (RemoteLogMetrics, PartitionMetrics)
        for name in vars(kind)
        if not name.startswith("_") and callable(getattr(kind, name)) and name not in read
    }
    assert {name for name in recorded if f".{name}(" not in source} == set()

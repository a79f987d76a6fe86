"""Records the events of the remote log manager: one object per process, one handle per led or
followed partition.

Events are meters per topic and over all topics. Gauges exist while a partition is led. The handle
that `RemoteLogMetrics.partition` returns sets them. The handle ends when it is closed or a later
handle of the partition is created. Tasks that still use the old handle then set no gauges. As in
Kafka, the series of a topic exist while a partition of the topic is led. Events of later tasks
count only in the totals over all topics.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from typing import Literal

from tierlog.clock import Clock, SystemClock
from tierlog.metrics.clients import ClientBytes
from tierlog.metrics.meters import Histogram, Meter, MeterSnapshot, SampledAvgMax
from tierlog.metrics.snapshot import (
    GaugeSums,
    IndexCacheWatched,
    Lag,
    LookStats,
    MetricsSnapshot,
    OwnCounts,
    QuotaWatched,
    ReadAheadWatched,
    RemoteEvent,
    RemoteLog,
    TaskPoolWatched,
    pool_stats,
)
from tierlog.types import TopicIdPartition

__all__ = ["FollowerMetrics", "PartitionMetrics", "RemoteLogMetrics"]


# Plain numbers, because to look up an enum member takes longer than to count.
_COPY_BYTES, _COPY_REQUESTS, _COPY_ERRORS = 0, 1, 2
_FETCH_BYTES, _FETCH_REQUESTS, _FETCH_ERRORS = 3, 4, 5
_DELETE_REQUESTS, _DELETE_ERRORS = 6, 7

# From the duration of a local read up to the duration of a read from a slow store.
FETCH_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# A run that takes longer counts as stuck.
STUCK_AFTER_MS = 600_000
# A store that takes longer to answer a small request counts as not answering.
STORE_PATIENCE_MS = 10_000


class _Topic:
    """The meters of one topic. They exist while there are open ``handles`` or fetches."""

    __slots__ = ("handles", "meters", "name")

    def __init__(self, name: str, now_ms: int) -> None:
        self.name = name
        self.handles = 0
        self.meters = [Meter(now_ms) for _ in RemoteEvent]


class PartitionMetrics:
    """The metrics of a partition while it is led; made by `RemoteLogMetrics.partition`.

    Unknown values are not shown: each gauge is absent until it is set, and again after the call of
    its ``..._unknown``. Any thread may call the methods, also after `close`.
    """

    __slots__ = (
        "_broken_segments",
        "_copy_lag",
        "_delete_lag",
        "_deposed",
        "_metrics",
        "_refused_segments",
        "_remote_log",
        "_retention_percent",
        "_topic",
        "partition",
    )

    def __init__(self, metrics: RemoteLogMetrics, partition: TopicIdPartition, topic: _Topic):
        self.partition = partition
        self._metrics = metrics
        self._topic = topic
        self._copy_lag: Lag | None = None
        self._delete_lag: Lag | None = None
        self._remote_log: RemoteLog | None = None
        self._retention_percent: tuple[int, int] | None = None
        self._refused_segments = self._broken_segments = 0
        self._deposed = False

    # -- events

    def copy_started(self) -> None:
        """A segment is about to be copied: once per attempt."""
        self._metrics._count(self._topic, _COPY_REQUESTS)

    def copied(self, size_bytes: int) -> None:
        """A segment with that size of its log is durably in COPY_SEGMENT_FINISHED."""
        self._metrics._copied(self._topic, size_bytes)

    def found_unreadable(self, batches: int) -> None:
        """Count copied batches whose records cannot be read."""
        self._metrics._found_unreadable(batches)

    def copy_failed(self) -> None:
        """A segment was refused, or a run of the copy task failed."""
        self._metrics._count(self._topic, _COPY_ERRORS)

    def delete_started(self) -> None:
        """A segment is about to be deleted from the tier: once per attempt."""
        self._metrics._count(self._topic, _DELETE_REQUESTS)

    def deleted(self, size_bytes: int) -> None:
        """A segment of that log size is DELETE_SEGMENT_FINISHED."""
        self._metrics._deleted(size_bytes)

    def delete_failed(self) -> None:
        """A segment could not be deleted from the tier."""
        self._metrics._count(self._topic, _DELETE_ERRORS)

    def log_start_offset_advanced(self) -> None:
        """Retention moved the log start offset."""
        self._metrics._log_start_offset_advanced()

    # -- gauges

    def set_copy_lag(self, *, size_bytes: int, segments: int) -> None:
        """Set the size and number of segments that could be copied but are not copied yet."""
        self._copy_lag = Lag(max(0, size_bytes), max(0, segments))

    def copy_lag_unknown(self) -> None:
        """Remove the gauge of the copy lag: it is unknown."""
        self._copy_lag = None

    def set_delete_lag(self, *, size_bytes: int, segments: int) -> None:
        """Set the size and number of segments that were chosen for deletion and still exist."""
        self._delete_lag = Lag(max(0, size_bytes), max(0, segments))

    def delete_lag_unknown(self) -> None:
        """Remove the gauge of the delete lag: it is unknown."""
        self._delete_lag = None

    def set_remote_log(
        self, *, size_bytes: int, metadata_count: int, computation_ms: float
    ) -> None:
        """Set the size of the remote log, the number of segments in its metadata, and the time that
        it took to compute the size."""
        self._remote_log = RemoteLog(
            max(0, size_bytes), max(0, metadata_count), max(0.0, computation_ms)
        )

    def remote_log_unknown(self) -> None:
        """Remove the gauges of the remote log: they are unknown."""
        self._remote_log = None

    def set_retention_percent(self, *, total_percent: int, local_percent: int) -> None:
        """Set the size of the log in percent of ``retention.bytes``, and the size of the local log
        in percent of ``local.retention.bytes``; 0 if there is no limit."""
        self._retention_percent = (max(0, total_percent), max(0, local_percent))

    def set_damage(self, *, refused_segments: int, broken_segments: int) -> None:
        """Local segments that were refused, and segments whose objects are missing or damaged."""
        self._refused_segments, self._broken_segments = refused_segments, broken_segments

    def set_deposed(self) -> None:
        """A later leader has claimed the partition, so this process no longer copies or expires
        it."""
        self._deposed = True

    def close(self) -> None:
        """The partition is no longer led, or is deleted. Remove its gauges for good."""
        self._metrics._close(self)


class FollowerMetrics:
    """The metrics of a partition while it is followed; made by `RemoteLogMetrics.follower`."""

    __slots__ = ("_lag", "_metrics")

    def __init__(self, metrics: RemoteLogMetrics) -> None:
        self._metrics = metrics
        self._lag: Lag | None = None

    def set_lag(self, *, size_bytes: int, segments: int) -> None:
        """Set the size and number of local segments that the leader may copy but has not copied."""
        self._lag = Lag(size_bytes, segments)

    def close(self) -> None:
        """The partition is no longer followed."""
        self._metrics._close_follower(self)


class RemoteLogMetrics:
    """The metrics of one `RemoteLogManager`, or of a reader. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._totals = _Topic("", self._clock.monotonic_ms())
        self._topics: dict[str, _Topic] = {}
        self._partitions: dict[tuple[str, int], PartitionMetrics] = {}
        self._followers: set[FollowerMetrics] = set()
        self._look: LookStats | None = None
        self._store_answers: bool | None = None
        self._store_asked_ms: int | None = None
        self._copy_throttle = SampledAvgMax()
        self._fetch_throttle = SampledAvgMax()
        self._counts = OwnCounts()
        self._pools: dict[str, tuple[TaskPoolWatched, int]] = {}
        self._task_failures: Counter[tuple[str, str]] = Counter()
        self._quotas: dict[str, QuotaWatched] = {}
        self._index_cache: IndexCacheWatched | None = None
        self._read_ahead: ReadAheadWatched | None = None
        self._clients = ClientBytes()
        self._fetch_seconds = Histogram(FETCH_BUCKETS_S)

    # -- leadership

    def partition(self, partition: TopicIdPartition) -> PartitionMetrics:
        """Return the handle of a partition that is led from now on. An earlier handle of the
        partition is closed, even if it is of an earlier topic with the same name."""
        key = (partition.topic, partition.partition)
        with self._lock:
            topic = self._topic(partition.topic)
            topic.handles += 1
            earlier = self._partitions.pop(key, None)
            if earlier is not None:
                self._release(earlier)
            handle = self._partitions[key] = PartitionMetrics(self, partition, topic)
        return handle

    def follower(self) -> FollowerMetrics:
        """Return the handle of a partition that is followed from now on."""
        handle = FollowerMetrics(self)
        with self._lock:
            self._followers.add(handle)
        return handle

    def forget_topic(self, topic: str) -> None:
        """A topic of that name was deleted. Remove the series that its reads have created.

        While a partition of that name is led, remove nothing, because it may belong to a later
        topic with the same name. The owner of the deleted topic's handles closes them.
        """
        with self._lock:
            found = self._topics.get(topic)
            if found is not None and not found.handles:
                del self._topics[topic]

    # -- events that need no leadership

    def fetch_started(self, topic: str) -> None:
        """A read from the tier begins."""
        self._count(topic, _FETCH_REQUESTS)

    def fetched(self, topic: str, size_bytes: int, client_id: str = "") -> None:
        """Count the bytes of a read from the tier, also for the client when clients are counted."""
        with self._lock:
            self._mark(topic, _FETCH_BYTES, size_bytes)
            if self._clients.max_clients:
                self._clients.add(client_id, size_bytes, self._clock.monotonic_ms())

    def fetch_took(self, duration_ms: float) -> None:
        """A read from the tier returned records and took that long."""
        with self._lock:
            self._fetch_seconds.observe(duration_ms / 1000)

    def fetch_failed(self, topic: str) -> None:
        """A read from the tier failed; an offset out of range is no failure."""
        self._count(topic, _FETCH_ERRORS)

    def fetch_expired(self) -> None:
        """A fetch was answered without a partition, because its read from the tier took too
        long."""
        with self._lock:
            self._counts.fetches_expired += 1

    def delete_started(self, topic: str) -> None:
        """A segment of a deleted topic is about to be deleted. The topic is no longer led."""
        self._count(self._topics.get(topic), _DELETE_REQUESTS)

    def deleted(self, size_bytes: int) -> None:
        """A segment of a deleted topic, with that size of its log, is in
        DELETE_SEGMENT_FINISHED."""
        self._deleted(size_bytes)

    def delete_failed(self, topic: str) -> None:
        """A segment of a deleted topic could not be deleted."""
        self._count(self._topics.get(topic), _DELETE_ERRORS)

    def copy_throttled(self, throttle_ms: float) -> None:
        """A copy has to wait that long for its quota."""
        with self._lock:
            self._copy_throttle.record(throttle_ms, self._clock.monotonic_ms())

    def fetch_throttled(self, throttle_ms: float) -> None:
        """A read from the tier has to wait that long for its quota."""
        with self._lock:
            self._fetch_throttle.record(throttle_ms, self._clock.monotonic_ms())

    def task_failed(self, pool: str, error: BaseException) -> None:
        """A run of a task of that pool raised."""
        with self._lock:
            self._task_failures[pool, type(error).__name__] += 1

    def index_files_failed(self) -> None:
        """Count a failed write of a partition's remote index files."""
        with self._lock:
            self._counts.index_file_errors += 1

    # -- from a sidecar

    def set_look(self, look: LookStats) -> None:
        """Set the results of the last look."""
        with self._lock:
            self._look = look

    def look_failed(self) -> None:
        """Count a look that ended with an error."""
        with self._lock:
            self._counts.look_failures += 1

    def ask_store(self) -> None:
        """A small request is about to be sent to the store."""
        with self._lock:
            self._store_asked_ms = self._clock.monotonic_ms()

    def store_answered(self, answers: bool) -> None:
        """Set whether the store answered that request."""
        with self._lock:
            self._store_answers, self._store_asked_ms = answers, None

    def count_clients(self, max_clients: int) -> None:
        """Set for how many clients reads from the tier are counted; 0, the default, for none."""
        with self._lock:
            self._clients.resize(max_clients)

    # -- used at every scrape

    def watch_pool(
        self, name: str, pool: TaskPoolWatched, *, stuck_after_ms: int = STUCK_AFTER_MS
    ) -> None:
        """Show a pool under the name ``copy``, ``expiration``, ``follower`` or ``reader``. It
        replaces an earlier pool of that name. A run that takes longer than ``stuck_after_ms``
        counts as stuck."""
        with self._lock:
            self._pools[name] = (pool, stuck_after_ms)

    def watch_quota(self, name: Literal["copy", "fetch"], quota: QuotaWatched) -> None:
        """Show the quota of copies or fetches. It replaces an earlier quota of that name."""
        with self._lock:
            self._quotas[name] = quota

    def watch_index_cache(self, index_cache: IndexCacheWatched) -> None:
        """Show the cache of remote indexes. It replaces an earlier cache."""
        with self._lock:
            self._index_cache = index_cache

    def watch_read_ahead(self, read_ahead: ReadAheadWatched) -> None:
        """Show the read-ahead of a reader. It replaces an earlier reader."""
        with self._lock:
            self._read_ahead = read_ahead

    # -- reading

    def meter(self, event: RemoteEvent, topic: str | None = None) -> MeterSnapshot | None:
        """Return count and rates of an event, for one topic or all topics. None for a topic that
        has no series."""
        with self._lock:
            found = self._totals if topic is None else self._topics.get(topic)
            if found is None:
                return None
            return found.meters[event].snapshot(self._clock.monotonic_ms())

    def snapshot(self) -> MetricsSnapshot:
        """Return all values for an exporter. All meters show the same moment."""
        with self._lock:
            now_ms = self._clock.monotonic_ms()
            totals = [meter.snapshot(now_ms) for meter in self._totals.meters]
            topics = {
                topic.name: [meter.count for meter in topic.meters]
                for topic in self._topics.values()
            }
            copy_throttle_ms = self._copy_throttle.measure(now_ms)
            fetch_throttle_ms = self._fetch_throttle.measure(now_ms)
            counts = replace(self._counts)
            handles = list(self._partitions.values())
            pools, quotas = self._pools.copy(), self._quotas.copy()
            failures = self._task_failures.copy()
            index_cache, read_ahead = self._index_cache, self._read_ahead
            client_fetched_bytes = self._clients.counts()
            fetch_seconds = self._fetch_seconds.snapshot()
            followers, look = list(self._followers), self._look
            store_answers, asked_ms = self._store_answers, self._store_asked_ms
        if asked_ms is not None and now_ms - asked_ms > STORE_PATIENCE_MS:
            store_answers = False
        total_sums, topic_sums = _add_up(handles)
        percents = ((handle, handle._retention_percent) for handle in handles)
        return MetricsSnapshot(
            totals=totals,
            topics=topics,
            counts=counts,
            total_sums=total_sums,
            topic_sums=topic_sums,
            retention_percent={
                (handle.partition.topic, handle.partition.partition): percent
                for handle, percent in percents
                if percent is not None
            },
            partitions=len(handles),
            copy_lag_unknown=sum(handle._copy_lag is None for handle in handles),
            refused_segments=sum(handle._refused_segments for handle in handles),
            broken_segments=sum(handle._broken_segments for handle in handles),
            deposed=sum(handle._deposed for handle in handles),
            followed=len(followers),
            follower_lag=_sum_lags(followers),
            look=look,
            store_answers=store_answers,
            copy_throttle_ms=copy_throttle_ms,
            fetch_throttle_ms=fetch_throttle_ms,
            pools={
                name: pool_stats(name, pool, stuck_after_ms, failures)
                for name, (pool, stuck_after_ms) in pools.items()
            },
            quotas={name: quota.snapshot() for name, quota in quotas.items()},
            index_cache=None if index_cache is None else index_cache.stats(),
            read_ahead=None if read_ahead is None else _ahead(read_ahead),
            client_fetched_bytes=client_fetched_bytes,
            fetch_seconds=fetch_seconds,
        )

    # -- for handles

    def _count(self, topic: _Topic | str | None, event: int, amount: int = 1) -> None:
        """Add `amount` to the event's total over all topics, and to the topic's if there is one."""
        with self._lock:
            self._mark(topic, event, amount)

    def _copied(self, topic: _Topic, size_bytes: int) -> None:
        with self._lock:
            self._mark(topic, _COPY_BYTES, size_bytes)
            self._counts.segments_copied += 1

    def _found_unreadable(self, batches: int) -> None:
        with self._lock:
            self._counts.unreadable_batches += batches

    def _deleted(self, size_bytes: int) -> None:
        with self._lock:
            self._counts.segments_deleted += 1
            self._counts.deleted_bytes += size_bytes

    def _log_start_offset_advanced(self) -> None:
        with self._lock:
            self._counts.log_start_advances += 1

    def _mark(self, topic: _Topic | str | None, event: int, amount: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if isinstance(topic, str):
            topic = self._topic(topic)
        if topic is not None:
            topic.meters[event].mark(amount, now_ms)
        self._totals.meters[event].mark(amount, now_ms)

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, self._clock.monotonic_ms())
        return topic

    def _close(self, handle: PartitionMetrics) -> None:
        key = (handle.partition.topic, handle.partition.partition)
        with self._lock:
            if self._partitions.get(key) is handle:
                del self._partitions[key]
                self._release(handle)

    def _close_follower(self, handle: FollowerMetrics) -> None:
        with self._lock:
            self._followers.discard(handle)

    def _release(self, handle: PartitionMetrics) -> None:
        topic = handle._topic
        topic.handles -= 1
        if not topic.handles:
            del self._topics[topic.name]


def _ahead(read_ahead: ReadAheadWatched) -> tuple[int, int]:
    """Return the bytes of read-ahead, and how many of these bytes were not used."""
    stats = read_ahead.stats()
    return stats.bytes, stats.wasted_bytes


def _sum_lags(followers: list[FollowerMetrics]) -> Lag | None:
    """Return the sum of the known lags. None when partitions are followed and no lag is known."""
    known = [lag for follower in followers if (lag := follower._lag) is not None]
    if followers and not known:
        return None
    return Lag(sum(lag.size_bytes for lag in known), sum(lag.segments for lag in known))


def _add_up(handles: list[PartitionMetrics]) -> tuple[GaugeSums, dict[str, GaugeSums]]:
    """Return the sums over all partitions, and the sums by topic.

    If there are no partitions, the lag is 0. If a sum of copy lags is 0 and the lag of a partition
    is unknown, the sum is unknown, too, because a lag of 0 reports that all is copied.
    """
    topics: dict[str, GaugeSums] = {}
    unknown: set[str] = set()
    for handle in handles:
        sums = topics.setdefault(handle.partition.topic, GaugeSums())
        sums.add(handle._copy_lag, handle._delete_lag, handle._remote_log)
        if handle._copy_lag is None:
            unknown.add(handle.partition.topic)
    totals = GaugeSums() if handles else GaugeSums(Lag(0, 0), Lag(0, 0), RemoteLog(0, 0, 0))
    for sums in topics.values():
        totals.add(sums.copy_lag, sums.delete_lag, sums.remote_log)
    for sums in [topics[topic] for topic in unknown] + ([totals] if unknown else []):
        if sums.copy_lag == (0, 0):
            sums.copy_lag = None
    return totals, topics

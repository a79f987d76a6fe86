"""The values of all metrics at one moment, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import add
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tierlog.metrics.meters import HistogramSnapshot, MeterSnapshot

if TYPE_CHECKING:
    from tierlog._hot import QuotaSnapshot

__all__ = [
    "GaugeSums",
    "IndexCacheWatched",
    "Lag",
    "LookStats",
    "MetricsSnapshot",
    "OwnCounts",
    "QuotaWatched",
    "ReadAheadWatched",
    "RemoteEvent",
    "RemoteIndexCacheStats",
    "RemoteLog",
    "TaskPoolStats",
    "TaskPoolWatched",
    "pool_stats",
]


class RemoteEvent(IntEnum):
    """The events that are metered, per topic and over all topics."""

    COPY_BYTES = 0
    COPY_REQUESTS = 1
    COPY_ERRORS = 2
    FETCH_BYTES = 3
    FETCH_REQUESTS = 4
    FETCH_ERRORS = 5
    DELETE_REQUESTS = 6
    DELETE_ERRORS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPoolStats:
    """A pool of task threads at one moment; ``failures`` by the error's class name."""

    threads: int
    idle_ratio: float
    queued: int
    running: int
    stuck: int
    longest_run_ms: int
    runs: int
    failures: dict[str, int]


class _Running(Protocol):
    @property
    def running_ms(self) -> int: ...


class TaskPoolWatched(Protocol):
    """The calls of a scrape, in its thread, to a pool: `tierlog.tiering.task_pool.TaskPool`."""

    @property
    def size(self) -> int: ...

    @property
    def runs(self) -> int: ...

    def idle_ratio(self) -> float: ...

    def queued(self) -> int: ...

    def running(self) -> Sequence[_Running]: ...


class QuotaWatched(Protocol):
    """The calls of a scrape to a quota: `tierlog.quota.QuotaManager`."""

    def snapshot(self) -> QuotaSnapshot: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexCacheStats:
    """The content of an index cache, and counts since it was created.

    Look-ups, loads and removals are 0 unless they are ``recorded``. `load_ms` is the total time of
    all loads. `removals` counts by cause: ``size``, ``expired``, ``explicit``, ``replaced``.
    `fetched_bytes` counts the bytes of indexes that came from the store. `refetched_bytes` counts
    those of them that the cache had evicted before, by cause: ``size`` (no room) or ``expired``
    (not used). `adopted` counts the files that existed at the start. `damaged` counts the files
    that were removed or fetched again. After one of the `disk_errors`, an entry was returned from
    memory or a file was not deleted.
    """

    recorded: bool
    hits: int
    misses: int
    loads: int
    failed_loads: int
    load_ms: int
    removals: dict[str, int]
    entries: int
    size_bytes: int
    fetched_bytes: int
    refetched_bytes: dict[str, int]
    adopted: int
    damaged: int
    disk_errors: int


class IndexCacheWatched(Protocol):
    """The calls of a scrape to an index cache: `tierlog.RemoteIndexCache`."""

    def stats(self) -> RemoteIndexCacheStats: ...


class _ReadAheadStats(Protocol):
    @property
    def bytes(self) -> int: ...

    @property
    def wasted_bytes(self) -> int: ...


class ReadAheadWatched(Protocol):
    """The calls of a scrape to a reader with read-ahead:
    `tierlog.reader.remote_batches.RemoteBatchReader`."""

    def stats(self) -> _ReadAheadStats: ...


class Lag(NamedTuple):
    """The bytes and segments that wait to be copied or deleted."""

    size_bytes: int
    segments: int


class RemoteLog(NamedTuple):
    """The size of the remote log, and the time that it took to compute it."""

    size_bytes: int
    metadata_count: int
    computation_ms: float


@dataclass(slots=True)
class GaugeSums:
    """Sums of gauges over the led partitions of one topic or of all topics. None when the value is
    known for no partition."""

    copy_lag: Lag | None = None
    delete_lag: Lag | None = None
    remote_log: RemoteLog | None = None

    def add(
        self, copy_lag: Lag | None, delete_lag: Lag | None, remote_log: RemoteLog | None
    ) -> None:
        """Add the gauges of a partition; None for an unknown gauge, which adds nothing."""
        if copy_lag is not None:
            self.copy_lag = Lag(*map(add, copy_lag, self.copy_lag or (0, 0)))
        if delete_lag is not None:
            self.delete_lag = Lag(*map(add, delete_lag, self.delete_lag or (0, 0)))
        if remote_log is not None:
            self.remote_log = RemoteLog(*map(add, remote_log, self.remote_log or (0, 0, 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LookStats:
    """The last look of a sidecar at its directories and its broker; None means unknown."""

    broker_answers: bool | None
    partitions_without_leader: int | None
    unreadable_directories: int


@dataclass(slots=True, kw_only=True)
class OwnCounts:
    """Counts that Kafka does not have."""

    segments_copied: int = 0
    unreadable_batches: int = 0
    segments_deleted: int = 0
    deleted_bytes: int = 0
    log_start_advances: int = 0
    fetches_expired: int = 0
    index_file_errors: int = 0
    look_failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """All values at one moment, for an exporter. Meters have the order of `RemoteEvent`."""

    totals: list[MeterSnapshot]
    topics: dict[str, list[int]]
    counts: OwnCounts
    total_sums: GaugeSums
    topic_sums: dict[str, GaugeSums]
    retention_percent: dict[tuple[str, int], tuple[int, int]]
    partitions: int
    copy_lag_unknown: int
    refused_segments: int
    broken_segments: int
    deposed: int
    followed: int
    follower_lag: Lag | None
    look: LookStats | None
    store_answers: bool | None
    copy_throttle_ms: tuple[float, float] | None
    fetch_throttle_ms: tuple[float, float] | None
    pools: dict[str, TaskPoolStats]
    quotas: dict[str, QuotaSnapshot]
    index_cache: RemoteIndexCacheStats | None
    read_ahead: tuple[int, int] | None
    client_fetched_bytes: dict[str, int]
    fetch_seconds: HistogramSnapshot | None


# The counters of these errors begin at 0, so that `increase` shows the first failure.
_USUAL_FAILURES = ("RemoteMetadataError", "RemoteStorageError")


def pool_stats(
    name: str, pool: TaskPoolWatched, stuck_after_ms: int, failures: Counter[tuple[str, str]]
) -> TaskPoolStats:
    """Return the present state of the pool `name`."""
    running = pool.running()
    return TaskPoolStats(
        threads=pool.size,
        idle_ratio=pool.idle_ratio(),
        queued=pool.queued(),
        running=len(running),
        stuck=sum(run.running_ms > stuck_after_ms for run in running),
        longest_run_ms=max((run.running_ms for run in running), default=0),
        runs=pool.runs,
        failures=dict.fromkeys(_USUAL_FAILURES, 0)
        | {error: count for (of, error), count in failures.items() if of == name},
    )

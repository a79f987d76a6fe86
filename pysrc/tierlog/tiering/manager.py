"""The remote log manager: copies, expires and follows many partitions at once (KIP-405's
``RemoteLogManager``, with the separate pools of Kafka 3.9).

    manager = RemoteLogManager(storage, metadata, broker_id=1, clock=SystemClock())
    with manager:                                   # async with, inside an event loop
        manager.become_leader(partition, leader_epoch, log)
        ...

The manager owns its threads and remote index files. The caller owns the storage, the metadata and
the cache, and closes them after the manager in this order: cache, metadata, store.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tierlog.clock import Clock, SystemClock
from tierlog.config import (
    LogConfig,
    PluginConfig,
    QuotaConfig,
    RemoteIndexConfig,
    RemoteLogConfig,
)
from tierlog.errors import ClosedError
from tierlog.log.eligibility import Decision
from tierlog.metrics import RemoteLogMetrics
from tierlog.quota import QuotaManager
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.tiering.clock_watch import ClockWatch
from tierlog.tiering.copy import SegmentCopier
from tierlog.tiering.copy_task import CopyTask
from tierlog.tiering.delete_task import DeletePartitionTask
from tierlog.tiering.deletion_guard import DeletionGuard, PlannedDeletion
from tierlog.tiering.expiration_facts import plan_deletion
from tierlog.tiering.expiration_task import ExpirationTask
from tierlog.tiering.follower_task import FollowerTask
from tierlog.tiering.local_log import LocalLog
from tierlog.tiering.partition_work import ManagerListener, PartitionWork, Tier
from tierlog.tiering.store_probe import StoreProbe
from tierlog.tiering.task_pool import RetryPolicy, RunningTask, TaskFailure, TaskPool
from tierlog.types import TopicIdPartition

__all__ = ["ManagerOptions", "RemoteLogManager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """Optional parts of a manager.

    ``index_config.dir``: the directory of remote index files; None for no such files.
    ``claim_in_store``: nodes that share no metadata fence each other by claims in the store.
    ``probe_store``: send the store a small request once per interval, for the metrics.
    ``random_bytes`` makes jitter and segment ids. For ``check_interval_ms``, ``repair`` and
    ``learn_partition`` see `Tier`.
    """

    config: RemoteLogConfig = field(default_factory=RemoteLogConfig)
    index_config: RemoteIndexConfig = field(default_factory=RemoteIndexConfig)
    log_config: LogConfig = field(default_factory=LogConfig)
    plugin_config: PluginConfig = field(default_factory=PluginConfig)
    cluster_id: str = ""
    copy_quota: QuotaManager | None = None
    index_cache: RemoteIndexCache | None = None
    metrics: RemoteLogMetrics | None = None
    listener: ManagerListener | None = None
    include_internal: bool = False
    include_compacted: bool = False
    check_interval_ms: int | None = None
    repair: bool = False
    claim_in_store: bool = False
    probe_store: bool = False
    learn_partition: Callable[[TopicIdPartition], bool] | None = None
    random_bytes: Callable[[int], bytes] = os.urandom


class RemoteLogManager:
    """Tiers the partitions that this node leads and follows those of other leaders.

    Any thread or event loop may call the methods. Except for `close`, `wait_until_idle` and
    `run_until_idle`, they return at once. Copies, expiration and followers each have a thread pool,
    so copies that wait for their quota never delay expiration.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        *,
        broker_id: int,
        clock: Clock | None = None,
        options: ManagerOptions | None = None,
    ) -> None:
        given = options or ManagerOptions()
        clock = clock or SystemClock()
        self._clock = clock
        self._broker_id = broker_id
        self._metadata = metadata
        self.metrics = given.metrics or RemoteLogMetrics(clock)
        self.copy_quota = given.copy_quota or QuotaManager.for_copies(QuotaConfig(), clock)
        self._tier = Tier(
            storage=storage,
            metadata=metadata,
            copier=SegmentCopier(
                storage,
                metadata,
                clock=clock,
                broker_id=broker_id,
                cluster_id=given.cluster_id,
                remote_index_interval_bytes=given.index_config.interval_bytes,
                custom_metadata_max_bytes=given.plugin_config.custom_metadata_max_bytes,
                random_bytes=given.random_bytes,
            ),
            copy_quota=self.copy_quota,
            clock=clock,
            clock_watch=ClockWatch(clock),
            metrics=self.metrics,
            listener=given.listener or ManagerListener(),
            deletion_guard=DeletionGuard(
                given.config.retention_max_deleted_ratio,
                self._plan_deletions,
                clock,
                given.config.manager_task_interval_ms,
            ),
            index_cache=given.index_cache,
            open_index_files=_index_files_opener(given),
            include_internal=given.include_internal,
            include_compacted=given.include_compacted,
            index_interval_bytes=given.log_config.index_interval_bytes,
            check_interval_ms=given.check_interval_ms,
            repair=given.repair,
            claims=_open_claims(storage, broker_id, clock) if given.claim_in_store else None,
            learn_partition=given.learn_partition,
        )
        self.copy_pool, self.expiration_pool, self.follower_pool = self._pools = _make_pools(
            given, clock, self._report_failure
        )
        for pool in self._pools:
            self.metrics.watch_pool(pool.name, pool)
        self.metrics.watch_quota("copy", self.copy_quota)
        if given.probe_store and storage.store is not None:
            probe = StoreProbe(storage.store, self.metrics)
            self.follower_pool.add("store probe", probe)
        if given.index_cache is not None:
            self.metrics.watch_index_cache(given.index_cache)
        self._lock = threading.Lock()
        self._work: dict[TopicIdPartition, PartitionWork] = {}
        self._closed = False

    # -- partitions

    def become_leader(self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog) -> None:
        """Copy and expire the partition, which this node leads since `leader_epoch`.

        A repeated call changes nothing. A call with another epoch or log starts new tasks.
        """
        work = self._take_over(partition, leader_epoch, log, leads=True)
        if work is not None:
            self.follower_pool.remove(partition)
            self.copy_pool.add(partition, CopyTask(work))
            self.expiration_pool.add(partition, ExpirationTask(work))

    def become_follower(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog
    ) -> None:
        """Follow the tier of a partition that another node leads."""
        work = self._take_over(partition, leader_epoch, log, leads=False)
        if work is not None:
            self.copy_pool.remove(partition)
            self.expiration_pool.remove(partition)
            self.copy_quota.wake()
            self.follower_pool.add(partition, FollowerTask(work))

    def stop_partition(self, partition: TopicIdPartition, *, delete_remote: bool = False) -> None:
        """Stop all work for the partition. An unknown partition is ignored.

        With `delete_remote` the whole partition is deleted from the tier, because its topic was
        deleted. After a restart, `resume_deletions` continues the deletion. It may be requested
        again, and is complete when the metadata no longer contains the partition.
        """
        with self._lock:
            self._check_open()
            work = self._work.pop(partition, None)
        for pool in self._pools:
            pool.remove(partition)
        self.copy_quota.wake()
        if work is not None:
            work.close()
        if not delete_remote:
            return
        if self._metadata.partition_delete_state(partition) is None:
            leader_epoch = work.leader_epoch if work is not None and work.leads else None
            self._metadata.update_partition_delete(
                RemotePartitionDeleteMetadata(
                    partition=partition,
                    broker_id=self._broker_id,
                    event_timestamp_ms=self._clock.now_ms(),
                    state=RemotePartitionDeleteState.DELETE_PARTITION_MARKED,
                ),
                leader_epoch=leader_epoch,
            )
        self._delete_partition(partition)

    def resume_deletions(self) -> tuple[TopicIdPartition, ...]:
        """Resume the deletions of partitions that this or an earlier process started."""
        started = tuple(
            partition
            for partition in self._metadata.partitions()
            if self._metadata.partition_delete_state(partition) is not None
        )
        for partition in started:
            self._delete_partition(partition)
        return started

    def partitions(self) -> dict[TopicIdPartition, bool]:
        """Return the partitions of this node; the value is True for those it leads."""
        with self._lock:
            return {partition: work.leads for partition, work in self._work.items()}

    def decisions(self, partition: TopicIdPartition) -> tuple[Decision, ...] | None:
        """Return what the last run of the copy task decided about each local segment of a led
        partition. None before the first run."""
        with self._lock:
            work = self._work.get(partition)
        return None if work is None else work.decisions

    def trust_clock(self) -> None:
        """Accept the wall clock after a jump, so that retention by time continues."""
        self._tier.clock_watch.trust()

    def set_max_deleted_ratio(self, max_ratio: float) -> None:
        """Set the largest share of the archive that retention may delete in one pass."""
        self._tier.deletion_guard.set_max_ratio(max_ratio)

    def set_interval(self, interval_ms: int) -> None:
        """Run every task now, and from then on once per `interval_ms`."""
        for pool in self._pools:
            pool.set_interval(interval_ms)
        self._tier.deletion_guard.set_pass(interval_ms)

    # -- running

    def start(self) -> None:
        """Start the threads."""
        with self._lock:
            self._check_open()
        self._tier.is_running.set()
        for pool in self._pools:
            pool.start()

    def hurry(self) -> None:
        """Run every task now instead of after the interval."""
        for pool in self._pools:
            pool.hurry()

    def wait_until_idle(self, timeout_ms: int = 600_000) -> bool:
        """Wait until no task is running or due. Return False if a task still is after `timeout_ms`.
        A failed task counts as idle until its retry."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        return all(
            pool.wait_until_idle(deadline_ms - self._clock.monotonic_ms()) for pool in self._pools
        )

    def run_until_idle(self) -> None:
        """Run every task in this thread at least once, until no task is due. Simulations and single
        passes call this instead of `start`."""
        self.hurry()
        while [pool for pool in self._pools if pool.run_due()]:
            pass

    def close(self, timeout_ms: int = 30_000) -> tuple[RunningTask, ...]:
        """Cancel all tasks and wait for active runs; return the runs that did not end in time.

        An active copy removes the objects that it has stored. The call may be repeated.
        """
        with self._lock:
            self._closed = True
            works, self._work = list(self._work.values()), {}
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        for pool in self._pools:
            pool.cancel()
        self.copy_quota.wake()
        left: list[RunningTask] = []
        for pool in self._pools:
            left += pool.close(deadline_ms - self._clock.monotonic_ms())
        for work in works:
            work.close()
        return tuple(left)

    def __enter__(self) -> RemoteLogManager:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RemoteLogManager:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    # -- internals

    def _take_over(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog, *, leads: bool
    ) -> PartitionWork | None:
        """Return the `PartitionWork` of a new role; None when the role is unchanged."""
        with self._lock:
            self._check_open()
            present = self._work.get(partition)
            if (
                present is not None
                and present.leads is leads
                and present.leader_epoch == leader_epoch
                and present.log is log
            ):
                return None
            work = PartitionWork(partition, leader_epoch, log, self._tier, leads=leads)
            self._work[partition] = work
        if present is not None:
            present.close()
        return work

    def _delete_partition(self, partition: TopicIdPartition) -> None:
        task = DeletePartitionTask(partition, self._tier, self._broker_id)
        self.expiration_pool.add(partition, task)

    def _plan_deletions(self) -> list[PlannedDeletion]:
        """Return the planned deletion of each led partition."""
        with self._lock:
            led = [work for work in self._work.values() if work.leads]
        return [planned for planned in map(plan_deletion, led) if planned is not None]

    def _report_failure(self, failure: TaskFailure) -> None:
        self.metrics.task_failed(failure.pool, failure.error)
        self._tier.listener.on_task_failure(failure)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the remote log manager is closed")


def _make_pools(
    options: ManagerOptions, clock: Clock, on_failure: Callable[[TaskFailure], None]
) -> tuple[TaskPool, TaskPool, TaskPool]:
    config = options.config
    make = partial(
        TaskPool,
        interval_ms=config.manager_task_interval_ms,
        clock=clock,
        random=lambda: int.from_bytes(options.random_bytes(6)) / 2**48,
        retry=RetryPolicy(
            backoff_ms=config.manager_task_retry_backoff_ms,
            max_ms=config.manager_task_retry_backoff_max_ms,
            jitter=config.manager_task_retry_jitter,
        ),
        on_failure=on_failure,
    )
    return (
        make("copy", config.manager_copier_thread_pool_size),
        make("expiration", config.manager_expiration_thread_pool_size),
        make("follower", config.manager_follower_thread_pool_size),
    )


def _open_claims(storage: RemoteStorageManager, broker_id: int, clock: Clock) -> StoreClaims | None:
    """Return claims in the store; None when the storage manager has no store."""
    store = storage.store
    return None if store is None else StoreClaims(store, broker_id=broker_id, clock=clock)


def _index_files_opener(
    options: ManagerOptions,
) -> Callable[[TopicIdPartition], RemoteIndexFiles] | None:
    directory, config = options.index_config.dir, options.index_config
    if directory is None:
        return None
    return lambda partition: RemoteIndexFiles(
        directory,
        partition,
        rotate_bytes=config.rotate_bytes,
        rotate_ms=config.rotate_ms,
    )

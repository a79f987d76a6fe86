"""The remote log manager: copies, expires and follows many partitions at once (KIP-405's
``RemoteLogManager``, with the separate pools of Kafka 3.9).

    manager = RemoteLogManager(storage, metadata, broker_id=1, clock=SystemClock())
    with manager:                                   # async with, inside an event loop
        manager.become_leader(partition, leader_epoch, log)
        ...

It owns its threads and the remote index files it opened; the storage, the metadata and the cache
belong to the caller, who closes them after the manager, in this order: cache, metadata, store.
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
from tierlog.tiering.task_pool import RetryPolicy, RunningTask, TaskFailure, TaskPool
from tierlog.types import TopicIdPartition

__all__ = ["ManagerOptions", "RemoteLogManager"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerOptions:
    """What a manager may be given besides; every part has a default.

    ``index_config.dir`` keeps remote index files of the partitions there (none when None).
    ``check_interval_ms`` and ``repair`` as in `Tier`. ``claim_in_store``: nodes that share no
    metadata fence each other by claims in the store; ``learn_partition`` as in `Tier`.
    ``random_bytes`` is where jitter and segment ids come from.
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
    learn_partition: Callable[[TopicIdPartition], None] | None = None
    random_bytes: Callable[[int], bytes] = os.urandom


class RemoteLogManager:
    """Tiers the partitions it is told to lead, and follows those it is told to follow.

    Calls may come from any thread, or from an event loop: all but `close`, `wait_until_idle` and
    `run_until_idle` return at once. The work goes on in the threads of three pools, so that copies
    that wait for their quota never keep anything from expiring.
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
            open_index_files=_index_files(given),
            include_internal=given.include_internal,
            include_compacted=given.include_compacted,
            index_interval_bytes=given.log_config.index_interval_bytes,
            check_interval_ms=given.check_interval_ms,
            repair=given.repair,
            claims=_claims(storage, broker_id, clock) if given.claim_in_store else None,
            learn_partition=given.learn_partition,
        )
        self.copy_pool, self.expiration_pool, self.follower_pool = self._pools = _pools(
            given, clock, self._failed
        )
        for pool in self._pools:
            self.metrics.watch_pool(pool.name, pool)
        self.metrics.watch_quota("copy", self.copy_quota)
        if given.index_cache is not None:
            self.metrics.watch_index_cache(given.index_cache)
        self._lock = threading.Lock()
        self._work: dict[TopicIdPartition, PartitionWork] = {}
        self._closed = False

    # -- partitions

    def become_leader(self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog) -> None:
        """This node leads the partition since `leader_epoch`: copy it and expire it.

        A repeat changes nothing; a new epoch, or another log, begins anew.
        """
        work = self._take_over(partition, leader_epoch, log, leads=True)
        if work is not None:
            self.follower_pool.remove(partition)
            self.copy_pool.add(partition, CopyTask(work))
            self.expiration_pool.add(partition, ExpirationTask(work))

    def become_follower(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog
    ) -> None:
        """Another node leads the partition: follow what it tiers."""
        work = self._take_over(partition, leader_epoch, log, leads=False)
        if work is not None:
            self.copy_pool.remove(partition)
            self.expiration_pool.remove(partition)
            self.copy_quota.wake()
            self.follower_pool.add(partition, FollowerTask(work))

    def stop_partition(self, partition: TopicIdPartition, *, delete_remote: bool = False) -> None:
        """This node has no more to do with the partition; one it does not know is none.

        With `delete_remote` all of it is deleted from the tier, for good: the topic is gone. That
        survives a restart (`resume_deletions`), may be asked for again at any time, and is done
        when the metadata has forgotten it.
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
        """Go on with the partitions whose deletion was begun, by this process or an earlier one."""
        begun = tuple(
            partition
            for partition in self._metadata.partitions()
            if self._metadata.partition_delete_state(partition) is not None
        )
        for partition in begun:
            self._delete_partition(partition)
        return begun

    def partitions(self) -> dict[TopicIdPartition, bool]:
        """The partitions in this node's hands, and whether it leads them."""
        with self._lock:
            return {partition: work.leads for partition, work in self._work.items()}

    def decisions(self, partition: TopicIdPartition) -> tuple[Decision, ...] | None:
        """What the last look at a led partition said about each of its local segments; None when
        there was none yet."""
        with self._lock:
            work = self._work.get(partition)
        return None if work is None else work.decisions

    def trust_clock(self) -> None:
        """The wall clock is right although it has jumped: retention by time goes on."""
        self._tier.clock_watch.trust()

    def set_max_deleted_ratio(self, max_ratio: float) -> None:
        """From now on retention deletes at most this part of the archive in one pass."""
        self._tier.deletion_guard.set_max_ratio(max_ratio)

    def set_interval(self, interval_ms: int) -> None:
        """Run every task now, and from then on once per `interval_ms`."""
        for pool in self._pools:
            pool.set_interval(interval_ms)
        self._tier.deletion_guard.set_pass(interval_ms)

    # -- life

    def start(self) -> None:
        """Begin to work."""
        with self._lock:
            self._check_open()
        self._tier.is_running.set()
        for pool in self._pools:
            pool.start()

    def hurry(self) -> None:
        """Every partition is looked at now instead of after the interval."""
        for pool in self._pools:
            pool.hurry()

    def wait_until_idle(self, timeout_ms: int = 600_000) -> bool:
        """Wait until no task is running and none has more to do now; False when that took too
        long. Tasks that failed are waited for no longer than to their failure."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        return all(
            pool.wait_until_idle(deadline_ms - self._clock.monotonic_ms()) for pool in self._pools
        )

    def run_until_idle(self) -> None:
        """Run every task in this thread, at least once and until none has more to do now; for
        simulations and single passes, instead of `start`."""
        self.hurry()
        while [pool for pool in self._pools if pool.run_due()]:
            pass

    def close(self, timeout_ms: int = 30_000) -> tuple[RunningTask, ...]:
        """Cancel all tasks and wait for the runs under way; those that would not end in time.

        A copy under way takes back what it wrote. May be repeated.
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

    # -- inside

    def _take_over(
        self, partition: TopicIdPartition, leader_epoch: int, log: LocalLog, *, leads: bool
    ) -> PartitionWork | None:
        """The work of a new role; None when it is the present one."""
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
        """What retention would delete now of each led partition."""
        with self._lock:
            led = [work for work in self._work.values() if work.leads]
        return [planned for planned in map(plan_deletion, led) if planned is not None]

    def _failed(self, failure: TaskFailure) -> None:
        self.metrics.task_failed(failure.pool, failure.error)
        self._tier.listener.on_task_failure(failure)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the remote log manager is closed")


def _pools(
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


def _claims(storage: RemoteStorageManager, broker_id: int, clock: Clock) -> StoreClaims | None:
    """None where the storage manager has no store that could be listed."""
    store = storage.store
    return None if store is None else StoreClaims(store, broker_id=broker_id, clock=clock)


def _index_files(
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

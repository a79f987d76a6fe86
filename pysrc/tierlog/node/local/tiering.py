"""Tiers the topics of a node to its store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Mapping

from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.config.topic import TopicConfig
from tierlog.log.eligibility import StableOffset, StableSource
from tierlog.log.log_dir import PartitionLog
from tierlog.log.writer.partition import PartitionWriter
from tierlog.metrics import RemoteLogMetrics
from tierlog.quota import QuotaManager
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.plugins import make_storage_manager
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import ManagerListener
from tierlog.tiering.task_pool import TaskFailure
from tierlog.types import TopicIdPartition

__all__ = ["LeaderLog", "NodeTier", "open_tier"]

_METADATA_FILE = "remote-log-metadata.sqlite"


class LeaderLog:
    """A partition that this node leads, as the remote log manager sees it (`LocalLog`).

    ``save`` writes the checkpoints of the log directory.
    """

    def __init__(self, writer: PartitionWriter, save: Callable[[], None]) -> None:
        self._writer = writer
        self._save = save
        self._lock = threading.Lock()
        self._seen: tuple[PartitionLog, int, TopicConfig] | None = None
        self._view: LogView | None = None
        self.highest_remote_offset = -1

    def view(self) -> LogView | None:
        """See `LocalLog`."""
        writer = self._writer
        stable, topic = writer.last_stable_offset, writer.topic
        log = writer.view()
        with self._lock:
            seen = self._seen
            same = seen and seen[0] is log and seen[1] == stable and seen[2] is topic
            if not same:
                self._seen = log, stable, topic
                self._view = LogView(
                    log=log,
                    stable=StableOffset(value=stable, source=StableSource.BROKER),
                    log_start_offset=log.log_start_offset,
                    topic=_settings(topic),
                )
            return self._view

    def advance_log_start_offset(self, offset: int) -> None:
        """See `LocalLog`."""
        self._writer.raise_log_start_offset(offset)
        self._save()

    def raise_highest_remote_offset(self, offset: int) -> None:
        """See `LocalLog`."""
        self.highest_remote_offset = max(self.highest_remote_offset, offset)

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        """See `LocalLog`."""
        self._writer.delete_segments_below(local_log_start_offset)
        self._save()


def _settings(topic: TopicConfig) -> TopicSettings:
    retention_ms = _unless_off(topic.retention_ms)
    retention_bytes = _unless_off(topic.retention_bytes)
    local_ms, local_bytes = topic.local_retention_ms, topic.local_retention_bytes
    # As in Kafka, what is not copied any more stays as long as the topic says.
    same_ms = local_ms == -2 or topic.remote_copy_disable
    same_bytes = local_bytes == -2 or topic.remote_copy_disable
    return TopicSettings(
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        local_retention_ms=retention_ms if same_ms else _unless_off(local_ms),
        local_retention_bytes=retention_bytes if same_bytes else _unless_off(local_bytes),
        copy_disabled=topic.remote_copy_disable,
    )


def _unless_off(value: int) -> int | None:
    return None if value < 0 else value


class NodeTier:
    """The store of a node, the metadata of its segments, and the manager that tiers to it. Without
    a store there is no manager, and the metadata is empty."""

    def __init__(
        self,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        manager: RemoteLogManager | None,
        failures: Mapping[Hashable, BaseException] | None = None,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.manager = manager
        self._failures = {} if failures is None else failures

    def failure_of(self, partition: TopicIdPartition) -> BaseException | None:
        """Return the error of the partition's last failed task; None without one."""
        return self._failures.get(partition)

    def configure(self, config: Config) -> None:
        """Apply the settings that may change while the node runs."""
        manager, settings = self.manager, config.remote_log
        if manager is not None:
            manager.copy_quota.set_limit(config.quota.copy_max_bytes_per_second)
            manager.set_max_deleted_ratio(settings.retention_max_deleted_ratio)
            manager.copy_pool.resize(settings.manager_copier_thread_pool_size)
            manager.expiration_pool.resize(settings.manager_expiration_thread_pool_size)
            manager.follower_pool.resize(settings.manager_follower_thread_pool_size)

    def hurry(self) -> None:
        """Have every task look at the settings now."""
        if self.manager is not None:
            self.manager.hurry()

    def close(self) -> None:
        """End active copies, then close metadata and store."""
        if self.manager is not None:
            self.manager.close()
        self.metadata.close()
        self.storage.close()


class _Reporter(ManagerListener):
    def __init__(self, report: Callable[[str], object]) -> None:
        self._report = report
        self.failures: dict[Hashable, BaseException] = {}

    def on_task_failure(self, failure: TaskFailure) -> None:
        self.failures[failure.key] = failure.error
        self._report(f"{failure.pool} of {failure.key}: {failure.error}")


def open_tier(
    store: ObjectStore | str | None,
    state_dir: str,
    *,
    cluster_id: str,
    node_id: int,
    config: Config,
    clock: Clock,
    metrics: RemoteLogMetrics,
    report: Callable[[str], object],
) -> NodeTier:
    """Open the store of a node, given by its URL unless it is open already. ConfigError when it
    belongs to another cluster."""
    if store is None:
        storage = make_storage_manager(None, open_store("memory:///"))
        return NodeTier(storage, InMemoryRemoteLogMetadataManager(), None)
    store = open_store(store) if isinstance(store, str) else store
    claim_cluster(store, cluster_id)
    storage = make_storage_manager(config, store)
    metadata = SqliteRemoteLogMetadataManager(os.path.join(state_dir, _METADATA_FILE))
    reporter = _Reporter(report)
    manager = RemoteLogManager(
        storage,
        metadata,
        broker_id=node_id,
        clock=clock,
        options=ManagerOptions(
            config=config.remote_log,
            log_config=config.log,
            index_config=config.remote_index,
            plugin_config=config.plugin,
            cluster_id=cluster_id,
            copy_quota=QuotaManager.for_copies(config.quota, clock),
            metrics=metrics,
            listener=reporter,
            repair=True,
        ),
    )
    return NodeTier(storage, metadata, manager, reporter.failures)

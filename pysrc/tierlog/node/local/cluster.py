"""A cluster of one node, which keeps its topics itself.

The only door of handlers to logs: they ask for a `ClusterView`, and call `create_topic`,
`delete_topic`, `append`, `delete_records` and `next_producer_id`. All calls but `cluster_view` and
`view` block; the event loop makes them in threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.config.topic import TopicConfig, topic_config
from tierlog.errors import ConfigError, TierlogError
from tierlog.log.writer.directory import LogDirWriter
from tierlog.log.writer.partition import Appended, PartitionWriter, WriterOptions
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.cluster_view import ClusterView, LogDirView, PartitionView, TopicView
from tierlog.node.local.tiering import LeaderLog, NodeTier, open_tier
from tierlog.node.local.topics import StoredTopic, TopicStore
from tierlog.reader.types import FetchView
from tierlog.types import TopicIdPartition, check_topic_name

__all__ = ["STATE", "LocalCluster"]

NODE_ID = 1
_LOGS, STATE = "logs", "state"
_TOPICS_FILE = "cluster.sqlite"


class LocalCluster:
    """The topics in `data_dir`: ``logs`` is a Kafka log directory, ``state`` is tierlog's own.

    ``on_append`` is called with a partition that has new records; ``report`` receives lines for the
    operator. ConfigError when the directory or the store belongs to another cluster or process.
    """

    def __init__(
        self,
        data_dir: str,
        store_url: str | None = None,
        *,
        config: Config,
        clock: Clock,
        metrics: RemoteLogMetrics,
        report: Callable[[str], object] = print,
    ) -> None:
        self.on_append: Callable[[TopicIdPartition], object] = lambda _: None
        self._report = report
        self._key_bytes = config.log.cleaner_dedupe_buffer_size
        # Logs whose last round of compaction ended with an error, and which error.
        self._uncompacted: dict[str, str] = {}
        self._lock = threading.RLock()
        self._store = TopicStore(os.path.join(data_dir, STATE, _TOPICS_FILE))
        self.cluster_id = self._store.cluster_id
        self._partitions: dict[TopicIdPartition, tuple[PartitionWriter, LeaderLog, int]] = {}
        self._topics: dict[str, StoredTopic] = {}
        try:
            self.logs = LogDirWriter(
                os.path.join(data_dir, _LOGS),
                cluster_id=self.cluster_id,
                node_id=NODE_ID,
                clock=clock,
                options=WriterOptions(
                    max_decompressed_bytes=config.log.batch_max_decompressed_bytes,
                    on_failure=self._say_stopped,
                ),
            )
        except BaseException:
            self._store.close()
            raise
        try:
            self.tier = self._open_tier(data_dir, store_url, config, clock, metrics)
        except BaseException:
            self.logs.close()
            self._store.close()
            raise
        self._view = ClusterView.of(self.cluster_id, NODE_ID, ())
        self._open_topics()

    def _open_tier(
        self,
        data_dir: str,
        store_url: str | None,
        config: Config,
        clock: Clock,
        metrics: RemoteLogMetrics,
    ) -> NodeTier:
        return open_tier(
            store_url,
            os.path.join(data_dir, STATE),
            cluster_id=self.cluster_id,
            node_id=NODE_ID,
            config=config,
            clock=clock,
            metrics=metrics,
            report=self._report,
        )

    def _say_stopped(self, path: str, error: OSError) -> None:
        self._report(
            f"{path}: this partition has stopped: {error}; records that were acknowledged are "
            "safe; make room or replace the disk, then restart the node"
        )

    def _open_topics(self) -> None:
        topics = self._store.topics()
        self.logs.open_all(
            {
                (topic.name, partition, topic.topic_id): topic_config(topic.settings)
                for topic in topics
                for partition in range(topic.partitions)
            }
        )
        known = {topic.topic_id for topic in topics}
        doomed = {topic.topic_id for topic in self._store.deleted_topics()}
        for name, partition, topic_id in self.logs.stored_partitions():
            if topic_id not in known | doomed:
                self._report(f"{name}-{partition}: no topic of this node; its files are kept")
        for topic in topics:
            self._lead(topic)
        self._refresh_view()
        if self.tier.manager is not None:
            self.tier.manager.resume_deletions()
            self.tier.manager.start()
        for topic in self._store.deleted_topics():
            self._finish_deletion(topic)

    def close(self) -> None:
        """Close everything in order; the log directory is then whole. May be repeated."""
        self.tier.close()
        self.logs.close()
        self._store.close()

    # -- what clients see

    def cluster_view(self) -> ClusterView:
        """Return the latest view."""
        return self._view

    def _refresh_view(self) -> None:
        self._view = ClusterView.of(
            self.cluster_id, NODE_ID, [_topic_view(one) for one in self._topics.values()]
        )

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """Return a partition as a fetch sees it; None when it is not here."""
        found = self._partitions.get(partition)
        if found is None:
            return None
        writer, _, leader_epoch = found
        # A listing after the offsets has all segments below them.
        end = writer.log_end_offset
        stable = writer.last_stable_offset
        log = writer.view()
        start = log.log_start_offset or 0
        return FetchView(
            log=log,
            log_start_offset=start,
            local_log_start_offset=max(start, log.segments[0].base_offset),
            high_watermark=end,
            last_stable_offset=min(stable, end),
            log_end_offset=end,
            leader_epoch=leader_epoch,
            tiered=self.tier.manager is not None and writer.topic.remote_storage_enable,
        )

    def touch_topics(self, stored_ids: Iterable[str]) -> None:
        """Do nothing: every topic is ready."""

    async def prepare(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Exception]:
        """Return no errors: every partition is ready."""
        return {}

    async def list_log_dirs(
        self, wanted: Collection[tuple[str, int]] | None
    ) -> Sequence[LogDirView]:
        """Return the log directory, and the store as ``remote://`` when there is one."""
        return await asyncio.to_thread(self._measure, wanted)

    def _measure(self, wanted: Collection[tuple[str, int]] | None) -> Sequence[LogDirView]:
        local, remote = [], []
        for one, (writer, _, _) in list(self._partitions.items()):
            if wanted is None or (one.topic, one.partition) in wanted:
                size_bytes = sum(segment.size_bytes for segment in writer.view().segments)
                local.append((one.topic, one.partition, size_bytes))
                stored = self.tier.metadata.list(one)
                tiered_bytes = sum(segment.segment_size_bytes for segment in stored)
                remote.append((one.topic, one.partition, tiered_bytes))
        found = [LogDirView(self.logs.path, tuple(local))]
        if self.tier.manager is not None:
            url = self.tier.storage.url.partition("://")[2]
            found.append(LogDirView(f"remote://{url}", tuple(remote)))
        return found

    # -- topics

    def check_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> TopicConfig:
        """Return the settings of a topic that could be created.

        ConfigError for settings that it cannot have, ValueError for its name, KeyError when the
        name is taken.
        """
        check_topic_name(name)
        config = topic_config(settings)
        if config.remote_storage_enable and self.tier.manager is None:
            raise ConfigError("remote.storage.enable: this node has no store; give it --store URL")
        if name in self._topics:
            raise KeyError(name)
        return config

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> StoredTopic:
        """Create a topic with empty partitions and return it; errors as `check_topic`."""
        with self._lock:
            config = self.check_topic(name, partitions, settings)
            topic = self._store.create(name, partitions, settings)
            for partition in range(partitions):
                self.logs.create(name, partition, topic.topic_id, config)
            self.logs.write_checkpoints()
            self._lead(topic)
            self._refresh_view()
            return topic

    def _lead(self, topic: StoredTopic) -> None:
        self._topics[topic.name] = topic
        for partition in _partitions_of(topic):
            writer = self.logs.writer(partition.topic, partition.partition)
            log = LeaderLog(writer, self.logs.write_checkpoints)
            self._partitions[partition] = writer, log, topic.leader_epoch
            if self.tier.manager is not None and writer.topic.remote_storage_enable:
                self.tier.manager.become_leader(partition, topic.leader_epoch, log)

    def delete_topic(self, name: str) -> None:
        """Delete a topic here and in the store; KeyError without it."""
        with self._lock:
            topic = self._topics[name]
            self._store.begin_deletion(topic.topic_id)
            del self._topics[name]
            self._refresh_view()
            self._finish_deletion(topic)

    def _finish_deletion(self, topic: StoredTopic) -> None:
        is_tiered = topic_config(topic.settings).remote_storage_enable
        for partition in _partitions_of(topic):
            self._partitions.pop(partition, None)
            if is_tiered and self.tier.manager is not None:
                self.tier.manager.stop_partition(partition, delete_remote=True)
            self.logs.delete(partition.topic, partition.partition)
        self._store.finish_deletion(topic.topic_id)

    # -- records

    def append(self, partition: TopicIdPartition, records: bytes) -> Appended:
        """Append batches of a client; AppendRefusedError when they may not be, KeyError when the
        partition was deleted."""
        writer, _, leader_epoch = self._partitions[partition]
        appended = writer.append(records, leader_epoch=leader_epoch)
        if not appended.is_duplicate:
            self.on_append(partition)
        return appended

    def delete_records(self, partition: TopicIdPartition, offset: int) -> int:
        """Delete the records below `offset` (-1: all) and return the log start offset.

        OutOfRangeError for an offset above the high watermark, KeyError when the partition was
        deleted."""
        writer, _, _ = self._partitions[partition]
        writer.raise_log_start_offset(writer.high_watermark if offset == -1 else offset)
        if not writer.topic.remote_storage_enable:
            writer.delete_segments_below(writer.log_start_offset)
        self.logs.write_checkpoints()
        return writer.log_start_offset

    def next_producer_id(self) -> int:
        """Return a new producer id."""
        return self._store.next_producer_id()

    def keep_up(self) -> None:
        """Sync rolled segments, apply retention to topics that are not tiered, and write the
        checkpoints. A node calls it at intervals."""
        for writer in self.logs.writers():
            is_tiered = self.tier.manager is not None and writer.topic.remote_storage_enable
            if writer.failure is None and not is_tiered:
                writer.apply_retention()
        self.logs.flush_rolled()

    def compact(self) -> None:
        """Run the rounds of compaction that are due. A node calls it at intervals."""
        self.logs.compact(self._key_bytes, self._say_uncompacted)

    def _say_uncompacted(self, log: PartitionWriter, error: TierlogError | OSError) -> None:
        # The next pass tries again; the same error is reported once.
        if self._uncompacted.get(log.directory) != str(error):
            self._uncompacted[log.directory] = str(error)
            self._report(f"{log.name}: not compacted, its records stay as they are: {error}")


def _partitions_of(topic: StoredTopic) -> list[TopicIdPartition]:
    return [
        TopicIdPartition(topic_id=topic.topic_id, topic=topic.name, partition=number)
        for number in range(topic.partitions)
    ]


def _topic_view(topic: StoredTopic) -> TopicView:
    return TopicView(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(
            PartitionView(index=one.partition, stored_as=one, leader_epoch=topic.leader_epoch)
            for one in _partitions_of(topic)
        ),
        settings=topic.settings,
    )

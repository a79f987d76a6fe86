"""A cluster of one node, which keeps its topics itself.

The only door of handlers to logs: they ask for a `ClusterView`, and call the methods of
`LocalTopics`. All calls but `cluster_view`, `view` and those ``_at_once`` block; the event loop
makes them in threads.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.config.topic import TopicConfig
from tierlog.errors import ConfigError, TierlogError
from tierlog.log.index_files import ProducerSnapshot
from tierlog.log.log_dir import PartitionLog
from tierlog.log.writer.batches import ProducerEpoch, encode_marker
from tierlog.log.writer.directory import LogDirWriter
from tierlog.log.writer.partition import Appended, PartitionWriter, WriterOptions
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.log.writer.validation import AppendOrigin
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.cluster_view import ClusterView, LogDirView, PartitionView, TopicView
from tierlog.node.local.disk_pace import DiskPace
from tierlog.node.local.tiering import LeaderLog, NodeTier, open_tier
from tierlog.node.local.topics import StoredTopic, TopicStore
from tierlog.node.settings import NodeSettings, SettingChange, change_settings
from tierlog.node.transactions.state_log import STATE_TOPIC, STATE_TOPIC_SETTINGS, StateLog
from tierlog.node.transactions.types import OFFSETS_TOPIC, Partition
from tierlog.reader.types import FetchView
from tierlog.remote.store.object_store import ObjectStore
from tierlog.types import TopicIdPartition, check_topic_name

__all__ = ["STATE", "LocalCluster"]

NODE_ID = 1
_LOGS, STATE = "logs", "state"
_TOPICS_FILE = "cluster.sqlite"
# Only the node itself writes to these topics.
_INTERNAL = frozenset({OFFSETS_TOPIC, STATE_TOPIC})


class LocalCluster:
    """The topics in `data_dir`: ``logs`` is a Kafka log directory, ``state`` is tierlog's own.

    ``store`` is the URL of the cold tier, or the open store. ``on_append`` is called with a
    partition that has new records, ``on_config`` with settings that have changed; ``report``
    receives lines for the operator. ConfigError when the directory or the store belongs to another
    cluster or process.
    """

    def __init__(
        self,
        data_dir: str,
        store: ObjectStore | str | None = None,
        *,
        config: Config,
        clock: Clock,
        metrics: RemoteLogMetrics,
        report: Callable[[str], object] = print,
    ) -> None:
        self.on_append: Callable[[TopicIdPartition], object] = lambda _: None
        self.on_config: Callable[[Config], object] = lambda _: None
        self._report = report
        self._clock = clock
        # Logs whose last round of compaction ended with an error, and which error.
        self._uncompacted: dict[str, str] = {}
        self._disk = DiskPace(clock)
        self._lock = threading.RLock()
        self._store = TopicStore(os.path.join(data_dir, STATE, _TOPICS_FILE))
        self.cluster_id = self._store.cluster_id
        self._partitions: dict[TopicIdPartition, tuple[PartitionWriter, LeaderLog, int]] = {}
        self._topics: dict[str, StoredTopic] = {}
        try:
            self.settings = NodeSettings(
                config,
                this_node=self._store.node_settings(str(NODE_ID)),
                all_nodes=self._store.node_settings(""),
            )
            config = self.settings.config
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
            self.tier = self._open_tier(data_dir, store, config, clock, metrics)
        except BaseException:
            self.logs.close()
            self._store.close()
            raise
        self._view = ClusterView.of(self.cluster_id, NODE_ID, ())
        self._open_topics()

    def _open_tier(
        self,
        data_dir: str,
        store: ObjectStore | str | None,
        config: Config,
        clock: Clock,
        metrics: RemoteLogMetrics,
    ) -> NodeTier:
        return open_tier(
            store,
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
                (topic.name, partition, topic.topic_id): self.settings.topic(topic.settings)
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
        return self._see(partition, PartitionWriter.view)

    def view_at_once(self, partition: TopicIdPartition) -> FetchView | None:
        """As `view`, but BlockingIOError while another call changes the log."""
        return self._see(partition, PartitionWriter.view_at_once)

    def _see(
        self, partition: TopicIdPartition, look: Callable[[PartitionWriter], PartitionLog]
    ) -> FetchView | None:
        found = self._partitions.get(partition)
        if found is None:
            return None
        writer, _, leader_epoch = found
        # A listing after the offsets has all segments below them.
        high_watermark, end = writer.high_watermark, writer.log_end_offset
        stable = writer.last_stable_offset
        log = look(writer)
        start = log.log_start_offset or 0
        return FetchView(
            log=log,
            log_start_offset=start,
            local_log_start_offset=max(start, log.segments[0].base_offset),
            high_watermark=high_watermark,
            last_stable_offset=min(stable, high_watermark),
            log_end_offset=end,
            leader_epoch=leader_epoch,
            tiered=self._is_tiered(writer),
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
        _refuse_internal(name)
        return self._check_topic(name, settings)

    def _check_topic(self, name: str, settings: Mapping[str, str]) -> TopicConfig:
        config = self._check_settings(settings, None)
        if name in self._topics:
            raise KeyError(name)
        return config

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> StoredTopic:
        """Create a topic with empty partitions and return it; errors as `check_topic`."""
        with self._lock:
            self.check_topic(name, partitions, settings)
            return self._create_topic(name, partitions, settings)

    def _create_topic(self, name: str, partitions: int, settings: Mapping[str, str]) -> StoredTopic:
        with self._lock:
            config = self._check_topic(name, settings)
            topic = self._store.create(name, partitions, settings)
            self._open_partitions(topic, config)
            return topic

    def add_partitions(self, name: str, partitions: int) -> None:
        """Give a topic empty partitions, up to that number in all; KeyError without the topic."""
        _refuse_internal(name)
        with self._lock:
            topic = self._topics[name]
            if partitions <= topic.partitions:
                raise ValueError(f"{name}: {partitions} partitions would not be an increase")
            # A crash from here on leaves the creation of the directories to the next start.
            self._store.set_partitions(topic.topic_id, partitions)
            config = self.settings.topic(topic.settings)
            self._open_partitions(replace(topic, partitions=partitions), config)

    def _open_partitions(self, topic: StoredTopic, config: TopicConfig) -> None:
        for partition in range(topic.partitions):
            self.logs.create(topic.name, partition, topic.topic_id, config)
        self.logs.write_checkpoints()
        self._lead(topic)
        self._refresh_view()

    def _lead(self, topic: StoredTopic) -> None:
        self._topics[topic.name] = topic
        for partition in _partitions_of(topic):
            if partition in self._partitions:
                continue
            writer = self.logs.writer(partition.topic, partition.partition)
            log = LeaderLog(writer, self.logs.write_checkpoints)
            self._partitions[partition] = writer, log, topic.leader_epoch
            if self._is_tiered(writer):
                self._begin_tiering(partition)
            elif self.tier.manager is not None and self.tier.metadata.list(partition):
                # The last process ended while tiering was switched off.
                self._end_tiering(partition)

    def _is_tiered(self, writer: PartitionWriter) -> bool:
        return self.tier.manager is not None and writer.topic.remote_storage_enable

    def delete_topic(self, name: str) -> None:
        """Delete a topic here and in the store; KeyError without it, AppendRefusedError when only
        the node itself may change it."""
        _require_public(name)
        with self._lock:
            topic = self._topics[name]
            self._store.begin_deletion(topic.topic_id)
            del self._topics[name]
            self._refresh_view()
            self._finish_deletion(topic)

    def _finish_deletion(self, topic: StoredTopic) -> None:
        is_tiered = self.settings.topic(topic.settings).remote_storage_enable
        for partition in _partitions_of(topic):
            self._partitions.pop(partition, None)
            if is_tiered and self.tier.manager is not None:
                self.tier.manager.stop_partition(partition, delete_remote=True)
            self.logs.delete(partition.topic, partition.partition)
        self._store.finish_deletion(topic.topic_id)

    # -- settings

    def _check_settings(
        self, settings: Mapping[str, str], before: TopicConfig | None
    ) -> TopicConfig:
        config = self.settings.topic(settings)
        config.check_tiering(before)
        if config.remote_storage_enable and self.tier.manager is None:
            raise ConfigError("remote.storage.enable: this node has no store; give it --store URL")
        return config

    def alter_topic(
        self, name: str, changes: Sequence[SettingChange], *, validate_only: bool
    ) -> None:
        """Change settings of a topic, durably and at once.

        KeyError without it, ConfigError for settings that it cannot have, ValueError for a request
        that is wrong by itself."""
        _refuse_internal(name)
        with self._lock:
            topic = self._topics[name]
            shown = self.settings.topic_views(topic.settings)
            after = change_settings(topic.settings, changes, shown)
            config = self._check_settings(after, self.settings.topic(topic.settings))
            self._check_switch_on(topic, config)
            if validate_only:
                return
            self._store.set_settings(topic.topic_id, after)
            self._topics[name] = topic = replace(topic, settings=after)
            self._configure(topic, config)
            self._refresh_view()
        self.tier.hurry()

    def _check_switch_on(self, topic: StoredTopic, config: TopicConfig) -> None:
        for partition in _partitions_of(topic) if config.remote_storage_enable else ():
            if self.tier.metadata.partition_delete_state(partition) is not None:
                raise ConfigError(
                    "remote.storage.enable: what the store had of this topic is still being "
                    "deleted; try again later"
                )

    def alter_node(
        self, node: str, changes: Sequence[SettingChange], *, validate_only: bool
    ) -> None:
        """Change dynamic settings of this node, or of all nodes when `node` is empty; errors as
        `alter_topic`."""
        with self._lock:
            shown = self.settings.node_views() if node else self.settings.all_nodes_views()
            after = change_settings(self._store.node_settings(node), changes, shown)
            try:
                settings = self.settings.replace_dynamic(node, after)
            except ConfigError as error:
                # Kafka's answer for settings of a broker.
                raise ValueError(str(error)) from error
            if validate_only:
                return
            self._store.set_node_settings(node, after)
            self.settings = settings
            for topic in self._topics.values():
                self._configure(topic, settings.topic(topic.settings))
            self._refresh_view()
            self.tier.configure(settings.config)
            self.on_config(settings.config)
        self.tier.hurry()

    def _configure(self, topic: StoredTopic, config: TopicConfig) -> None:
        for partition in _partitions_of(topic):
            writer = self._partitions[partition][0]
            was_tiered = self._is_tiered(writer)
            writer.configure(config)
            if self._is_tiered(writer) and not was_tiered:
                self._begin_tiering(partition)
            elif was_tiered and not self._is_tiered(writer):
                self._end_tiering(partition)

    def _begin_tiering(self, partition: TopicIdPartition) -> None:
        if self.tier.manager is not None:
            writer, _, leader_epoch = self._partitions[partition]
            log = LeaderLog(writer, self.logs.write_checkpoints)
            self._partitions[partition] = writer, log, leader_epoch
            self.tier.manager.become_leader(partition, leader_epoch, log)

    def _end_tiering(self, partition: TopicIdPartition) -> None:
        """Delete what the store has of a partition; the log then begins with its local part."""
        if self.tier.manager is not None:
            writer = self._partitions[partition][0]
            if writer.failure is None:
                writer.raise_log_start_offset(writer.local_log_start_offset)
                self.logs.write_checkpoints()
            self.tier.manager.stop_partition(partition, delete_remote=True)

    # -- records

    def append(
        self,
        partition: TopicIdPartition,
        records: bytes,
        transaction_of: ProducerEpoch | None = None,
    ) -> Appended:
        """Append batches of a client; AppendRefusedError when they may not be, KeyError when the
        partition was deleted. ``transaction_of``: see `PartitionWriter.append`."""
        _require_public(partition.topic)
        writer, _, leader_epoch = self._partitions[partition]
        appended = writer.append(records, leader_epoch=leader_epoch, transaction_of=transaction_of)
        if not appended.is_duplicate:
            self.on_append(partition)
        return appended

    def append_at_once(
        self,
        partition: TopicIdPartition,
        records: bytes,
        transaction_of: ProducerEpoch | None = None,
    ) -> Appended:
        """Append like `append`, but without waiting. Raises BlockingIOError when the append may
        have to wait; the caller then uses `append` in a thread."""
        _require_public(partition.topic)
        if not self._disk.is_quick:
            raise BlockingIOError(errno.EAGAIN, "the disk was slow lately")
        writer, _, leader_epoch = self._partitions[partition]
        with self._disk.timed():
            appended = writer.append_at_once(
                records, leader_epoch=leader_epoch, transaction_of=transaction_of
            )
        if not appended.is_duplicate:
            self.on_append(partition)
        return appended

    def write_marker(
        self, partition: Partition, producer: ProducerEpoch, *, is_commit: bool, epoch: int
    ) -> None:
        """End the transaction of a producer in a partition; ``epoch`` is that of the coordinator.
        AppendRefusedError when that is not possible now, KeyError when the partition was
        deleted."""
        found = self._topics[partition.topic]
        at = TopicIdPartition(topic_id=found.topic_id, topic=found.name, partition=partition.number)
        writer, _, leader_epoch = self._partitions[at]
        marker = encode_marker(
            producer,
            is_commit=is_commit,
            coordinator_epoch=epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        writer.append(marker, leader_epoch=leader_epoch, origin=AppendOrigin.COORDINATOR)
        self.on_append(at)

    def describe_producers(self, partition: TopicIdPartition) -> ProducerSnapshot:
        """Return the producers of a partition; KeyError when it was deleted, AppendRefusedError
        when it has stopped."""
        return self._partitions[partition][0].describe_producers()

    def has_state_log(self) -> bool:
        """Whether the topic of the states of transactions exists."""
        return STATE_TOPIC in self._topics

    def open_state_log(self) -> StateLog:
        """Return the log of the states of transactions; its topic is created when it is
        missing."""
        with self._lock:
            topic = self._topics.get(STATE_TOPIC)
            if topic is None:
                topic = self._create_topic(STATE_TOPIC, 1, STATE_TOPIC_SETTINGS)
            return StateLog(self.logs.writer(STATE_TOPIC, 0), topic.leader_epoch, self._clock)

    def delete_records(self, partition: TopicIdPartition, offset: int) -> int:
        """Delete the records below `offset` (-1: all) and return the log start offset.

        OutOfRangeError for an offset above the high watermark, KeyError when the partition was
        deleted."""
        _require_public(partition.topic)
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
        """Sync rolled segments, apply retention to topics that are not copied, delete files whose
        delay is over, and write the checkpoints. A node calls it at intervals."""
        for writer in self.logs.writers():
            if writer.failure is None:
                self._apply_retention(writer)
                writer.unlink_renamed()
        self.logs.flush_rolled()

    def compact(self) -> None:
        """Run the rounds of compaction that are due. A node calls it at intervals."""
        key_bytes = self.settings.config.log.cleaner_dedupe_buffer_size
        self.logs.compact(key_bytes, self._say_uncompacted)

    def _say_uncompacted(self, log: PartitionWriter, error: TierlogError | OSError) -> None:
        # The next pass tries again; the same error is reported once.
        if self._uncompacted.get(log.directory) != str(error):
            self._uncompacted[log.directory] = str(error)
            self._report(f"{log.name}: not compacted, its records stay as they are: {error}")

    def _apply_retention(self, writer: PartitionWriter) -> None:
        is_tiered = self._is_tiered(writer)
        if is_tiered and not writer.topic.remote_copy_disable:
            return
        if not is_tiered:
            # A task that was running when tiering ended may have deleted local segments.
            writer.raise_log_start_offset(writer.local_log_start_offset)
        writer.apply_retention()

    # -- without waiting for an interval

    def tier_now(self, timeout_ms: int) -> None:
        """Roll the tiered partitions, copy all of it to the store, then apply retention. Segments
        with an open transaction stay.

        ConfigError without a store; TierlogError with the cause when something was not copied."""
        tiered = self._tiered_partitions()
        for _, writer, _ in tiered:
            writer.roll()
        self._run_tasks(timeout_ms)
        for partition, writer, log in tiered:
            last_offset = _last_stable_rolled_offset(writer)
            if last_offset < writer.log_start_offset or log.highest_remote_offset >= last_offset:
                continue
            copied = max(log.highest_remote_offset + 1, writer.log_start_offset)
            cause = self.tier.failure_of(partition)
            raise TierlogError(
                f"{writer.name}: offsets {copied} to {last_offset} are not in the store: "
                f"{cause or 'see the lines that the node has reported'}"
            ) from cause
        self._run_tasks(timeout_ms)

    def expire_now(self, timeout_ms: int) -> None:
        """Apply the retention of every topic in both tiers."""
        self.keep_up()
        if self.tier.manager is not None:
            self._run_tasks(timeout_ms)

    def _tiered_partitions(self) -> list[tuple[TopicIdPartition, PartitionWriter, LeaderLog]]:
        if self.tier.manager is None:
            raise ConfigError("this node has no store: nothing can be tiered")
        return [
            (partition, writer, log)
            for partition, (writer, log, _) in list(self._partitions.items())
            if writer.topic.remote_storage_enable and not writer.topic.remote_copy_disable
        ]

    def _run_tasks(self, timeout_ms: int) -> None:
        """Run every task of the manager once more from now on."""
        manager = self.tier.manager
        assert manager is not None
        # A task that is running has seen the logs as they were.
        for step in ("end its tasks", "run its tasks"):
            if not manager.wait_until_idle(timeout_ms):
                raise TierlogError(f"the node did not {step} in {timeout_ms} ms")
            if step == "end its tasks":
                manager.hurry()


def _last_stable_rolled_offset(writer: PartitionWriter) -> int:
    """Return the last offset of the segments that may be copied; -1 without one."""
    stable_offset = writer.last_stable_offset
    ends = [one.next_base_offset or 0 for one in writer.view().rolled_segments]
    return max((end for end in ends if end <= stable_offset), default=0) - 1


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
        is_internal=topic.name in _INTERNAL,
        settings=topic.settings,
    )


def _refuse_internal(name: str) -> None:
    if name in _INTERNAL:
        raise ValueError(f"{name} belongs to the node itself")


def _require_public(topic: str) -> None:
    if topic in _INTERNAL:
        text = f"only the node itself changes {topic}"
        raise AppendRefusedError(Refusal.INVALID_TOPIC_EXCEPTION, text)

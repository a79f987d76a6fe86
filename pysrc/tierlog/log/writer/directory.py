"""A log directory that tierlog owns: its lock, its marks, its checkpoints and its partitions."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tierlog.clock import Clock
from tierlog.config.topic import TopicConfig
from tierlog.errors import ConfigError, OutOfRangeError, TierlogError
from tierlog.log import checkpoint
from tierlog.log.checkpoint import MetaProperties, TopicPartition
from tierlog.log.log_dir import PartitionLog
from tierlog.log.names import SkipReason, parse_partition_directory, staged_directory
from tierlog.log.writer.files import create_file, sync_directory, write_durably
from tierlog.log.writer.partition import PartitionWriter, WriterOptions
from tierlog.types import random_kafka_uuid

__all__ = ["LogDirWriter", "OwnedPartition"]

_LOCK = ".lock"
_OPENING_THREADS = 4

# Topic, partition and topic id of a partition that lies in the directory.
OwnedPartition = tuple[str, int, str]


class LogDirWriter:
    """The log directory at `path`, created when it is missing; one process owns it at a time.

    ConfigError when another process owns it, or when it belongs to another cluster or node.
    """

    def __init__(
        self,
        path: str,
        *,
        cluster_id: str,
        node_id: int,
        clock: Clock,
        options: WriterOptions | None = None,
    ) -> None:
        self.path = os.path.abspath(path)
        self._clock = clock
        self._options = options or WriterOptions()
        self._lock = threading.RLock()
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        os.makedirs(self.path, exist_ok=True)
        self._lock_fd = _take_lock(self.path)
        try:
            self.meta = _own(self.path, cluster_id, node_id)
            mark = os.path.join(self.path, checkpoint.CLEAN_SHUTDOWN)
            self.is_clean = os.path.lexists(mark)
            self._checkpoints = {
                name: _read(os.path.join(self.path, name))
                for name in (
                    checkpoint.RECOVERY_POINTS,
                    checkpoint.LOG_START_OFFSETS,
                    checkpoint.CLEANER_OFFSETS,
                )
            }
            self._deleted = self._finish_deletions()
        except BaseException:
            os.close(self._lock_fd)
            raise

    # -- partitions

    def stored_partitions(self) -> list[OwnedPartition]:
        """Return the partitions whose directories lie here, with their topic ids."""
        found = []
        for name in sorted(os.listdir(self.path)):
            partition = parse_partition_directory(name)
            path = os.path.join(self.path, name)
            if partition is None or staged_directory(name) or not os.path.isdir(path):
                continue
            try:
                metadata = os.path.join(path, checkpoint.PARTITION_METADATA)
                topic_id = checkpoint.read_partition_metadata(metadata)
            except FileNotFoundError:
                # A crash came between the directory and its first file: it holds nothing.
                continue
            found.append((partition.topic, partition.partition, topic_id))
        return found

    def open_all(self, partitions: Mapping[OwnedPartition, TopicConfig]) -> None:
        """Open the given partitions that lie here and create the others, several at a time."""
        with ThreadPoolExecutor(_OPENING_THREADS, "tierlog-open") as threads:
            opened = threads.map(lambda one: self._open(one[0], one[1]), partitions.items())
            for writer in opened:
                self._writers[writer.view().topic_partition] = writer
        # From here on the directory is in use, and a crash leaves it without the mark.
        mark = os.path.join(self.path, checkpoint.CLEAN_SHUTDOWN)
        if os.path.lexists(mark):
            os.unlink(mark)
            sync_directory(self.path)
        self.write_checkpoints()

    def create(self, topic: str, partition: int, topic_id: str, config: TopicConfig) -> None:
        """Create an empty partition; nothing to do when it is here."""
        with self._lock:
            key = TopicPartition(topic, partition)
            if key not in self._writers:
                self._writers[key] = self._open((topic, partition, topic_id), config)

    def _open(self, owned: OwnedPartition, config: TopicConfig) -> PartitionWriter:
        topic, partition, topic_id = owned
        key = TopicPartition(topic, partition)
        directory = os.path.join(self.path, f"{topic}-{partition}")
        is_new = not os.path.lexists(os.path.join(directory, checkpoint.PARTITION_METADATA))
        if is_new:
            os.makedirs(directory, exist_ok=True)
            data = f"version: 0\ntopic_id: {topic_id}".encode("ascii")
            write_durably(os.path.join(directory, checkpoint.PARTITION_METADATA), data)
            sync_directory(self.path)
        starts = self._checkpoints[checkpoint.LOG_START_OFFSETS]
        points = self._checkpoints[checkpoint.RECOVERY_POINTS]
        listed = PartitionLog(
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            directory=directory,
            segments=(),
            leader_epochs=None,
            log_start_offset=0 if is_new else starts.get(key),
            high_watermark=None,
            recovery_point=0 if is_new else points.get(key, 0),
        )
        return PartitionWriter(
            directory,
            listed,
            config,
            clock=self._clock,
            options=self._options,
            is_clean=self.is_clean or is_new,
            cleaned_offset=None
            if is_new
            else self._checkpoints[checkpoint.CLEANER_OFFSETS].get(key),
        )

    def writer(self, topic: str, partition: int) -> PartitionWriter:
        """Return the log of a partition; OutOfRangeError without it."""
        with self._lock:
            found = self._writers.get(TopicPartition(topic, partition))
        if found is None:
            raise OutOfRangeError(f"{self.path}: no partition {topic}-{partition}")
        return found

    def writers(self) -> list[PartitionWriter]:
        """Return the logs of all partitions."""
        with self._lock:
            return list(self._writers.values())

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition; nothing to do when it is gone."""
        with self._lock:
            writer = self._writers.pop(TopicPartition(topic, partition), None)
        if writer is None:
            return
        writer.close()
        # The name may be used again at once, so the directory loses it before its files go.
        suffix = f".{os.urandom(16).hex()}-delete"
        gone = os.path.join(self.path, writer.name[: 255 - len(suffix)] + suffix)
        os.rename(writer.directory, gone)
        sync_directory(self.path)
        shutil.rmtree(gone)
        self.write_checkpoints()

    def _finish_deletions(self) -> int:
        """Delete the directories of partitions whose deletion was begun."""
        deleted = 0
        for name in os.listdir(self.path):
            if staged_directory(name) is SkipReason.PARTITION_DELETED:
                shutil.rmtree(os.path.join(self.path, name))
                deleted += 1
        return deleted

    # -- checkpoints

    def write_checkpoints(self) -> None:
        """Write recovery points, log start offsets, high watermarks and the ends of compaction."""
        with self._lock:
            rows = sorted(self._writers.items())
            for name, value in (
                (checkpoint.RECOVERY_POINTS, lambda one: one.recovery_point),
                (checkpoint.LOG_START_OFFSETS, _checkpointed_start),
                (checkpoint.HIGH_WATERMARKS, lambda one: one.high_watermark),
                (checkpoint.CLEANER_OFFSETS, lambda one: one.cleaned_offset),
            ):
                self._write(name, rows, value)

    def _write(
        self,
        name: str,
        rows: list[tuple[TopicPartition, PartitionWriter]],
        value: Callable[[PartitionWriter], int | None],
    ) -> None:
        lines = [
            f"{key.topic} {key.partition} {found}\n"
            for key, writer in rows
            if (found := value(writer)) is not None
        ]
        text = f"0\n{len(lines)}\n{''.join(lines)}"
        write_durably(os.path.join(self.path, name), text.encode("ascii"))

    def flush_rolled(self) -> None:
        """Sync rolled segments and write the checkpoints."""
        for writer in self.writers():
            if writer.failure is None:
                writer.flush_rolled()
        self.write_checkpoints()

    def compact(
        self,
        budget_bytes: int,
        on_error: Callable[[PartitionWriter, TierlogError | OSError], object],
    ) -> None:
        """Run the rounds of compaction that are due, the log with the largest dirty ratio first.

        ``budget_bytes`` bounds the memory for keys. ``on_error`` receives what ends the round of a
        log; the others go on."""
        due = [(one, planned) for one in self.writers() if (planned := one.plan_compaction())]
        for writer, _ in sorted(due, key=lambda one: one[1].dirty_ratio, reverse=True):
            try:
                if writer.compact(budget_bytes) is not None:
                    self.write_checkpoints()
            except (TierlogError, OSError) as error:
                on_error(writer, error)

    # -- ending

    def close(self) -> None:
        """Close all partitions; mark the directory as whole when all of them are. May be
        repeated."""
        with self._lock:
            if self._lock_fd < 0:
                return
            whole = [writer.close() for writer in self._writers.values()]
            try:
                self.write_checkpoints()
                if all(whole):
                    text = b'{"version":0,"brokerEpoch":-1}'
                    write_durably(os.path.join(self.path, checkpoint.CLEAN_SHUTDOWN), text)
            finally:
                os.close(self._lock_fd)
                self._lock_fd = -1


def _checkpointed_start(writer: PartitionWriter) -> int | None:
    """Return the log start offset where it is not the first segment's base, as Kafka writes it."""
    view = writer.view()
    is_plain = view.segments[0].base_offset == writer.log_start_offset
    return None if is_plain and not writer.topic.remote_storage_enable else writer.log_start_offset


def _take_lock(path: str) -> int:
    fd = create_file(os.path.join(path, _LOCK))
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise ConfigError(
            f"{path}: another process owns this log directory ({error}); stop it first"
        ) from error
    return fd


def _own(path: str, cluster_id: str, node_id: int) -> MetaProperties:
    """Return the identity of the directory; a new one gets the node's."""
    file = os.path.join(path, checkpoint.META_PROPERTIES)
    try:
        meta = checkpoint.read_meta_properties(file)
    except FileNotFoundError:
        lines = (
            "version=1",
            f"cluster.id={cluster_id}",
            f"node.id={node_id}",
            f"directory.id={random_kafka_uuid()}",
        )
        write_durably(file, "".join(f"{line}\n" for line in lines).encode("ascii"))
        meta = checkpoint.read_meta_properties(file)
    for name, expected, found in (
        ("cluster.id", cluster_id, meta.cluster_id),
        ("node.id", node_id, meta.node_id),
    ):
        if found != expected:
            raise ConfigError(f"{file}: expected {name} {expected}, found {found}")
    return meta


def _read(path: str) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read_offset_checkpoint(path)
    except FileNotFoundError:
        return {}

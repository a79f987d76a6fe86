"""A node with thousands of partitions of small segments, for a remote log manager.

All partitions use the same few segment files. The partitions of a topic share a partition.metadata.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.oracle import build
from tests.oracle.model import Record
from tierlog import rebuild_indexes
from tierlog.log.eligibility import StableOffset, StableSource
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentState
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.tiering.copy import PreparedSegment, prepare
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.types import TopicIdPartition, random_kafka_uuid

from .copying import META_PROPERTIES, PARTITION_METADATA
from .corpus import FIRST_TIMESTAMP_MS, LEADER_EPOCH

if TYPE_CHECKING:
    from typing_extensions import Buffer

RECORDS = 10
PARTITIONS_OF_A_TOPIC = 10
# Long enough that segments with the benches' timestamps do not expire.
RETENTION_MS = 100 * 365 * 86_400_000


@dataclass
class StillLog:
    """A `LocalLog` that never changes. Every look returns the same view."""

    partition: TopicIdPartition
    shown: LogView
    highest_remote_offset: int = -1

    def view(self) -> LogView | None:
        return self.shown

    def advance_log_start_offset(self, offset: int) -> None:
        raise AssertionError(
            f"{self.partition}: expected no expired records, found log start offset {offset}"
        )

    def raise_highest_remote_offset(self, offset: int) -> None:
        self.highest_remote_offset = offset

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        raise AssertionError(
            f"{self.partition}: expected no local deletion, found one below "
            f"{local_log_start_offset}"
        )


@dataclass
class TimedStore(ObjectStore):
    """A store that measures how long its calls occupy the calling thread."""

    store: ObjectStore
    seconds: float = 0.0
    sent_bytes: int = field(default=0)

    @property
    def url(self) -> str:
        return self.store.url

    @property
    def is_local(self) -> bool:
        return self.store.is_local

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        began = time.thread_time()
        self.store.put_bytes(key, data, overwrite=overwrite)
        self.seconds += time.thread_time() - began

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        # The store does not make the chunks, so the time to make them does not count.
        data = list(chunks)
        began = time.thread_time()
        self.store.put_stream(key, data, size_bytes, overwrite=overwrite)
        self.seconds += time.thread_time() - began

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self.store.put_if_absent(key, data)

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        began = time.thread_time()
        data = self.store.get_range(key, start_position, size_bytes)
        self.seconds += time.thread_time() - began
        return data

    def head(self, key: str) -> ObjectInfo:
        began = time.thread_time()
        info = self.store.head(key)
        self.seconds += time.thread_time() - began
        return info

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self.store.list(prefix)

    def delete(self, key: str) -> None:
        self.store.delete(key)


def still_logs(folder: Path, partitions: int, segments: int) -> list[StillLog]:
    """Return this many partitions, each with this many rolled segments and an active one."""
    log = _written(folder, segments)
    logs: list[StillLog] = []
    topic_id, directory = "", folder
    for number in range(partitions):
        topic, index = divmod(number, PARTITIONS_OF_A_TOPIC)
        if index == 0:
            topic_id = random_kafka_uuid()
            directory = folder / "topics" / str(topic)
            directory.mkdir(parents=True)
            (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
        partition = TopicIdPartition(topic_id=topic_id, topic=f"bench-{topic}", partition=index)
        shown = replace(
            log,
            topic=partition.topic,
            topic_id=partition.topic_id,
            partition=partition.partition,
            directory=str(directory),
        )
        logs.append(StillLog(partition=partition, shown=_view(shown)))
    return logs


def on_disk(folder: Path, partitions: int, segments: int) -> Path:
    """Make the log directory of a broker with this many partitions. The files of later partitions
    are links to those of the first partition."""
    _written(folder, segments)
    first = folder / "disk" / "bench-0"
    for path in list(first.glob("*.log")):
        path.with_suffix(".index").touch()
        path.with_suffix(".timeindex").touch()
    names = os.listdir(first)
    for number in range(1, partitions):
        directory = folder / "disk" / f"bench-{number}"
        directory.mkdir()
        for name in names:
            os.link(first / name, directory / name)
    return folder / "disk"


def look_again(logs: Sequence[StillLog]) -> None:
    """Give every log a new view with the same content."""
    for log in logs:
        log.shown = replace(log.shown)


def tier_all_but_the_last(logs: Sequence[StillLog], metadata: RemoteLogMetadataManager) -> None:
    """Fill the metadata as on a node that has copied all segments except the last one of each
    partition."""
    (shown,) = {id(log.shown.log.segments): log.shown.log for log in logs}.values()
    ready = [_prepared(shown, segment) for segment in shown.rolled_segments[:-1]]
    for log in logs:
        for one in ready:
            named = replace(one, partition=log.partition)
            started = named.metadata(
                random_kafka_uuid(), broker_id=1, event_timestamp_ms=FIRST_TIMESTAMP_MS
            )
            metadata.add(started)
            finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            metadata.update(started.update_to(finished, event_timestamp_ms=FIRST_TIMESTAMP_MS))


def _prepared(log: PartitionLog, segment: SegmentFiles) -> PreparedSegment:
    with segment.open() as handle:
        return prepare(log, segment, handle)


def _view(log: PartitionLog) -> LogView:
    end = log.segments[-1].base_offset
    return LogView(
        log=replace(log, log_start_offset=0, high_watermark=end),
        stable=StableOffset(value=end, source=StableSource.BROKER),
        log_start_offset=0,
        topic=TopicSettings(retention_ms=RETENTION_MS),
    )


def _written(folder: Path, segments: int) -> PartitionLog:
    """Write one partition, with the snapshots that a broker writes when it rolls a segment."""
    directory = folder / "disk" / "bench-0"
    directory.mkdir(parents=True)
    (folder / "disk" / "meta.properties").write_text(META_PROPERTIES)
    (directory / "partition.metadata").write_text(PARTITION_METADATA)
    (directory / "leader-epoch-checkpoint").write_text(f"0\n1\n{LEADER_EPOCH} 0\n")
    snapshot: bytes | None = None
    for base in range(0, segments * RECORDS, RECORDS):
        records = [
            Record(offset=base + i, timestamp_ms=FIRST_TIMESTAMP_MS, key=b"k", value=b"v" * 80)
            for i in range(RECORDS)
        ]
        data = build.batch(
            records,
            codec=0,
            base_offset=base,
            leader_epoch=LEADER_EPOCH,
            producer_id=4711,
            producer_epoch=0,
            base_sequence=base,
        )
        (directory / f"{base:020}.log").write_bytes(data)
        if snapshot is not None:
            (directory / f"{base:020}.snapshot").write_bytes(snapshot)
        rebuilt = rebuild_indexes(data, base_offset=base, producer_snapshot=snapshot)
        snapshot = rebuilt.producer_snapshot
    (directory / f"{segments * RECORDS:020}.log").touch()
    (log,) = open_log_dir(folder / "disk").listing().partitions
    return log

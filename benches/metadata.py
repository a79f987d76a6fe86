"""Makes metadata stores with many segments, and measures the first use of such a store.

``python -m benches.metadata STORE`` prints JSON with the time to open the store, to read the first
size and to do the first lookup, and with the bytes that the segments in memory add to the process.
The content is computed from numbers, so a store is always the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.metadata.schema import SCHEMA_VERSION
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid

from .corpus import Corpora
from .memory_child import status_bytes

EPOCH_SEGMENTS = 500
OFFSETS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store with this many partitions, and this many segments in each. The leader changes after
    every ``epoch_segments`` segments."""

    partitions: int
    segments: int
    epoch_segments: int = EPOCH_SEGMENTS

    @property
    def name(self) -> str:
        return f"{self.partitions:,} x {self.segments:,} segments"

    @property
    def total(self) -> int:
        return self.partitions * self.segments

    @property
    def last_epoch(self) -> int:
        return (self.segments - 1) // self.epoch_segments

    def partition(self, number: int) -> TopicIdPartition:
        topic_id = kafka_uuid(hashlib.sha256(b"orders").digest()[:16])
        return TopicIdPartition(topic_id=topic_id, topic="orders", partition=number)

    def segment(self, partition: int, number: int) -> RemoteLogSegmentMetadata:
        which = partition * self.segments + number
        name = hashlib.sha256(b"%d" % which).digest()
        epoch, size_bytes = number // self.epoch_segments, (1 << 30) - which % 1_000
        first_offset = epoch * self.epoch_segments * OFFSETS
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                topic_id_partition=self.partition(partition), id=kafka_uuid(name[:16])
            ),
            start_offset=number * OFFSETS,
            end_offset=(number + 1) * OFFSETS - 1,
            max_timestamp_ms=1_760_000_000_000 + which * 1_000,
            broker_id=partition % 7,
            event_timestamp_ms=1_760_000_000_000 + which * 1_001,
            segment_size_bytes=size_bytes,
            leader_epochs=((epoch, first_offset),),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            bytes_per_epoch=((epoch, size_bytes),),
            log_crc32c=int.from_bytes(name[16:20], "big"),
        )

    def path(self, corpora: Corpora) -> Path:
        """Return the path of the store. The store is written if no earlier run has written it."""
        shape = f"{self.partitions}x{self.segments}"
        if self.epoch_segments != EPOCH_SEGMENTS:
            shape += f"by{self.epoch_segments}"
        name = f"metadata-{SCHEMA_VERSION}-{shape}.sqlite"
        path = corpora.directory / name
        if not path.exists():
            draft = path.with_suffix(".draft")
            for old in draft.parent.glob(f"{draft.name}*"):
                old.unlink()
            manager = SqliteRemoteLogMetadataManager(draft)
            manager.load(self._segments())
            manager.close()
            draft.rename(path)
        return path

    def _segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        for partition in range(self.partitions):
            for number in range(self.segments):
                yield self.segment(partition, number)


def look(path: str) -> dict[str, float]:
    """Return the measured seconds and bytes. The memory is measured after a lookup in every
    partition."""
    clock, figures = time.perf_counter, {}
    start = clock()
    manager = SqliteRemoteLogMetadataManager(path)
    figures["open"] = clock() - start
    first, *others = manager.partitions()
    start = clock()
    manager.remote_log_size(first, 0)
    figures["size"] = clock() - start
    before = status_bytes("VmRSS")
    start = clock()
    manager.lookup(first, 0, 0)
    figures["lookup"] = clock() - start
    for partition in others:
        manager.lookup(partition, 0, 0)
    figures["bytes"] = status_bytes("VmRSS") - before
    figures["file"] = os.path.getsize(path)
    manager.close()
    return figures


if __name__ == "__main__":
    print(json.dumps(look(sys.argv[1])))

"""Schema version 1 of the SQLite metadata store, and how it becomes the present one.

| Table | Columns |
|---|---|
| ``segment`` | ``topic_id, topic, partition, segment_id`` (identity), ``description`` (the rest, \
as in `segment_json`), ``state, event_timestamp_ms, broker_id, custom_metadata`` (what an update \
replaces; for the time this column counts, not the description) |
| ``highest_offset`` | ``topic_id, topic, partition, epoch, offset``: the highest offset ever \
finished, which outlives the segments |
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from tierlog.remote.metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.metadata_schema import (
    INSERT_EPOCH,
    INSERT_PARTITION,
    INSERT_SEGMENT,
    SCHEMA,
    SCHEMA_VERSION,
    epoch_row,
    partition_row,
    segment_row,
)
from tierlog.remote.partition_metadata import PartitionMetadata
from tierlog.remote.segment_json import decode_segment
from tierlog.types import TopicIdPartition

__all__ = ["SCHEMA_V1", "migrate"]

SCHEMA_V1 = """
CREATE TABLE segment (
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    segment_id TEXT NOT NULL,
    description BLOB NOT NULL,
    state INTEGER NOT NULL,
    event_timestamp_ms INTEGER NOT NULL,
    broker_id INTEGER NOT NULL,
    custom_metadata BLOB,
    PRIMARY KEY (topic_id, partition, segment_id)
) WITHOUT ROWID;
CREATE TABLE highest_offset (
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (topic_id, partition, epoch)
) WITHOUT ROWID;
"""


def migrate(database: sqlite3.Connection, path: str) -> None:
    """Rewrite everything, within the transaction of the caller.

    ValueError, TypeError or CorruptDataError for rows that are not what they should be.
    """
    database.execute("ALTER TABLE segment RENAME TO segment_v1")
    for statement in filter(str.strip, SCHEMA.split(";")):
        database.execute(statement)
    partitions = _Partitions()
    for row in database.execute("SELECT * FROM segment_v1"):
        metadata = _segment(row, path)
        number = partitions.take(metadata)
        database.execute(INSERT_SEGMENT, segment_row(number, metadata))
    for topic_id, topic, partition, epoch, offset in database.execute(
        "SELECT topic_id, topic, partition, epoch, offset FROM highest_offset"
    ):
        name = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
        partitions.finished_up_to(name, epoch, offset)
    database.executemany(INSERT_PARTITION, partitions.rows())
    database.executemany(INSERT_EPOCH, partitions.epoch_rows())
    database.execute("DROP TABLE segment_v1")
    database.execute("DROP TABLE highest_offset")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


class _Partitions:
    """The numbers that partitions get, and the totals of their epochs."""

    def __init__(self) -> None:
        self._known: dict[TopicIdPartition, tuple[int, PartitionMetadata]] = {}

    def take(self, metadata: RemoteLogSegmentMetadata) -> int:
        """Count a segment; answers the number of its partition."""
        number, known = self._of(metadata.topic_id_partition)
        if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            for epoch, _, end_offset in metadata.epoch_ranges():
                self.finished_up_to(metadata.topic_id_partition, epoch, end_offset)
            for epoch, size_bytes in metadata.size_per_epoch():
                known.set_size(epoch, known.remote_log_size(epoch) + size_bytes)
        return number

    def finished_up_to(self, partition: TopicIdPartition, epoch: object, offset: object) -> None:
        """What the segments that are gone left behind."""
        if type(epoch) is not int or type(offset) is not int or epoch < 0 or offset < 0:
            raise ValueError(f"highest offset {offset!r:.40} of epoch {epoch!r:.40}")
        _, known = self._of(partition)
        known.set_highest(epoch, max(offset, known.highest_offset_for_epoch(epoch) or 0))

    def rows(self) -> Iterator[tuple[object, ...]]:
        for number, known in self._known.values():
            yield partition_row(number, known)

    def epoch_rows(self) -> Iterator[tuple[object, ...]]:
        for number, known in self._known.values():
            for epoch, totals in known.totals().items():
                yield epoch_row(number, epoch, *totals)

    def _of(self, partition: TopicIdPartition) -> tuple[int, PartitionMetadata]:
        if partition not in self._known:
            self._known[partition] = (len(self._known) + 1, PartitionMetadata(partition))
        return self._known[partition]


def _segment(row: tuple[Any, ...], path: str) -> RemoteLogSegmentMetadata:
    topic_id, topic, partition, segment_id, description, state, *changes = row
    if not isinstance(description, bytes) or not isinstance(state, int):
        raise ValueError(f"segment {segment_id}: columns of another type")
    known = decode_segment(
        description,
        path=path,
        position=0,
        state=RemoteLogSegmentState(state),
        changes=_checked_changes(segment_id, changes),
    ).metadata
    name = known.topic_id_partition
    found = (topic_id, topic, partition, segment_id)
    if found != (name.topic_id, name.topic, name.partition, known.segment_id.id):
        raise ValueError(f"segment {segment_id}: its description names {known.segment_id}")
    return known


def _checked_changes(segment_id: object, columns: list[Any]) -> dict[str, object]:
    event_timestamp_ms, broker_id, custom_metadata = columns
    if not isinstance(event_timestamp_ms, int) or not isinstance(broker_id, int):
        raise ValueError(f"segment {segment_id}: columns of another type")
    if custom_metadata is not None and not isinstance(custom_metadata, bytes):
        raise ValueError(f"segment {segment_id}: custom metadata is no blob")
    return {
        "event_timestamp_ms": event_timestamp_ms,
        "broker_id": broker_id,
        "custom_metadata": custom_metadata,
    }

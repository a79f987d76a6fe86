"""The tables of the SQLite metadata file. This module encodes and decodes the rows.

`SCHEMA` is schema version 3 (``user_version``). The ``application_id`` is the ASCII text ``tlog``.

| Table | Meaning of a row |
|---|---|
| ``partition`` | a partition that has a segment, a leader, a deletion or a log start offset; \
``leader_epoch`` is -1, ``delete_state`` and ``log_start_offset`` are null when unset |
| ``epoch`` | one leader epoch of a partition: the highest offset ever finished (null for none), \
which outlives the segments, and the bytes of its finished segments |
| ``segment`` | the fields of `RemoteLogSegmentMetadata`. The first leader epoch has its own \
columns; ``later_epochs`` holds the others as pairs of a 4-byte epoch and an 8-byte first offset, \
``epoch_sizes`` the bytes per epoch as pairs of 4 and 8 bytes, both big-endian, null for none |

The last value of each row is the checksum of the values before it (`_core.row_checksum`). Rows of
version 2 have no checksum.

The functions `read_...` decode rows of an untrusted file. The functions `read_...` raise ValueError
or TypeError for invalid rows.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator

from tierlog.remote.database import DatabaseSchema, with_checksum
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.partition import NO_EPOCH, PartitionChange, PartitionMetadata
from tierlog.remote.metadata.segment_sets import PlainSegment, Row
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = [
    "INSERT_EPOCH",
    "INSERT_PARTITION",
    "INSERT_SEGMENT",
    "METADATA_SCHEMA",
    "SCHEMA",
    "SCHEMA_VERSION",
    "SELECT_SEGMENTS",
    "epoch_row",
    "partition_row",
    "read_epoch",
    "read_partition",
    "read_segment",
    "read_segments",
    "segment_row",
]

SCHEMA_VERSION = 3
_APPLICATION_ID = int.from_bytes(b"tlog", "big")
SCHEMA = """
CREATE TABLE partition (
    number INTEGER PRIMARY KEY,
    topic_id TEXT NOT NULL,
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL,
    delete_state INTEGER,
    log_start_offset INTEGER,
    checksum INTEGER NOT NULL,
    UNIQUE (topic_id, partition, topic)
);
CREATE TABLE epoch (
    partition_number INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    highest_offset INTEGER,
    size_bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (partition_number, epoch)
) WITHOUT ROWID;
CREATE TABLE segment (
    partition_number INTEGER NOT NULL,
    start_offset INTEGER NOT NULL,
    segment_id TEXT NOT NULL,
    end_offset INTEGER NOT NULL,
    max_timestamp_ms INTEGER NOT NULL,
    event_timestamp_ms INTEGER NOT NULL,
    broker_id INTEGER NOT NULL,
    state INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL,
    first_epoch INTEGER NOT NULL,
    first_epoch_offset INTEGER NOT NULL,
    txn_index_empty INTEGER NOT NULL,
    log_crc32c INTEGER,
    truncation_offset INTEGER,
    later_epochs BLOB,
    epoch_sizes BLOB,
    custom_metadata BLOB,
    checksum INTEGER NOT NULL,
    PRIMARY KEY (partition_number, start_offset, segment_id)
) WITHOUT ROWID;
"""
SCHEMA_V2 = SCHEMA.replace("    checksum INTEGER NOT NULL,\n", "")
INSERT_PARTITION = "INSERT OR REPLACE INTO partition VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
INSERT_EPOCH = "INSERT OR REPLACE INTO epoch VALUES (?, ?, ?, ?, ?)"
INSERT_SEGMENT = (
    "INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
SELECT_SEGMENTS = "SELECT * FROM segment WHERE partition_number = ? ORDER BY start_offset"

_NO_CHANGE = PartitionChange()
_PAIR = struct.Struct(">iq")
_MAX_OFFSET = 2**63 - 1
_MAX_EPOCH = _MAX_SIZE_BYTES = 2**31 - 1
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.value
# Deleted segments and partitions have no rows.
_STATES = {state.value: state for state in RemoteLogSegmentState if state.value < 3}
_DELETE_STATES = {state.value: state for state in RemotePartitionDeleteState if state.value < 2}


def partition_row(
    number: int, state: PartitionMetadata, change: PartitionChange = _NO_CHANGE
) -> tuple[object, ...]:
    """Return the row for `INSERT_PARTITION`, which describes the partition after `change`."""
    name = state.partition
    log_start_offset = state.log_start_offset
    return with_checksum(
        *(number, name.topic_id, name.topic, name.partition),
        state.leader_epoch if change.leader_epoch is None else change.leader_epoch,
        state.delete_state if change.delete_state is None else change.delete_state,
        log_start_offset if change.log_start_offset is None else change.log_start_offset,
    )


def read_partition(row: Row, numbers: Iterator[int]) -> tuple[int, PartitionMetadata]:
    """Return the partition's number in this file, and the partition without its segments and
    epochs, which have tables of their own."""
    number, topic_id, topic, partition, leader_epoch, delete_state, log_start_offset, _ = row
    _check_between(0, number, _MAX_OFFSET)
    _check_integer(partition)
    name = TopicIdPartition(topic_id=topic_id, topic=topic, partition=partition)
    state = PartitionMetadata(name, numbers)
    _check_between(NO_EPOCH, leader_epoch, _MAX_EPOCH)
    state.leader_epoch = leader_epoch
    if delete_state is not None:
        _check_integer(delete_state)
        if delete_state not in _DELETE_STATES:
            raise ValueError(f"{state.partition}: no delete state has the number {delete_state}")
        state.delete_state = _DELETE_STATES[delete_state]
    if log_start_offset is not None:
        _check_between(0, log_start_offset, _MAX_OFFSET)
        state.log_start_offset = log_start_offset
    return number, state


def epoch_row(number: int, epoch: int, highest_offset: int, size_bytes: int) -> tuple[object, ...]:
    """Return the row for `INSERT_EPOCH`; `number` is the partition's number."""
    return with_checksum(number, epoch, None if highest_offset < 0 else highest_offset, size_bytes)


def read_epoch(row: Row) -> tuple[int, int, int, int]:
    """Return partition number, epoch, highest offset (-1 for none) and bytes."""
    number, epoch, highest_offset, size_bytes, _ = row
    highest_offset = -1 if highest_offset is None else highest_offset
    _check_between(0, epoch, _MAX_EPOCH)
    _check_between(-1, highest_offset, _MAX_OFFSET)
    _check_between(0, size_bytes, _MAX_OFFSET)
    return number, epoch, highest_offset, size_bytes


def segment_row(number: int, metadata: RemoteLogSegmentMetadata) -> tuple[object, ...]:
    """Return the row for `INSERT_SEGMENT`; `number` is the partition's number."""
    (first_epoch, first_epoch_offset), *later = metadata.leader_epochs
    sizes = metadata.bytes_per_epoch
    return with_checksum(
        *(number, metadata.start_offset, metadata.segment_id.id, metadata.end_offset),
        *(metadata.max_timestamp_ms, metadata.event_timestamp_ms, metadata.broker_id),
        *(metadata.state.value, metadata.segment_size_bytes, first_epoch, first_epoch_offset),
        *(int(metadata.txn_index_empty), metadata.log_crc32c, metadata.truncation_offset),
        b"".join(_PAIR.pack(*pair) for pair in later) if later else None,
        None if sizes is None else b"".join(_PAIR.pack(*pair) for pair in sizes),
        metadata.custom_metadata,
    )


def read_segment(partition: TopicIdPartition, row: Row) -> RemoteLogSegmentMetadata:
    """Decode a segment of `partition` from a row of `SELECT_SEGMENTS` without its checksum."""
    _, start_offset, segment_id, end_offset, max_timestamp_ms, event_timestamp_ms = row[:6]
    broker_id, state, size_bytes, first_epoch, first_epoch_offset, txn_index_empty = row[6:12]
    log_crc32c, truncation_offset, later_epochs, epoch_sizes, custom_metadata = row[12:]
    # One check covers all values, because the sum is an int only if every summand is an int.
    _check_integer(
        start_offset
        + end_offset
        + max_timestamp_ms
        + event_timestamp_ms
        + broker_id
        + state
        + size_bytes
        + first_epoch
        + first_epoch_offset
        + txn_index_empty
        + (0 if log_crc32c is None else log_crc32c)
        + (0 if truncation_offset is None else truncation_offset)
    )
    if state not in _STATES or txn_index_empty not in (0, 1):
        raise ValueError(f"{segment_id}: invalid state {state} or txn flag {txn_index_empty}")
    if custom_metadata is not None and not isinstance(custom_metadata, bytes):
        raise TypeError(f"{segment_id}: its custom metadata is not a blob")
    first = (first_epoch, first_epoch_offset)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=segment_id),
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp_ms,
        segment_size_bytes=size_bytes,
        leader_epochs=(first,) if later_epochs is None else (first, *_unpack_pairs(later_epochs)),
        state=_STATES[state],
        txn_index_empty=txn_index_empty == 1,
        custom_metadata=custom_metadata,
        bytes_per_epoch=None if epoch_sizes is None else tuple(_unpack_pairs(epoch_sizes)),
        log_crc32c=log_crc32c,
        truncation_offset=truncation_offset,
    )


def read_segments(
    partition: TopicIdPartition, rows: Iterator[Row]
) -> Iterator[RemoteLogSegmentMetadata | PlainSegment]:
    """Yield the segments of `partition` from the rows of `SELECT_SEGMENTS`. For plain segments,
    this function checks only offsets, size, epoch, state and transaction flag."""
    for checked_row in rows:
        row = checked_row[:-1]
        # All values are unpacked at once, because slices or starred names would make a tuple or a
        # list for each row. fmt: off
        (
            _,
            start_offset,
            name,
            end_offset,
            _,
            _,
            _,
            state,
            size_bytes,
            epoch,
            epoch_offset,
            txn_index_empty,
            _,
            truncation_offset,
            later_epochs,
            _,
            _,
        ) = row
        # fmt: on
        if (
            truncation_offset is later_epochs is None
            and type(name) is str
            and type(start_offset + end_offset + size_bytes + epoch + epoch_offset + state) is int
            and 0 <= epoch_offset <= start_offset <= end_offset < _MAX_OFFSET
            and 0 <= size_bytes <= _MAX_SIZE_BYTES
            and 0 <= epoch <= _MAX_EPOCH
            and state in _STATES
            and txn_index_empty in (0, 1)
        ):
            is_finished, has_txn_index = state == _FINISHED, not txn_index_empty
            yield name, epoch, start_offset, end_offset, size_bytes, is_finished, has_txn_index, row
        else:
            yield read_segment(partition, row)


def add_checksums(database: sqlite3.Connection) -> None:
    """Rewrite every table of version 2 as version 3, within the caller's transaction."""
    inserts = {"partition": INSERT_PARTITION, "epoch": INSERT_EPOCH, "segment": INSERT_SEGMENT}
    for table in inserts:
        database.execute(f"ALTER TABLE {table} RENAME TO {table}_v2")
    for statement in filter(str.strip, SCHEMA.split(";")):
        database.execute(statement)
    for table, insert in inserts.items():
        rows = database.execute(f"SELECT * FROM {table}_v2")
        database.executemany(insert, (with_checksum(*row) for row in rows))
        database.execute(f"DROP TABLE {table}_v2")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


METADATA_SCHEMA = DatabaseSchema(
    application_id=_APPLICATION_ID,
    version=SCHEMA_VERSION,
    versions={2: SCHEMA_V2, SCHEMA_VERSION: SCHEMA},
    upgrade=add_checksums,
    rows="segments",
    remedy=(
        "move the file away and run tierlog tier, which reads the metadata from the store again "
        "(tierlog.bucket_metadata in a program)"
    ),
)


def _unpack_pairs(blob: object) -> Iterator[tuple[int, int]]:
    if not isinstance(blob, bytes) or len(blob) % _PAIR.size:
        raise ValueError(f"expected a blob of whole {_PAIR.size}-byte pairs")
    return _PAIR.iter_unpack(blob)


def _check_integer(number: object) -> None:
    if type(number) is not int:
        raise TypeError(f"expected an integer, found a {type(number).__name__}")


def _check_between(lowest: int, number: object, highest: int) -> None:
    if type(number) is not int or not lowest <= number <= highest:
        raise ValueError(f"expected a number in {lowest}..{highest}, found {number!r:.40}")

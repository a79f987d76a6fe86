"""The rows of an audit: plain values that can be pickled.

Offsets are inclusive at both ends. An `AuditedSegment` has every fact about a segment that the
check of its partition needs. So one process can check a segment, and another process the partition
of this segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from tierlog.log.checkpoint import EpochEntry
from tierlog.log.records import MAX_DECOMPRESSED_BYTES
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.layout import log_key
from tierlog.tools.findings import Place
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = [
    "FINISHED",
    "UNDER_WAY_MS",
    "AuditRules",
    "AuditedSegment",
    "DeletionRow",
    "EpochSize",
    "EpochSizeRow",
    "OpenTransaction",
    "RetentionRow",
    "segment_of",
]

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
# Objects younger than this may belong to an active copy. A copy stores both of its objects within a
# much shorter time.
UNDER_WAY_MS = 600_000


class EpochSize(NamedTuple):
    """The bytes of a segment that were written in one leader epoch."""

    epoch: int
    size_bytes: int


class OpenTransaction(NamedTuple):
    """The producer and the first offset of a transaction that has not ended."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRules:
    """The rules of an audit.

    ``now_ms`` is the current time, which decides whether an unfinished copy is active or abandoned.
    With ``deep``, the audit reads every `.log` object whole, and ``max_decompressed_bytes`` limits
    the decompressed size of a batch. ``retention_ms`` and ``retention_bytes`` are the retention to
    try out; None means no limit. If ``log_start_offset`` is None, the log start offset comes from
    the metadata. If there is no metadata, it is the start of the first stored segment.
    """

    now_ms: int
    deep: bool = False
    retention_ms: int | None = None
    retention_bytes: int | None = None
    log_start_offset: int | None = None
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedSegment:
    """One segment, described by its objects or, if they are not readable, by its metadata.

    ``state`` is the name of a `RemoteLogSegmentState`, from the metadata. ``state`` is
    COPY_SEGMENT_FINISHED if the audit has no metadata file, and None if the metadata lacks the
    segment. ``stored`` says whether both objects exist and describe the segment. ``path`` is the
    key of the `.log` object.

    Only the objects give ``batches``, ``records``, ``gap_start_offset``, ``lineage`` and
    ``open_transactions``, which are open at the end of the segment. Only a deep check gives
    ``ended_producers``, the producers whose transactions end in the segment. Only the metadata
    gives ``truncation_offset`` and ``log_start_offset``. None means unknown.
    """

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    leader_epochs: tuple[EpochEntry, ...]
    state: str | None
    stored: bool
    batches: int | None = None
    records: int | None = None
    path: str
    topic_id: str
    segment_id: str
    broker_id: int
    event_timestamp_ms: int
    bytes_per_epoch: tuple[EpochSize, ...] | None
    log_crc32c: int | None
    txn_index_empty: bool
    truncation_offset: int | None = None
    log_start_offset: int | None = None
    lineage: tuple[EpochEntry, ...] | None = None
    open_transactions: tuple[OpenTransaction, ...] | None = None
    ended_producers: tuple[int, ...] | None = None
    gap_start_offset: int | None = None

    @property
    def folder(self) -> str:
        """The folder of the partition's objects, which identifies the partition."""
        return self.path.rpartition("/")[0]

    def place(self, first_offset: int | None = None, last_offset: int | None = None) -> Place:
        """Return the subject of a finding: the segment, or some of its offsets."""
        return Place(
            self.topic,
            self.partition,
            self.base_offset if first_offset is None else first_offset,
            self.end_offset if last_offset is None else last_offset,
        )

    def metadata(self) -> RemoteLogSegmentMetadata:
        """Return the segment's metadata."""
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                topic_id_partition=TopicIdPartition(
                    topic_id=self.topic_id, topic=self.topic, partition=self.partition
                ),
                id=self.segment_id,
            ),
            start_offset=self.base_offset,
            end_offset=self.end_offset,
            max_timestamp_ms=self.max_timestamp_ms,
            broker_id=self.broker_id,
            event_timestamp_ms=self.event_timestamp_ms,
            segment_size_bytes=self.size_bytes,
            leader_epochs=self.leader_epochs,
            state=RemoteLogSegmentState[self.state or FINISHED],
            txn_index_empty=self.txn_index_empty,
            bytes_per_epoch=self.bytes_per_epoch,
            log_crc32c=self.log_crc32c,
            truncation_offset=self.truncation_offset,
        )


def segment_of(
    metadata: RemoteLogSegmentMetadata, *, state: str | None, stored: bool, **more: Any
) -> AuditedSegment:
    """Return the row of a segment. ``more`` has the fields of the row that the segment's metadata
    lacks."""
    partition, sizes = metadata.topic_id_partition, metadata.bytes_per_epoch
    return AuditedSegment(
        topic=partition.topic,
        partition=partition.partition,
        base_offset=metadata.start_offset,
        end_offset=metadata.end_offset,
        size_bytes=metadata.segment_size_bytes,
        max_timestamp_ms=metadata.max_timestamp_ms,
        leader_epochs=tuple(EpochEntry(*pair) for pair in metadata.leader_epochs),
        state=state,
        stored=stored,
        path=log_key(metadata),
        topic_id=partition.topic_id,
        segment_id=metadata.segment_id.id,
        broker_id=metadata.broker_id,
        event_timestamp_ms=metadata.event_timestamp_ms,
        bytes_per_epoch=None if sizes is None else tuple(EpochSize(*pair) for pair in sizes),
        log_crc32c=metadata.log_crc32c,
        txn_index_empty=metadata.txn_index_empty,
        **more,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSizeRow:
    """The tiered bytes of one leader epoch. ``size_bytes`` is `remote_log_size` (KIP-852): the
    bytes of finished segments that were written in the epoch. ``segments`` is the number of
    segments that hold some of these bytes."""

    topic: str
    partition: int
    leader_epoch: int
    segments: int
    size_bytes: int
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRow:
    """A segment that would be deleted; ``reason`` is a value of `DeleteReason`."""

    topic: str
    partition: int
    base_offset: int
    end_offset: int
    size_bytes: int
    max_timestamp_ms: int
    reason: str
    path: str
    topic_id: str
    segment_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRow:
    """The effect of retention on one partition.

    The log would start at ``new_log_start_offset``. ``size_bytes`` is the size of the log that the
    size rule compared with its limit; None when the size rule was not applied. ``held_back`` says
    why a rule was not applied.
    """

    topic: str
    partition: int
    log_start_offset: int
    new_log_start_offset: int
    size_bytes: int | None
    deleted_segments: int
    deleted_bytes: int
    held_back: tuple[str, ...]
    topic_id: str

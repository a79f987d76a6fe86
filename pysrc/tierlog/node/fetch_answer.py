"""Encodes Fetch answers as small buffers, with the uncopied buffers of records between them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from tierlog.node.error_codes import ErrorCode
from tierlog.node.wire import RawBody
from tierlog.reader.types import PartitionData

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog.log.index_files import AbortedTransaction

__all__ = ["FetchedPartition", "FetchedTopic", "encode_fetch"]

# The versions of Fetch that added a field or another encoding.
_SESSIONS, _LOG_START, _PREFERRED_REPLICA, _FLEXIBLE, _TOPIC_IDS = 7, 5, 11, 12, 13
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">ihqq")
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")
_SESSION = struct.Struct(">hi")
_NO_REPLICA = _INT32.pack(-1)
_ZERO_ID = bytes(16)


@dataclass(slots=True)
class FetchedPartition:
    """The answer for one partition."""

    index: int
    error: int = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[AbortedTransaction] | None = None
    records: Buffer = b""

    def fill(self, data: PartitionData) -> None:
        """Store the answer of the fetcher."""
        self.error = int(data.error)
        self.high_watermark = data.high_watermark
        self.last_stable_offset = data.last_stable_offset
        self.log_start_offset = data.log_start_offset
        self.aborted = data.aborted_transactions
        self.records = data.records


@dataclass(slots=True)
class FetchedTopic:
    """The answer for one topic."""

    topic: str | None
    topic_id: UUID | None
    partitions: list[FetchedPartition] = field(default_factory=list)


def encode_fetch(version: int, error: ErrorCode, topics: Sequence[FetchedTopic]) -> RawBody:
    """Return the body of an answer, encoded in `version`."""
    flexible = version >= _FLEXIBLE
    parts: list[Buffer] = []
    # The encoded bytes that come before the next records.
    head = bytearray(_INT32.pack(0))
    if version >= _SESSIONS:
        head += _SESSION.pack(error, 0)
    head += _count(len(topics), flexible)
    for topic in topics:
        if version >= _TOPIC_IDS:
            head += _ZERO_ID if topic.topic_id is None else topic.topic_id.bytes
        else:
            head += _text(topic.topic or "", flexible)
        head += _count(len(topic.partitions), flexible)
        for partition in topic.partitions:
            head += _partition_head(version, partition)
            size_bytes = memoryview(partition.records).nbytes
            head += _uvarint(size_bytes + 1) if flexible else _INT32.pack(size_bytes)
            if size_bytes:
                parts += (head, partition.records)
                head = bytearray()
            if flexible:
                head += b"\0"
        if flexible:
            head += b"\0"
    if flexible:
        head += b"\0"
    parts.append(head)
    return RawBody(parts, flexible)


def _partition_head(version: int, partition: FetchedPartition) -> bytes:
    flexible = version >= _FLEXIBLE
    head = _HEAD.pack(
        partition.index, partition.error, partition.high_watermark, partition.last_stable_offset
    )
    if version >= _LOG_START:
        head += _INT64.pack(partition.log_start_offset)
    if partition.aborted is None:
        head += b"\0" if flexible else _INT32.pack(-1)
    else:
        head += _count(len(partition.aborted), flexible)
        end = b"\0" if flexible else b""
        for one in partition.aborted:
            head += _ABORTED.pack(one.producer_id, one.first_offset) + end
    return head + _NO_REPLICA if version >= _PREFERRED_REPLICA else head


def _count(count: int, flexible: bool) -> bytes:
    return _uvarint(count + 1) if flexible else _INT32.pack(count)


def _text(text: str, flexible: bool) -> bytes:
    data = text.encode("utf-8")
    return (_uvarint(len(data) + 1) if flexible else _INT16.pack(len(data))) + data


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

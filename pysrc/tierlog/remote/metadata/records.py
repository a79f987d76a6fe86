"""The records of Kafka's ``__remote_log_metadata`` topic, byte-compatible with Kafka.

The key of a record is null. The value of a record consists of three unsigned varints (frame version
1, message key, message version 0) and one message in Kafka's flexible layout
(``RemoteLogMetadataSerde``). The message keys are:

    0  a segment: `RemoteLogSegmentMetadata`
    1  a new state of a segment: `RemoteLogSegmentMetadataUpdate`
    2  a step of deleting a partition: `RemotePartitionDeleteMetadata`

tierlog's own fields are tagged fields with high numbers, which Kafka ignores: a segment's bytes per
epoch, the checksum of its log, its truncation offset, the leader epoch of the writer, and a
partition's log start offset. A record without these fields equals Kafka's record, byte for byte.

A note is a record of a fact for which Kafka has no record: a claim, or a log start offset. The
event of a note is the end of the deletion of a segment that never existed. All readers ignore that
event; Kafka's readers also write a line to the broker's log. Only the tagged fields of a note
count.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tierlog.errors import CorruptDataError
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid, kafka_uuid_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

__all__ = [
    "MetadataRecord",
    "RemoteLogMetadata",
    "decode_record",
    "encode_record",
    "make_note_event",
    "metadata_partition",
]

RemoteLogMetadata = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)

FRAME_VERSION = 1
SEGMENT, SEGMENT_UPDATE, PARTITION_DELETE = 0, 1, 2
TAG_TXN_INDEX_EMPTY = 0
# Far above Kafka's own tags, so that later versions of Kafka's messages do not use the same tags.
TAG_BYTES_PER_EPOCH = 21_000
TAG_LOG_CRC32C = 21_001
TAG_LEADER_EPOCH = 21_002
TAG_TRUNCATION_OFFSET = 21_003
TAG_LOG_START_OFFSET = 21_004
# Kafka's ``Uuid.ZERO_UUID``, which it never gives to a segment.
NO_SEGMENT = kafka_uuid(bytes(16))

_INT8, _INT32, _INT64 = struct.Struct(">b"), struct.Struct(">i"), struct.Struct(">q")
_UINT32 = struct.Struct(">I")
_EPOCH_SIZE = struct.Struct(">iq")
# Start offset, end offset, broker id, largest timestamp, event timestamp.
_SEGMENT_NUMBERS = struct.Struct(">qqiqq")
_NO_TAGS = b"\x00"
_MAX_VARINT_BYTES = 5


class MetadataRecord(NamedTuple):
    """An event, the leader epoch of its writer, and the partition's log start offset. Epoch and
    offset are None when the record does not contain them."""

    event: RemoteLogMetadata
    leader_epoch: int | None = None
    log_start_offset: int | None = None

    @property
    def partition(self) -> TopicIdPartition:
        """The user partition of the event."""
        if isinstance(self.event, RemotePartitionDeleteMetadata):
            return self.event.partition
        return self.event.segment_id.topic_id_partition


def make_note_event(partition: TopicIdPartition) -> RemoteLogSegmentMetadataUpdate:
    """Return the event of a note, which changes no segment."""
    return RemoteLogSegmentMetadataUpdate(
        segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=NO_SEGMENT),
        event_timestamp_ms=-1,
        broker_id=-1,
        state=RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    )


def encode_record(record: MetadataRecord) -> bytes:
    """Return the record's value; raise ValueError for a leader epoch or an offset below 0."""
    event = record.event
    tags: dict[int, bytes] = {}
    if record.leader_epoch is not None:
        tags[TAG_LEADER_EPOCH] = _INT32.pack(_check_epoch(record.leader_epoch))
    if record.log_start_offset is not None:
        tags[TAG_LOG_START_OFFSET] = _INT64.pack(_check_offset(record.log_start_offset))
    if not isinstance(event, RemotePartitionDeleteMetadata) and event.truncation_offset is not None:
        tags[TAG_TRUNCATION_OFFSET] = _INT64.pack(event.truncation_offset)
    if isinstance(event, RemoteLogSegmentMetadata):
        return _frame(SEGMENT) + _encode_segment(event, tags)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        return _frame(SEGMENT_UPDATE) + b"".join(
            (
                _encode_segment_id(event.segment_id),
                _INT32.pack(event.broker_id),
                _INT64.pack(event.event_timestamp_ms),
                _encode_bytes(event.custom_metadata),
                _INT8.pack(event.state),
                _encode_tags(tags),
            )
        )
    return _frame(PARTITION_DELETE) + b"".join(
        (
            _encode_partition(event.partition),
            _INT32.pack(event.broker_id),
            _INT64.pack(event.event_timestamp_ms),
            _INT8.pack(event.state),
            _encode_tags(tags),
        )
    )


def decode_record(value: Buffer, *, path: str | None = None) -> MetadataRecord:
    """Decode a record's value. `path` names the record in errors.

    Raises CorruptDataError unless the value is exactly one message of a known kind and version. A
    reader must stop at an unreadable record and never skip it.
    """
    cursor = _Cursor(memoryview(value).cast("B"), path)
    frame_version = cursor.varint("frame version")
    if frame_version != FRAME_VERSION:
        raise cursor.error("unknown_version", f"frame version {FRAME_VERSION}", f"{frame_version}")
    kind = cursor.varint("message key")
    decode = _DECODERS.get(kind)
    if decode is None:
        raise cursor.error("unknown_record", f"a message key of {sorted(_DECODERS)}", f"{kind}")
    version = cursor.varint("message version")
    if version != 0:
        raise cursor.error("unknown_version", "message version 0", f"{version}")
    try:
        record = decode(cursor)
    except ValueError as error:
        # The fields are readable, but the event's class has found that they contradict each other.
        raise cursor.error("bad_value", "a valid event", str(error)) from None
    if cursor.remaining:
        raise cursor.error("bad_length", "end of record", f"{cursor.remaining} more bytes")
    return record


def metadata_partition(partition: TopicIdPartition, partition_count: int) -> int:
    """Return the number of the metadata topic's partition that has all events of a user partition
    (``RemoteLogMetadataTopicPartitioner``). Raises ValueError for a count below 1."""
    if partition_count < 1:
        raise ValueError(f"a topic has at least 1 partition, not {partition_count}")
    most, least = struct.unpack(">QQ", kafka_uuid_bytes(partition.topic_id))
    mixed = 31 * (31 * (31 + _hash_of_long(least)) + _hash_of_long(most)) + partition.partition
    return (_murmur2(_UINT32.pack(mixed & 0xFFFFFFFF)) & 0x7FFFFFFF) % partition_count


def _hash_of_long(value: int) -> int:
    return (value ^ (value >> 32)) & 0xFFFFFFFF


def _murmur2(data: bytes) -> int:
    """Return Kafka's ``Utils.murmur2`` of whole 4-byte words, as an unsigned number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    for (word,) in struct.iter_unpack("<I", data):
        mixed = word * multiplier & mask
        mixed = (mixed ^ mixed >> 24) * multiplier & mask
        value = value * multiplier & mask ^ mixed
    value = (value ^ value >> 13) * multiplier & mask
    return value ^ value >> 15


# -- encoding


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _frame(kind: int) -> bytes:
    return _varint(FRAME_VERSION) + _varint(kind) + _varint(0)


def _encode_bytes(data: bytes | None) -> bytes:
    """Encode compact nullable bytes: the length plus one and the bytes, or 0 for null."""
    return _varint(0) if data is None else _varint(len(data) + 1) + data


def _encode_partition(partition: TopicIdPartition) -> bytes:
    return b"".join(
        (
            _encode_bytes(partition.topic.encode()),
            kafka_uuid_bytes(partition.topic_id),
            _INT32.pack(partition.partition),
            _NO_TAGS,
        )
    )


def _encode_segment_id(segment_id: RemoteLogSegmentId) -> bytes:
    partition = _encode_partition(segment_id.topic_id_partition)
    return partition + kafka_uuid_bytes(segment_id.id) + _NO_TAGS


def _encode_tags(tags: dict[int, bytes]) -> bytes:
    return b"".join(
        (
            _varint(len(tags)),
            *(_varint(tag) + _varint(len(data)) + data for tag, data in sorted(tags.items())),
        )
    )


def _encode_segment(metadata: RemoteLogSegmentMetadata, more_tags: dict[int, bytes]) -> bytes:
    epochs = metadata.leader_epochs
    tags = dict(more_tags)
    if metadata.txn_index_empty:
        tags[TAG_TXN_INDEX_EMPTY] = b"\x01"
    if metadata.bytes_per_epoch is not None:
        tags[TAG_BYTES_PER_EPOCH] = b"".join(
            _EPOCH_SIZE.pack(*one) for one in metadata.bytes_per_epoch
        )
    if metadata.log_crc32c is not None:
        tags[TAG_LOG_CRC32C] = _UINT32.pack(metadata.log_crc32c)
    return b"".join(
        (
            _encode_segment_id(metadata.segment_id),
            _SEGMENT_NUMBERS.pack(
                metadata.start_offset,
                metadata.end_offset,
                metadata.broker_id,
                metadata.max_timestamp_ms,
                metadata.event_timestamp_ms,
            ),
            _varint(len(epochs) + 1),
            *(_EPOCH_SIZE.pack(*entry) + _NO_TAGS for entry in epochs),
            _INT32.pack(metadata.segment_size_bytes),
            _encode_bytes(metadata.custom_metadata),
            _INT8.pack(metadata.state),
            _encode_tags(tags),
        )
    )


# -- decoding


class _Cursor:
    """Reads a value from front to back. Every length is compared with the number of remaining bytes
    before anything is read."""

    def __init__(self, view: memoryview, path: str | None) -> None:
        self._view = view
        self._path = path
        self._position = 0

    @property
    def remaining(self) -> int:
        return len(self._view) - self._position

    def error(self, reason: str, expected: str, found: str) -> CorruptDataError:
        return CorruptDataError(
            reason=reason,
            path=self._path,
            position=self._position,
            expected=expected,
            found=found,
            hint="a newer Kafka may have written the topic",
        )

    def take(self, size_bytes: int, what: str) -> bytes:
        if size_bytes > self.remaining:
            raise self.error(
                "bad_length", f"{size_bytes} bytes of {what}", f"{self.remaining} remaining"
            )
        start = self._position
        self._position += size_bytes
        return bytes(self._view[start : self._position])

    def varint(self, what: str) -> int:
        value = 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self.take(1, what)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80 and value < 2**32:
                return value
        raise self.error("bad_length", f"{what} of 32 bits", "a longer varint")

    def number(self, layout: struct.Struct, what: str) -> int:
        return int(layout.unpack(self.take(layout.size, what))[0])

    def compact_bytes(self, what: str) -> bytes | None:
        length = self.varint(f"length of {what}")
        return None if length == 0 else self.take(length - 1, what)

    def text(self, what: str) -> str:
        data = self.compact_bytes(what)
        if data is None:
            raise self.error("bad_value", what, "null")
        return data.decode()

    def uuid(self, what: str) -> str:
        return kafka_uuid(self.take(16, what))

    def tags(self) -> dict[int, bytes]:
        """Return every tagged field, including those with unknown tags."""
        found: dict[int, bytes] = {}
        last = -1
        for _ in range(self.varint("number of tagged fields")):
            tag = self.varint("tag")
            if tag <= last:
                raise self.error("bad_value", f"a tag above {last}", f"{tag}")
            found[tag] = self.take(self.varint("size of a tagged field"), f"tagged field {tag}")
            last = tag
        return found


def _decode_partition(cursor: _Cursor) -> TopicIdPartition:
    topic = cursor.text("topic")
    topic_id = cursor.uuid("topic id")
    number = cursor.number(_INT32, "partition")
    cursor.tags()
    return TopicIdPartition(topic_id=topic_id, topic=topic, partition=number)


def _decode_segment_id(cursor: _Cursor) -> RemoteLogSegmentId:
    partition = _decode_partition(cursor)
    segment_id = RemoteLogSegmentId(topic_id_partition=partition, id=cursor.uuid("segment id"))
    cursor.tags()
    return segment_id


def _decode_epochs(cursor: _Cursor) -> tuple[tuple[int, int], ...]:
    count = cursor.varint("number of leader epochs") - 1
    if count < 0 or count * (_EPOCH_SIZE.size + 1) > cursor.remaining:
        raise cursor.error("bad_length", f"{count} leader epochs", f"{cursor.remaining} bytes")
    entries = []
    for _ in range(count):
        epoch, start_offset = _EPOCH_SIZE.unpack(cursor.take(_EPOCH_SIZE.size, "leader epoch"))
        cursor.tags()
        entries.append((epoch, start_offset))
    return tuple(entries)


def _decode_segment(cursor: _Cursor) -> MetadataRecord:
    segment_id = _decode_segment_id(cursor)
    numbers = cursor.take(_SEGMENT_NUMBERS.size, "offsets and times")
    start_offset, end_offset, broker_id, max_ms, event_ms = _SEGMENT_NUMBERS.unpack(numbers)
    epochs = _decode_epochs(cursor)
    size_bytes = cursor.number(_INT32, "segment size")
    custom_metadata = cursor.compact_bytes("custom metadata")
    state = RemoteLogSegmentState(cursor.number(_INT8, "state"))
    tags = cursor.tags()
    metadata = RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset=end_offset,
        max_timestamp_ms=max_ms,
        broker_id=broker_id,
        event_timestamp_ms=event_ms,
        segment_size_bytes=size_bytes,
        leader_epochs=epochs,
        state=state,
        txn_index_empty=_decode_flag(tags.get(TAG_TXN_INDEX_EMPTY)),
        custom_metadata=custom_metadata,
        bytes_per_epoch=_decode_bytes_per_epoch(tags.get(TAG_BYTES_PER_EPOCH)),
        log_crc32c=_decode_tag(_UINT32, tags.get(TAG_LOG_CRC32C), "a checksum"),
        truncation_offset=_decode_truncation_offset(tags),
    )
    return _make_record(metadata, tags)


def _decode_flag(data: bytes | None) -> bool:
    if data is not None and len(data) != 1:
        raise ValueError(f"expected a flag of 1 byte, found {len(data)} bytes")
    return data is not None and data != b"\x00"


def _decode_bytes_per_epoch(data: bytes | None) -> tuple[tuple[int, int], ...] | None:
    if data is not None and len(data) % _EPOCH_SIZE.size:
        raise ValueError(
            f"expected bytes per epoch in entries of {_EPOCH_SIZE.size} bytes, found {len(data)}"
        )
    return None if data is None else tuple(_EPOCH_SIZE.iter_unpack(data))


def _decode_tag(layout: struct.Struct, data: bytes | None, what: str) -> int | None:
    """Return the number in a tagged field; None when the record lacks the field."""
    if data is not None and len(data) != layout.size:
        raise ValueError(f"{what}: expected {layout.size} bytes, found {len(data)}")
    return None if data is None else int(layout.unpack(data)[0])


def _make_record(event: RemoteLogMetadata, tags: dict[int, bytes]) -> MetadataRecord:
    epoch = _decode_tag(_INT32, tags.get(TAG_LEADER_EPOCH), "a leader epoch")
    start = _decode_tag(_INT64, tags.get(TAG_LOG_START_OFFSET), "a log start offset")
    return MetadataRecord(
        event,
        None if epoch is None else _check_epoch(epoch),
        None if start is None else _check_offset(start),
    )


def _decode_truncation_offset(tags: dict[int, bytes]) -> int | None:
    return _decode_tag(_INT64, tags.get(TAG_TRUNCATION_OFFSET), "a truncation offset")


def _check_epoch(epoch: int) -> int:
    if not 0 <= epoch < 2**31:
        raise ValueError(f"a leader epoch is in 0..2^31-1, not {epoch}")
    return epoch


def _check_offset(offset: int) -> int:
    if not 0 <= offset < 2**63:
        raise ValueError(f"an offset is in 0..2^63-1, not {offset}")
    return offset


def _decode_update(cursor: _Cursor) -> MetadataRecord:
    segment_id = _decode_segment_id(cursor)
    broker_id = cursor.number(_INT32, "broker")
    event_timestamp_ms = cursor.number(_INT64, "time of the event")
    custom_metadata = cursor.compact_bytes("custom metadata")
    state = RemoteLogSegmentState(cursor.number(_INT8, "state"))
    tags = cursor.tags()
    update = RemoteLogSegmentMetadataUpdate(
        segment_id=segment_id,
        event_timestamp_ms=event_timestamp_ms,
        broker_id=broker_id,
        state=state,
        custom_metadata=custom_metadata,
        truncation_offset=_decode_truncation_offset(tags),
    )
    return _make_record(update, tags)


def _decode_delete(cursor: _Cursor) -> MetadataRecord:
    partition = _decode_partition(cursor)
    broker_id = cursor.number(_INT32, "broker")
    event_timestamp_ms = cursor.number(_INT64, "time of the event")
    state = RemotePartitionDeleteState(cursor.number(_INT8, "state"))
    tags = cursor.tags()
    deletion = RemotePartitionDeleteMetadata(
        partition=partition,
        broker_id=broker_id,
        event_timestamp_ms=event_timestamp_ms,
        state=state,
    )
    return _make_record(deletion, tags)


_DECODERS: dict[int, Callable[[_Cursor], MetadataRecord]] = {
    SEGMENT: _decode_segment,
    SEGMENT_UPDATE: _decode_update,
    PARTITION_DELETE: _decode_delete,
}

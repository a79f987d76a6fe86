"""Message sets of magic 0 and 1 (formats section 3): one message is one batch.

A compressed message is a wrapper whose value is a whole message set.  v0: inner offsets are
absolute.  v1: they are relative, the wrapper carries the last absolute one (or 0, as old
librdkafka wrote), and with log-append time the wrapper's timestamp replaces the inner ones.
"""

from __future__ import annotations

from itertools import pairwise

from . import compression
from .model import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC_END,
    MIN_LENGTH_BY_MAGIC,
    Batch,
    Record,
)
from .primitives import I64_MAX, Cursor, OracleError

NO_TIMESTAMP = -1


def parse(whole: bytes, position: int = 0) -> Batch:
    """Exactly one message as a batch; bad_header for values no broker writes."""
    cursor = Cursor(whole)
    offset, _length, crc, magic = cursor.i64(), cursor.i32(), cursor.u32(), cursor.i8()
    attributes = cursor.i8() & 0xFF
    timestamp_ms = cursor.i64() if magic == 1 else NO_TIMESTAMP
    if offset < 0:
        raise OracleError("bad_header", f"offset {offset}", position)
    codec = attributes & CODEC_MASK
    if codec >= compression.ZSTD:
        raise OracleError("bad_header", f"codec {codec} in magic {magic}", position)
    return Batch(
        position=position,
        data=whole,
        magic=magic,
        crc=crc,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=-1,
        attributes=attributes,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=-1 if codec else 1,
    )


def _key_and_value(batch: Batch) -> tuple[bytes | None, bytes | None]:
    cursor = Cursor(batch.data, MAGIC_END + (9 if batch.magic == 1 else 1))
    try:
        key = cursor.nullable(cursor.i32())
        value = cursor.nullable(cursor.i32())
    except OracleError as error:
        raise OracleError("bad_record", str(error), batch.position) from error
    if cursor.left:
        raise OracleError("bad_record", f"{cursor.left} bytes after the value", batch.position)
    return key, value


def _record(batch: Batch) -> Record:
    key, value = _key_and_value(batch)
    return Record(
        offset=batch.last_offset, timestamp_ms=batch.max_timestamp_ms, key=key, value=value
    )


def records(batch: Batch, *, max_decompressed_bytes: int = 64 << 20) -> list[Record]:
    """The record of a plain message, or every record inside a wrapper."""
    if not batch.codec:
        return [_record(batch)]
    _key, value = _key_and_value(batch)
    if value is None:
        raise OracleError("bad_record", "a wrapper without a value", batch.position)
    payload = compression.decompress(
        batch.codec, value, magic=batch.magic, max_bytes=max_decompressed_bytes
    )
    inner = _inner_messages(batch, payload)
    base = _absolute_base(batch, inner)
    found = []
    for message in inner:
        record = _record(message)
        timestamp_ms = record.timestamp_ms
        if batch.magic == 1 and batch.attributes & LOG_APPEND_TIME:
            timestamp_ms = batch.max_timestamp_ms
        found.append(
            Record(
                offset=base + record.offset,
                timestamp_ms=timestamp_ms,
                key=record.key,
                value=record.value,
            )
        )
    return found


def _inner_messages(batch: Batch, payload: bytes) -> list[Batch]:
    """Walks the message set inside a wrapper; anything but whole plain messages is refused."""
    found: list[Batch] = []
    position = 0
    while position < len(payload):
        cursor = Cursor(payload, position)
        try:
            cursor.i64()
            whole = payload[position : position + LOG_OVERHEAD_BYTES + _length(cursor)]
            message = parse(whole)
        except OracleError as error:
            raise OracleError("bad_record", str(error), batch.position) from error
        if message.magic != batch.magic or message.codec:
            text = f"inner message of magic {message.magic}, codec {message.codec}"
            raise OracleError("bad_record", text, batch.position)
        found.append(message)
        position += len(whole)
    if not found:
        raise OracleError("bad_record", "a wrapper without messages", batch.position)
    return found


def _length(cursor: Cursor) -> int:
    length = cursor.i32()
    if length > cursor.left:
        raise OracleError("truncated", f"message of {length} bytes, {cursor.left} left")
    magic = cursor.data[cursor.position + 4] if length > 4 else -1
    if length < MIN_LENGTH_BY_MAGIC.get(magic, MIN_LENGTH_BY_MAGIC[0]):
        raise OracleError("bad_length", f"message of {length} bytes")
    return length


def _absolute_base(batch: Batch, inner: list[Batch]) -> int:
    """What to add to the inner offsets; also checks that they ascend and end where they should."""
    offsets = [message.last_offset for message in inner]
    if any(later <= earlier for earlier, later in pairwise(offsets)):
        raise OracleError("bad_record", "inner offsets do not ascend", batch.position)
    last = offsets[-1]
    if batch.magic == 0 or batch.last_offset == 0:
        base = 0
    elif batch.last_offset < last:
        text = f"wrapper offset {batch.last_offset} below the last inner offset {last}"
        raise OracleError("bad_record", text, batch.position)
    else:
        base = batch.last_offset - last
    if base + last > I64_MAX:
        raise OracleError("bad_record", "an inner offset leaves 63 bits", batch.position)
    return base

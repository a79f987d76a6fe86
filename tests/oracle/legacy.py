"""Message sets of magic 0 and 1 (formats section 3): one message is one batch.

A compressed message is a wrapper whose value is a whole message set.  v0: inner offsets are
absolute.  v1: they are relative, the wrapper carries the last absolute one (or 0, as old
librdkafka wrote), and with log-append time the wrapper's timestamp replaces the inner ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from . import compression
from .model import (
    CODEC_MASK,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MIN_LENGTH_BY_MAGIC,
    Batch,
    Record,
)
from .primitives import I32_MAX, I64_MAX, Cursor, OracleError, crc32

NO_TIMESTAMP = -1
DEFAULT_MAX_BYTES = compression.DEFAULT_MAX_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as stored; ``data`` is all of it."""

    data: bytes
    offset: int
    crc: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return self.magic == 1 and bool(self.attributes & LOG_APPEND_TIME)


def message(data: bytes, position: int = 0) -> Message:
    """The message at a position of a message set; its fields must fill it exactly."""
    cursor = Cursor(data, position)
    offset, length = cursor.i64(), cursor.i32()
    if length < MIN_LENGTH_BY_MAGIC[0] or length > cursor.left:
        raise OracleError("bad_length", f"length {length}, {cursor.left} bytes left", position)
    cursor.end = cursor.position + length
    crc, magic, attributes = cursor.u32(), cursor.i8(), cursor.i8()
    if magic not in (0, 1):
        raise OracleError("unknown_magic", f"magic {magic}", position)
    if length < MIN_LENGTH_BY_MAGIC[magic]:
        raise OracleError("bad_length", f"length {length}", position)
    timestamp_ms = cursor.i64() if magic == 1 else NO_TIMESTAMP
    try:
        key = cursor.nullable(cursor.i32())
        value = cursor.nullable(cursor.i32())
    except OracleError as error:
        raise OracleError("bad_record", str(error), position) from error
    if cursor.left:
        raise OracleError("bad_record", f"{cursor.left} bytes after the value", position)
    if attributes & CODEC_MASK >= compression.ZSTD:
        raise OracleError("bad_header", f"codec {attributes & CODEC_MASK}", position)
    return Message(
        data=data[position : cursor.end],
        offset=offset,
        crc=crc,
        magic=magic,
        attributes=attributes,
        timestamp_ms=timestamp_ms,
        key=key,
        value=value,
    )


def parse(
    whole: bytes,
    position: int = 0,
    *,
    verify_crc: bool = True,
    max_decompressed_bytes: int = DEFAULT_MAX_BYTES,
) -> Batch:
    """Exactly one message as a batch; a wrapper is opened, since its first offset is inside.

    bad_crc when an inner checksum does not match, bad_header for whatever else is wrong.
    """
    try:
        outer = message(whole)
        found = _inner_records(outer, max_decompressed_bytes, verify_crc=verify_crc)
    except OracleError as error:
        reason = error.reason if error.reason in ("bad_crc", "bad_length") else "bad_header"
        raise OracleError(reason, str(error), position) from error
    last_offset = max(outer.offset, found[-1].offset)
    if not 0 <= found[0].offset <= last_offset <= min(I64_MAX, found[0].offset + I32_MAX):
        text = f"offsets {found[0].offset} to {last_offset}"
        raise OracleError("bad_header", text, position)
    return Batch(
        position=position,
        data=whole,
        magic=outer.magic,
        crc=outer.crc,
        base_offset=found[0].offset,
        last_offset=last_offset,
        leader_epoch=-1,
        attributes=outer.attributes & (CODEC_MASK | LOG_APPEND_TIME),
        base_timestamp_ms=found[0].timestamp_ms,
        max_timestamp_ms=outer.timestamp_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        record_count=len(found),
    )


def records(batch: Batch, *, max_decompressed_bytes: int = DEFAULT_MAX_BYTES) -> list[Record]:
    """The record of a plain message, or every record inside a wrapper."""
    try:
        return _inner_records(message(batch.data), max_decompressed_bytes, verify_crc=False)
    except OracleError as error:
        keep = error.reason in ("bad_compression", "too_large")
        reason = error.reason if keep else "bad_record"
        raise OracleError(reason, str(error), batch.position) from error


def _inner_records(outer: Message, max_bytes: int, *, verify_crc: bool) -> list[Record]:
    """Records with absolute offsets and final timestamps; there is always at least one."""
    if not outer.codec:
        return [_record(outer, 0, outer.timestamp_ms)]
    if outer.value is None:
        raise OracleError("bad_record", "a wrapper without a value")
    payload = compression.decompress(
        outer.codec, outer.value, magic=outer.magic, max_bytes=max_bytes
    )
    inner: list[Message] = []
    position = 0
    while position < len(payload):
        try:
            inner.append(message(payload, position))
        except OracleError as error:
            raise OracleError("bad_record", f"inner message: {error}") from error
        _check_inner(outer, inner[-1], verify_crc=verify_crc)
        position += len(inner[-1].data)
    if not inner:
        raise OracleError("bad_record", "a wrapper without messages")
    base = _absolute_base(outer, inner)
    return [
        _record(item, base, outer.timestamp_ms if outer.is_log_append_time else item.timestamp_ms)
        for item in inner
    ]


def _record(item: Message, base: int, timestamp_ms: int) -> Record:
    return Record(
        offset=base + item.offset, timestamp_ms=timestamp_ms, key=item.key, value=item.value
    )


def _check_inner(outer: Message, inner: Message, *, verify_crc: bool) -> None:
    if inner.magic != outer.magic or inner.codec:
        text = f"inner message of magic {inner.magic}, codec {inner.codec}"
        raise OracleError("bad_record", text)
    if verify_crc and inner.crc != crc32(inner.data[LOG_OVERHEAD_BYTES + 4 :]):
        raise OracleError("bad_crc", "inner message")


def _absolute_base(outer: Message, inner: list[Message]) -> int:
    """What to add to the inner offsets, which must ascend from 0 or above."""
    offsets = [item.offset for item in inner]
    if offsets[0] < 0 or any(later <= earlier for earlier, later in pairwise(offsets)):
        raise OracleError("bad_record", "inner offsets do not ascend")
    if outer.magic == 1 and outer.offset == 0:
        return 0
    if outer.offset < offsets[-1]:
        text = f"wrapper offset {outer.offset} below the last inner offset {offsets[-1]}"
        raise OracleError("bad_record", text)
    return 0 if outer.magic == 0 else outer.offset - offsets[-1]

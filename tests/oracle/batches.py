"""Walking a segment batch by batch, and the records of one batch (formats sections 2, 3 and 5).

``scan`` never raises on bytes: it returns the batches it accepts, why it stopped and where.  The
reasons, in the order in which they are looked for at a position:

end           nothing is left
zero_tail     everything that is left is zero
torn_tail     fewer than 17 bytes are left, or fewer than the length field announces
bad_length    the length field is below the smallest its version can have
unknown_magic the version byte is not 0, 1 or 2
bad_crc       the checksum does not match (only when asked to verify)
bad_header    a header field holds what no broker writes
offset_order  offsets do not ascend from batch to batch
"""

from __future__ import annotations

import struct

from . import compression, legacy
from .model import (
    ABORT,
    COMMIT,
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_END,
    MIN_LENGTH_BY_MAGIC,
    Batch,
    EndTransactionMarker,
    Record,
)
from .primitives import I32_MAX, I64_MAX, Cursor, OracleError, crc32, crc32c, wrapped_i64


def scan(data: bytes, *, start: int = 0, verify_crc: bool = True) -> tuple[list[Batch], str, int]:
    """(batches, stop reason, position of the first byte not accepted)."""
    batches: list[Batch] = []
    position = start
    while True:
        outcome = _next_batch(data, position, verify_crc=verify_crc)
        if isinstance(outcome, str):
            return batches, outcome, position
        if batches and outcome.base_offset <= batches[-1].last_offset:
            return batches, "offset_order", position
        batches.append(outcome)
        position += outcome.size_bytes


def _next_batch(data: bytes, position: int, *, verify_crc: bool) -> Batch | str:
    left = len(data) - position
    if left == 0:
        return "end"
    if not any(data[position : position + MAGIC_END]) and not any(data[position:]):
        return "zero_tail"
    if left < MAGIC_END:
        return "torn_tail"
    length, magic = struct.unpack_from(">8xi4xb", data, position)
    if length < MIN_LENGTH_BY_MAGIC[0]:
        return "bad_length"
    if magic not in MIN_LENGTH_BY_MAGIC:
        return "unknown_magic"
    if length < MIN_LENGTH_BY_MAGIC[magic] or length > I32_MAX - LOG_OVERHEAD_BYTES:
        return "bad_length"
    if left < LOG_OVERHEAD_BYTES + length:
        return "torn_tail"
    whole = data[position : position + LOG_OVERHEAD_BYTES + length]
    if verify_crc and not crc_matches(whole):
        return "bad_crc"
    try:
        return parse(whole, position, verify_crc=verify_crc)
    except OracleError as error:
        return error.reason


def crc_matches(whole: bytes) -> bool:
    if whole[16] == 2:
        (stored,) = struct.unpack_from(">I", whole, 17)
        return bool(stored == crc32c(whole[CRC_START:]))
    (stored,) = struct.unpack_from(">I", whole, 12)
    return bool(stored == crc32(whole[16:]))


def parse(whole: bytes, position: int = 0, *, verify_crc: bool = True) -> Batch:
    """The header fields of exactly one batch; bad_header for values no broker writes.

    ``verify_crc`` is for the messages inside a legacy wrapper, which has to be opened.
    """
    if whole[16] != 2:
        return legacy.parse(whole, position, verify_crc=verify_crc)
    cursor = Cursor(whole)
    base_offset, _length, leader_epoch = cursor.i64(), cursor.i32(), cursor.i32()
    magic, crc, attributes = cursor.i8(), cursor.u32(), cursor.i16()
    last_offset_delta = cursor.i32()
    batch = Batch(
        position=position,
        data=whole,
        magic=magic,
        crc=crc,
        base_offset=base_offset,
        last_offset=base_offset + last_offset_delta,
        leader_epoch=leader_epoch,
        attributes=attributes,
        base_timestamp_ms=cursor.i64(),
        max_timestamp_ms=cursor.i64(),
        producer_id=cursor.i64(),
        producer_epoch=cursor.i16(),
        base_sequence=cursor.i32(),
        record_count=cursor.i32(),
    )
    _check_header(batch)
    return batch


def _check_header(batch: Batch) -> None:
    delta = batch.last_offset - batch.base_offset
    if batch.base_offset < 0 or delta < 0 or batch.last_offset > I64_MAX:
        message = f"offsets {batch.base_offset} to {batch.last_offset}"
        raise OracleError("bad_header", message, batch.position)
    if not 0 <= batch.record_count <= delta + 1:
        message = f"{batch.record_count} records in {delta + 1} offsets"
        raise OracleError("bad_header", message, batch.position)
    if batch.codec > compression.ZSTD:
        raise OracleError("bad_header", f"codec {batch.codec}", batch.position)


def records(batch: Batch, *, max_decompressed_bytes: int = 64 << 20) -> list[Record]:
    """Every record of a batch of any version, control records too, in offset order."""
    if batch.magic != 2:
        return legacy.records(batch, max_decompressed_bytes=max_decompressed_bytes)
    cursor = Cursor(_payload(batch, max_decompressed_bytes))
    found = _records(cursor, batch, batch.record_count)
    return _in_order(batch, found)


def first_record(batch: Batch) -> Record | None:
    """The first record of a v2 control batch, None in an emptied one.

    As far as Kafka's recovery looks: the record must be whole, and alone if the header says so;
    of a compressed batch all records must be. Where its offset lies does not matter.
    """
    if not batch.record_count:
        return None
    cursor = Cursor(_payload(batch, 1 << 20))
    count = batch.record_count if batch.codec else min(batch.record_count, 1)
    return _records(cursor, batch, count)[0]


def _payload(batch: Batch, max_bytes: int) -> bytes:
    try:
        return compression.decompress(batch.codec, batch.data[HEADER_BYTES:], max_bytes=max_bytes)
    except OracleError as error:
        raise OracleError(error.reason, str(error), batch.position) from error


def _records(cursor: Cursor, batch: Batch, count: int) -> list[Record]:
    """That many records; nothing may follow the batch's last one."""
    try:
        found = [_record(cursor, batch) for _ in range(count)]
    except OracleError as error:
        raise OracleError("bad_record", str(error), batch.position) from error
    if count == batch.record_count and cursor.left:
        message = f"{cursor.left} bytes after the last record"
        raise OracleError("bad_record", message, batch.position)
    return found


def _record(cursor: Cursor, batch: Batch) -> Record:
    """One record; its body must be used up exactly."""
    length = cursor.varint()
    body = Cursor(cursor.take(length))
    body.i8()  # attributes, unused
    # In Java a sum beyond 64 bits wraps.
    timestamp_ms = wrapped_i64(batch.base_timestamp_ms + body.varlong())
    if batch.is_log_append_time:
        timestamp_ms = batch.max_timestamp_ms
    offset = batch.base_offset + body.varint()
    # Kafka reads any negative length as null.
    key = body.nullable(max(-1, body.varint()))
    value = body.nullable(max(-1, body.varint()))
    headers = _headers(body)
    if body.left:
        raise OracleError("bad_record", f"{body.left} bytes left in a record", cursor.position)
    return Record(offset=offset, timestamp_ms=timestamp_ms, key=key, value=value, headers=headers)


def _headers(body: Cursor) -> tuple[tuple[bytes, bytes | None], ...]:
    count = body.varint()
    if not 0 <= count <= body.left:
        raise OracleError("bad_record", f"{count} headers in {body.left} bytes", body.position)
    found = []
    for _ in range(count):
        key = body.take(body.varint())
        found.append((key, body.nullable(max(-1, body.varint()))))
    return tuple(found)


def _in_order(batch: Batch, found: list[Record]) -> list[Record]:
    """The records that Kafka's consumer returns: it passes over offsets that it is beyond."""
    before = batch.base_offset - 1
    kept = []
    for record in found:
        if record.offset > batch.last_offset:
            message = f"record offset {record.offset}, last is {batch.last_offset}"
            raise OracleError("bad_record", message, batch.position)
        if record.offset > before:
            kept.append(record)
            before = record.offset
    return kept


def end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """What an ABORT or COMMIT control record says; None for any other control record type."""
    if record.key is None or len(record.key) < 4:
        raise OracleError("bad_record", "a control record's key holds at least 4 bytes")
    version, control_type = struct.unpack_from(">hh", record.key)
    if version < 0:
        raise OracleError("bad_record", f"control record key version {version}")
    if control_type not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < 6:
        raise OracleError("bad_record", "a transaction marker's value holds at least 6 bytes")
    value_version, coordinator_epoch = struct.unpack_from(">hi", record.value)
    if value_version < 0:
        raise OracleError("bad_record", f"transaction marker value version {value_version}")
    return EndTransactionMarker(type=control_type, coordinator_epoch=coordinator_epoch)

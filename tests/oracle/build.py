"""Building what the oracle reads: records, batches, legacy messages and whole segments.

Everything defaults to what Kafka writes; every header field can be overridden, so that tests can
make batches whose checksum is right and whose content is not.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from . import compression
from .model import (
    ABORT,
    COMMIT,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL,
    Record,
)
from .primitives import crc32, crc32c, varint

Headers = Sequence[tuple[bytes, bytes | None]]

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_FIELDS = (
    "base_offset",
    "batch_length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
)


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int,
    timestamp_delta_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Headers = (),
    *,
    attributes: int = 0,
) -> bytes:
    """One record of a v2 batch, its length in front."""
    body = struct.pack(">b", attributes) + varint(timestamp_delta_ms) + varint(offset_delta)
    body += _sized(key) + _sized(value) + varint(len(headers))
    for header_key, header_value in headers:
        body += _sized(header_key) + _sized(header_value)
    return varint(len(body)) + body


def batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    leader_epoch: int = 0,
    codec: int = compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time_ms: int | None = None,
    delete_horizon_ms: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """A v2 batch of these records (their offsets and timestamps are absolute).

    ``base_offset`` and ``last_offset`` may lie outside the records, as after compaction;
    ``payload`` replaces the compressed bytes (for other framings of the same codec).
    """
    if base_offset is None:
        base_offset = records[0].offset
    if last_offset is None:
        last_offset = records[-1].offset
    timestamps = [item.timestamp_ms for item in records]
    base_timestamp_ms = timestamps[0] if timestamps else -1
    if delete_horizon_ms is not None:
        base_timestamp_ms = delete_horizon_ms
    max_timestamp_ms = max(timestamps, default=-1)
    if log_append_time_ms is not None:
        max_timestamp_ms = log_append_time_ms
    attributes = codec | TRANSACTIONAL * transactional | CONTROL * control
    attributes |= LOG_APPEND_TIME * (log_append_time_ms is not None)
    attributes |= DELETE_HORIZON * (delete_horizon_ms is not None)
    if payload is None:
        payload = compression.compress(
            codec, record_payload(records, base_offset, base_timestamp_ms)
        )
    return seal(
        payload,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )


def record_payload(records: Sequence[Record], base_offset: int, base_timestamp_ms: int) -> bytes:
    """The uncompressed records part of a batch."""
    return b"".join(
        record(
            item.offset - base_offset,
            item.timestamp_ms - base_timestamp_ms,
            item.key,
            item.value,
            item.headers,
        )
        for item in records
    )


def seal(payload: bytes, **fields: int) -> bytes:
    """A v2 batch around any payload, with any header values; length and CRC are right.

    Keyword names are ``HEADER_FIELDS``; magic, crc and batch_length may be forced too.
    """
    values = dict.fromkeys(HEADER_FIELDS, -1)
    values |= {"magic": 2, "attributes": 0, "last_offset_delta": 0, "record_count": 0, "crc": 0}
    values["batch_length"] = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    values |= fields
    whole = HEADER.pack(*(values[name] for name in HEADER_FIELDS)) + payload
    return whole if "crc" in fields else repair_crc(whole)


def repair_crc(whole: bytes) -> bytes:
    """The same batch or legacy message with the checksum its bytes need."""
    if whole[16] == 2:
        return whole[:17] + struct.pack(">I", crc32c(whole[21:])) + whole[21:]
    return whole[:12] + struct.pack(">I", crc32(whole[16:])) + whole[16:]


def end_transaction_marker(
    *,
    offset: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    leader_epoch: int = 0,
) -> bytes:
    """A COMMIT or ABORT control batch of one record."""
    marker = Record(
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=struct.pack(">hh", 0, COMMIT if commit else ABORT),
        value=struct.pack(">hi", 0, coordinator_epoch),
    )
    return batch(
        [marker],
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def empty_batch(
    *,
    base_offset: int,
    last_offset: int,
    max_timestamp_ms: int = -1,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """What compaction keeps of a batch whose records are all gone."""
    return seal(
        b"",
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL * transactional | CONTROL * control,
        last_offset_delta=last_offset - base_offset,
        base_timestamp_ms=-1,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def legacy_message(
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    attributes: int = 0,
) -> bytes:
    """One message of magic 0 (which has no timestamp) or 1."""
    body = struct.pack(">bB", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp_ms)
    for part in (key, value):
        body += struct.pack(">i", -1 if part is None else len(part)) + (part or b"")
    return struct.pack(">qiI", offset, 4 + len(body), crc32(body)) + body


def legacy_messages(records: Sequence[Record], *, magic: int) -> bytes:
    """Plain messages, one after the other."""
    return b"".join(
        legacy_message(item.offset, item.timestamp_ms, item.key, item.value, magic=magic)
        for item in records
    )


def legacy_wrapper(
    records: Sequence[Record],
    *,
    magic: int,
    codec: int,
    log_append_time_ms: int | None = None,
    librdkafka_offset: bool = False,
    payload: bytes | None = None,
) -> bytes:
    """A compressed message set: v0 keeps absolute inner offsets, v1 counts from the first one.

    ``librdkafka_offset`` leaves the wrapper's offset 0, as old versions of that client did.
    """
    last_offset = records[-1].offset
    base = 0 if magic == 0 else records[0].offset
    inner = [
        Record(
            offset=item.offset - base,
            timestamp_ms=item.timestamp_ms,
            key=item.key,
            value=item.value,
        )
        for item in records
    ]
    timestamp_ms = max(item.timestamp_ms for item in records)
    attributes = codec
    if log_append_time_ms is not None:
        timestamp_ms = log_append_time_ms
        attributes |= LOG_APPEND_TIME
    if payload is None:
        payload = compression.compress(codec, legacy_messages(inner, magic=magic), magic=magic)
    offset = 0 if librdkafka_offset else last_offset
    return legacy_message(offset, timestamp_ms, None, payload, magic=magic, attributes=attributes)

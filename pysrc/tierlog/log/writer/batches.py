"""Makes the batches that a node writes itself: records of its own topics, and transaction markers.

The layout is that of Kafka's record batches of magic 2. The log assigns offsets and leader
epoch when it appends.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tierlog import _core

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "HEADER_BYTES",
    "ProducerEpoch",
    "encode_batch",
    "encode_marker",
    "is_one_batch",
    "max_timestamp_ms",
    "transactional_producer",
]

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
# From the attributes on: all that the checksum covers before the records.
_CHECKED = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")
HEADER_BYTES = _HEAD.size + _CHECKED.size
"""Size of the header of a batch."""
# Offset and length, which the length does not count.
_LOG_OVERHEAD = 12
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1


class ProducerEpoch(NamedTuple):
    """A producer id and its epoch. Each new producer with the same id has a larger epoch."""

    producer_id: int
    epoch: int


_NO_PRODUCER = ProducerEpoch(-1, -1)


def encode_batch(
    records: Sequence[tuple[bytes, bytes | None]],
    timestamp_ms: int,
    *,
    producer: ProducerEpoch = _NO_PRODUCER,
    attributes: int = 0,
) -> bytes:
    """Return one uncompressed batch of (key, value) pairs with the same timestamp."""
    body = b"".join(_record(number, *record) for number, record in enumerate(records))
    count = len(records)
    checked = (
        _CHECKED.pack(attributes, count - 1, timestamp_ms, timestamp_ms, *producer, -1, count)
        + body
    )
    size_bytes = _HEAD.size - _LOG_OVERHEAD + len(checked)
    return _HEAD.pack(0, size_bytes, -1, 2, _core.crc32c(checked)) + checked


def encode_marker(
    producer: ProducerEpoch, *, is_commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the control batch that ends a transaction of `producer` in a partition."""
    key = _MARKER_KEY.pack(0, _COMMIT if is_commit else _ABORT)
    value = _MARKER_VALUE.pack(0, coordinator_epoch)
    attributes = _TRANSACTIONAL | _CONTROL
    return encode_batch([(key, value)], timestamp_ms, producer=producer, attributes=attributes)


def transactional_producer(data: Buffer) -> ProducerEpoch | None:
    """Return the producer of a transactional batch, which `data` begins with; None for any other
    bytes. The batch is not checked."""
    if memoryview(data).nbytes < HEADER_BYTES:
        return None
    magic = _HEAD.unpack_from(data)[3]
    attributes, _, _, _, producer_id, epoch, _, _ = _CHECKED.unpack_from(data, _HEAD.size)
    is_transactional = magic == 2 and bool(attributes & _TRANSACTIONAL)
    return ProducerEpoch(producer_id, epoch) if is_transactional else None


def is_one_batch(data: Buffer) -> bool:
    """Return whether `data` is exactly one batch of magic 2, judged by the length in its header.
    The batch is not checked."""
    size_bytes = memoryview(data).nbytes
    if size_bytes < HEADER_BYTES:
        return False
    _, length, _, magic, _ = _HEAD.unpack_from(data)
    return bool(magic == 2 and length == size_bytes - _LOG_OVERHEAD)


def max_timestamp_ms(header: bytes) -> int:
    """Return the largest timestamp of the batch with this header; -1 if the header is cut off."""
    if len(header) < HEADER_BYTES:
        return -1
    return int(_CHECKED.unpack_from(header, _HEAD.size)[3])


def _record(offset_delta: int, key: bytes, value: bytes | None) -> bytes:
    # Attributes and timestamp delta are 0; the last byte counts no headers.
    body = b"\0\0" + _varint(offset_delta) + _sized(key) + _sized(value) + b"\0"
    return _varint(len(body)) + body


def _sized(data: bytes | None) -> bytes:
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(value: int) -> bytes:
    left = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while left > 0x7F:
        encoded.append(left & 0x7F | 0x80)
        left >>= 7
    encoded.append(left)
    return bytes(encoded)

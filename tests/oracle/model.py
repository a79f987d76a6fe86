"""The plain values the oracle speaks of: a batch, a record, a transaction marker."""

from __future__ import annotations

from dataclasses import dataclass

from .primitives import I32_MAX

LOG_OVERHEAD_BYTES = 12
MAGIC_END = 17
HEADER_BYTES = 61
CRC_START = 21
MIN_LENGTH_BY_MAGIC = {0: 14, 1: 22, 2: HEADER_BYTES - LOG_OVERHEAD_BYTES}

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

ABORT, COMMIT = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One record batch, or one legacy message with the batch fields it lacks set to "unknown".

    ``position`` counts from the start of the scanned data; ``data`` is the whole batch, with the
    12 bytes of offset and length.
    """

    position: int
    data: bytes
    magic: int
    crc: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        if self.magic == 2 and self.attributes & DELETE_HORIZON:
            return self.base_timestamp_ms
        return None

    @property
    def last_sequence(self) -> int:
        """The sequence of the last offset, with the wrap from 2147483647 to 0; -1 if none."""
        if self.base_sequence == -1:
            return -1
        last = self.base_sequence + self.last_offset - self.base_offset
        return last - I32_MAX - 1 if last > I32_MAX else last


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record; a header is (key, value), values may be None."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionMarker:
    """The content of an ABORT or COMMIT control record."""

    type: int
    coordinator_epoch: int

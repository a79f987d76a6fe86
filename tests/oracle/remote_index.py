"""The remoteLogIndex entry and its family of files (formats section 9).

    0 magic i16 (0)      2 length i16 (whole entry)      4 crc u32 (CRC-32 of [8, end))
    8 firstOffset i64   16 lastOffset i64   24 firstTimestamp i64   32 lastTimestamp i64
   40 dataLength i32    44 rdiLength i16    46 rdi

A local file ends with an 8-byte trailer, the position of its last entry; a stored copy has none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from . import indexes
from .model import Batch
from .primitives import I32_MAX, I64_MAX, OracleError, crc32, in_i64

FIXED_BYTES = 46
MAX_RDI_BYTES = 2**15 - 1 - FIXED_BYTES
TRAILER_BYTES = 8
CRC_START = 8
HEADER = struct.Struct(">hhI")
BODY = struct.Struct(">qqqqih")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One run of log data in remote storage; ``position`` is where the entry itself starts."""

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    data_length: int
    rdi: bytes
    position: int = 0

    @property
    def size_bytes(self) -> int:
        return FIXED_BYTES + len(self.rdi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What a reader makes of a file: good entries, why it stopped, the first byte not used.

    ``stop_reason``: end, trailer, torn_tail, unknown_magic, bad_length, bad_crc, bad_record,
    offset_order.
    """

    entries: tuple[Entry, ...]
    stop_reason: str
    stop_position: int


def check(entry: Entry) -> None:
    """Refuses values that no writer may store."""
    if not 0 <= entry.first_offset <= entry.last_offset <= I64_MAX:
        message = f"offsets {entry.first_offset} to {entry.last_offset}"
        raise OracleError("bad_record", message, entry.position)
    if not 0 < entry.data_length <= I32_MAX:
        raise OracleError("bad_record", f"dataLength {entry.data_length}", entry.position)
    if not (in_i64(entry.first_timestamp_ms) and in_i64(entry.last_timestamp_ms)):
        raise OracleError("bad_record", "a timestamp leaves 64 bits", entry.position)
    if len(entry.rdi) > MAX_RDI_BYTES:
        raise OracleError("bad_record", f"rdi of {len(entry.rdi)} bytes", entry.position)


def encode_entry(entry: Entry) -> bytes:
    check(entry)
    body = BODY.pack(
        entry.first_offset,
        entry.last_offset,
        entry.first_timestamp_ms,
        entry.last_timestamp_ms,
        entry.data_length,
        len(entry.rdi),
    )
    covered = body + entry.rdi
    return HEADER.pack(0, CRC_START + len(covered), crc32(covered)) + covered


def encode(entries: Sequence[Entry], *, trailer: bool = False) -> bytes:
    """Entries back to back; offset_order unless last offsets ascend strictly."""
    out = bytearray()
    last_position, before = 0, -1
    for entry in entries:
        if entry.last_offset <= before:
            raise OracleError("offset_order", f"last offset {entry.last_offset} after {before}")
        last_position, before = len(out), entry.last_offset
        out += encode_entry(entry)
    if trailer and entries:
        out += struct.pack(">q", last_position)
    return bytes(out)


def read(data: bytes, *, trailer_allowed: bool = True) -> Read:
    """Walks a file from its start and stops at the first thing that is not a good entry."""
    found: list[Entry] = []
    position = 0
    while True:
        reason = _why_stop(data, position, found, trailer_allowed=trailer_allowed)
        entry = None
        if reason is None:
            entry, reason = _entry(data, position)
        if entry is not None and found and entry.last_offset <= found[-1].last_offset:
            reason = "offset_order"
        if entry is None or reason is not None:
            return Read(entries=tuple(found), stop_reason=reason or "end", stop_position=position)
        found.append(entry)
        position += entry.size_bytes


def _why_stop(
    data: bytes, position: int, found: list[Entry], *, trailer_allowed: bool
) -> str | None:
    left = len(data) - position
    if left == 0:
        return "end"
    if trailer_allowed and found and left == TRAILER_BYTES:
        (value,) = struct.unpack_from(">q", data, position)
        if value == found[-1].position:
            return "trailer"
    if left < FIXED_BYTES:
        return "torn_tail"
    return None


def _entry(data: bytes, position: int) -> tuple[Entry | None, str | None]:
    """The entry at a position, or why there is none; at least the fixed part is there."""
    magic, length, crc = HEADER.unpack_from(data, position)
    *numbers, data_length, rdi_length = BODY.unpack_from(data, position + HEADER.size)
    if magic != 0:
        return None, "unknown_magic"
    if rdi_length < 0 or length != FIXED_BYTES + rdi_length:
        return None, "bad_length"
    if length > len(data) - position:
        return None, "torn_tail"
    whole = data[position : position + length]
    if crc != crc32(whole[CRC_START:]):
        return None, "bad_crc"
    entry = Entry(
        first_offset=numbers[0],
        last_offset=numbers[1],
        first_timestamp_ms=numbers[2],
        last_timestamp_ms=numbers[3],
        data_length=data_length,
        rdi=whole[FIXED_BYTES:],
        position=position,
    )
    try:
        check(entry)
    except OracleError as error:
        return None, error.reason
    return entry, None


def decode(data: bytes, *, trailer_allowed: bool = True) -> tuple[Entry, ...]:
    """Every entry of a whole file; OracleError unless it ends cleanly."""
    outcome = read(data, trailer_allowed=trailer_allowed)
    if outcome.stop_reason == "torn_tail":
        raise OracleError("truncated", "the last entry is incomplete", outcome.stop_position)
    if outcome.stop_reason not in ("end", "trailer"):
        raise OracleError(outcome.stop_reason, "not a good entry", outcome.stop_position)
    return outcome.entries


def recover(data: bytes) -> Read:
    """The good entries before a torn append; OracleError when the damage is no torn append.

    An append that a crash cut short ends early, holds only zeros, or is the last entry of the file
    (at most a trailer follows) with a checksum that does not match.
    """
    outcome = read(data)
    rest = data[outcome.stop_position :]
    torn = outcome.stop_reason in ("end", "trailer", "torn_tail") or not any(rest)
    if outcome.stop_reason == "bad_crc":
        (length,) = struct.unpack_from(">h", rest, 2)
        torn = len(rest) - length in (0, TRAILER_BYTES)
    if not torn:
        raise OracleError(outcome.stop_reason, "not a torn append", outcome.stop_position)
    return outcome


def group(batches: Sequence[Batch], key: str, group_bytes: int) -> list[Entry]:
    """One entry per run of whole batches of at least ``group_bytes``, and one for the rest."""
    runs: list[list[Batch]] = []
    for batch in batches:
        if not runs or sum(item.size_bytes for item in runs[-1]) >= group_bytes:
            runs.append([])
        runs[-1].append(batch)
    entries: list[Entry] = []
    for run in runs:
        entry = Entry(
            first_offset=run[0].base_offset,
            last_offset=run[-1].last_offset,
            first_timestamp_ms=run[0].base_timestamp_ms,
            last_timestamp_ms=max(batch.max_timestamp_ms for batch in run),
            data_length=sum(batch.size_bytes for batch in run),
            rdi=f"{key}:{run[0].position}".encode(),
            position=entries[-1].position + entries[-1].size_bytes if entries else 0,
        )
        entries.append(entry)
    return entries


def rdi_position(rdi: bytes) -> tuple[str, int]:
    """The (object, byte position) an rdi names, split at the last colon."""
    name, colon, digits = rdi.decode("utf-8").rpartition(":")
    if not colon or not digits.isdecimal():
        raise OracleError("bad_record", f"no position in {rdi!r}")
    return name, int(digits)


def check_contiguous(entries: Iterable[Entry]) -> None:
    """Entries of one object follow each other without a gap: position + dataLength = next."""
    ends: dict[str, int] = {}
    for entry in entries:
        name, position = rdi_position(entry.rdi)
        if name in ends and ends[name] != position:
            message = f"{name} goes on at {position}, not {ends[name]}"
            raise OracleError("bad_record", message, entry.position)
        ends[name] = position + entry.data_length


def lookup_offset(entries: Sequence[Entry], target_offset: int) -> Entry | None:
    """The first entry whose last offset reaches the target; None past the end."""
    return next((entry for entry in entries if entry.last_offset >= target_offset), None)


def lookup_timestamp(entries: Sequence[Entry], target_timestamp_ms: int) -> Entry | None:
    """The first entry whose last (group maximum) timestamp reaches the target; None if none."""
    return next(
        (entry for entry in entries if entry.last_timestamp_ms >= target_timestamp_ms), None
    )


def offset_index(entries: Sequence[Entry], base_offset: int) -> bytes:
    """The remoteOffsetIndex: last offset of each entry and its position in the remoteLogIndex."""
    pairs = [(entry.last_offset, entry.position) for entry in entries]
    return indexes.encode_offset_index(pairs, base_offset)


def time_index(entries: Sequence[Entry], base_offset: int) -> bytes:
    """The remoteTimeIndex: (last timestamp, last offset) when it passes the maximum so far."""
    found: list[tuple[int, int]] = []
    for entry in entries:
        indexes.append_time(found, entry.last_timestamp_ms, entry.last_offset, base_offset)
    return indexes.encode_time_index(found, base_offset)


def decode_offset_index(data: bytes, base_offset: int) -> list[tuple[int, int]]:
    """(last offset, position in the remoteLogIndex) entries of a remoteOffsetIndex."""
    return indexes.decode_offset_index(data, base_offset, presized=False)


def decode_time_index(data: bytes, base_offset: int) -> list[tuple[int, int]]:
    """(last timestamp, last offset) entries of a remoteTimeIndex."""
    return indexes.decode_time_index(data, base_offset, presized=False)


def find_offset(
    log_index: bytes, offset_entries: Sequence[tuple[int, int]], target_offset: int
) -> Entry | None:
    """The entry of an offset through the floor of the remoteOffsetIndex, then a walk forward."""
    _offset, position = indexes.lookup_offset(offset_entries, target_offset, 0)
    if not offset_entries or offset_entries[0][0] > target_offset:
        position = 0
    entries = [entry for entry in decode(log_index) if entry.position >= position]
    return lookup_offset(entries, target_offset)

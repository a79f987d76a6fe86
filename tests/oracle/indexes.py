"""Kafka's index files beside a segment (formats sections 7.1 to 7.3) and leader-epoch text (8).

Entries are plain tuples: (offset, position), (timestamp, offset) and ``AbortedTransaction``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from .primitives import I32_MAX, OracleError

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
TRANSACTION_ENTRY_BYTES = 34
NO_TIMESTAMP = -1


class AbortedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def relative(offset: int, base_offset: int, position: int | None = None) -> int:
    """The i32 an index stores; offset_order when the offset cannot be told from this base."""
    if not 0 <= offset - base_offset <= I32_MAX:
        message = f"offset {offset} does not fit an index of {base_offset}"
        raise OracleError("offset_order", message, position)
    return offset - base_offset


def encode_offset_index(entries: Sequence[tuple[int, int]], base_offset: int) -> bytes:
    return b"".join(
        struct.pack(">ii", relative(offset, base_offset), position) for offset, position in entries
    )


def decode_offset_index(
    data: bytes, base_offset: int, *, presized: bool = True
) -> list[tuple[int, int]]:
    """(offset, position) entries up to the first slot that does not ascend (a live file's tail).

    Zeros alone are one entry (base, 0) or none: none where files are ``presized``.
    """
    _check_multiple(data, OFFSET_ENTRY_BYTES)
    found: list[tuple[int, int]] = []
    for relative_offset, position in struct.iter_unpack(">ii", data):
        before = found[-1] if found else (base_offset - 1, -1)
        if base_offset + relative_offset <= before[0] or position <= before[1]:
            break
        found.append((base_offset + relative_offset, position))
    if presized and not any(data):
        return []
    return found


def encode_time_index(entries: Sequence[tuple[int, int]], base_offset: int) -> bytes:
    return b"".join(
        struct.pack(">qi", timestamp_ms, relative(offset, base_offset))
        for timestamp_ms, offset in entries
    )


def decode_time_index(
    data: bytes, base_offset: int, *, presized: bool = True
) -> list[tuple[int, int]]:
    """(timestamp, offset) entries up to the first slot whose timestamp does not ascend.

    Zeros alone are one entry (0, base) or none: none where files are ``presized``.
    """
    _check_multiple(data, TIME_ENTRY_BYTES)
    found: list[tuple[int, int]] = []
    for timestamp_ms, relative_offset in struct.iter_unpack(">qi", data):
        before = found[-1] if found else (NO_TIMESTAMP, base_offset)
        if timestamp_ms <= before[0] or base_offset + relative_offset < before[1]:
            break
        found.append((timestamp_ms, base_offset + relative_offset))
    if presized and not any(data):
        return []
    return found


def append_time(
    entries: list[tuple[int, int]], timestamp_ms: int, offset: int, base_offset: int
) -> None:
    """Adds (timestamp, offset) only if the timestamp passes the last one (-1 when empty)."""
    last_timestamp_ms = entries[-1][0] if entries else NO_TIMESTAMP
    if timestamp_ms > last_timestamp_ms:
        relative(offset, base_offset)
        entries.append((timestamp_ms, offset))


def encode_transaction_index(entries: Sequence[AbortedTransaction]) -> bytes:
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def decode_transaction_index(data: bytes) -> list[AbortedTransaction]:
    """Every entry; versions other than 0, a torn tail or last offsets that do not ascend fail."""
    _check_multiple(data, TRANSACTION_ENTRY_BYTES)
    found: list[AbortedTransaction] = []
    for position, (version, *fields) in enumerate(struct.iter_unpack(">hqqqq", data)):
        entry = AbortedTransaction(*fields)
        at = position * TRANSACTION_ENTRY_BYTES
        if version != 0:
            raise OracleError("unknown_magic", f"aborted transaction version {version}", at)
        if found and entry.last_offset <= found[-1].last_offset:
            raise OracleError("offset_order", f"last offset {entry.last_offset}", at)
        found.append(entry)
    return found


def _check_multiple(data: bytes, entry_bytes: int) -> None:
    if len(data) % entry_bytes:
        message = f"{len(data)} bytes are no multiple of {entry_bytes}"
        raise OracleError("bad_length", message, len(data) - len(data) % entry_bytes)


def lookup_offset(
    entries: Sequence[tuple[int, int]], target_offset: int, base_offset: int
) -> tuple[int, int]:
    """The largest entry with offset <= target; (base, 0) when there is none."""
    below = [entry for entry in entries if entry[0] <= target_offset]
    return below[-1] if below else (base_offset, 0)


def lookup_upper_bound(
    entries: Sequence[tuple[int, int]], start: tuple[int, int], fetch_size_bytes: int
) -> tuple[int, int] | None:
    """The first entry at or past the end of a fetch, by position; None beyond the last entry."""
    end_position = start[1] + fetch_size_bytes
    return next((entry for entry in entries if entry[1] >= end_position), None)


def lookup_time(
    entries: Sequence[tuple[int, int]], target_timestamp_ms: int, base_offset: int
) -> tuple[int, int]:
    """The largest entry with timestamp <= target; (-1, base) when there is none."""
    below = [entry for entry in entries if entry[0] <= target_timestamp_ms]
    return below[-1] if below else (NO_TIMESTAMP, base_offset)


def collect_aborted(
    entries: Sequence[AbortedTransaction], from_offset: int, upper_bound_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """The aborted transactions in [from, upper) and whether the search is complete here."""
    found = []
    for entry in entries:
        if entry.last_offset >= from_offset and entry.first_offset < upper_bound_offset:
            found.append(entry)
        if entry.last_stable_offset >= upper_bound_offset:
            return found, True
    return found, False


def encode_leader_epochs(entries: Sequence[tuple[int, int]]) -> str:
    """The checkpoint text of (epoch, start offset) entries."""
    lines = ["0", str(len(entries))] + [f"{epoch} {start}" for epoch, start in entries]
    return "".join(line + "\n" for line in lines)


def decode_leader_epochs(text: str) -> list[tuple[int, int]]:
    """(epoch, start offset) entries; an empty file holds none; both columns ascend strictly."""
    if not text:
        return []
    lines = text.splitlines()
    if lines[0] != "0":
        raise OracleError("unknown_magic", f"checkpoint version {lines[0]!r}")
    if len(lines) < 2 or not lines[1].isdecimal() or int(lines[1]) != len(lines) - 2:
        raise OracleError("bad_length", "the entry count does not match the lines")
    found: list[tuple[int, int]] = []
    for line in lines[2:]:
        words = line.split(" ")
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise OracleError("bad_record", f"no epoch and offset: {line!r}")
        epoch, start = int(words[0]), int(words[1])
        if found and (epoch <= found[-1][0] or start <= found[-1][1]):
            raise OracleError("offset_order", f"{line!r} does not ascend")
        found.append((epoch, start))
    return found

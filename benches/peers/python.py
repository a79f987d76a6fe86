"""Peers in this process: aiokafka, a loop in Python, and a pass over the bytes as upper limit."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import crc32c
from aiokafka.record.memory_records import MemoryRecords

from tierlog import _core

PREAD_BYTES = 512 << 10
HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_START = 21


def aiokafka_batches(data: bytes, *, verify_crc: bool) -> dict[str, int]:
    """Scan the batches of a buffer with aiokafka (Cython)."""
    batches, last_offset = 0, -1
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        if verify_crc and not batch.validate_crc():
            raise ValueError(f"aiokafka finds a bad checksum in batch {batches}")
        batches += 1
        last_offset = batch.next_offset - 1
    return {"batches": batches, "bytes": len(data), "last_offset": last_offset}


def aiokafka_records(data: bytes) -> dict[str, int]:
    """Iterate over every record with aiokafka, and read its offset and the sizes of key and value.

    aiokafka checks no checksums here, and only the counted values are read.
    """
    count, payload_bytes, offset_sum, timestamp_ms = 0, 0, 0, -1
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        for record in batch:
            count += 1
            payload_bytes += len(record.key) + len(record.value)
            offset_sum += record.offset
            timestamp_ms = record.timestamp
    return {
        "records": count,
        "payload_bytes": payload_bytes,
        "offset_sum": offset_sum,
        "last_timestamp_ms": timestamp_ms,
    }


def aiokafka_decode(data: bytes) -> dict[str, int]:
    """Iterate over every record with aiokafka, and read no field."""
    count = 0
    records = MemoryRecords(data)
    while (batch := records.next_batch()) is not None:
        for _record in batch:
            count += 1
    return {"records": count}


def struct_loop(data: bytes) -> dict[str, int]:
    """Scan the batches with a loop in Python that uses struct for headers and a C package for
    checksums."""
    view = memoryview(data)
    unpack, checksum = HEADER.unpack_from, crc32c.crc32c
    rows: list[tuple[Any, ...]] = []
    position = 0
    while position + HEADER.size <= len(view):
        header = unpack(view, position)
        end = position + 12 + header[1]
        if end > len(view):
            break
        if checksum(view[position + CRC_START : end]) != header[4]:
            raise ValueError(f"bad checksum in the batch at byte {position}")
        rows.append((position, *header))
        position = end
    return {"batches": len(rows), "bytes": position, "last_offset": rows[-1][1] + rows[-1][7]}


def bare_crc_pass(path: Path) -> dict[str, int]:
    """Read every byte into one warm buffer and compute the same CRC-32C, without further work. No
    scan with checksums can be faster."""
    buffer = memoryview(bytearray(PREAD_BYTES))
    checksum, position = 0, 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while (count := os.preadv(fd, [buffer], position)) > 0:
            checksum = _core.crc32c(buffer[:count], checksum)
            position += count
    finally:
        os.close(fd)
    return {"bytes": position, "crc32c": checksum}

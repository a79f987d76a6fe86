"""A zstd frame of a few bytes that opens to many zeros."""

from __future__ import annotations

import struct

RUN_BYTES = 128 << 10


def zstd_of_zeros(size_bytes: int) -> bytes:
    """A zstd frame without content size whose every block is one repeated byte (RFC 8878)."""
    blocks = size_bytes // RUN_BYTES
    # Block header: last block, type 1 (one byte repeated), size; little-endian, three bytes.
    block = struct.pack("<I", RUN_BYTES << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", RUN_BYTES << 3 | 1 << 1 | 1)[:3] + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * (blocks - 1) + last

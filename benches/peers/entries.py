"""Encodes and decodes remoteLogIndex entries without tierlog: with a struct loop, and with NumPy
records and zlib.

Both ways check everything that tierlog checks, so the work is the same.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = "npt.NDArray[np.int64]"
Columns: TypeAlias = tuple[Column, Column, Column, Column, Column]
Array: TypeAlias = "npt.NDArray[Any]"
Rows: TypeAlias = list[tuple[int, int, int, int, int, int, bytes]]

HEADER = struct.Struct(">hhI")
BODY = struct.Struct(">qqqqih")
FIXED_BYTES = 46
CRC_START = 8
MAX_RDI_BYTES = 32_721


def struct_encode(columns: Sequence[Sequence[int]], rdis: Sequence[bytes]) -> bytes:
    """Encode lists of Python numbers, one entry at a time."""
    out = []
    before = -1
    for first, last, first_ms, last_ms, length, rdi in zip(*columns, rdis, strict=True):
        if not before < last or not 0 <= first <= last or not 0 < length < 2**31:
            raise ValueError(f"offsets {first} to {last}, {length} bytes")
        if len(rdi) > MAX_RDI_BYTES:
            raise ValueError(f"an rdi of {len(rdi)} bytes")
        before = last
        body = BODY.pack(first, last, first_ms, last_ms, length, len(rdi)) + rdi
        out.append(HEADER.pack(0, CRC_START + len(body), zlib.crc32(body)) + body)
    return b"".join(out)


def struct_decode(data: bytes) -> Rows:
    """Decode one entry at a time: (position, offsets, timestamps, length, rdi)."""
    rows = []
    position, before = 0, -1
    while position < len(data):
        magic, size, crc = HEADER.unpack_from(data, position)
        first, last, first_ms, last_ms, length, rdi_length = BODY.unpack_from(
            data, position + CRC_START
        )
        end = position + size
        if magic or rdi_length < 0 or size != FIXED_BYTES + rdi_length or end > len(data):
            raise ValueError(f"no entry at byte {position}")
        if zlib.crc32(data[position + CRC_START : end]) != crc:
            raise ValueError(f"bad checksum at byte {position}")
        if not before < last or not 0 <= first <= last or length <= 0:
            raise ValueError(f"impossible values at byte {position}")
        before = last
        rdi = data[position + FIXED_BYTES : end]
        rows.append((position, first, last, first_ms, last_ms, length, rdi))
        position = end
    return rows


def layout(rdi_bytes: int) -> np.dtype[np.void]:
    """Return the record type of the entries. This type exists only if all rdis have the same
    length."""
    return np.dtype(
        [
            ("magic", ">i2"),
            ("size", ">i2"),
            ("crc", ">u4"),
            ("first_offset", ">i8"),
            ("last_offset", ">i8"),
            ("first_ms", ">i8"),
            ("last_ms", ">i8"),
            ("data_length", ">i4"),
            ("rdi_length", ">i2"),
            ("rdi", f"V{rdi_bytes}"),
        ]
    )


def _checksums(data: bytes | bytearray, size: int) -> Array:
    view = memoryview(data)
    starts = range(0, len(data), size)
    return np.fromiter(
        (zlib.crc32(view[start + CRC_START : start + size]) for start in starts),
        dtype=np.uint32,
        count=len(starts),
    )


def numpy_encode(columns: Columns, rdis: Sequence[bytes]) -> bytes:
    """Encode all columns at once, and compute the checksums one at a time."""
    first, last, first_ms, last_ms, length = columns
    if (first > last).any() or first.min() < 0 or (np.diff(last) <= 0).any():
        raise ValueError("offsets do not ascend")
    if length.min() <= 0 or length.max() >= 2**31:
        raise ValueError("impossible lengths")
    (rdi_bytes,) = {len(rdi) for rdi in rdis}
    data = bytearray(len(rdis) * (FIXED_BYTES + rdi_bytes))
    array = np.frombuffer(data, dtype=layout(rdi_bytes))
    array["size"], array["rdi_length"] = FIXED_BYTES + rdi_bytes, rdi_bytes
    array["first_offset"], array["last_offset"] = first, last
    array["first_ms"], array["last_ms"] = first_ms, last_ms
    array["data_length"] = length
    array["rdi"] = np.frombuffer(b"".join(rdis), dtype=f"V{rdi_bytes}")
    array["crc"] = _checksums(data, FIXED_BYTES + rdi_bytes)
    return bytes(data)


def numpy_decode(data: bytes, rdi_bytes: int) -> Array:
    """Decode all columns at once to native numbers, as tierlog does, and check the checksums one at
    a time."""
    array = np.frombuffer(data, dtype=layout(rdi_bytes))
    if array["magic"].any() or (array["size"] != FIXED_BYTES + array["rdi_length"]).any():
        raise ValueError("not entries")
    if (array["crc"] != _checksums(data, FIXED_BYTES + rdi_bytes)).any():
        raise ValueError("a bad checksum")
    native = array.astype(array.dtype.newbyteorder("="))
    first, last = native["first_offset"], native["last_offset"]
    if (first > last).any() or first.min() < 0 or (np.diff(last) <= 0).any():
        raise ValueError("offsets do not ascend")
    if native["data_length"].min() <= 0:
        raise ValueError("impossible lengths")
    return native

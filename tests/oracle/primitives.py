"""What every format of the oracle stands on: bounded reads, varints, checksums, one error type.

Slow and plain on purpose: each function follows the format's description line by line, and no
length is used before it was compared with the bytes that are left.
"""

from __future__ import annotations

import struct
import zlib

import google_crc32c

I32_MAX = 2**31 - 1
I64_MIN = -(2**63)
I64_MAX = 2**63 - 1


class OracleError(ValueError):
    """Bytes (or values) that the format does not allow.

    ``reason`` is one of: truncated, bad_crc, bad_length, unknown_magic, bad_header, bad_record,
    offset_order, bad_compression, too_large, invalid_argument.  ``position`` is a byte position in
    whatever the caller handed over, or None where no single byte is to blame.
    """

    def __init__(self, reason: str, message: str, position: int | None = None) -> None:
        where = "" if position is None else f" at byte {position}"
        super().__init__(f"{reason}{where}: {message}")
        self.reason = reason
        self.position = position


def crc32(data: bytes) -> int:
    """CRC-32 as zlib computes it (IEEE, reflected 0xEDB88320)."""
    return zlib.crc32(data) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli, reflected 0x82F63B78)."""
    return int(google_crc32c.value(data))


class Cursor:
    """Reads forward through bytes; every read that would pass the end raises ``truncated``."""

    def __init__(self, data: bytes, position: int = 0, end: int | None = None) -> None:
        self.data = data
        self.position = position
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        return self.end - self.position

    def take(self, size_bytes: int) -> bytes:
        if size_bytes < 0:
            raise OracleError("bad_length", f"length {size_bytes} is negative", self.position)
        if size_bytes > self.left:
            message = f"{size_bytes} bytes wanted, {self.left} left"
            raise OracleError("truncated", message, self.position)
        start = self.position
        self.position += size_bytes
        return self.data[start : self.position]

    def _number(self, code: str) -> int:
        (value,) = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))
        return int(value)

    def i8(self) -> int:
        return self._number("b")

    def i16(self) -> int:
        return self._number("h")

    def i32(self) -> int:
        return self._number("i")

    def u32(self) -> int:
        return self._number("I")

    def i64(self) -> int:
        return self._number("q")

    def _uvarint(self, bits: int) -> int:
        start = self.position
        value = 0
        for shift in range(0, bits, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << bits:
                    raise OracleError("bad_record", f"varint wider than {bits} bits", start)
                return value
        raise OracleError("bad_record", f"varint longer than {bits} bits allow", start)

    def varint(self) -> int:
        """A zig-zag 32-bit value of at most 5 bytes."""
        return unzigzag(self._uvarint(32))

    def varlong(self) -> int:
        """A zig-zag 64-bit value of at most 10 bytes."""
        return unzigzag(self._uvarint(64))

    def nullable(self, size_bytes: int) -> bytes | None:
        """That many bytes; None for -1; anything lower is refused."""
        if size_bytes == -1:
            return None
        return self.take(size_bytes)


def unzigzag(raw: int) -> int:
    return raw >> 1 if raw % 2 == 0 else -(raw + 1) // 2


def zigzag(value: int) -> int:
    return 2 * value if value >= 0 else -2 * value - 1


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """The zig-zag varint (or varlong: the bytes are the same) of a signed value."""
    return uvarint(zigzag(value))


def in_i64(value: int) -> bool:
    return I64_MIN <= value <= I64_MAX


def wrapped_i64(value: int) -> int:
    """The value as Java's arithmetic keeps it."""
    return (value - I64_MIN) % (1 << 64) + I64_MIN


def xxh32(data: bytes, seed: int = 0) -> int:
    """xxHash32, which LZ4 frames use for their header and block checksums."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def rotate(value: int, bits: int) -> int:
        value &= mask
        return (value << bits | value >> (32 - bits)) & mask

    at = 0
    if len(data) >= 16:
        lanes = [seed + p1 + p2, seed + p2, seed, seed - p1]
        while at + 16 <= len(data):
            words = struct.unpack_from("<4I", data, at)
            lanes = [
                rotate(lane + word * p2, 13) * p1 & mask
                for lane, word in zip(lanes, words, strict=True)
            ]
            at += 16
        value = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    else:
        value = seed + p5
    value += len(data)
    while at + 4 <= len(data):
        value = rotate(value + struct.unpack_from("<I", data, at)[0] * p3, 17) * p4
        at += 4
    for byte in data[at:]:
        value = rotate(value + byte * p5, 11) * p1
    value &= mask
    value = (value ^ value >> 15) * p2 & mask
    value = (value ^ value >> 13) * p3 & mask
    return value ^ value >> 16

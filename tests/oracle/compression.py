"""The five codecs in the framing Kafka uses on disk.

gzip: RFC 1952.  snappy: xerial stream (or one raw block, as some clients write).  lz4: the frame
format, independent blocks only.  zstd: frames, with or without a content size.  As in Kafka, what
follows a gzip or lz4 stream is ignored; what follows another one is refused.
"""

from __future__ import annotations

import struct
import zlib

import cramjam
import lz4.block
import zstandard

from .primitives import Cursor, OracleError, xxh32

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_NAMES = {NONE: "none", GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}

DEFAULT_MAX_BYTES = 64 << 20

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024
LZ4_MAGIC = struct.pack("<I", 0x184D2204)
ZSTD_MAGIC = 0xFD2FB528
ZSTD_SKIPPABLE_MAGIC = 0x184D2A50


def decompress(
    codec: int, payload: bytes, *, magic: int = 2, max_bytes: int = DEFAULT_MAX_BYTES
) -> bytes:
    """The records behind a compressed payload; OracleError bad_compression or too_large."""
    readers = {GZIP: _gunzip, SNAPPY: _unsnappy, ZSTD: _unzstd}
    if codec == NONE:
        return payload
    if codec == LZ4:
        return _unlz4(payload, max_bytes, check_header=magic != 0)
    if codec not in readers:
        raise OracleError("bad_header", f"codec {codec} is nobody's")
    return readers[codec](payload, max_bytes)


def compress(codec: int, data: bytes, *, magic: int = 2) -> bytes:
    """``data`` in the stream format Kafka writes for that codec and message format."""
    if codec == NONE:
        return data
    if codec == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(data) + packer.flush()
    if codec == SNAPPY:
        return snappy_xerial(data)
    if codec == LZ4:
        return lz4_frame(data, hash_magic=magic == 0)
    if codec == ZSTD:
        streamer = zstandard.ZstdCompressor(level=3, write_content_size=False).compressobj()
        # Java's stream flushes its blocks first, so an empty raw block ends the frame.
        blocks = streamer.compress(data) + streamer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return blocks + streamer.flush()
    raise OracleError("invalid_argument", f"codec {codec} is nobody's")


def _too_large(max_bytes: int) -> OracleError:
    return OracleError("too_large", f"the payload opens to more than {max_bytes} bytes")


def _gunzip(payload: bytes, max_bytes: int) -> bytes:
    """One member or several back to back, as Java reads them."""
    out = bytearray()
    rest = payload
    while True:
        reader = zlib.decompressobj(wbits=31)
        try:
            out += reader.decompress(rest, max_bytes + 1 - len(out))
        except zlib.error as error:
            raise OracleError("bad_compression", str(error)) from error
        if len(out) > max_bytes:
            raise _too_large(max_bytes)
        if not reader.eof:
            raise OracleError("bad_compression", "the gzip stream ends early")
        rest = reader.unused_data
        if not _is_gzip_member(rest):
            return bytes(out)


def _is_gzip_member(rest: bytes) -> bool:
    """Java ignores what begins with no gzip header, and what is too short for a member."""
    if len(rest) < 18 or rest[:3] != b"\x1f\x8b\x08" or rest[3] >= 32:
        return False
    end, flags = 10, rest[3]
    if flags & 4:
        end += 2 + int.from_bytes(rest[end : end + 2], "little")
    for flag in (8, 16):
        if flags & flag:
            end = rest.find(b"\0", end) + 1
            if not end:
                return False
    return end + 2 * bool(flags & 2) <= len(rest)


def _unzstd(payload: bytes, max_bytes: int) -> bytes:
    """Every frame of the payload; skippable ones hold nothing."""
    out = bytearray()
    cursor = Cursor(payload)
    while cursor.left:
        start = cursor.position
        try:
            skippable = _pass_zstd_frame(cursor)
        except OracleError as error:
            raise OracleError("bad_compression", f"zstd frame: {error}") from error
        if not skippable:
            out += _zstd_frame(payload[start : cursor.position], max_bytes - len(out))
    return bytes(out)


def _zstd_frame(frame: bytes, max_bytes: int) -> bytes:
    """One whole frame, opened in one go: no window is allocated, so any announced one is fine."""
    announced = zstandard.frame_content_size(frame)
    if announced > max_bytes:
        raise _too_large(max_bytes)
    try:
        out = zstandard.ZstdDecompressor().decompress(frame, max_output_size=max_bytes + 1)
    except zstandard.ZstdError as error:
        # The frame is known to be whole, so only the room can have been too small.
        if "did not decompress full frame" in str(error) or "too small" in str(error):
            raise _too_large(max_bytes) from error
        raise OracleError("bad_compression", str(error)) from error
    if len(out) > max_bytes:
        raise _too_large(max_bytes)
    return out


def _pass_zstd_frame(cursor: Cursor) -> bool:
    """Moves behind one frame by its block sizes; True for a skippable one."""
    magic = int.from_bytes(cursor.take(4), "little")
    if magic & 0xFFFFFFF0 == ZSTD_SKIPPABLE_MAGIC:
        cursor.take(int.from_bytes(cursor.take(4), "little"))
        return True
    if magic != ZSTD_MAGIC:
        raise OracleError("bad_compression", "no zstd frame magic")
    descriptor = cursor.take(1)[0]
    single_segment = descriptor >> 5 & 1
    size_field = (0, 2, 4, 8)[descriptor >> 6] or single_segment
    cursor.take((1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + size_field)
    last = False
    while not last:
        header = int.from_bytes(cursor.take(3), "little")
        last = bool(header & 1)
        kind, size_bytes = header >> 1 & 3, header >> 3
        cursor.take(1 if kind == 1 else size_bytes)
    cursor.take(4 if descriptor & 4 else 0)
    return False


def _unsnappy(payload: bytes, max_bytes: int) -> bytes:
    """A xerial stream, or several back to back, or one raw block where no header is."""
    if len(payload) < len(XERIAL_HEADER) or not payload.startswith(XERIAL_MAGIC):
        return _snappy_block(payload, max_bytes)
    cursor = Cursor(payload)
    out = bytearray()
    try:
        while cursor.left:
            if payload.startswith(XERIAL_MAGIC, cursor.position):
                cursor.take(len(XERIAL_MAGIC))
                version, _compatible_version = cursor.i32(), cursor.i32()
                if version < 1:
                    raise OracleError("bad_compression", f"xerial version {version}")
                continue
            if cursor.left < 4:
                # The Java library takes this for the end.
                break
            block = cursor.take(cursor.i32())
            out += _snappy_block(block, max_bytes - len(out))
    except OracleError as error:
        if error.reason == "too_large":
            raise
        raise OracleError("bad_compression", f"xerial chunk: {error}") from error
    return bytes(out)


def _snappy_block(block: bytes, max_bytes: int) -> bytes:
    """One raw snappy block; its varint preamble announces the size, so the cap comes first."""
    announced, shift = 0, 0
    for byte in block[:5]:
        announced |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise OracleError("bad_compression", "no snappy preamble")
    if announced > max_bytes:
        raise _too_large(max_bytes)
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise OracleError("bad_compression", str(error)) from error


def _unlz4(payload: bytes, max_bytes: int, *, check_header: bool) -> bytes:
    cursor = Cursor(payload)
    try:
        if cursor.take(4) != LZ4_MAGIC:
            raise OracleError("bad_compression", "no lz4 frame magic")
        flags, block_bytes = _lz4_descriptor(cursor, check_header=check_header)
        out = bytearray()
        while size_field := int.from_bytes(cursor.take(4), "little"):
            out += _lz4_block(cursor, size_field, block_bytes, with_checksum=bool(flags & 0x10))
            if len(out) > max_bytes:
                raise _too_large(max_bytes)
        if flags & 0x04:
            # Kafka skips the content checksum.
            cursor.take(4)
    except OracleError as error:
        if error.reason == "too_large":
            raise
        raise OracleError("bad_compression", f"lz4 frame: {error}") from error
    return bytes(out)


def _lz4_descriptor(cursor: Cursor, *, check_header: bool) -> tuple[int, int]:
    start = cursor.position
    flags, block_field = cursor.take(2)
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        raise OracleError("bad_compression", f"FLG {flags:#04x}")
    if not 4 <= block_field >> 4 <= 7 or block_field & 0x0F:
        raise OracleError("bad_compression", f"BD {block_field:#04x}")
    if flags & 0x08:
        cursor.take(8)
    expected = xxh32(cursor.data[start : cursor.position]) >> 8 & 0xFF
    found = cursor.take(1)[0]
    if check_header and expected != found:
        raise OracleError("bad_compression", f"HC {found:#04x}, not {expected:#04x}")
    return flags, 1 << (2 * (block_field >> 4) + 8)


def _lz4_block(cursor: Cursor, size_field: int, block_bytes: int, *, with_checksum: bool) -> bytes:
    size_bytes = size_field & 0x7FFFFFFF
    if not 0 < size_bytes <= block_bytes:
        raise OracleError("bad_compression", f"block of {size_bytes} bytes")
    block = cursor.take(size_bytes)
    if with_checksum and int.from_bytes(cursor.take(4), "little") != xxh32(block):
        raise OracleError("bad_compression", "block checksum")
    if size_field & 0x80000000:
        return block
    _refuse_zero_offsets(block)
    try:
        return bytes(lz4.block.decompress(block, uncompressed_size=block_bytes))
    except lz4.block.LZ4BlockError as error:
        raise OracleError("bad_compression", str(error)) from error


def _refuse_zero_offsets(block: bytes) -> None:
    """A match offset of 0 is corruption by the format; the C library makes up bytes for it."""
    cursor = Cursor(block)
    while cursor.left:
        token = cursor.take(1)[0]
        cursor.take(_lz4_length(cursor, token >> 4))
        if not cursor.left:
            return
        if not int.from_bytes(cursor.take(2), "little"):
            raise OracleError("bad_compression", "match offset 0", cursor.position - 2)
        _lz4_length(cursor, token & 15)


def _lz4_length(cursor: Cursor, length: int) -> int:
    """15 in the token goes on in bytes of 255 and a last smaller one."""
    byte = 255 if length == 15 else 0
    while byte == 255:
        byte = cursor.take(1)[0]
        length += byte
    return length


def snappy_xerial(data: bytes) -> bytes:
    out = bytearray(XERIAL_HEADER)
    for start in range(0, len(data), XERIAL_BLOCK_BYTES):
        block = snappy_raw(data[start : start + XERIAL_BLOCK_BYTES])
        out += struct.pack(">i", len(block)) + block
    return bytes(out)


def snappy_raw(data: bytes) -> bytes:
    """One raw block with no framing, as clients other than the Java one write it."""
    return bytes(cramjam.snappy.compress_raw(data))


def lz4_frame(
    data: bytes,
    *,
    hash_magic: bool = False,
    block_code: int = 4,
    block_checksums: bool = False,
    content_size: bool = False,
    content_checksum: bool = False,
) -> bytes:
    """An LZ4 frame; the defaults are Kafka's, ``hash_magic`` its quirk for message format v0."""
    flags = 0x60 | block_checksums << 4 | content_size << 3 | content_checksum << 2
    descriptor = bytes([flags, block_code << 4])
    if content_size:
        descriptor += struct.pack("<Q", len(data))
    hashed = LZ4_MAGIC + descriptor if hash_magic else descriptor
    out = bytearray(LZ4_MAGIC + descriptor + bytes([xxh32(hashed) >> 8 & 0xFF]))
    block_bytes = 1 << (2 * block_code + 8)
    for start in range(0, len(data), block_bytes):
        plain = data[start : start + block_bytes]
        packed = lz4.block.compress(plain, store_size=False)
        stored, bit = (packed, 0) if len(packed) < len(plain) else (plain, 0x80000000)
        out += struct.pack("<I", len(stored) | bit) + stored
        if block_checksums:
            out += struct.pack("<I", xxh32(stored))
    out += bytes(4)
    if content_checksum:
        out += struct.pack("<I", xxh32(data))
    return bytes(out)

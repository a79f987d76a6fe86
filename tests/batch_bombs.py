"""Batches of a few KiB that open to many MiB, with checksums that are right."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.oracle import build
from tests.oracle.primitives import varint

__all__ = ["TOPIC", "header_bomb", "value_bomb", "write_log_dir"]

TOPIC = "bombs"
_RUN_BYTES = 128 << 10
_ZSTD = 4
_TOPIC_ID = "qza3daxmQBmJiMVKA5kDaQ"


def value_bomb(offset: int, size_bytes: int) -> bytes:
    """A batch of one record whose value is that many zeros."""
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(size_bytes)
    # Behind the value comes the number of headers, a zero, too.
    zeros = size_bytes + 1
    return _batch(offset, varint(len(body) + zeros) + body, zeros)


def header_bomb(offset: int, count: int) -> bytes:
    """A batch of one record with that many headers, of two zero bytes each."""
    body = b"\0" + varint(0) + varint(0) + varint(-1) + varint(-1) + varint(count)
    return _batch(offset, varint(len(body) + 2 * count) + body, 2 * count)


def _batch(offset: int, head: bytes, zeros: int) -> bytes:
    """A batch whose records are `head` and then zeros, as zstd has them (RFC 8878)."""
    blocks = [_block(0, len(head), head)]
    while zeros:
        size = min(zeros, _RUN_BYTES)
        zeros -= size
        blocks.append(_block(1, size, b"\0", is_last=not zeros))
    payload = b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(blocks)
    return build.seal(
        payload,
        attributes=_ZSTD,
        base_offset=offset,
        leader_epoch=0,
        record_count=1,
        base_timestamp_ms=1,
        max_timestamp_ms=1,
    )


def _block(kind: int, size: int, data: bytes, *, is_last: bool = False) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | is_last)[:3] + data


def write_log_dir(
    root: Path, segments: Sequence[Sequence[bytes]], *, high_watermark: int | None = None
) -> Path:
    """A broker's directory with one partition: segments of batches, offset after offset."""
    folder = root / f"{TOPIC}-0"
    folder.mkdir(parents=True)
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {_TOPIC_ID}\n")
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    known = sum(map(len, segments)) if high_watermark is None else high_watermark
    checkpoint = f"0\n1\n{TOPIC} 0 {known}\n"
    (root / "replication-offset-checkpoint").write_text(checkpoint)
    for batches in segments:
        base = struct.unpack(">q", batches[0][:8])[0]
        path = folder / f"{base:020}.log"
        path.write_bytes(b"".join(batches))
        path.with_suffix(".index").touch()
        path.with_suffix(".timeindex").touch()
        path.with_suffix(".snapshot").write_bytes(_NO_PRODUCERS)
    return root


# Version 1, the CRC-32C of what follows, and no entries.
_NO_PRODUCERS = bytes.fromhex("000148674bc700000000")

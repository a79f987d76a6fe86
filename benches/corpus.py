"""Makes the segments for the benches. The segments are seeded, look like Kafka's, and are written
again in every run.

A shape is ``<codec>-<record bytes>-<batch bytes>``. Each record has this many bytes of key and
value together; the key has 10 of them. A batch has as many records as fit into the batch bytes
before compression. The text looks like small JSON events, and compresses about 3:1 at 16 KiB.

A few dozen different batches are built and then repeated, each time with new offsets, times,
sequences and checksums. The way in which a file was written affects the speed of reads and maps of
its cached pages. For example, large writes get large folios, but pages that were evicted and read
again do not. So the measuring process writes every file itself, in chunks of ``WRITE_BYTES``, and
the report says so.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from crc32c import crc32c

from tests.oracle import build, compression
from tests.oracle.model import Record

SEED = 2
WRITE_BYTES = 4 << 20
KEY_BYTES = 10
LEADER_EPOCH = 7
FIRST_TIMESTAMP_MS = 1_760_000_000_000
MIB = 1 << 20

# Fields of a batch, at their positions.
BASE_OFFSET = struct.Struct(">q")
CRC, CRC_POSITION, CRC_START = struct.Struct(">I"), 17, 21
TIMES, TIMES_POSITION = struct.Struct(">qq"), 27
SEQUENCE, SEQUENCE_POSITION = struct.Struct(">i"), 53
RECORD_COUNT, RECORD_COUNT_POSITION = struct.Struct(">i"), 57

CODECS = {name: codec for codec, name in compression.CODEC_NAMES.items()}
WORDS = (
    *("order", "payment", "shipment", "refund", "basket", "visitor", "session", "search"),
    *("created", "updated", "cancelled", "pending", "accepted", "login", "logout", "partner"),
    *("berlin", "lisbon", "osaka", "quito", "nairobi", "mobile", "desktop", "tablet"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The content of a segment. The file has as many whole blocks as fit into ``size_bytes``, but
    at least one."""

    codec: str
    record_bytes: int
    batch_bytes: int
    size_bytes: int

    @property
    def batches_per_block(self) -> int:
        """The number of different batches in a block: 1 MiB of them, but at least 4."""
        return max(4, MIB // self.batch_bytes)


def _shapes() -> dict[str, Shape]:
    shapes = {
        f"{codec}-100-16k": Shape(
            codec=codec, record_bytes=100, batch_bytes=16 << 10, size_bytes=48 * MIB
        )
        for codec in ("lz4", "zstd", "snappy", "gzip")
    }
    for name, record_bytes, batch_bytes, size_bytes in (
        ("none-100-16k", 100, 16 << 10, 256 * MIB),
        ("none-1024-16k", 1024, 16 << 10, 256 * MIB),
        ("none-1024-1m", 1024, 1 << 20, 256 * MIB),
        ("none-100-16k-1g", 100, 16 << 10, 1024 * MIB),
        ("none-1024-1m-1g", 1024, 1 << 20, 1024 * MIB),
        ("none-100-16k-64m", 100, 16 << 10, 64 * MIB),
        ("none-100-4k-64m", 100, 4 << 10, 64 * MIB),
    ):
        shapes[name] = Shape(
            codec="none", record_bytes=record_bytes, batch_bytes=batch_bytes, size_bytes=size_bytes
        )
    return shapes


SHAPES = _shapes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpora:
    """Segment files in ``directory``, each made at its first use. The segments are tiny if
    ``quick``."""

    directory: Path
    quick: bool = False

    def path(self, name: str) -> Path:
        """Return the file of a shape."""
        shape = SHAPES[name]
        size_bytes = min(shape.size_bytes, 2 * MIB) if self.quick else shape.size_bytes
        return _made(self.directory / f"{name}-{size_bytes // MIB}m.log", shape, size_bytes)

    def data(self, name: str) -> bytes:
        """Return the bytes of a shape. The last two shapes stay in memory."""
        return _read(self.path(name))


@cache
def _made(path: Path, shape: Shape, size_bytes: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    _write(partial, shape, size_bytes)
    return partial.replace(path)


@lru_cache(maxsize=2)
def _read(path: Path) -> bytes:
    return path.read_bytes()


def _write(path: Path, shape: Shape, size_bytes: int) -> None:
    """Write whole blocks up to ``size_bytes``. Every write except the last has ``WRITE_BYTES``."""
    pending = bytearray()
    with path.open("wb", buffering=0) as file:
        for block in _rebased(_block(shape), size_bytes):
            pending += block
            while len(pending) >= WRITE_BYTES:
                file.write(memoryview(pending)[:WRITE_BYTES])
                del pending[:WRITE_BYTES]
        file.write(pending)
        # Without the sync, the kernel would write the pages to disk during the first rounds.
        os.fsync(file.fileno())


def _rebased(batches: list[bytes], size_bytes: int) -> Iterator[memoryview]:
    """Yield the block of these batches repeatedly, with ascending offsets, times and sequences."""
    block = bytearray().join(batches)
    view = memoryview(block)
    borders = list(accumulate(map(len, batches), initial=0))
    counts = [RECORD_COUNT.unpack_from(batch, RECORD_COUNT_POSITION)[0] for batch in batches]
    offset = 0
    for _ in range(max(1, size_bytes // len(block))):
        for count, (start, end) in zip(counts, pairwise(borders), strict=True):
            time_ms = FIRST_TIMESTAMP_MS + offset
            BASE_OFFSET.pack_into(block, start, offset)
            TIMES.pack_into(block, start + TIMES_POSITION, time_ms, time_ms + count - 1)
            SEQUENCE.pack_into(block, start + SEQUENCE_POSITION, offset)
            CRC.pack_into(block, start + CRC_POSITION, crc32c(view[start + CRC_START : end]))
            offset += count
        yield view


def _block(shape: Shape) -> list[bytes]:
    rng = random.Random(SEED)
    # A record of n bytes takes about n + 10 bytes in a batch. The header of a batch has 61 bytes.
    count = max(1, (shape.batch_bytes - 61) // (shape.record_bytes + 9))
    return [
        build.batch(
            [make_record(rng, index, shape.record_bytes) for index in range(count)],
            codec=CODECS[shape.codec],
            base_offset=0,
            leader_epoch=LEADER_EPOCH,
            producer_id=4711,
            producer_epoch=0,
            base_sequence=0,
        )
        for _ in range(shape.batches_per_block)
    ]


def make_record(rng: random.Random, index: int, record_bytes: int) -> Record:
    value_bytes = record_bytes - KEY_BYTES
    text = ""
    while len(text) < value_bytes:
        text += (
            f'{{"id":{rng.getrandbits(40)},"event":"{rng.choice(WORDS)}",'
            f'"state":"{rng.choice(WORDS)}","from":"{rng.choice(WORDS)}",'
            f'"amount":{rng.randrange(100_000) / 100}}}'
        )
    return Record(
        offset=index,
        timestamp_ms=FIRST_TIMESTAMP_MS + index,
        key=b"%010d" % rng.randrange(10**10),
        value=text[:value_bytes].encode(),
    )

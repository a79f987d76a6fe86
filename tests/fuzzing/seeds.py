"""First inputs of every fuzz target: small parts of what Kafka wrote, and what the oracle writes.

python -m tests.fuzzing.seeds FOLDER    # FOLDER/<target>/<hash>
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.oracle import batches, build, compression, indexes, producer_state, remote_index
from tests.oracle.model import HEADER_BYTES, Record
from tests.vectors import VECTORS

DATA = Path(__file__).resolve().parent.parent / "data"
MAX_BYTES = 700
PER_FOLDER = 6
SEGMENT_TARGETS = ("scan", "records", "text", "table_rows", "legacy", "rebuild", "resync")
# Offset, last offset, bytes, reach, index interval, flags, and a byte to be changed.
SETTINGS = tuple(
    struct.pack(">HHHHBBBB", *values)
    for values in (
        (3, 9, 200, 4096, 60, 1, 0, 0),
        (2, 4, 90, 800, 100, 7, 0, 0),
        (12, 200, 300, 4096, 0, 1, 90, 1),
    )
)


def segments() -> Iterator[bytes]:
    """Segments of a few batches."""
    for name, text in VECTORS.items():
        if name.startswith("v"):
            yield bytes.fromhex(text)
    yield from kafka_segments()
    yield from oracle_segments()


def kafka_segments() -> Iterator[bytes]:
    """Runs of small batches of the golden logs."""
    for folder in sorted({path.parent for path in DATA.rglob("*.log")}):
        parts = (part for path in sorted(folder.glob("*.log")) for part in small_runs(path))
        yield from islice(parts, PER_FOLDER)


def small_runs(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    run = b""
    for batch in batches.scan(data)[0]:
        whole = data[batch.position : batch.position + batch.size_bytes]
        if run and len(run) + len(whole) > MAX_BYTES:
            yield run
            run = b""
        if len(whole) <= MAX_BYTES:
            run += whole
    if run:
        yield run


def some_records(base_offset: int, count: int) -> list[Record]:
    return [
        Record(
            offset=base_offset + 2 * row,
            timestamp_ms=1_700_000_000_000 + 7 * row,
            key=None if row % 3 == 0 else b"key-%d" % row,
            value=None if row % 4 == 3 else b'a value\n\x00\xff of "some" length'[: 9 * row],
            headers=((b"h", None), (b"name", b"x" * 14)) if row % 2 else (),
        )
        for row in range(count)
    ]


def oracle_segments() -> Iterator[bytes]:
    """Every codec and flag, alone and in a row."""
    for codec in range(5):
        data = build.batch(some_records(10, 5), codec=codec, leader_epoch=codec)
        yield data + build.batch(some_records(40, 3), codec=codec, log_append_time_ms=5)
    raw = compression.snappy_raw(build.record_payload(some_records(7, 4), 7, 1_700_000_000_000))
    yield build.batch(some_records(7, 4), codec=compression.SNAPPY, payload=raw)
    yield build.empty_batch(base_offset=5, last_offset=9) + b"\x00" * 40
    yield b"".join(build.batch(some_records(10 + row, 1)) for row in range(6))
    for magic in range(2):
        yield build.legacy_messages(some_records(3, 3), magic=magic)
        for codec in range(1, 4):
            yield build.legacy_wrapper(some_records(3, 4), magic=magic, codec=codec)
    yield build.legacy_wrapper(some_records(0, 3), magic=1, codec=1, librdkafka_offset=True)
    yield from transactions()


def transactions() -> Iterator[bytes]:
    """Two producers with open, committed and aborted transactions."""
    for commit in (True, False):
        data = b""
        for row, (producer_id, control) in enumerate(((1, 0), (2, 0), (1, 1), (2, 0), (2, 1))):
            offset = 100 + 10 * row
            if control:
                data += build.end_transaction_marker(
                    offset=offset,
                    timestamp_ms=1000,
                    producer_id=producer_id,
                    producer_epoch=3,
                    coordinator_epoch=1,
                    commit=commit,
                )
            else:
                data += build.batch(
                    some_records(offset, 2),
                    producer_id=producer_id,
                    producer_epoch=3,
                    base_sequence=row,
                    transactional=True,
                )
        yield data


def streams() -> Iterator[bytes]:
    """Compressed payloads, behind the byte that names codec and magic."""
    for data in segments():
        for batch in batches.scan(data)[0]:
            codec = batch.attributes & 7
            if batch.magic == 2 and codec:
                yield bytes([codec | 16]) + data[batch.position + HEADER_BYTES :][: MAX_BYTES // 2]
    for codec in range(1, 5):
        for plain in (b"", b"a", b"abcd" * 200, bytes(range(256))):
            yield bytes([codec | 16]) + compression.compress(codec, plain)
            if codec < 4:
                yield bytes([codec | 8]) + compression.compress(codec, plain, magic=1)
    yield bytes([compression.SNAPPY | 16]) + compression.snappy_raw(b"xyz" * 50)


def local_indexes() -> Iterator[bytes]:
    """Index files, behind the byte that names their kind and their tail."""
    for kind, (suffix, entry_bytes) in enumerate(
        (("index", 8), ("timeindex", 12), ("txnindex", 34))
    ):
        paths = sorted(DATA.rglob(f"*.{suffix}"))
        for data in {path.read_bytes()[: entry_bytes * 8] for path in paths}:
            for tail in range(3):
                yield bytes([kind | tail << 2]) + data
            yield b"\x03" + data + data
    entries = [(1000 + 40 * row, 5000 * row) for row in range(9)]
    offsets = indexes.encode_offset_index(entries, 1000)
    times = indexes.encode_time_index([(10 * row, 1000 + row) for row in range(9)], 1000)
    aborted = [
        indexes.AbortedTransaction(row, 1000 + row, 1010 + 9 * row, 1005) for row in range(4)
    ]
    for kind, data in enumerate((offsets, times, indexes.encode_transaction_index(aborted))):
        yield bytes([kind]) + data
        yield bytes([kind | 4]) + data + b"\x00" * 48


def snapshots() -> Iterator[bytes]:
    for data in {path.read_bytes() for path in DATA.rglob("*.snapshot")}:
        if len(data) <= MAX_BYTES:
            yield data
    yield producer_state.encode_snapshot([])


def remote_indexes() -> Iterator[bytes]:
    """Files of some entries, with and without a trailer."""
    for count in range(1, 7):
        entries = [
            remote_index.Entry(
                first_offset=100 * row,
                last_offset=100 * row + 60,
                first_timestamp_ms=1000 + row,
                last_timestamp_ms=2000 - row,
                data_length=4096 + row,
                rdi=b"a/key:%d" % row * (row % 3),
            )
            for row in range(count)
        ]
        for trailer in (False, True):
            yield remote_index.encode(entries, trailer=trailer)
    for name in ("remote_index_entry_rdi", "remote_index_entry_empty_rdi"):
        yield bytes.fromhex(VECTORS[name])


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield (target, input)."""
    for data in segments():
        for target in SEGMENT_TARGETS:
            yield target, data
        for settings in SETTINGS:
            yield "segment_read", settings + data
    for target, inputs in (
        ("codecs", streams()),
        ("indexes", local_indexes()),
        ("snapshot", snapshots()),
        ("remote_index", remote_indexes()),
    ):
        for data in inputs:
            yield target, data


def write(folder: Path) -> None:
    """Write every seed to a file below `folder`/<target>, named by its hash."""
    for target, data in seeds():
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        (place / hashlib.sha1(data, usedforsecurity=False).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    write(Path(sys.argv[1]))

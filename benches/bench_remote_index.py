"""Measures remoteLogIndex entries: columns to bytes, bytes to verified columns, and look-ups.

An entry has 94 bytes, of which the rdi takes 48. A segment of 1 GiB has 4,096 entries. All sides
use memory that the allocator has kept, as in a process that has run for some time. On some virtual
machines, a fresh page costs 1 us, as much as twenty entries.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np

from tierlog._hot import CachedIndex
from tierlog.remote.segment.log_index import (
    RemoteLogIndexEntries,
    decode_remote_log_index,
    encode_remote_log_index,
)

from .frame import Answer, Bench, Benchmark, Case, Sides, run_side
from .peers import entries as peers

RDI_BYTES = 48
ENTRY_BYTES = 94
RUN_BYTES = 256 << 10
MILLION = 1e6
SEGMENT_ROWS = 4_096
BULK_ROWS = 100_000
QUICK_ROWS = 200
LOOKUPS = 10_000


def items(bench: Bench) -> Sequence[Case]:
    rows = QUICK_ROWS if bench.corpora.quick else BULK_ROWS
    return [
        encode(rows, from_objects=True),
        encode(rows, from_objects=False),
        decode(rows),
        lookup(bench),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def keep_memory() -> None:
    """Make glibc keep freed memory from now on. glibc adapts its limit to the largest block that it
    has returned to the system."""
    bytearray(31 << 20)


def shape_of(rows: int) -> str:
    return f"{rows:,} x {ENTRY_BYTES} B"


def columns(rows: int) -> tuple[peers.Columns, list[bytes]]:
    """Return columns of first and last offset, first and last timestamp and data length, and the
    rdis."""
    first = np.arange(rows, dtype=np.int64) * 2_500
    times = 1_760_000_000_000 + np.arange(rows, dtype=np.int64) * 1_000
    length = np.full(rows, RUN_BYTES, dtype=np.int64)
    rdis = [b"%0*d" % (RDI_BYTES, row) for row in range(rows)]
    return (first, first + 2_499, times, times + 999, length), rdis


def same_bytes(data: bytes) -> Answer:
    return {"size": len(data), "crc32": zlib.crc32(data)}


def encode(rows: int, *, from_objects: bool) -> Case:
    """Encode entries. The rdis are a list of bytes, as for all peers, or the column of a decoded
    index."""

    def prepare(_stack: ExitStack) -> Sides:
        keep_memory()
        numbers, rdis = columns(rows)
        lists = [column.tolist() for column in numbers]
        column = decode_remote_log_index(encode_remote_log_index(*numbers, rdis)).rdi

        def told(data: bytes) -> object:
            return lambda: same_bytes(data)

        return Sides(
            amount=len(rdis) / MILLION,
            ours=lambda: encode_remote_log_index(*numbers, rdis if from_objects else column),
            answer=same_bytes,
            peers={
                "struct + zlib": lambda: told(peers.struct_encode(lists, rdis)),
                "numpy + zlib": lambda: told(peers.numpy_encode(numbers, rdis)),
            },
        )

    return Case(
        operation=f"remoteLogIndex encode{'' if from_objects else ', rdi column'}",
        shape=shape_of(rows),
        unit="M",
        peers={"struct + zlib": 20.0, "numpy + zlib": 8.0},
        prepare=prepare,
    )


def seen(entries: RemoteLogIndexEntries) -> Answer:
    """Return the totals that every decoder must find."""
    return {
        "last_offset": int(entries.last_offset.sum()),
        "data_length": int(entries.data_length.sum(dtype=np.int64)),
        "rdi": zlib.crc32(b"".join(entries.rdi)),
    }


def decode(rows: int) -> Case:
    """Decode entries. Every side checks the magic, the lengths, the checksum, the values and the
    order of all entries."""

    def prepare(_stack: ExitStack) -> Sides:
        keep_memory()
        numbers, rdis = columns(rows)
        data = encode_remote_log_index(*numbers, rdis)

        def told_rows(found: peers.Rows) -> object:
            return lambda: {
                "last_offset": sum(row[2] for row in found),
                "data_length": sum(row[5] for row in found),
                "rdi": zlib.crc32(b"".join(row[6] for row in found)),
            }

        def told_array(array: peers.Array) -> object:
            return lambda: {
                "last_offset": int(array["last_offset"].sum()),
                "data_length": int(array["data_length"].sum(dtype=np.int64)),
                "rdi": zlib.crc32(array["rdi"].tobytes()),
            }

        return Sides(
            amount=len(rdis) / MILLION,
            ours=lambda: decode_remote_log_index(data),
            answer=seen,
            peers={
                "struct + zlib": lambda: told_rows(peers.struct_decode(data)),
                "numpy + zlib": lambda: told_array(peers.numpy_decode(data, RDI_BYTES)),
            },
        )

    return Case(
        operation="remoteLogIndex decode + check",
        shape=shape_of(rows),
        unit="M",
        peers={"struct + zlib": 50.0, "numpy + zlib": 8.0},
        prepare=prepare,
    )


def lookup(bench: Bench) -> Case:
    """Look up one offset per call. The offsets are spread over the index of a segment of 1 GiB."""

    rows = QUICK_ROWS if bench.corpora.quick else SEGMENT_ROWS

    def prepare(_stack: ExitStack) -> Sides:
        numbers, rdis = columns(rows)
        cached = CachedIndex(encode_remote_log_index(*numbers, rdis))
        last = numbers[1].tolist()
        positions = [row * ENTRY_BYTES for row in range(rows)]
        targets = [number * 7_654_321 % (last[-1] + 1) for number in range(LOOKUPS)]

        def cached_lookups() -> Answer:
            find = cached.lookup_position
            return {"positions": sum([find(target) for target in targets])}

        def bisected() -> Answer:
            find = partial(bisect_left, last)
            return {"positions": sum([positions[find(target)] for target in targets])}

        return Sides(
            amount=LOOKUPS / MILLION, ours=cached_lookups, peers={"bisect on a list": bisected}
        )

    return Case(
        operation="remoteLogIndex look-up from Python",
        shape=f"{rows:,} entries",
        unit="M",
        peers={"bisect on a list": None},
        prepare=prepare,
    )

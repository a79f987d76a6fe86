"""Measures a partition's remote index files: append, look up, open, rebuild.

A segment of 1 GiB has 4,096 entries. Each entry has about 130 bytes and covers 256 KiB. The folder
is on the same disk as the other inputs of the benches. The disk decides the cost of a sync. The
peer of the append writes and syncs the same bytes.
"""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.layout import encode_rdi, log_key
from tierlog.remote.segment.log_index import encode_remote_log_index
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid

from .frame import Answer, Bench, Benchmark, Case, Sides, run_side
from .peers import entries as peers

PARTITION = TopicIdPartition(topic_id=kafka_uuid(b"t" * 16), topic="orders", partition=7)
ROWS, QUICK_ROWS = 4_096, 64
RUN_BYTES = 256 << 10
RUN_OFFSETS = 2_500
APPENDS = 4
SEGMENTS = 25
LOOKUPS = 2_000
MILLION = 1e6
TRAILER_BYTES = 8


def items(bench: Bench) -> Sequence[Case]:
    return [append(bench), lookup(bench), opening(bench), rebuild(bench)]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


class Tier:
    """Consecutive segments, and folders for their index files."""

    def __init__(self, stack: ExitStack, bench: Bench, segments: int) -> None:
        self.rows = QUICK_ROWS if bench.corpora.quick else ROWS
        bench.corpora.directory.mkdir(parents=True, exist_ok=True)
        folder = stack.enter_context(TemporaryDirectory(dir=bench.corpora.directory))
        self.folder = Path(folder)
        self.segments = [self._segment(number) for number in range(segments)]
        self.data = {segment.segment_id: self._entries(segment) for segment in self.segments}

    def _segment(self, number: int) -> RemoteLogSegmentMetadata:
        start_offset = number * self.rows * RUN_OFFSETS
        identity = kafka_uuid(number.to_bytes(16, "big"))
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_id_partition=PARTITION, id=identity),
            start_offset=start_offset,
            end_offset=start_offset + self.rows * RUN_OFFSETS - 1,
            max_timestamp_ms=0,
            broker_id=0,
            event_timestamp_ms=0,
            segment_size_bytes=self.rows * RUN_BYTES - 1,
            leader_epochs=((0, 0),),
        )

    def _entries(self, segment: RemoteLogSegmentMetadata) -> bytes:
        first = segment.start_offset + np.arange(self.rows, dtype=np.int64) * RUN_OFFSETS
        length = np.full(self.rows, RUN_BYTES, dtype=np.int64)
        length[-1] -= 1
        rdis = [encode_rdi(segment, row * RUN_BYTES) for row in range(self.rows)]
        last = first + RUN_OFFSETS - 1
        return encode_remote_log_index(first, last, first * 2, last * 2, length, rdis)

    def fetch(self, segment: RemoteLogSegmentMetadata) -> bytes:
        return self.data[segment.segment_id]

    def open(self) -> RemoteIndexFiles:
        return RemoteIndexFiles(self.folder, PARTITION, rotate_bytes=16 << 20, rotate_ms=-1)

    def filled(self) -> RemoteIndexFiles:
        files = self.open()
        files.rebuild(self.segments, self.fetch)
        return files

    def clear(self) -> None:
        for path in self.folder.iterdir():
            shutil.rmtree(path)


def append(bench: Bench) -> Case:
    """Append one segment after another. Each segment is durable before the next append."""

    def prepare(stack: ExitStack) -> Sides:
        tier = Tier(stack, bench, APPENDS)

        def ours() -> Answer:
            files = tier.open()
            for segment in tier.segments:
                files.append(segment, tier.fetch(segment))
            return {"last_offset": files.last_offset}

        def plain() -> Answer:
            (tier.folder / "plain").mkdir()
            (tier.folder / "plain" / "index").write_bytes(bytes(20 * tier.rows * APPENDS))
            with (tier.folder / "plain" / "log").open("wb") as file:
                for segment in tier.segments:
                    file.write(tier.fetch(segment))
                    file.flush()
                    os.fsync(file.fileno())
            return {"last_offset": tier.segments[-1].end_offset}

        return Sides(amount=APPENDS, ours=ours, peers={"write + fsync": plain}, reset=tier.clear)

    return Case(
        operation="remote index files: append",
        shape=f"{QUICK_ROWS if bench.corpora.quick else ROWS:,} entries each",
        unit="segment",
        peers={"write + fsync": None},
        prepare=prepare,
        one_thread=False,
    )


def read(paths: Iterable[Path]) -> list[peers.Rows]:
    return [peers.struct_decode(path.read_bytes()[:-TRAILER_BYTES]) for path in paths]


def logs(tier: Tier) -> list[Path]:
    return sorted(tier.folder.rglob("*.remoteLogIndex"))


def lookup(bench: Bench) -> Case:
    """Look up offsets of a log of 25 GiB in the files. The peer has all offsets in memory, and
    reads and checks one entry."""

    def prepare(stack: ExitStack) -> Sides:
        tier = Tier(stack, bench, SEGMENTS)
        files = tier.filled()
        end_offset = files.last_offset or 0
        targets = [number * 7_654_321 % (end_offset + 1) for number in range(LOOKUPS)]
        found = [
            (path, row)
            for path, rows in zip(logs(tier), read(logs(tier)), strict=True)
            for row in rows
        ]
        last_offsets = [row[2] for _, row in found]

        def ours() -> Answer:
            entries = [files.lookup_offset(target) for target in targets]
            return {"first": sum(entry.first_offset for entry in entries if entry is not None)}

        def bisected() -> Answer:
            first = 0
            for target in targets:
                path, row = found[bisect_left(last_offsets, target)]
                descriptor = os.open(path, os.O_RDONLY)
                data = os.pread(descriptor, peers.FIXED_BYTES + len(row[6]), row[0])
                os.close(descriptor)
                first += peers.struct_decode(data)[0][1]
            return {"first": first}

        return Sides(amount=LOOKUPS / 1e3, ours=ours, peers={"bisect + pread": bisected})

    return Case(
        operation="remote index files: look-up",
        shape=f"{SEGMENTS} segments",
        unit="k",
        peers={"bisect + pread": None},
        prepare=prepare,
    )


def opening(bench: Bench) -> Case:
    """Open the files and verify every byte. The peer checks the entries, but not the positions in
    them."""

    def prepare(stack: ExitStack) -> Sides:
        tier = Tier(stack, bench, SEGMENTS)
        tier.filled().close()

        def struct_read() -> Answer:
            return {"last_offset": read(logs(tier))[-1][-1][2]}

        return Sides(
            amount=SEGMENTS * tier.rows / MILLION,
            ours=lambda: {"last_offset": tier.open().last_offset},
            peers={"struct + zlib": struct_read},
        )

    return Case(
        operation="remote index files: open",
        shape=f"{SEGMENTS} segments",
        unit="M entries",
        peers={"struct + zlib": 3.0},
        prepare=prepare,
    )


def rebuild(bench: Bench) -> Case:
    """Rebuild the files from entries in memory. The new files replace the old ones."""

    def prepare(stack: ExitStack) -> Sides:
        tier = Tier(stack, bench, SEGMENTS)
        files = tier.filled()

        def struct_rebuild() -> Answer:
            path = tier.folder / "rebuilt"
            with path.open("wb") as file:
                for segment in tier.segments:
                    rows = peers.struct_decode(tier.fetch(segment))
                    positions = accumulate((row[5] for row in rows), initial=0)
                    prefix = f"{log_key(segment)}:"
                    for row, position in zip(rows, positions, strict=False):
                        if row[6] != f"{prefix}{position}".encode():
                            raise ValueError(f"unexpected rdi {row[6]!r}")
                    file.write(tier.fetch(segment))
                file.flush()
                os.fsync(file.fileno())
            path.unlink()
            return {"entries": SEGMENTS * tier.rows}

        return Sides(
            amount=SEGMENTS * tier.rows / MILLION,
            ours=lambda: {"entries": files.rebuild(tier.segments, tier.fetch)},
            peers={"struct + zlib": struct_rebuild},
        )

    return Case(
        operation="remote index files: rebuild",
        shape=f"{SEGMENTS} segments",
        unit="M entries",
        peers={"struct + zlib": None},
        prepare=prepare,
        one_thread=False,
    )

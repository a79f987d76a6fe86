"""Rebuilds the indexes of a segment, as a broker does after a crash, and the indexes of a whole
directory with a pool of processes."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import numpy as np

from tierlog import RebuiltIndexes, rebuild_indexes, scan_segment
from tierlog.tools.rebuild.index import RebuildTask, plan_rebuild, rebuild_task

from .frame import Answer, Bench, Benchmark, Case, Limit, Sides, Timed, run_side
from .peers.kafka import kafka_peer
from .peers.python import bare_crc_pass

GB = 1e9
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12


MIB = 1 << 20
SLOTS = 2
POOL_BYTES = 4096 * MIB

_Work = TypeVar("_Work")


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [
        rebuild(bench, "none-100-16k"),
        rebuild(bench, "none-1024-1m"),
        directory(bench, "none-100-16k", 256 * MIB, goal=0.8),
        directory(bench, "none-1024-1m", 256 * MIB, goal=0.8),
        directory(bench, "none-100-16k", 16 * MIB, goal=None),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def rebuild(bench: Bench, shape: str) -> Case:
    """Compare with Kafka. Kafka also writes its index files, but does not wait for the disk;
    tierlog returns the bytes."""

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(shape)
        folder = Path(stack.enter_context(TemporaryDirectory(dir=path.parent)))
        segment = folder / f"{0:020}.log"
        os.link(path, segment)
        return Sides(
            amount=path.stat().st_size / GB,
            ours=lambda: rebuild_indexes(path),
            answer=lambda rebuilt: {**entries(rebuilt), **bare_crc_pass(path)},
            peers={
                "Kafka LogSegment.recover": kafka_peer(stack, bench, "recover", segment),
                "bare CRC pass": lambda: bare_crc_pass(path),
            },
        )

    return Case(
        operation="rebuild of all indexes, cached file",
        shape=shape,
        unit="GB",
        peers={"Kafka LogSegment.recover": None, "bare CRC pass": None},
        prepare=prepare,
    )


def entries(rebuilt: RebuiltIndexes) -> Answer:
    """Return the totals that Kafka's recovery also reports."""
    return {
        "bytes": rebuilt.table.stop_position,
        "offset_index_entries": len(rebuilt.offset_index) // OFFSET_ENTRY_BYTES,
        "time_index_entries": len(rebuilt.time_index) // TIME_ENTRY_BYTES,
    }


def directory(bench: Bench, shape: str, segment_bytes: int, *, goal: float | None) -> Case:
    """Rebuild every segment of a log directory in a warm pool, with durable files. The peer only
    scans the segments in the same pool. The segments of all partitions are links to the same
    files."""

    def prepare(stack: ExitStack) -> Sides:
        path = bench.corpora.path(shape)
        folder = Path(stack.enter_context(TemporaryDirectory(dir=path.parent)))
        wanted_bytes = min(segment_bytes, path.stat().st_size)
        total_bytes = 4 * wanted_bytes if bench.corpora.quick else POOL_BYTES
        logs = make_log_dir(folder / "logs", path, wanted_bytes, 2, total_bytes)
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(SLOTS, mp_context=context))
        # Each run has a new folder, since a file system takes long to reuse the space of removed
        # files.
        targets = (str(folder / f"to-{number}") for number in count())

        def ours() -> Timed:
            plan = plan_rebuild(
                str(folder / "logs"), target=next(targets), dry_run=False, now_ms=0, slots=SLOTS
            )
            return timed_in(pool, batches_of_task, plan.tasks)

        return Sides(
            amount=sum(log.stat().st_size for log in logs) / GB,
            ours=ours,
            peers={"bare scan": lambda: timed_in(pool, batches_of_scan, logs)},
        )

    return Case(
        operation="rebuild of a directory, two processes",
        shape=f"{shape}, segments of {segment_bytes // MIB} MiB",
        unit="GB",
        peers={"bare scan": goal},
        prepare=prepare,
    )


def make_log_dir(
    folder: Path, source: Path, segment_bytes: int, segments: int, total_bytes: int
) -> list[Path]:
    """Make a log directory with partitions of this many segments each, cut from a segment file.
    Return its logs.

    No checksum covers the base offsets of batches, so later segments need only higher base offsets.
    """
    table = scan_segment(source, 0, segment_bytes)
    size_bytes, offsets = table.stop_position, int(table.last_offset[-1]) + 1
    places = table.position[:, None] + np.arange(8)
    logs: list[Path] = []
    for number in range(max(1, total_bytes // (segments * size_bytes))):
        partition = folder / f"bench-{number}"
        partition.mkdir(parents=True)
        for segment in range(segments):
            log = partition / f"{segment * offsets:020}.log"
            if logs and number:
                os.link(logs[segment], log)
            else:
                data = np.fromfile(source, dtype=np.uint8, count=size_bytes)
                moved = (table.base_offset + segment * offsets).astype(">i8")
                data[places] = moved.view(np.uint8).reshape(-1, 8)
                with log.open("wb", buffering=0) as file:
                    for start in range(0, size_bytes, 4 * MIB):
                        file.write(data[start : start + 4 * MIB].tobytes())
            logs.append(log)
    return logs


def batches_of_task(task: RebuildTask) -> int:
    return sum(outcome.row.batches or 0 for outcome in rebuild_task(task))


def batches_of_scan(path: Path) -> int:
    return len(scan_segment(path))


def _timed(work: Callable[[_Work], int], item: _Work) -> tuple[int, float]:
    start = time.process_time()
    return work(item), time.process_time() - start


def timed_in(
    pool: ProcessPoolExecutor, work: Callable[[_Work], int], work_items: Sequence[_Work]
) -> Timed:
    """Run all items in the pool."""
    start = time.perf_counter()
    done = list(pool.map(_timed, [work] * len(work_items), work_items))
    return Timed(
        seconds=time.perf_counter() - start,
        cpu_seconds=sum(cpu_seconds for _, cpu_seconds in done),
        result={"batches": sum(batches for batches, _ in done)},
    )

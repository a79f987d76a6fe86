"""Measures the SQLite metadata store with a million segments: open, read sizes, add.

`remote_log_size` of a partition with a million segments is compared with that of a partition with a
thousand segments, and with the sum over a list of the same segments, which KIP-852 replaced. The
list is made only once, but its time is counted for every call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.types import TopicIdPartition

from .frame import Answer, Bench, Benchmark, Case, Limit, Sides, Timed, run_side
from .metadata import Store

ROOT = Path(__file__).parents[1]
MILLION = 1e6
QUESTIONS = 100_000
COPIES = 50
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def items(bench: Bench) -> Sequence[Case | Limit]:
    quick = bench.corpora.quick
    many = Store(partitions=10, segments=10) if quick else Store(partitions=1_000, segments=1_000)
    long = Store(partitions=1, segments=1_000) if quick else Store(partitions=1, segments=1_000_000)
    return [
        *[limit for store in (many, long) for limit in limits(bench, store)],
        sizes(bench, many, long),
        commits(bench),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def limits(bench: Bench, store: Store) -> list[Limit]:
    @cache
    def figures() -> dict[str, float]:
        """Return the figures of a process that opens the store for the first time."""
        command = [sys.executable, "-m", "benches.metadata", str(store.path(bench.corpora))]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found

    def limit(operation: str, unit: str, at_most: float, measure: Callable[[], float]) -> Limit:
        return Limit(
            operation=operation, shape=store.name, unit=unit, at_most=at_most, measure=measure
        )

    per_segment = 1 / store.total
    # A tiny store consists mostly of empty pages, so its limits are higher.
    file_bytes, memory_bytes = (400.0, 1_000.0) if not bench.corpora.quick else (1e6, 1e6)
    return [
        limit("open metadata", "s", 5.0, lambda: figures()["open"]),
        limit("first remote_log_size", "ms", 5.0, lambda: figures()["size"] * 1e3),
        limit("first look-up", "s", 10.0, lambda: figures()["lookup"]),
        limit("file, each segment", "bytes", file_bytes, lambda: figures()["file"] * per_segment),
        limit(
            "memory, each segment", "bytes", memory_bytes, lambda: figures()["bytes"] * per_segment
        ),
    ]


def sizes(bench: Bench, many: Store, long: Store) -> Case:
    questions = QUESTIONS // 1_000 if bench.corpora.quick else QUESTIONS

    def opened(stack: ExitStack, store: Store) -> SqliteRemoteLogMetadataManager:
        manager = SqliteRemoteLogMetadataManager(store.path(bench.corpora))
        stack.callback(manager.close)
        return manager

    def prepare(stack: ExitStack) -> Sides:
        large, small = opened(stack, long), opened(stack, many)

        def ask(manager: SqliteRemoteLogMetadataManager, partition: TopicIdPartition) -> int:
            size = manager.remote_log_size
            for _ in range(questions):
                found = size(partition, 0)
            return found

        def by_list() -> Timed:
            start, cpu_start = time.perf_counter(), time.thread_time()
            found = sum(
                dict(metadata.size_per_epoch()).get(0, 0)
                for metadata in large.list(long.partition(0))
                if metadata.state is FINISHED
            )
            taken, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
            return Timed(
                seconds=taken * questions,
                cpu_seconds=cpu * questions,
                result={"bytes": found, "questions": questions},
            )

        def of_long() -> Answer:
            return {"bytes": ask(large, long.partition(0)), "questions": questions}

        def of_many() -> Answer:
            ask(small, many.partition(0))
            return {"questions": questions}

        return Sides(
            amount=questions / MILLION,
            ours=of_long,
            peers={f"a partition of {many.segments:,}": of_many, "the list": by_list},
        )

    return Case(
        operation="remote_log_size",
        shape=f"a partition of {long.segments:,}",
        unit="M",
        peers={f"a partition of {many.segments:,}": 0.8, "the list": 100_000.0},
        prepare=prepare,
    )


def commits(bench: Bench) -> Case:
    """Compare two synced commits for each copy with two synced writes of 4 KiB to a plain file."""
    copies = 2 if bench.corpora.quick else COPIES

    def prepare(stack: ExitStack) -> Sides:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=bench.corpora.directory)))
        manager = SqliteRemoteLogMetadataManager(folder / "metadata.sqlite")
        stack.callback(manager.close)
        descriptor = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        stack.callback(os.close, descriptor)
        store, page = Store(partitions=1, segments=1 << 40), bytes(4 << 10)
        segments = (store.segment(0, number) for number in range(store.segments))

        def ours() -> Answer:
            for _ in range(copies):
                started = replace(next(segments), state=STARTED)
                manager.add(started, leader_epoch=0)
                manager.update(started.update_to(FINISHED, event_timestamp_ms=1), leader_epoch=0)
            return {"copies": copies}

        def plain() -> Answer:
            for _ in range(2 * copies):
                os.write(descriptor, page)
                os.fdatasync(descriptor)
            return {"copies": copies}

        return Sides(amount=copies / 1e3, ours=ours, peers={"fdatasync": plain})

    return Case(
        operation="metadata add + update",
        shape="synced",
        unit="k",
        peers={"fdatasync": None},
        prepare=prepare,
        one_thread=False,
    )

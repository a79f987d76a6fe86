"""Measures Spark as a scheduler of the worker: against a pool of processes, and against stock
Spark."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from spark_udfs import SCAN_SCHEMA, rebuild_indexes, scan_segments
from spark_udfs.rebuild import SCHEDULING_JVM
from spark_udfs.session import session
from spark_udfs.worker import on_worker
from tierlog import scan_segment
from tierlog.tools.rebuild.index import (
    RebuildSummary,
    plan_rebuild,
    rebuild_report,
    rebuild_task,
)

from .bench_rebuild import make_log_dir
from .copying import META_PROPERTIES
from .frame import Answer, Bench, Benchmark, Case, Limit, Sides, run_side
from .peers.child import child_peer
from .spark_child import MASTER, SLOTS, SMALL, counted, paths_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GB = 1e9
MIB = 1 << 20
ROOT = Path(__file__).parents[1]
TIMES = 3
# After this time the JVM of a new session is about as fast as it gets.
WARMUP_S = 15
# As the command starts it: the JVM only schedules.
SCHEDULING = {**SMALL, **SCHEDULING_JVM}
# The file system allows this many names of a file.
LINKS = 50_000


def items(bench: Bench) -> Sequence[Case | Limit]:
    quick = bench.corpora.quick
    return [
        rebuild(bench, 256 * MIB, goal=0.70),
        rebuild(bench, 1024 * MIB, goal=0.85),
        rebuild(bench, 1024 * MIB, goal=0.85, links=128),
        batches(bench, links=1),
        batches(bench, links=4),
        per_task(20 if quick else 400),
        per_tiny_segment(bench, 20 if quick else 2000),
        driver_memory(bench, 20 if quick else 1000, 40 if quick else 100_000),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def tuned(stack: ExitStack, settings: Mapping[str, str] = SMALL) -> SparkSession:
    return stack.enter_context(session(MASTER, settings))


def log_dir(folder: Path, segment: Path, partitions: int) -> Path:
    """Make a log directory in which every partition is the same segment, linked."""
    disk = folder / "disk"
    disk.mkdir()
    (disk / "meta.properties").write_text(META_PROPERTIES)
    for number in range(partitions):
        log = disk / f"bench-{number}" / f"{0:020}.log"
        log.parent.mkdir()
        if number and number % LINKS == 0:
            segment = Path(shutil.copy(segment, segment.with_name(f"segment-{number}")))
        os.link(segment, log)
    return disk


@dataclass(frozen=True, slots=True)
class Targets:
    """Makes a new folder for the files of each run, and removes that of the last one."""

    folder: Path
    numbers: count[int] = field(default_factory=count)

    def next(self) -> str:
        return str(self.folder / f"target-{next(self.numbers)}")

    def clear(self) -> None:
        for path in self.folder.glob("target-*"):
            shutil.rmtree(path)


def rebuild(bench: Bench, task_bytes: int, *, goal: float, links: int = 64) -> Case:
    """Rebuild 17 GB of segments or more, with plan and report. Session and pool were started
    before."""
    shape = "none-100-16k"
    links = links // 16 if bench.corpora.quick else links

    def prepare(stack: ExitStack) -> Sides:
        segment = bench.corpora.path(shape)
        folder = Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
        source, targets = str(log_dir(folder, segment, links)), Targets(folder)
        spark = tuned(stack, SCHEDULING)
        context = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(SLOTS, mp_context=context))
        return Sides(
            amount=links * segment.stat().st_size / GB,
            ours=lambda: (
                rebuild_indexes(spark, source, targets.next(), task_bytes=task_bytes).summary
            ),
            answer=seen,
            peers={"pool of processes": lambda: seen(in_pool(pool, source, targets.next()))},
            reset=targets.clear,
        )

    return Case(
        operation="rebuild on Spark, files written",
        shape=f"{links} x {shape}, tasks of {task_bytes // MIB} MiB",
        unit="GB",
        peers={"pool of processes": goal},
        prepare=prepare,
        one_thread=False,
        warmup_s=WARMUP_S,
    )


def in_pool(pool: ProcessPoolExecutor, source: str, target: str) -> RebuildSummary:
    """Run the same tasks in processes that wait for them."""
    plan = plan_rebuild(source, target=target, dry_run=False, now_ms=0, slots=SLOTS)
    outcomes = [one for done in pool.map(rebuild_task, plan.tasks) for one in done]
    return rebuild_report(plan, outcomes).summary


def seen(summary: RebuildSummary) -> Answer:
    return {
        "segments": summary.segments,
        "written": summary.written,
        "bytes": summary.size_bytes,
        "problems": summary.problems,
    }


def batches(bench: Bench, *, links: int) -> Case:
    """Return the case that scans segments of 16 MiB and lets Spark count their batches.

    The 40 files have 670 MB. Each is linked `links` times under other names. To scan all files once
    takes our workers less than a tenth of a second, so with one link Spark's own time counts most.
    """
    files = 4 if bench.corpora.quick else 40

    def prepare(stack: ExitStack) -> Sides:
        whole = bench.corpora.data("none-100-16k")
        folder = Path(stack.enter_context(TemporaryDirectory(dir=bench.corpora.directory)))
        piece = whole[: first_batches(whole, 2 * MIB if bench.corpora.quick else 16 * MIB)]
        for number in range(files):
            path = folder / f"{number:020}.log"
            path.write_bytes(piece)
            for link in range(1, links):
                os.link(path, folder / f"{number + link * files:020}.log")
        spark = tuned(stack)

        def ours() -> Answer:
            frame = paths_frame(spark, str(folder), 2 * SLOTS)
            return counted(frame.mapInArrow(scan_segments, SCAN_SCHEMA))

        def child(operation: str) -> Callable[[], object]:
            command = [sys.executable, "-m", "benches.spark_child", operation, str(folder)]
            return child_peer(stack, lambda: command)

        return Sides(
            amount=files * links * len(piece) / GB,
            ours=ours,
            peers={"stock row UDF": child("row-udf"), "binaryFile": child("binary-file")},
        )

    return Case(
        operation="batches of segments as rows",
        shape=f"{files * links} x 16 MiB, batches of 16 KiB",
        unit="GB",
        peers={"stock row UDF": 4.5, "binaryFile": 5.0},
        prepare=prepare,
        one_thread=False,
        rounds=3 if links > 1 else None,
        warmup_s=WARMUP_S,
    )


def first_batches(data: bytes, size_bytes: int) -> int:
    """Return where the last batch before a position ends."""
    table = scan_segment(data, verify_crc=False)
    ends = table.position + table.size_bytes
    return int(ends[ends <= size_bytes][-1])


def per_task(tasks: int) -> Limit:
    """Return the time of an empty task, after a warm-up. Its rows come to the driver, as those of a
    rebuild do; to count them, each task would write files of a shuffle."""

    def measure() -> float:
        with session(MASTER, SCHEDULING) as spark:
            frame = spark.range(0, tasks, 1, tasks).mapInArrow(
                on_worker("benches.bench_spark", "as_it_is"), "id long"
            )
            return 1000 * best_s(frame.toArrow) / tasks

    return Limit(
        operation="a task of Spark",
        shape=f"{tasks} that do nothing, {SLOTS} at a time",
        unit="ms",
        at_most=7,
        measure=measure,
    )


def as_it_is(batches: object) -> object:
    """Return the input of an empty task."""
    return batches


def per_tiny_segment(bench: Bench, segments: int) -> Limit:
    """Return the time of a tiny segment: list, plan, scan, write and report."""

    def measure() -> float:
        with ExitStack() as stack:
            place = bench.corpora.path("none-100-16k").parent
            folder = Path(stack.enter_context(TemporaryDirectory(dir=place)))
            source, targets = tiny_log_dir(bench, folder, segments), Targets(folder)
            spark = tuned(stack, SCHEDULING)
            taken = best_s(lambda: rebuild_indexes(spark, source, targets.next()))
        return 1000 * taken / segments

    return Limit(
        operation="rebuild of a tiny segment on Spark",
        shape=f"{segments} of 16 KB",
        unit="ms",
        at_most=0.5,
        measure=measure,
    )


def tiny_log_dir(bench: Bench, folder: Path, segments: int) -> str:
    """Make partitions of one segment of 16 KB, a single batch."""
    data = bench.corpora.data("none-100-16k")
    segment = folder / "segment"
    segment.write_bytes(data[: first_batches(data, 20 << 10)])
    return str(log_dir(folder, segment, segments))


def best_s(run: Callable[[], object]) -> float:
    """Return the median seconds of a few runs after a warm-up."""
    taken = []
    for _ in range(1 + TIMES):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def driver_memory(bench: Bench, few: int, many: int) -> Limit:
    """Return the memory that this many more segments add to the Python of a driver that keeps no
    rows."""

    def measure() -> float:
        path = bench.corpora.path("none-100-16k")
        size_bytes = first_batches(bench.corpora.data("none-100-16k"), 20 << 10)
        with TemporaryDirectory(dir=bench.corpora.directory) as folder:
            sources = []
            for segments in (few, many):
                # A folder takes longer to make than all else, so partitions have many segments.
                place, each = Path(folder) / str(segments), min(segments, 100)
                make_log_dir(place, path, size_bytes, each, segments * size_bytes)
                sources.append(str(place))
            command = [sys.executable, "-m", "benches.spark_memory", folder, *sources]
            done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return int(done.stdout) / MIB

    return Limit(
        operation="memory added to a driver of Spark",
        shape=f"{many} segments after {few}",
        unit="MiB",
        at_most=32,
        measure=measure,
    )

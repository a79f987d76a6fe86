"""Reads topics as tables. The bench compares the data source with other ways to get rows from
Python into Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from spark_udfs.datasource import TierlogDataSource
from spark_udfs.session import session

from .bench_spark import best_s, log_dir
from .datasource_peer import KeptDataSource
from .frame import Answer, Bench, Benchmark, Case, Limit, Sides, run_side
from .spark_child import MASTER, SLOTS, SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GB = 1e9
SHAPE = "none-1024-16k"
ROOT = Path(__file__).parents[1]
# The JVM compiles code while it runs, so the first runs take up to twice as long as later runs.
WARM_RUNS = 5


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [against_kept(bench), against_all_columns(bench), per_slot(bench)]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def opened(stack: ExitStack, bench: Bench) -> tuple[SparkSession, str, float]:
    """Return a session with both data sources, a log directory with two tasks for each slot, and
    its size in GB."""
    segment = bench.corpora.path(SHAPE)
    folder = Path(stack.enter_context(TemporaryDirectory(dir=segment.parent)))
    source = log_dir(folder, segment, 2 * SLOTS)
    workers_find_peers(stack)
    spark = stack.enter_context(session(MASTER, SMALL))
    spark.dataSource.register(TierlogDataSource)
    spark.dataSource.register(KeptDataSource)
    return spark, str(source), 2 * SLOTS * segment.stat().st_size / GB


def workers_find_peers(stack: ExitStack) -> None:
    """Let Spark's workers import the peer."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT)
    stack.callback(_restore, before)


def _restore(before: str | None) -> None:
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def drained(frame: DataFrame) -> Callable[[], Callable[[], Answer]]:
    """Return a run that moves all rows out of the workers. The rows are counted after the
    measurement."""

    def run() -> Callable[[], Answer]:
        frame.write.format("noop").mode("overwrite").save()
        return lambda: {"rows": frame.count()}

    return run


def warm(bench: Bench, *frames: DataFrame) -> None:
    """Run the sides a few times, until the JVM has compiled their code."""
    for frame in frames:
        for _ in range(0 if bench.corpora.quick else WARM_RUNS):
            drained(frame)()


def tasks_of(bench: Bench) -> str:
    return f"{2 * SLOTS} x {SHAPE}, {SLOTS} slots"


def against_kept(bench: Bench) -> Case:
    """Compare all columns of records of 1 KiB with batches that exist already."""

    def prepare(stack: ExitStack) -> Sides:
        spark, source, amount = opened(stack, bench)
        ours = spark.read.format("tierlog").option("subscribePattern", ".*").load(source)
        kept = spark.read.format("kept").load(source)
        warm(bench, ours, kept)
        return Sides(
            amount=amount,
            ours=drained(ours),
            peers={"same batches, kept": drained(kept)},
            answer=lambda found: found,
        )

    return Case(
        operation="records through Spark",
        shape=tasks_of(bench),
        unit="GB",
        peers={"same batches, kept": 0.85},
        prepare=prepare,
        one_thread=False,
    )


def against_all_columns(bench: Bench) -> Case:
    """Compare a schema of two columns with all columns."""

    def prepare(stack: ExitStack) -> Sides:
        spark, source, amount = opened(stack, bench)
        reader = spark.read.format("tierlog").option("subscribePattern", ".*")
        few = reader.schema("offset long, timestamp timestamp").load(source)
        whole = spark.read.format("tierlog").option("subscribePattern", ".*").load(source)
        warm(bench, few, whole)
        return Sides(amount=amount, ours=drained(few), peers={"all columns": drained(whole)})

    return Case(
        operation="two columns of records through Spark",
        shape=tasks_of(bench),
        unit="GB",
        peers={"all columns": 2.5},
        prepare=prepare,
        one_thread=False,
    )


def per_slot(bench: Bench) -> Limit:
    """Return the slot seconds that a GB takes when all slots are busy. The limit means at least 0.5
    GB/s for each slot."""

    def measure() -> float:
        with ExitStack() as stack:
            spark, source, amount = opened(stack, bench)
            frame = spark.read.format("tierlog").option("subscribePattern", ".*").load(source)
            warm(bench, frame)
            return SLOTS * best_s(drained(frame)) / amount

    return Limit(
        operation="records through Spark, time of all slots",
        shape=tasks_of(bench),
        unit="slot seconds per GB",
        at_most=2.0,
        measure=measure,
    )

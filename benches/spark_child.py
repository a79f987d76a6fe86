"""Runs the usual methods of stock Spark in a separate process; see `benches.peers.child`.

``python -m benches.spark_child row-udf|binary-file FOLDER`` returns the batches of all segments in
a folder as rows. ``row-udf`` calls a plain Python function for each file, in a session without
tierlog's settings. ``binary-file`` lets Spark read the files, in a session with tierlog's settings.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tierlog
from spark_udfs import SCAN_SCHEMA, scan_segments
from spark_udfs.session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOTS = len(os.sched_getaffinity(0))
MASTER = f"local[{SLOTS}]"
SMALL = {"spark.driver.memory": "2g", "spark.ui.enabled": "false"}
# Spark's defaults.
STOCK = {
    "spark.python.unix.domain.socket.enabled": "false",
    "spark.python.worker.faulthandler.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "false",
}
COLUMNS = [column.split() for column in SCAN_SCHEMA.split(", ")[1:-2]]
ROW_TYPE = f"array<struct<{', '.join(f'{name}:{kind}' for name, kind in COLUMNS)}>>"


def counted(rows: DataFrame) -> dict[str, int]:
    """Return the number of batches, their bytes and their records."""
    found = rows.selectExpr(
        "count(position) AS batches", "sum(size_bytes) AS bytes", "sum(record_count) AS records"
    ).first()
    assert found is not None
    return {name: int(value) for name, value in found.asDict().items()}


def paths_frame(spark: SparkSession, folder: str, tasks: int) -> DataFrame:
    """Return the paths of all segments, in this many tasks."""
    paths = [(str(path), number) for number, path in enumerate(sorted(Path(folder).glob("*.log")))]
    frame = spark.createDataFrame(paths, "path string, number int")
    return frame.repartitionById(tasks, frame.number % tasks).select("path")


def row_udf(spark: SparkSession, folder: str) -> Callable[[], dict[str, int]]:
    """Run one task and one call for each file, and make a tuple for each batch."""
    from pyspark.sql.functions import col, explode, udf

    names = [name for name, _ in COLUMNS]

    def tuples(path: str) -> list[tuple[Any, ...]]:
        table = tierlog.scan_segment(path)
        return list(zip(*(getattr(table, name).tolist() for name in names), strict=True))

    scan = udf(tuples, ROW_TYPE, useArrow=False)

    files = len(list(Path(folder).glob("*.log")))

    def run() -> dict[str, int]:
        frame = paths_frame(spark, folder, files)
        return counted(frame.select(explode(scan(col("path"))).alias("one")).select("one.*"))

    return run


def binary_file(spark: SparkSession, folder: str) -> Callable[[], dict[str, int]]:
    """Pass the contents of the files as a column to `scan_segments`, which can also read paths."""

    def run() -> dict[str, int]:
        frame = spark.read.format("binaryFile").load(folder).select("path", "content")
        return counted(frame.mapInArrow(scan_segments, SCAN_SCHEMA))

    return run


def main(operation: str, folder: str) -> None:
    if operation == "row-udf":
        os.environ["TIERLOG_SPARK_GC_FREEZE"] = "0"
    settings = {**SMALL, **(STOCK if operation == "row-udf" else {})}
    with session(MASTER, settings) as spark:
        run = (row_udf if operation == "row-udf" else binary_file)(spark, folder)
        run()
        for _ in sys.stdin:
            start, cpu_start = time.perf_counter_ns(), time.thread_time_ns()
            seen = run()
            nanos, cpu_nanos = time.perf_counter_ns() - start, time.thread_time_ns() - cpu_start
            print(json.dumps({"nanos": nanos, "cpu_nanos": cpu_nanos, "seen": seen}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

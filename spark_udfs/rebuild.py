"""The rebuild of `tierlog index rebuild` on a Spark cluster: its plan, its worker, its report.

Spark schedules and nothing more: tasks go out as a few hundred bytes, workers read and write the
files or objects themselves, rows come back. A task that Spark repeats or runs twice writes the same
bytes again, that is, nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import types

from tierlog.clock import SystemClock
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.tools.index_rebuild import (
    RebuildReport,
    RebuildTask,
    plan_rebuild,
    rebuild_report,
    rebuild_task,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tierlog.tools.rebuild_segment import SegmentOutcome

__all__ = ["FINDINGS_SCHEMA", "SEGMENTS_SCHEMA", "RebuiltTables", "rebuild_indexes"]


def _schema(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


_LONG, _INT, _TEXT = types.LongType(), types.IntegerType(), types.StringType()

# As tierlog.tools.rebuild_segment.SegmentRow.
SEGMENTS_SCHEMA = _schema(
    topic=_TEXT,
    partition=_INT,
    base_offset=_LONG,
    end_offset=_LONG,
    size_bytes=_LONG,
    batches=_LONG,
    records=_LONG,
    first_timestamp_ms=_LONG,
    max_timestamp_ms=_LONG,
    crc=_TEXT,
    codecs=types.ArrayType(_TEXT),
    outcome=_TEXT,
    bytes_per_epoch=types.ArrayType(_schema(leader_epoch=_INT, size_bytes=_LONG)),
    log_crc32c=_LONG,
    path=_TEXT,
    findings=types.ArrayType(_TEXT),
)
# As tierlog.tools.findings.Finding.
FINDINGS_SCHEMA = _schema(
    severity=_TEXT,
    path=_TEXT,
    position=_LONG,
    what=_TEXT,
    expected=_TEXT,
    found=_TEXT,
    action=_TEXT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltTables:
    """The report of a run, and its lists as frames: ``SEGMENTS_SCHEMA``, ``FINDINGS_SCHEMA``."""

    report: RebuildReport
    segments: DataFrame
    findings: DataFrame


def rebuild_indexes(
    spark: SparkSession,
    source: str,
    target: str | None = None,
    *,
    dry_run: bool = False,
    now_ms: int | None = None,
    slots: int | None = None,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> RebuiltTables:
    """`tierlog.tools.index_rebuild.rebuild_index` with Spark's workers in place of processes.

    The bytes written and the report are the same. ``source`` and ``target`` are paths or URLs that
    every worker reaches; credentials come from the workers' environment. ``slots`` is how many
    tasks run at a time, by default the session's default parallelism. Errors are those of
    `plan_rebuild`, on the driver; what is wrong with a segment is in the report. Not through Spark
    Connect, which has no context.
    """
    context = spark.sparkContext
    plan = plan_rebuild(
        source,
        target=target,
        dry_run=dry_run,
        now_ms=SystemClock().now_ms() if now_ms is None else now_ms,
        slots=slots or max(context.defaultParallelism, 1),
        index_interval_bytes=index_interval_bytes,
    )
    outcomes: list[SegmentOutcome] = []
    if plan.tasks:
        work = context.parallelize(plan.tasks, len(plan.tasks)).mapPartitions(_work)
        outcomes = work.collect()
    report = rebuild_report(plan, outcomes)
    return RebuiltTables(
        report=report,
        segments=spark.createDataFrame(_rows(report.segments, SEGMENTS_SCHEMA), SEGMENTS_SCHEMA),
        findings=spark.createDataFrame(_rows(report.findings, FINDINGS_SCHEMA), FINDINGS_SCHEMA),
    )


def _work(tasks: Iterable[RebuildTask]) -> Iterator[SegmentOutcome]:
    for task in tasks:
        yield from rebuild_task(task)


def _rows(found: Iterable[Any], schema: types.StructType) -> list[tuple[Any, ...]]:
    """Values in the order of the columns; those of enumerations as plain text."""
    rows = []
    for one in found:
        values = asdict(one)
        row = (values[name] for name in schema.names)
        rows.append(tuple(str(value) if isinstance(value, str) else value for value in row))
    return rows

"""Runs `tierlog.tools.audit.store` on a Spark cluster, and returns its rows as data frames.

The driver lists the store and reads the metadata. Workers check the segments, some hundred per
task, and then each partition. The bytes of objects are read only by the native core of a worker.
The code uses only data frames, so it also works with Spark Connect.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_udfs.types import spark_schema
from spark_udfs.worker import on_worker
from tierlog.clock import SystemClock
from tierlog.errors import ConfigError
from tierlog.log.files import printable
from tierlog.reader.sources import source_of
from tierlog.remote.urls import open_store
from tierlog.tools.arrow_rows import row_schema, row_table, row_values
from tierlog.tools.audit.partition import audit_partition
from tierlog.tools.audit.plan import AuditPart, AuditPlan, plan_audit
from tierlog.tools.audit.rows import (
    AuditedSegment,
    AuditRules,
    DeletionRow,
    EpochSizeRow,
    RetentionRow,
)
from tierlog.tools.audit.segment import SegmentLook
from tierlog.tools.audit.store import look_at_segments
from tierlog.tools.packed import pack, unpack
from tierlog.tools.rebuild.table import FINDINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "DELETIONS",
    "EPOCH_SIZES",
    "FINDINGS",
    "RETENTION",
    "SEGMENTS",
    "AuditTables",
    "audit",
    "look_at_tasks",
]

_TASK_BYTES = 256 << 20
# The requests and checks of a segment take about as long as a scan of this many bytes.
_SEGMENT_COST_BYTES = 1 << 20
# The number of segments that a task reads at a time. Other tasks on the machine read at the same
# time.
_PARALLEL_READS = 4

SEGMENTS = row_schema(AuditedSegment)
EPOCH_SIZES, RETENTION, DELETIONS = map(row_schema, (EpochSizeRow, RetentionRow, DeletionRow))
_TABLES = {
    "segments": SEGMENTS,
    "findings": FINDINGS,
    "epoch_sizes": EPOCH_SIZES,
    "retention": RETENTION,
    "deletions": DELETIONS,
}
# One row for each partition, with all of its tables. Each data frame of the result is later
# selected from these rows.
_AUDITED = pa.schema({name: pa.list_(pa.struct(list(kind))) for name, kind in _TABLES.items()})
_PLAN = pa.schema({"task": pa.int32(), "work": pa.binary()})
_LOOKS = pa.schema({"folder": pa.string(), "looks": pa.binary()})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTables:
    """The result of an audit as data frames, with the columns of the schemas of this module.

    The objects are read when the first frame is used. The cluster keeps the results until
    `unpersist`.
    """

    segments: DataFrame
    findings: DataFrame
    epoch_sizes: DataFrame
    retention: DataFrame
    deletions: DataFrame
    partitions: DataFrame

    def unpersist(self) -> None:
        """Release the results that the cluster keeps."""
        self.partitions.unpersist()


def audit(
    spark: SparkSession,
    source: str,
    metadata: str | None = None,
    *,
    deep: bool = False,
    retention_ms: int | None = None,
    retention_bytes: int | None = None,
    log_start_offset: int | None = None,
    now_ms: int | None = None,
) -> AuditTables:
    """Run `tierlog.tools.audit.store.audit_store` in Spark's workers instead of threads.

    ``source`` is the URL of a store that the driver and every worker can reach, with credentials
    from their environment. ``metadata`` is a metadata file on the driver, which reads it through a
    copy. The other arguments are as in `AuditRules`.

    Raises the errors of `plan_audit`, and ConfigError for a source that is not a store. The job
    fails if the store does not answer a worker. The rows report damage.
    """
    place = source_of(source)
    if not place.is_store:
        raise ConfigError(
            f"{printable(source)}: expected a store; tierlog verify checks a log directory"
        )
    if place.location.startswith("memory:"):
        raise ConfigError(f"{place.location}: no worker reaches the memory of another process")
    rules = AuditRules(
        now_ms=SystemClock().now_ms() if now_ms is None else now_ms,
        deep=deep,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        log_start_offset=log_start_offset,
    )
    plan = plan_audit(
        open_store(place.location),
        now_ms=rules.now_ms,
        metadata=metadata,
        part_bytes=_TASK_BYTES - _SEGMENT_COST_BYTES if deep else None,
    )
    work = pa.array(list(_work(plan, place.location, rules)), pa.binary())
    partitions = _partitions(spark, work, rules).persist()
    tables = {name: partitions.selectExpr(f"inline({name})") for name in _TABLES}
    of_plan = spark.createDataFrame(row_table(plan.findings, FINDINGS), spark_schema(FINDINGS))
    tables["findings"] = tables["findings"].unionAll(of_plan)
    return AuditTables(partitions=partitions, **tables)


def _work(plan: AuditPlan, url: str, rules: AuditRules) -> Iterator[bytes]:
    """Yield the work of each Spark task, in parts of similar cost."""
    group: list[AuditPart] = []
    left_bytes = _TASK_BYTES
    for part in plan.parts:
        cost_bytes = _SEGMENT_COST_BYTES * part.segments + (part.size_bytes if rules.deep else 0)
        if group and cost_bytes > left_bytes:
            yield pack((url, plan.cluster_id, rules, group))
            group, left_bytes = [], _TASK_BYTES
        group.append(part)
        left_bytes -= cost_bytes
    if group:
        yield pack((url, plan.cluster_id, rules, group))


def _partitions(spark: SparkSession, work: pa.BinaryArray, rules: AuditRules) -> DataFrame:
    if not len(work):
        return spark.createDataFrame(_AUDITED.empty_table(), spark_schema(_AUDITED))
    plan = pa.table([range(len(work)), work], schema=_PLAN)
    tasks = spark.createDataFrame(plan, spark_schema(_PLAN)).repartitionById(len(work), "task")
    look = on_worker("spark_udfs.store_audit", "look_at_tasks")
    looks = tasks.mapInArrow(look, spark_schema(_LOOKS))
    audited: DataFrame = looks.groupBy("folder").applyInArrow(_judge(rules), spark_schema(_AUDITED))
    return audited


def look_at_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check segments in a worker. The input has ``task`` and ``work``; the output has the results
    of each folder."""
    for batch in batches:
        for given in batch.column("work"):
            url, cluster_id, rules, parts = unpack(given.as_buffer())
            folders: defaultdict[str, list[SegmentLook]] = defaultdict(list)
            for _, look in look_at_segments(
                open_store(url),
                (task for part in parts for task in part.tasks()),
                rules,
                cluster_id=cluster_id,
                parallel_reads=_PARALLEL_READS,
            ):
                folders[look.folder].append(look)
            looks = [pickle.dumps(seen) for seen in folders.values()]
            yield pa.record_batch([list(folders), looks], schema=_LOOKS)


def _judge(rules: AuditRules) -> Callable[[pa.Table], pa.Table]:
    """Return a function that checks a partition in a worker from the results of its segments."""

    def judge(seen: pa.Table) -> pa.Table:
        looks: list[SegmentLook] = []
        for one in seen.column("looks"):
            looks += pickle.loads(one.as_buffer())
        segments = [look.segment for look in looks if look.segment is not None]
        audited = audit_partition(segments, rules)
        findings = [found for look in looks for found in look.findings]
        rows: dict[str, Iterable[Any]] = {
            "segments": segments,
            "findings": [*findings, *audited.findings],
            "epoch_sizes": audited.epoch_sizes,
            "retention": audited.retention,
            "deletions": audited.deletions,
        }
        values = {name: row_values(rows[name], _TABLES[name]) for name in _TABLES}
        return pa.Table.from_pylist([values], _AUDITED)

    return judge

"""The rebuild of `tierlog index rebuild` on a Spark cluster: its plan, its worker, its report.

Spark schedules and nothing more: tasks go out in a few hundred bytes, as the plan has packed them,
workers read and write the files or objects themselves, rows come back. A task that Spark repeats or
runs twice writes the same bytes again, that is, nothing. Only frames are used, so Spark Connect
will do.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_udfs.progress import watched
from spark_udfs.session import SPARK_ERRORS, one_line, session
from spark_udfs.shipping import ship
from spark_udfs.types import spark_schema
from spark_udfs.worker import on_worker
from tierlog.clock import Clock, SystemClock
from tierlog.config import RemoteIndexConfig
from tierlog.errors import TierlogError
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.reader.sources import is_url, source_of
from tierlog.remote.urls import open_store
from tierlog.tools.findings import Severity
from tierlog.tools.listed_segments import ListedSegments
from tierlog.tools.progress import Progress, QuietProgress
from tierlog.tools.rebuild.index import (
    RebuildPlan,
    RebuildReport,
    RebuildSummary,
    check_report,
    plan_rebuild,
    rebuild_report,
    rebuild_task,
    remote_index_task,
)
from tierlog.tools.rebuild.remote_index import RemoteIndexRow
from tierlog.tools.rebuild.segment import Outcome
from tierlog.tools.rebuild.store_plan import LookedSegments, look_at_listed
from tierlog.tools.rebuild.table import (
    FINDINGS,
    FINDINGS_FILE,
    SEGMENTS,
    SEGMENTS_FILE,
    finding_table,
    report_outcomes,
    segment_table,
    write_report,
)
from tierlog.tools.rebuild.tasks import pack_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "SCHEDULING_JVM",
    "RebuiltTables",
    "look_rows",
    "looked_rows",
    "outcome_rows",
    "rebuild_indexes",
    "rebuild_on",
    "rebuild_rows",
    "remote_index_rows",
]

_Part = TypeVar("_Part", ListedSegments, LookedSegments)

_PLAN = pa.schema({"task": pa.int32(), "work": pa.binary()})
_MADE = pa.schema({"made": pa.binary()})
_LOOKS = pa.schema({"task": pa.int32(), "looks": pa.binary()})
# How many `.indexes` objects one task reads, or some more, and how many at a time: the other slots
# read, too.
_TASK_LOOKS = 1024
_PARALLEL_READS = 4
_BATCH_BYTES = 1 << 20
# What a task costs that does nothing shows in small ones; where there is plenty, they are large.
_TASK_BYTES = 256 << 20
_LARGE_TASK_BYTES = 1 << 30
_PLENTY_BYTES = 8 << 30
# While Spark starts a task, a worker scans about so much.
_SMALLEST_TASK_BYTES = 32 << 20
# So much goes to every task with the function it calls: nearly for nothing, where a shuffle that
# gives each task its own costs a stage, and every task a look for it.
_SENT_WITH_FUNCTION_BYTES = 256 << 10
# A JVM that only schedules is over before its second compiler has paid for itself: that takes as
# much of the cores as the scans do. A setting ``extraJavaOptions`` of the user stays.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
SCHEDULING_JVM = {
    "spark.driver.defaultJavaOptions": _ONE_COMPILER,
    "spark.executor.defaultJavaOptions": _ONE_COMPILER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltTables:
    """The report of a run as frames of a session.

    ``segments`` has the columns of `tierlog.tools.rebuild.table.SEGMENTS`, a row for each segment;
    ``findings`` those of ``FINDINGS``, also for what is no segment. ``remote_indexes`` are of a
    store with a target, one for each partition.
    """

    summary: RebuildSummary
    segments: DataFrame
    findings: DataFrame
    remote_indexes: tuple[RemoteIndexRow, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem; notes do not count."""
        return self.summary.problems == 0

    @property
    def quarantine(self) -> DataFrame:
        """The segments for which nothing was written, with every reason and the byte it is at."""
        whose = ["topic", "partition", "base_offset", "size_bytes"]
        what = ["path", "what AS reason", "position", "expected", "found", "action"]
        bad = self.segments.where(f"outcome = '{Outcome.QUARANTINED.value}'")
        each = bad.selectExpr(*whose, "explode(findings) AS finding")
        return each.selectExpr(*whose, *(f"finding.{name}" for name in what))


def rebuild_indexes(
    spark: SparkSession,
    source: str,
    target: str | None = None,
    *,
    report_path: str | None = None,
    dry_run: bool = False,
    now_ms: int | None = None,
    slots: int | None = None,
    task_bytes: int | None = None,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    remote_index: RemoteIndexConfig | None = None,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> RebuiltTables:
    """`tierlog.tools.rebuild.index.rebuild_index` with Spark's workers in place of processes.

    The bytes written and the rows are the same. ``source`` and ``target`` are paths or URLs that
    every worker reaches; credentials come from the workers' environment. ``slots`` is how many
    tasks run at a time, by default what the session says, and ``task_bytes`` the size of the larger
    ones, by default 256 MiB, or 1 GiB where there are 8 GiB for each slot.

    ``report_path`` gets ``segments.parquet`` and ``findings.parquet``, in place of those of an
    earlier run: of a path the driver writes two files, of a URL Spark's workers write two folders
    and the rows never come to the driver. ``progress`` is told on the driver. ``remote_index`` is
    that of `plan_rebuild`.

    Errors are those of `plan_rebuild`, and TierlogError when Spark gives the job up; what is wrong
    with a segment is in the rows.
    """
    by_workers = report_path is not None and is_url(report_path)
    if report_path is not None and not by_workers:
        check_report(report_path, source)
    run = _Run.planned(
        spark,
        source,
        target=target,
        dry_run=dry_run,
        now_ms=now_ms,
        slots=slots,
        task_bytes=task_bytes,
        index_interval_bytes=index_interval_bytes,
        remote_index=remote_index,
        progress=progress,
        clock=clock,
    )
    if report_path is not None and by_workers:
        return run.written(report_path)
    report = run.collected()
    segments = segment_table(report_outcomes(report))
    findings = finding_table(report.findings)
    if report_path is not None:
        write_report(report_path, segments, findings)
    return RebuiltTables(
        summary=report.summary,
        segments=_frame(spark, segments),
        findings=_frame(spark, findings),
        remote_indexes=report.remote_indexes,
    )


def rebuild_on(
    master: str,
    source: str,
    *,
    now_ms: int,
    target: str | None = None,
    slots: int | None = None,
    dry_run: bool = False,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    remote_index: RemoteIndexConfig | None = None,
    progress: Progress | None = None,
    send_package: bool = False,
) -> RebuildReport:
    """`rebuild_indexes` in a session of its own on ``master``; with ``send_package`` workers that
    have no tierlog get this one (`spark_udfs.ship`). Errors are those of both."""
    # A server of Connect has its JVM already.
    with session(master, None if master.startswith("sc://") else SCHEDULING_JVM) as spark:
        if send_package:
            ship(spark)
        return _Run.planned(
            spark,
            source,
            target=target,
            dry_run=dry_run,
            now_ms=now_ms,
            slots=slots,
            index_interval_bytes=index_interval_bytes,
            remote_index=remote_index,
            progress=progress,
        ).collected()


def rebuild_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What a worker does: tasks of a plan in (``task``, ``work``), rows of ``SEGMENTS`` out."""
    for task in _unpacked(batches):
        yield from _in_batches(segment_table(rebuild_task(task)))


def outcome_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for a driver that keeps what comes: what became of a task's segments, pickled, as
    ``made``. Of nested columns the JVM would take each value by itself."""
    return _made(rebuild_task, batches)


def remote_index_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for the remote index files of a plan: what became of those of each partition."""
    return _made(remote_index_task, batches)


def look_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for listed segments of a store: what becomes of them, pickled, as ``looks``."""
    for number, url, listed in _unpacked(batches):
        looks = [*look_at_listed(open_store(url), listed, parallel_reads=_PARALLEL_READS)]
        yield from _in_batches(pa.table([[number], [pickle.dumps(looks)]], schema=_LOOKS))


def looked_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same for what was seen, where nothing is to be done: rows of ``SEGMENTS`` out."""
    for looks in _unpacked(batches):
        outcomes = [outcome for looked in looks for outcome in looked.outcomes()]
        yield from _in_batches(segment_table(outcomes))


def _made(
    work: Callable[[Any], Sequence[object]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for task in _unpacked(batches):
        yield from _in_batches(pa.table([[pickle.dumps(work(task))]], schema=_MADE))


def _results(rows: DataFrame) -> Iterator[Any]:
    """On the driver: what all tasks have made; this runs them."""
    for made in rows.toArrow().column("made"):
        yield from pickle.loads(made.as_buffer())


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for work in batch.column("work"):
            # Bytes that our own driver made, as every function that Spark runs is.
            yield pickle.loads(work.as_buffer())


def _in_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Rows in the portions in which they go to Spark fastest."""
    rows = len(table) * _BATCH_BYTES // max(table.nbytes, 1)
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(rows, 1))
    return batches


def _slots(spark: SparkSession) -> int:
    """How many tasks run at a time; through Connect, how many parts a range gets."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return max(int(context.defaultParallelism), 1)
    parts = spark.range(1 << 16).selectExpr("spark_partition_id()").distinct()
    return max(int(parts.count()), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A plan, and what runs it."""

    spark: SparkSession
    plan: RebuildPlan
    slots: int
    task_bytes: int
    progress: Progress
    clock: Clock

    @classmethod
    def planned(
        cls,
        spark: SparkSession,
        source: str,
        *,
        target: str | None,
        dry_run: bool,
        now_ms: int | None,
        slots: int | None,
        index_interval_bytes: int,
        remote_index: RemoteIndexConfig | None = None,
        task_bytes: int | None = None,
        progress: Progress | None = None,
        clock: Clock | None = None,
    ) -> _Run:
        """Lists the source; of a store the workers read the `.indexes` objects."""
        clock = clock or SystemClock()
        place = source_of(source)
        if not place.is_store:
            # A worker has a folder of its own.
            source = os.path.abspath(source)
        slots = slots or _slots(spark)
        plan = plan_rebuild(
            source,
            target=target,
            dry_run=dry_run,
            now_ms=clock.now_ms() if now_ms is None else now_ms,
            slots=slots,
            index_interval_bytes=index_interval_bytes,
            remote_index=remote_index,
            least_bytes=_SMALLEST_TASK_BYTES,
            look=partial(_looks, spark, place.location),
        )
        total_bytes = sum(task.size_bytes for task in plan.tasks)
        if task_bytes is None:
            task_bytes = _TASK_BYTES if total_bytes < slots * _PLENTY_BYTES else _LARGE_TASK_BYTES
        return cls(
            spark=spark,
            plan=plan,
            slots=slots,
            task_bytes=task_bytes,
            progress=progress or QuietProgress(),
            clock=clock,
        )

    def collected(self) -> RebuildReport:
        """Runs the tasks; the rows come to the driver."""
        with self._running("outcome_rows", _MADE) as rows:
            outcomes = [*_results(rows)]
        return rebuild_report(self._with_remote_indexes(), outcomes)

    def written(self, url: str) -> RebuiltTables:
        """Runs the tasks; the workers write the rows, and nothing comes to the driver."""
        spark, plan = self.spark, self.plan
        places = [f"{url.rstrip('/')}/{name}" for name in (SEGMENTS_FILE, FINDINGS_FILE)]
        with self._running("rebuild_rows", SEGMENTS) as rows:
            rows = rows.unionAll(_frame(spark, segment_table(plan.outcomes)))
            if plan.looked:
                looked = _mapped(spark, [*_together(plan.looked)], "looked_rows", SEGMENTS)
                rows = rows.unionAll(looked)
            rows.write.mode("overwrite").parquet(places[0])
        plan = self._with_remote_indexes()
        with _errors(plan.source):
            segments = spark.read.schema(spark_schema(SEGMENTS)).parquet(places[0])
            found = segments.selectExpr("inline(findings)")
            found = _frame(spark, finding_table(plan.findings)).unionAll(found)
            found.write.mode("overwrite").parquet(places[1])
            findings = spark.read.schema(spark_schema(FINDINGS)).parquet(places[1])
            summary = _summary(plan, segments, findings)
        return RebuiltTables(
            summary=summary,
            segments=segments,
            findings=findings,
            remote_indexes=plan.remote_indexes,
        )

    def _with_remote_indexes(self) -> RebuildPlan:
        """Has the remote index files made, when all `.indexes` objects are mended."""
        if not self.plan.index_tasks:
            return self.plan
        with _errors(self.plan.source):
            tasks = self.plan.index_tasks
            made = [*_results(_mapped(self.spark, tasks, "remote_index_rows", _MADE))]
        return self.plan.with_remote_indexes(made)

    @contextmanager
    def _running(self, function: str, schema: pa.Schema) -> Iterator[DataFrame]:
        """The rows of all tasks, to be asked for inside and once: that runs them."""
        plan = self.plan
        with _errors(plan.source):
            self.progress.start(sum(task.size_bytes for task in plan.tasks))
            parts = [part for task in plan.tasks for part in task.parts]
            # In the size that suits Spark.
            tasks = pack_tasks(
                parts, self.slots, max_bytes=self.task_bytes, min_bytes=_SMALLEST_TASK_BYTES
            )
            sizes_bytes = [task.size_bytes for task in tasks]
            with watched(self.spark, sizes_bytes, self.progress, self.clock):
                yield _mapped(self.spark, tasks, function, schema)


def _looks(
    spark: SparkSession, url: str, listed: Sequence[ListedSegments]
) -> Iterator[LookedSegments]:
    """What becomes of listed segments of a store, in order."""
    tasks = [(number, url, group) for number, group in enumerate(_together(listed))]
    with _errors(url):
        looks = _mapped(spark, tasks, "look_rows", _LOOKS).toArrow().sort_by("task")
    for one in looks.column("looks"):
        yield from pickle.loads(one.as_buffer())


def _together(parts: Iterable[_Part]) -> Iterator[tuple[_Part, ...]]:
    """As many of them, in order, as one task looks at."""
    group: list[_Part] = []
    held = 0
    for part in parts:
        group.append(part)
        held += part.segments
        if held >= _TASK_LOOKS:
            yield tuple(group)
            group, held = [], 0
    if group:
        yield tuple(group)


def _mapped(
    spark: SparkSession, tasks: Sequence[object], function: str, schema: pa.Schema
) -> DataFrame:
    """What a function of this module makes of each task, which is one of Spark's, in order."""
    if not tasks:
        return _frame(spark, schema.empty_table())
    work = list(map(pickle.dumps, tasks))
    run = on_worker("spark_udfs.rebuild", function)
    if sum(map(len, work)) <= _SENT_WITH_FUNCTION_BYTES:
        each, run = spark.range(0, len(work), 1, len(work)), _with_work(run, work)
    else:
        plan = pa.table([range(len(work)), work], schema=_PLAN)
        each = _frame(spark, plan).repartitionById(len(work), "task")
    rows: DataFrame = each.mapInArrow(run, spark_schema(schema))
    return rows


def _with_work(run: Callable[[Any], Any], work: Sequence[bytes]) -> Callable[[Any], Any]:
    """What Spark calls with numbers of tasks in place of the tasks."""

    # As in `on_worker` the code travels alone, to a worker that may have none of ours.
    def call(batches: Iterable[Any]) -> Any:
        import pyarrow

        numbers = (number for batch in batches for number in batch.column("id").to_pylist())
        return run(pyarrow.table({"work": [work[number]]}) for number in numbers)

    call.__name__ = call.__qualname__ = run.__name__
    return call


def _frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    return spark.createDataFrame(table, spark_schema(table.schema))


@contextmanager
def _errors(source: str) -> Iterator[None]:
    try:
        yield
    except SPARK_ERRORS as error:
        raise TierlogError(
            f"{source}: Spark gave up: {one_line(error)}; what is done stays done: run it "
            "again when that is mended"
        ) from error


def _summary(plan: RebuildPlan, segments: DataFrame, findings: DataFrame) -> RebuildSummary:
    """That of `rebuild_report`, counted where the rows are."""
    counts = {row.outcome: row["count"] for row in segments.groupBy("outcome").count().collect()}
    severities = {
        row.severity: row["count"] for row in findings.groupBy("severity").count().collect()
    }

    def count(*wanted: Outcome) -> int:
        return sum(counts.get(outcome.value, 0) for outcome in wanted)

    return RebuildSummary(
        source=plan.source,
        target=plan.target,
        dry_run=plan.dry_run,
        partitions=segments.select("topic", "partition").distinct().count(),
        segments=sum(counts.values()),
        written=count(Outcome.WRITTEN, Outcome.WOULD_WRITE),
        same=count(Outcome.SAME),
        sound=count(Outcome.SOUND),
        quarantined=count(Outcome.QUARANTINED),
        conflicts=count(Outcome.CONFLICT),
        left_alone=count(Outcome.LEFT_ALONE),
        size_bytes=sum(task.size_bytes for task in plan.tasks),
        problems=severities.get(Severity.PROBLEM.value, 0),
        notes=severities.get(Severity.NOTE.value, 0),
    )

"""Runs `tierlog index rebuild` on a Spark cluster: plan, worker functions and report.

Spark only schedules the tasks. A task is sent in a few hundred bytes. The worker itself reads and
writes the files or objects, and returns rows. If Spark repeats a task, the task finds the bytes
that it wrote before and writes nothing. The code uses only data frames, so it also works with Spark
Connect.
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
# The approximate number of `.indexes` objects that one task reads, and the number of objects that a
# task reads at a time. The tasks in other slots read at the same time.
_TASK_LOOKS = 1024
_PARALLEL_READS = 4
_BATCH_BYTES = 1 << 20
# To start a task takes a few milliseconds, which matters if tasks are small. So tasks are larger
# when there are more bytes to scan.
_TASK_BYTES = 256 << 20
_LARGE_TASK_BYTES = 1 << 30
_PLENTY_BYTES = 8 << 30
# A worker scans about this many bytes while Spark starts a task.
_SMALLEST_TASK_BYTES = 32 << 20
# Work of up to this size is sent to every task together with the function, which takes almost no
# time. A shuffle that gives each task its own part would cost a stage.
_SENT_WITH_FUNCTION_BYTES = 256 << 10
# A JVM that only schedules ends before its second compiler saves any time, and this compiler would
# take cores from the scans. The user's ``extraJavaOptions`` also apply.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
SCHEDULING_JVM = {
    "spark.driver.defaultJavaOptions": _ONE_COMPILER,
    "spark.executor.defaultJavaOptions": _ONE_COMPILER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltTables:
    """The report of a run as data frames.

    ``segments`` has the columns of `tierlog.tools.rebuild.table.SEGMENTS`, with a row for each
    segment. ``findings`` has the columns of ``FINDINGS``, with rows also for objects that are not
    segments. ``remote_indexes`` has a row for each partition of a store with a target.
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
        """The segments for which nothing was written, each with the reason and the byte position of
        the damage."""
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
    """Run `tierlog.tools.rebuild.index.rebuild_index` in Spark's workers instead of local
    processes.

    The written bytes and the rows are the same as with local processes. ``source`` and ``target``
    are paths or URLs that every worker can reach; credentials come from the workers' environment.
    ``slots`` is the number of tasks that run at a time; by default, the number of the session.
    ``task_bytes`` is the size of the larger tasks; by default 256 MiB, or 1 GiB if each slot has at
    least 8 GiB to scan.

    ``report_path`` is the folder for ``segments.parquet`` and ``findings.parquet``, which replace
    those of an earlier run. If ``report_path`` is a path, the driver writes two files. If
    ``report_path`` is a URL, Spark's workers write two folders, and the driver never receives the
    rows. ``progress`` is called on the driver. ``remote_index`` is as in `plan_rebuild`.

    Raises the errors of `plan_rebuild`, and TierlogError when Spark gives up the job. The rows
    report damage of segments.
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
    master: str, source: str, *, send_package: bool = False, **wanted: Any
) -> RebuildReport:
    """Run `rebuild_indexes` in a new session on ``master``. With ``send_package``, workers that
    lack tierlog receive the tierlog of this process (`spark_udfs.ship`). Raises the errors of
    `rebuild_indexes` and `ship`."""
    # With Spark Connect, the server's JVM runs already, so settings for the start of a JVM have no
    # effect.
    with session(master, None if master.startswith("sc://") else SCHEDULING_JVM) as spark:
        if send_package:
            ship(spark)
        return _Run.planned(spark, source, **wanted).collected()


def rebuild_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run tasks of a plan in a worker. The input has ``task`` and ``work``; the output has rows of
    ``SEGMENTS``."""
    for task in _unpacked(batches):
        yield from _in_batches(segment_table(rebuild_task(task)))


def outcome_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run tasks of a plan in a worker, and return the pickled outcomes as ``made``. The outcomes
    are pickled, since the JVM would convert nested columns one value at a time."""
    return _made(rebuild_task, batches)


def remote_index_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make remote index files in a worker, and return the pickled outcome of each partition."""
    return _made(remote_index_task, batches)


def look_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Check listed segments of a store in a worker, and return the pickled results as ``looks``."""
    for number, url, listed in _unpacked(batches):
        looks = [*look_at_listed(open_store(url), listed, parallel_reads=_PARALLEL_READS)]
        yield from _in_batches(pa.table([[number], [pickle.dumps(looks)]], schema=_LOOKS))


def looked_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return one row of ``SEGMENTS`` for each checked segment that needs no rebuild."""
    for looks in _unpacked(batches):
        outcomes = [outcome for looked in looks for outcome in looked.outcomes()]
        yield from _in_batches(segment_table(outcomes))


def _made(
    work: Callable[[Any], Sequence[object]], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for task in _unpacked(batches):
        yield from _in_batches(pa.table([[pickle.dumps(work(task))]], schema=_MADE))


def _results(rows: DataFrame) -> Iterator[Any]:
    """Run all tasks, and yield their results on the driver."""
    for made in rows.toArrow().column("made"):
        yield from pickle.loads(made.as_buffer())


def _unpacked(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for work in batch.column("work"):
            # Unpickling is safe, because the driver of this job made these bytes, as it makes every
            # function that Spark runs.
            yield pickle.loads(work.as_buffer())


def _in_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Divide the rows into batches of the size that reaches Spark fastest."""
    rows = len(table) * _BATCH_BYTES // max(table.nbytes, 1)
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=max(rows, 1))
    return batches


def _slots(spark: SparkSession) -> int:
    """Return the number of tasks that run at a time. With Spark Connect, this is the number of
    partitions of a range."""
    context = getattr(spark, "sparkContext", None)
    if context is not None:
        return max(int(context.defaultParallelism), 1)
    parts = spark.range(1 << 16).selectExpr("spark_partition_id()").distinct()
    return max(int(parts.count()), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A plan, and the session that runs it."""

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
        target: str | None = None,
        dry_run: bool = False,
        now_ms: int | None = None,
        slots: int | None = None,
        task_bytes: int | None = None,
        progress: Progress | None = None,
        clock: Clock | None = None,
        **wanted: Any,
    ) -> _Run:
        """List the source and plan the run. ``wanted`` has the other arguments of `plan_rebuild`.
        The workers read the `.indexes` objects of a store."""
        clock = clock or SystemClock()
        place = source_of(source)
        if not place.is_store:
            # The paths become absolute, because a worker runs in another folder.
            source = os.path.abspath(source)
        slots = slots or _slots(spark)
        plan = plan_rebuild(
            source,
            target=target,
            dry_run=dry_run,
            now_ms=clock.now_ms() if now_ms is None else now_ms,
            slots=slots,
            least_bytes=_SMALLEST_TASK_BYTES,
            look=partial(_looks, spark, place.location),
            **wanted,
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
        """Run the tasks, and collect the rows on the driver."""
        with self._running("outcome_rows", _MADE) as rows:
            outcomes = [*_results(rows)]
        return rebuild_report(self._with_remote_indexes(), outcomes)

    def written(self, url: str) -> RebuiltTables:
        """Run the tasks. The workers write the rows; the driver receives none."""
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
            summary = plan.summary(
                _counts(segments, "outcome"),
                _counts(findings, "severity"),
                partitions=segments.select("topic", "partition").distinct().count(),
            )
        return RebuiltTables(
            summary=summary,
            segments=segments,
            findings=findings,
            remote_indexes=plan.remote_indexes,
        )

    def _with_remote_indexes(self) -> RebuildPlan:
        """Make the remote index files, after all `.indexes` objects were repaired."""
        if not self.plan.index_tasks:
            return self.plan
        with _errors(self.plan.source):
            tasks = self.plan.index_tasks
            made = [*_results(_mapped(self.spark, tasks, "remote_index_rows", _MADE))]
        return self.plan.with_remote_indexes(made)

    @contextmanager
    def _running(self, function: str, schema: pa.Schema) -> Iterator[DataFrame]:
        """Yield the rows of all tasks. The tasks run when the caller reads the rows. The rows can
        be read only once."""
        plan = self.plan
        with _errors(plan.source):
            self.progress.start(sum(task.size_bytes for task in plan.tasks))
            parts = [part for task in plan.tasks for part in task.parts]
            # Tasks are combined, because Spark is faster with larger tasks.
            tasks = pack_tasks(
                parts, self.slots, max_bytes=self.task_bytes, min_bytes=_SMALLEST_TASK_BYTES
            )
            sizes_bytes = [task.size_bytes for task in tasks]
            with watched(self.spark, sizes_bytes, self.progress, self.clock):
                yield _mapped(self.spark, tasks, function, schema)


def _looks(
    spark: SparkSession, url: str, listed: Sequence[ListedSegments]
) -> Iterator[LookedSegments]:
    """Yield the results for listed segments of a store, in order."""
    tasks = [(number, url, group) for number, group in enumerate(_together(listed))]
    with _errors(url):
        looks = _mapped(spark, tasks, "look_rows", _LOOKS).toArrow().sort_by("task")
    for one in looks.column("looks"):
        yield from pickle.loads(one.as_buffer())


def _together(parts: Iterable[_Part]) -> Iterator[tuple[_Part, ...]]:
    """Yield groups of parts, in order. Each group is the work of one task."""
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
    """Apply a function of this module to each task, and return the rows, in order. Each task is one
    Spark task."""
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
    """Return a function to which Spark passes the index of each task, not the task itself."""

    # Spark sends only the code of this function to the worker, as in `on_worker`, because the
    # worker may lack tierlog.
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
            f"{source}: Spark gave up: {one_line(error)}; finished work is kept: mend the "
            "cause, then run it again"
        ) from error


def _counts(rows: DataFrame, column: str) -> dict[str, int]:
    """Return the number of rows with each value of a column."""
    return {row[column]: row["count"] for row in rows.groupBy(column).count().collect()}

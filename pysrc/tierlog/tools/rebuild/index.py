"""Rebuilds the indexes of a log directory or a store in several processes.

    report = rebuild_index("/var/lib/kafka/data", target="/mnt/indexes", jobs=4, now_ms=...)

A worker calls `rebuild_task`, which scans each byte of its chains of segments once and returns
rows. The written bytes depend only on the source, and a task replaces no objects except damaged
`.indexes` objects. So a task may run twice, and two runs may overlap.

The remote index files of a store's partitions are made from the `.indexes` objects. So the tasks
that make remote index files, which `remote_index_task` runs, run after all other tasks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from typing import TypeVar

from tierlog.arguments import (
    FLAG,
    FUNCTION,
    INTEGER,
    TEXT,
    having,
    instance_of,
    optional,
    takes,
)
from tierlog.config import RemoteIndexConfig
from tierlog.errors import ConfigError, CorruptDataError, TierlogError
from tierlog.log.files import printable
from tierlog.log.log_dir import PartitionLog, Skipped, open_log_dir
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.log.segment_files import Findings
from tierlog.reader.sources import Source, local_path, source_of
from tierlog.remote.segment.kafka_layout import KAFKA_SCHEME
from tierlog.remote.urls import open_store
from tierlog.tools.findings import Finding, Severity, counted, finding_text
from tierlog.tools.output import Table, human_size
from tierlog.tools.progress import Progress, QuietProgress
from tierlog.tools.rebuild.log_dir import (
    LogChain,
    check_folder,
    check_target,
    plan_log_chains,
    rebuild_log_chains,
)
from tierlog.tools.rebuild.remote_index import (
    RemoteIndexOutcome,
    RemoteIndexRow,
    RemoteIndexTask,
    pack_partitions,
    remote_index_task,
)
from tierlog.tools.rebuild.segment import (
    Outcome,
    SegmentOutcome,
    SegmentRow,
    finding,
    finding_of,
)
from tierlog.tools.rebuild.store import StoredChain, rebuild_stored_chain
from tierlog.tools.rebuild.store_plan import LookAtListed, LookedSegments, plan_store
from tierlog.tools.rebuild.tasks import RebuildTask, even_bytes, pack_chains, pack_tasks
from tierlog.types import shown_url

__all__ = [
    "RebuildPlan",
    "RebuildReport",
    "RebuildSummary",
    "RebuildTask",
    "check_report",
    "plan_rebuild",
    "rebuild_index",
    "rebuild_report",
    "rebuild_task",
    "rebuild_text",
    "remote_index_task",
]

_REMOTE_INDEX = instance_of("a RemoteIndexConfig", RemoteIndexConfig)

# In the time that processes need to start, threads can scan this many bytes.
DEFAULT_PROCESS_BYTES = 4 << 30
_MAX_RESTARTS = 3


_Task = TypeVar("_Task", RebuildTask, RemoteIndexTask)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """The tasks of a run, and the results of its planning.

    ``tasks`` are for `rebuild_task`. ``index_tasks`` are for `remote_index_task`; a plan has
    ``index_tasks`` only for a store with a target. ``index_tasks`` must run after all ``tasks``.
    The caller passes the results of ``index_tasks`` to `with_remote_indexes`. ``looked`` and
    ``outcomes`` have the results of segments of a store that need no task.
    """

    source: str
    target: str
    dry_run: bool
    tasks: tuple[RebuildTask, ...]
    index_tasks: tuple[RemoteIndexTask, ...] = ()
    looked: tuple[LookedSegments, ...] = ()
    outcomes: tuple[SegmentOutcome, ...] = ()
    remote_indexes: tuple[RemoteIndexRow, ...] = ()
    findings: tuple[Finding, ...] = ()

    def with_remote_indexes(self, made: Iterable[RemoteIndexOutcome]) -> RebuildPlan:
        """Return the plan with the results of all ``index_tasks``, in any order."""
        ordered = sorted(made, key=lambda one: (one.row.topic, one.row.partition, one.row.path))
        found = (each for one in ordered for each in one.findings)
        return replace(
            self,
            index_tasks=(),
            remote_indexes=tuple(one.row for one in ordered),
            findings=(*self.findings, *found),
        )

    def summary(
        self, outcomes: Mapping[str, int], severities: Mapping[str, int], *, partitions: int
    ) -> RebuildSummary:
        """Return the figures of the run: the number of segments for each outcome, and the number of
        findings for each severity."""

        def count(*wanted: Outcome) -> int:
            return sum(outcomes.get(outcome, 0) for outcome in wanted)

        return RebuildSummary(
            source=self.source,
            target=self.target,
            dry_run=self.dry_run,
            partitions=partitions,
            segments=sum(outcomes.values()),
            written=count(Outcome.WRITTEN, Outcome.WOULD_WRITE),
            same=count(Outcome.SAME),
            sound=count(Outcome.SOUND),
            quarantined=count(Outcome.QUARANTINED),
            conflicts=count(Outcome.CONFLICT),
            left_alone=count(Outcome.LEFT_ALONE),
            size_bytes=sum(task.size_bytes for task in self.tasks),
            problems=severities.get(Severity.PROBLEM, 0),
            notes=severities.get(Severity.NOTE, 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSummary:
    """The number of segments for each outcome. ``size_bytes`` is the size of all segments that were
    scanned."""

    source: str
    target: str
    dry_run: bool
    partitions: int
    segments: int
    written: int
    same: int
    sound: int
    quarantined: int
    conflicts: int
    left_alone: int
    size_bytes: int
    problems: int
    notes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """The result of one run. Rows are ordered by topic, partition, base offset and path."""

    summary: RebuildSummary
    segments: tuple[SegmentRow, ...]
    findings: tuple[Finding, ...]
    remote_indexes: tuple[RemoteIndexRow, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem; notes do not count."""
        return self.summary.problems == 0

    def tables(self) -> list[Table]:
        """Return the tables of a document."""
        return [
            Table(name="summary", row_type=RebuildSummary, rows=(self.summary,), single=True),
            Table(name="segments", row_type=SegmentRow, rows=self.segments),
            Table(name="findings", row_type=Finding, rows=self.findings),
            Table(name="remote_indexes", row_type=RemoteIndexRow, rows=self.remote_indexes),
        ]


@takes(task=instance_of("a RebuildTask of a plan", RebuildTask))
def rebuild_task(task: RebuildTask) -> list[SegmentOutcome]:
    """Rebuild the segments of one task. Any process may run a task. The task opens its own stores,
    and shares no objects with other tasks.

    Damage of a segment, its files or its store is a finding in the outcome of the segment, never an
    error.
    """
    chains = [*task.chains()]
    outcomes = [*rebuild_log_chains([one for one in chains if isinstance(one, LogChain)])]
    for chain in chains:
        if isinstance(chain, StoredChain):
            outcomes += rebuild_stored_chain(chain)
    return outcomes


@takes(
    source=TEXT,
    target=optional(TEXT),
    dry_run=FLAG,
    now_ms=INTEGER,
    slots=INTEGER,
    index_interval_bytes=INTEGER,
    remote_index=optional(_REMOTE_INDEX),
    least_bytes=INTEGER,
    look=optional(FUNCTION),
)
def plan_rebuild(
    source: str,
    *,
    target: str | None,
    dry_run: bool,
    now_ms: int,
    slots: int = 1,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    remote_index: RemoteIndexConfig | None = None,
    least_bytes: int = 0,
    look: LookAtListed | None = None,
) -> RebuildPlan:
    """Plan `rebuild_index` for `slots` workers. The plan takes a few dozen bytes of memory per
    segment.

    A task has at least ``least_bytes``. ``look`` reads the `.indexes` objects of a store, for
    example in other processes; by default this process reads them. ``remote_index`` has the
    settings of the nodes whose remote index files are rebuilt. Equal settings make equal bytes.

    Raises ConfigError for a target that is missing, belongs to a broker or is part of the source,
    and for a store in Kafka's own layout. Raises RemoteStorageError when a store does not answer,
    and the errors of `open_log_dir`, `open_store` and ``look``.
    """
    place = source_of(source)
    settings = remote_index or RemoteIndexConfig()
    if place.is_store:
        if place.location.startswith(KAFKA_SCHEME):
            raise ConfigError(
                f"{printable(shown_url(place.location))}: expected a store that tierlog wrote, "
                "found Kafka's own layout, which is only read; `tierlog verify` reports what is "
                "wrong with it"
            )
        folder = None if target is None else check_target(target, local_path(place.location))
        stored = plan_store(
            open_store(place.location),
            place.location,
            now_ms=now_ms,
            dry_run=dry_run,
            index_interval_bytes=index_interval_bytes,
            remote_index_interval_bytes=settings.interval_bytes,
            slots=slots,
            least_bytes=least_bytes,
            look=look,
        )
        tasks = pack_tasks(stored.chains, slots, min_bytes=least_bytes)
        return RebuildPlan(
            source=place.location,
            target=place.location if folder is None else printable(folder),
            dry_run=dry_run,
            tasks=tasks,
            index_tasks=()
            if folder is None
            else pack_partitions(
                stored.partitions,
                url=place.location,
                target=folder,
                dry_run=dry_run,
                settings=settings,
            ),
            looked=tuple(stored.looked),
            outcomes=tuple(stored.outcomes),
            findings=tuple(stored.findings),
        )
    return _plan_log_dir(place, target, dry_run, slots, index_interval_bytes, least_bytes)


def check_report(folder: str, source: str) -> None:
    """Raise ConfigError if the folder lies in `source`, where no report may be written. Raise
    OSError if there is no source."""
    check_folder(folder)
    place = source_of(source)
    inside = local_path(place.location) if place.is_store else place.location
    if inside is not None:
        real = os.path.realpath(inside)
        if os.path.commonpath((os.path.realpath(folder), real)) == real:
            raise ConfigError(
                f"{printable(folder)}: expected a folder outside of {printable(inside)}, found one "
                "in it; nothing but logs and their indexes belongs there"
            )


def _plan_log_dir(
    source: Source,
    target: str | None,
    dry_run: bool,
    slots: int,
    index_interval_bytes: int,
    least_bytes: int,
) -> RebuildPlan:
    if target is None and not dry_run:
        raise ConfigError(
            f"{printable(source.location)}: expected a folder for the index files, found none; "
            "they are never written into a broker's directory"
        )
    logs = open_log_dir(source.location)
    place = None if target is None else check_target(target, source.location)
    found = Findings()
    inside: list[Finding] = []

    def each_log() -> Iterator[PartitionLog]:
        for log in logs.each_partition(found):
            inside.extend(map(_left_out, log.skipped))
            inside.extend(map(_done_without, log.problems))
            yield log

    chains = plan_log_chains(
        each_log(),
        None if dry_run else place,
        index_interval_bytes=index_interval_bytes,
        chain_bytes=lambda seen_bytes: even_bytes(seen_bytes, slots),
    )
    parts = [*pack_chains(chains, slots, min_bytes=least_bytes)]
    tasks = pack_tasks(parts, slots, min_bytes=least_bytes)
    return RebuildPlan(
        source=printable(source.location),
        target=printable(target or ""),
        dry_run=dry_run,
        tasks=tasks,
        findings=(
            *map(_left_out, found.skipped),
            *map(_done_without, found.problems),
            *inside,
        ),
    )


def _left_out(skipped: Skipped) -> Finding:
    """Return a finding for files of the directory that are not rebuilt."""
    routine = skipped.reason.routine
    return finding(
        skipped.path,
        skipped.reason.name.lower(),
        "files of a log only",
        skipped.reason.value + (f" ({skipped.detail})" if skipped.detail else ""),
        "nothing to do" if routine else "find out what it is: nothing was rebuilt for it",
        severity=Severity.NOTE,
    )


def _done_without(damage: CorruptDataError) -> Finding:
    """Return a note for a checkpoint that cannot be read. The rebuild uses the batches instead of
    the checkpoint."""
    action = "restore the file, or compare the rebuilt files with another replica"
    return replace(finding_of(damage, damage.path or "", action), severity=Severity.NOTE)


def rebuild_index(
    source: str,
    *,
    now_ms: int,
    target: str | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    remote_index: RemoteIndexConfig | None = None,
    process_bytes: int = DEFAULT_PROCESS_BYTES,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuild the index files of a log directory into `target`, or the damaged and missing
    `.indexes` objects of a store. If the source is a store and `target` is given, also rebuild the
    remote index files of the store's partitions in `target`.

    The tasks run in `jobs` processes, or in `jobs` threads if they have fewer bytes than
    ``process_bytes``. ``now_ms`` decides whether a `.log` object belongs to an active copy. With
    ``dry_run``, all segments are scanned but no file or object is written.

    Raises the errors of `plan_rebuild`, and TierlogError when workers die repeatedly. Damage of a
    segment is in the report.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more, not {jobs}")
    plan = plan_rebuild(
        source,
        target=target,
        dry_run=dry_run,
        now_ms=now_ms,
        slots=jobs,
        index_interval_bytes=index_interval_bytes,
        remote_index=remote_index,
    )
    watching = progress or QuietProgress()
    watching.start(sum(task.size_bytes for task in plan.tasks))
    is_small = sum(task.cost_bytes for task in plan.tasks) < process_bytes
    with _Workers(jobs, in_threads=is_small) as workers:
        outcomes: list[SegmentOutcome] = []
        for task, done in workers.run(rebuild_task, plan.tasks):
            outcomes += done
            watching.advance(task.size_bytes, task.name)
        made: list[RemoteIndexOutcome] = []
        for index_task, rows in workers.run(remote_index_task, plan.index_tasks):
            made += rows
            watching.advance(0, index_task.name)
    return rebuild_report(plan.with_remote_indexes(made), outcomes)


class _Workers:
    """Threads or processes for one run. A single task runs in the calling thread."""

    def __init__(self, jobs: int, *, in_threads: bool) -> None:
        self._jobs = jobs
        self._in_threads = in_threads
        self._pool: Executor | None = None

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(
        self, work: Callable[[_Task], list[_Result]], tasks: Sequence[_Task]
    ) -> Iterator[tuple[_Task, list[_Result]]]:
        """Yield each task and its results, in the order in which the tasks end. Raises TierlogError
        when workers die repeatedly."""
        if self._jobs == 1 or len(tasks) < 2:
            for task in tasks:
                yield task, work(task)
            return
        left = dict(enumerate(tasks))
        for _ in range(_MAX_RESTARTS + 1):
            try:
                for number, results in self._run(work, left):
                    yield left.pop(number), results
            except BrokenProcessPool:
                self._stop()
                continue
            return
        names = ", ".join(sorted({task.name for task in left.values()})[:3])
        raise TierlogError(
            f"workers were killed {_MAX_RESTARTS + 1} times, the last time while they ran {names}; "
            "see whether memory ran out, then run this again with fewer jobs: finished work is kept"
        )

    def _run(
        self, work: Callable[[_Task], list[_Result]], tasks: dict[int, _Task]
    ) -> Iterator[tuple[int, list[_Result]]]:
        if self._pool is None:
            self._pool = self._new_pool()
        running: dict[Future[list[_Result]], int] = {
            self._pool.submit(work, task): number for number, task in tasks.items()
        }
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()

    def _new_pool(self) -> Executor:
        if self._in_threads:
            return ThreadPoolExecutor(self._jobs)
        # Processes are spawned, since the threads and clients of object stores do not survive a
        # fork. Ctrl-C in the terminal ends all processes at once.
        return ProcessPoolExecutor(
            self._jobs,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_DFL),
        )

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@takes(
    plan=instance_of("a RebuildPlan", RebuildPlan),
    outcomes=having("outcomes of rebuild_task", "__iter__"),
)
def rebuild_report(plan: RebuildPlan, outcomes: Iterable[SegmentOutcome]) -> RebuildReport:
    """Return the report of a run. The outcomes may be in any order."""
    told = (outcome for looked in plan.looked for outcome in looked.outcomes())
    everything = sorted(
        [*told, *plan.outcomes, *outcomes],
        key=lambda one: (one.row.topic, one.row.partition, one.row.base_offset, one.row.path),
    )
    rows = tuple(one.row for one in everything)
    findings = (*plan.findings, *(found for one in everything for found in one.findings))
    summary = plan.summary(
        Counter(row.outcome for row in rows),
        Counter(found.severity for found in findings),
        partitions=len({(row.topic, row.partition) for row in rows}),
    )
    return RebuildReport(
        summary=summary, segments=rows, findings=findings, remote_indexes=plan.remote_indexes
    )


def rebuild_text(report: RebuildReport) -> Iterator[str]:
    """Yield the lines below the table for people: the problems, then one line of figures."""
    for found in report.findings:
        if found.severity is Severity.PROBLEM:
            yield from finding_text(found)
    seen = report.summary
    yield (
        f"{counted(seen.partitions, 'partition')}, {counted(seen.segments, 'segment')}, "
        f"{human_size(seen.size_bytes)} scanned: "
        f"{_counts_text(row.outcome for row in report.segments)}"
    )
    if report.remote_indexes:
        partitions = counted(len(report.remote_indexes), "partition")
        told = _counts_text(row.outcome for row in report.remote_indexes)
        yield f"remote index files of {partitions}: {told}"


def _counts_text(outcomes: Iterable[Outcome]) -> str:
    counts = Counter(outcomes)
    words = {
        Outcome.WOULD_WRITE: "to write",
        Outcome.WRITTEN: "written",
        Outcome.SAME: "the same",
        Outcome.SOUND: "sound",
        Outcome.LEFT_ALONE: "left alone",
        Outcome.CONFLICT: "in conflict",
        Outcome.QUARANTINED: "quarantined",
    }
    told = (f"{counts[one]:,} {word}" for one, word in words.items() if counts[one])
    return ", ".join(told) or "nothing to do"

"""Rebuilds the indexes of a log directory or a store, on as many processes as one likes.

    report = rebuild_index("/var/lib/kafka/data", target="/mnt/indexes", jobs=4, now_ms=...)

`rebuild_task` is all that a worker does: chains of segments in, rows out, each byte scanned once.
The content it writes is a pure function of the source and nothing that is there is replaced but a
damaged `.indexes` object; so tasks may be repeated, and two runs may meet.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

from tierlog.errors import ConfigError, TierlogError
from tierlog.log.files import printable
from tierlog.log.log_dir import Listing, open_log_dir
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES
from tierlog.remote.store import open_store
from tierlog.tools.findings import Finding, Severity, counted, finding_text
from tierlog.tools.output import Table, human_size
from tierlog.tools.progress import Progress, QuietProgress
from tierlog.tools.rebuild_log_dir import (
    LogChain,
    check_target,
    plan_log_chains,
    rebuild_log_chain,
)
from tierlog.tools.rebuild_segment import Outcome, SegmentOutcome, SegmentRow, finding
from tierlog.tools.rebuild_store import StoredChain, rebuild_stored_chain
from tierlog.tools.rebuild_store_plan import plan_store
from tierlog.tools.sources import Source, source_of

__all__ = [
    "RebuildPlan",
    "RebuildReport",
    "RebuildSummary",
    "RebuildTask",
    "pack_tasks",
    "plan_rebuild",
    "rebuild_index",
    "rebuild_report",
    "rebuild_task",
    "rebuild_text",
]

DEFAULT_TASK_BYTES = 256 << 20
_SMALLEST_TASK_BYTES = 4 << 20
_TASKS_PER_JOB = 4
# Opening, writing and reporting a segment costs about as much as scanning so many bytes.
_SEGMENT_COST_BYTES = 1 << 20
_MAX_SEGMENTS = 4096
_MAX_RESTARTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildTask:
    """Work for one worker, at one go."""

    chains: tuple[LogChain | StoredChain, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes to be scanned."""
        return sum(chain.size_bytes for chain in self.chains)

    @property
    def name(self) -> str:
        """Where it begins."""
        return self.chains[0].name


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """The tasks of a run, and what its planning already found."""

    source: str
    target: str
    dry_run: bool
    tasks: tuple[RebuildTask, ...]
    outcomes: tuple[SegmentOutcome, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildSummary:
    """What became of how many segments; ``size_bytes`` counts those that were scanned."""

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
    """The outcome of one run; rows by topic, partition, base offset and path."""

    summary: RebuildSummary
    segments: tuple[SegmentRow, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem; notes do not count."""
        return self.summary.problems == 0

    def tables(self) -> list[Table]:
        """What a document holds."""
        return [
            Table(name="summary", row_type=RebuildSummary, rows=(self.summary,), single=True),
            Table(name="segments", row_type=SegmentRow, rows=self.segments),
            Table(name="findings", row_type=Finding, rows=self.findings),
        ]


def rebuild_task(task: RebuildTask) -> list[SegmentOutcome]:
    """What a worker does, in whatever process: stores are opened here, nothing is shared.

    What is wrong with a segment, its files or its store is a finding in its row, never an error.
    """
    outcomes: list[SegmentOutcome] = []
    for chain in task.chains:
        if isinstance(chain, LogChain):
            outcomes += rebuild_log_chain(chain)
        else:
            outcomes += rebuild_stored_chain(chain)
    return outcomes


def plan_rebuild(
    source: str,
    *,
    target: str | None,
    dry_run: bool,
    now_ms: int,
    slots: int = 1,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
) -> RebuildPlan:
    """What `rebuild_index` will do, for `slots` workers.

    ConfigError for a target that is missing, not wanted or a broker's; else as `open_log_dir` and
    `open_store`, and RemoteStorageError when a store does not answer.
    """
    place = source_of(source)
    if place.is_store:
        if target is not None:
            raise ConfigError(
                f"{target}: a store has no target; its .indexes objects go beside the .log objects"
            )
        stored = plan_store(
            open_store(place.location),
            place.location,
            now_ms=now_ms,
            dry_run=dry_run,
            index_interval_bytes=index_interval_bytes,
        )
        return RebuildPlan(
            source=place.location,
            target=place.location,
            dry_run=dry_run,
            tasks=pack_tasks(stored.chains, slots),
            outcomes=tuple(stored.outcomes),
            findings=tuple(stored.findings),
        )
    return _plan_log_dir(place, target, dry_run, slots, index_interval_bytes)


def _plan_log_dir(
    source: Source, target: str | None, dry_run: bool, slots: int, index_interval_bytes: int
) -> RebuildPlan:
    if target is None and not dry_run:
        raise ConfigError(
            f"{printable(source.location)}: expected a folder for the index files, found none; "
            "they are never written into a broker's directory"
        )
    listing = open_log_dir(source.location).listing()
    place = None if target is None else check_target(target, source.location)
    total = sum(one.size_bytes for log in listing.partitions for one in log.segments)
    chains = plan_log_chains(
        listing,
        None if dry_run else place,
        index_interval_bytes=index_interval_bytes,
        task_bytes=_task_bytes(total, slots),
    )
    return RebuildPlan(
        source=printable(source.location),
        target=printable(target or ""),
        dry_run=dry_run,
        tasks=pack_tasks(list(chains), slots),
        findings=tuple(_left_out(listing)),
    )


def _left_out(listing: Listing) -> Iterator[Finding]:
    """Logs of the directory that are not rebuilt although a broker might read them."""
    skipped = [*listing.skipped, *(one for log in listing.partitions for one in log.skipped)]
    for one in skipped:
        routine = one.reason.routine
        yield finding(
            one.path,
            one.reason.name.lower(),
            "files of a log only",
            one.reason.value + (f" ({one.detail})" if one.detail else ""),
            "nothing to do" if routine else "see what it is: nothing was rebuilt for it",
            severity=Severity.NOTE,
        )


def pack_tasks(
    chains: Sequence[LogChain | StoredChain], slots: int, *, max_bytes: int = DEFAULT_TASK_BYTES
) -> tuple[RebuildTask, ...]:
    """Tasks of about even size, the largest first; small chains share one, large ones are whole."""
    limit = _task_bytes(sum(map(_cost_bytes, chains)), slots, max_bytes)
    tasks: list[RebuildTask] = []
    group: list[LogChain | StoredChain] = []
    held = segments = 0
    for chain in sorted(chains, key=_cost_bytes, reverse=True):
        cost = _cost_bytes(chain)
        if group and (held + cost > limit or segments + chain.segments > _MAX_SEGMENTS):
            tasks.append(RebuildTask(chains=tuple(group)))
            group, held, segments = [], 0, 0
        group.append(chain)
        held += cost
        segments += chain.segments
    if group:
        tasks.append(RebuildTask(chains=tuple(group)))
    return tuple(tasks)


def _cost_bytes(chain: LogChain | StoredChain) -> int:
    return chain.size_bytes + chain.segments * _SEGMENT_COST_BYTES


def _task_bytes(total_bytes: int, slots: int, max_bytes: int = DEFAULT_TASK_BYTES) -> int:
    """The size of a task: several for each worker, so that all end at about the same time."""
    even = total_bytes // (slots * _TASKS_PER_JOB)
    return min(max(even, _SMALLEST_TASK_BYTES), max_bytes)


def rebuild_index(
    source: str,
    *,
    now_ms: int,
    target: str | None = None,
    jobs: int = 1,
    dry_run: bool = False,
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES,
    progress: Progress | None = None,
) -> RebuildReport:
    """Rebuilds the index files of a log directory into `target`, or the damaged and missing
    `.indexes` objects of a store, in `jobs` processes.

    ``now_ms`` tells a `.log` object that is just being copied from one left behind. With
    ``dry_run`` everything is scanned and nothing written. Raises as `plan_rebuild`, and
    TierlogError when workers keep dying; whatever is wrong with a segment is in the report.
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
    )
    watching = progress or QuietProgress()
    watching.start(sum(task.size_bytes for task in plan.tasks))
    outcomes: list[SegmentOutcome] = []
    for task, done in _run(plan.tasks, jobs):
        outcomes += done
        watching.advance(task.size_bytes, task.name)
    return rebuild_report(plan, outcomes)


def _run(
    tasks: Sequence[RebuildTask], jobs: int
) -> Iterator[tuple[RebuildTask, list[SegmentOutcome]]]:
    """Each task with its outcomes, in the order in which they end."""
    if jobs == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, rebuild_task(task)
        return
    left = dict(enumerate(tasks))
    for _ in range(_MAX_RESTARTS + 1):
        try:
            for number, outcomes in _run_in_pool(left, jobs):
                yield left.pop(number), outcomes
        except BrokenProcessPool:
            continue
        return
    names = ", ".join(sorted({task.name for task in left.values()})[:3])
    raise TierlogError(
        f"workers were killed {_MAX_RESTARTS + 1} times, the last one at {names} or so; see "
        "whether memory ran out, then run this again with fewer jobs: what is done stays done"
    )


def _run_in_pool(
    tasks: dict[int, RebuildTask], jobs: int
) -> Iterator[tuple[int, list[SegmentOutcome]]]:
    # Never forked: the threads and clients of object stores do not survive that.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=context)
    try:
        running: dict[Future[list[SegmentOutcome]], int] = {
            pool.submit(rebuild_task, task): number for number, task in tasks.items()
        }
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def rebuild_report(plan: RebuildPlan, outcomes: Iterable[SegmentOutcome]) -> RebuildReport:
    """The report of a run, whoever ran its tasks; the same for every order of outcomes."""
    everything = sorted(
        [*plan.outcomes, *outcomes],
        key=lambda one: (one.row.topic, one.row.partition, one.row.base_offset, one.row.path),
    )
    rows = tuple(one.row for one in everything)
    findings = (*plan.findings, *(found for one in everything for found in one.findings))
    problems = sum(found.severity is Severity.PROBLEM for found in findings)

    def count(*wanted: Outcome) -> int:
        return sum(row.outcome in wanted for row in rows)

    summary = RebuildSummary(
        source=plan.source,
        target=plan.target,
        dry_run=plan.dry_run,
        partitions=len({(row.topic, row.partition) for row in rows}),
        segments=len(rows),
        written=count(Outcome.WRITTEN, Outcome.WOULD_WRITE),
        same=count(Outcome.SAME),
        sound=count(Outcome.SOUND),
        quarantined=count(Outcome.QUARANTINED),
        conflicts=count(Outcome.CONFLICT),
        left_alone=count(Outcome.LEFT_ALONE),
        size_bytes=sum(task.size_bytes for task in plan.tasks),
        problems=problems,
        notes=len(findings) - problems,
    )
    return RebuildReport(summary=summary, segments=rows, findings=findings)


def rebuild_text(report: RebuildReport) -> Iterator[str]:
    """What stands below the table for people: the problems, then one line of figures."""
    for found in report.findings:
        if found.severity is Severity.PROBLEM:
            yield from finding_text(found)
    seen = report.summary
    counts = {
        "to write" if seen.dry_run else "written": seen.written,
        "the same": seen.same,
        "sound": seen.sound,
        "left alone": seen.left_alone,
        "in conflict": seen.conflicts,
        "quarantined": seen.quarantined,
    }
    told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    yield (
        f"{counted(seen.partitions, 'partition')}, {counted(seen.segments, 'segment')}, "
        f"{human_size(seen.size_bytes)} scanned: {told or 'nothing to do'}"
    )

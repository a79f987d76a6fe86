"""Plan the tasks of a read from options and a catalog of segments.

    catalog = open_catalog(options) the partitions and segments offsets = partition_offsets(options,
    catalog) the offsets to read tasks = plan_tasks(options, catalog, offsets, wanted) tasks of
    about equal size tasks = plan_read(options, catalog, wanted) both steps, for every view

Decisions are pure functions over plain values. A task is defined by its offsets alone. The worker
finds the positions of these offsets, even if an index is damaged. So tasks do not overlap, and no
records between tasks are left out.

This module does not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, Protocol, TypeVar

from tierlog.errors import ConfigError, CorruptDataError, OutOfRangeError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.tables.filters import Wanted
from tierlog.tables.options import EARLIEST, LATEST, Bound, SourceOptions, View

__all__ = [
    "Catalog",
    "Finding",
    "Mark",
    "Partition",
    "PartitionOffsets",
    "ReadRange",
    "chosen_partitions",
    "overlapping",
    "pack",
    "partition_offsets",
    "plan_read",
    "plan_tasks",
    "resolve",
    "share",
    "split",
]

# Limit on the number of ranges in a task.
_MAX_RANGES = 4096
# A range is cut only if it is larger than a task by this factor, because two half tasks take longer
# together than one task that is a little too large.
_SPLIT_FACTOR = 1.5
_PARALLEL_READS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Partition(NamedTuple):
    """One partition of a catalog."""

    topic: str
    topic_id: str | None
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionOffsets(NamedTuple):
    """The offsets [``start_offset``, ``end_offset``) to read of a partition."""

    partition: Partition
    start_offset: int
    end_offset: int


class Mark(NamedTuple):
    """A batch that starts at byte ``position`` and holds ``offset``. Earlier batches end below
    ``offset``."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """The offsets [``start_offset``, ``end_offset``) of one segment.

    ``size_bytes`` is the approximate size of these offsets in the log. ``aborted`` lists the
    aborted transactions that may have records at these offsets; these records are left out.
    ``has_all`` is true if the log was never compacted, so that a rolled segment has all of its
    offsets.
    """

    partition: Partition
    segment: SegmentFiles | RemoteLogSegmentMetadata
    start_offset: int
    end_offset: int
    size_bytes: int
    aborted: tuple[AbortedTransaction, ...] = ()
    has_all: bool = False

    def leaving_out(self, aborted: tuple[AbortedTransaction, ...]) -> ReadRange:
        """Return the range, with these aborted transactions to leave out."""
        return replace(self, aborted=aborted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The error for damaged bytes, and the offsets [``start_offset``, ``end_offset``) that are not
    read because of the damage. An unknown offset is None."""

    partition: Partition
    error: CorruptDataError
    start_offset: int | None = None
    end_offset: int | None = None

    def __str__(self) -> str:
        start = "?" if self.start_offset is None else self.start_offset
        end = "?" if self.end_offset is None else self.end_offset - 1
        error = self.error
        return (
            f"{self.partition}, offsets {start} to {end}: {error.path or ''}: {error.reason} at "
            f"byte {error.position}: expected {error.expected}, found {error.found}"
        )


class Catalog(Protocol):
    """The partitions and segments at the path of a read. Calls may come from any thread."""

    def partitions(self) -> list[Partition]:
        """Return all partitions."""
        ...

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset of the readable records, and the offset after the last one, at
        the isolation level of the read."""
        ...

    def check_end(self, partition: Partition) -> None:
        """Raise GapError when the log is known to continue after its bounds."""
        ...

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record of `timestamp_ms` or later, or None. Raises
        CorruptDataError when damage prevents the search."""
        ...

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        """Return the parts of segments that hold these offsets, in order. Parts in which no row is
        `wanted` may be left out."""
        ...

    def marks(self, ranges: Sequence[ReadRange]) -> Iterable[Sequence[Mark]]:
        """Return, for each range, the marks at which the range may be cut, ascending. A range has
        no marks when its marks are unknown."""
        ...

    def findings(self) -> list[Finding]:
        """Return the findings that the calls have made so far."""
        ...


def chosen_partitions(
    options: SourceOptions,
    found: Iterable[Partition],
    *,
    gone: Iterable[TopicPartition] | None = (),
) -> list[Partition]:
    """Return the selected partitions. Raises OutOfRangeError when a topic is missing or exists
    twice.

    Partitions in ``gone`` existed earlier and may be missing now. If ``gone`` is None, any
    partition may be missing.
    """
    chosen = [one for one in found if options.topics.wants(*one)]
    if gone is not None:
        _check_found(options, chosen, frozenset(gone))
    _check_one_topic_each(options.path, chosen)
    return sorted(chosen, key=lambda one: (one.topic, one.partition))


def _check_found(
    options: SourceOptions, chosen: Iterable[Partition], gone: Collection[TopicPartition]
) -> None:
    """Check that every named topic and partition exists or existed."""
    there = {(name, one.partition) for one in chosen for name in (one.topic, one.topic_id)}
    there.update(gone)
    missing = sorted(options.topics.required - {name for name, _ in there})
    if missing:
        raise OutOfRangeError(f"{options.path}: expected topic {missing[0]!r}, found no such topic")
    absent = sorted(one for one in options.topics.assigned if tuple(one) not in there)
    if absent:
        name = "-".join(map(str, absent[0]))
        raise OutOfRangeError(f"{options.path}: expected {name}, found no such partition")


def _check_one_topic_each(path: str, chosen: Iterable[Partition]) -> None:
    ids: dict[str, set[str | None]] = {}
    for one in chosen:
        ids.setdefault(one.topic, set()).add(one.topic_id)
    for topic, found in ids.items():
        # If the topic id of a partition is unknown, the partition may belong to the same topic.
        known = sorted(one for one in found if one is not None)
        if len(known) > 1:
            named = ", ".join(known)
            raise OutOfRangeError(
                f"{path}: several topics had the name {topic}; subscribe to one of the ids {named}"
            )


def partition_offsets(options: SourceOptions, catalog: Catalog) -> list[PartitionOffsets]:
    """Return the offsets to read of each selected partition. A partition with nothing to read has
    an empty range."""
    try:
        chosen = chosen_partitions(options, catalog.partitions())
    except OutOfRangeError as error:
        # The topic may exist but be unreadable, so the error names the findings.
        told = "".join(f"; {found}" for found in catalog.findings()[:3])
        raise OutOfRangeError(f"{error}{told}") from None
    for bound in (options.start, options.end):
        _check_known(bound, chosen)
    return _in_parallel(lambda one: resolve(options, catalog, one), chosen)


def _check_known(bound: Bound, chosen: Sequence[Partition]) -> None:
    """Refuse offsets for a partition that is not read, because such offsets must be a mistake."""
    for topic, partition in bound.by_partition:
        if not any(one.partition == partition and topic in one[:2] for one in chosen):
            raise ConfigError(
                f"{bound.option}: expected partitions that are read, found {topic}-{partition}"
            )


def resolve(options: SourceOptions, catalog: Catalog, partition: Partition) -> PartitionOffsets:
    """Return the offsets to read of one partition.

    If offsets are missing, OutOfRangeError is raised if ``failOnDataLoss`` is set. Otherwise the
    available part is returned.
    """
    held = catalog.bounds(partition)

    def number(bound: Bound, late: int | None) -> int:
        value = bound.of(*partition)
        if bound.is_time:
            found = catalog.offset_for_timestamp(partition, value)
            return _late(bound, partition, value, late) if found is None else found
        return {EARLIEST: held[0], LATEST: held[1]}.get(value, value)

    start = number(options.start, held[1] if options.late_start_is_end else None)
    end = number(options.end, held[1])
    if options.end.is_time or options.end.of(*partition) == LATEST:
        catalog.check_end(partition)
    if options.end.is_time:
        # A reader of committed records cannot read offsets at or above the last stable offset yet.
        end = min(end, held[1])
    if options.start.is_time:
        start = min(start, held[1])
    if start >= end:
        return PartitionOffsets(partition, start, start)
    if options.fail_on_data_loss:
        _check_held(options.path, partition, (start, end), held)
    start = min(max(start, held[0]), held[1])
    return PartitionOffsets(partition, start, max(start, min(end, held[1])))


def _late(bound: Bound, partition: Partition, timestamp_ms: int, late: int | None) -> int:
    if late is None:
        raise OutOfRangeError(
            f"{bound.option}: {partition} has no record of {timestamp_ms} ms or later; "
            "startingOffsetsByTimestampStrategy=latest reads nothing then"
        )
    return late


def _check_held(
    path: str, partition: Partition, asked: tuple[int, int], held: tuple[int, int]
) -> None:
    if asked[0] < held[0] or asked[1] > held[1]:
        raise OutOfRangeError(
            f"{path}: {partition}: expected offsets {asked[0]} to {asked[1] - 1}, found "
            f"{held[0]} to {held[1] - 1}; failOnDataLoss=false reads what is there"
        )


def plan_read(
    options: SourceOptions, catalog: Catalog, wanted: Wanted | None = None
) -> list[tuple[ReadRange, ...] | tuple[Finding, ...]]:
    """Return the tasks of a batch read. For the quarantine view, the tasks include the findings of
    the plan."""
    offsets = partition_offsets(options, catalog)
    tasks: list[tuple[ReadRange, ...] | tuple[Finding, ...]] = []
    tasks += plan_tasks(options, catalog, offsets, wanted)
    findings = catalog.findings()
    if options.view is View.QUARANTINE and findings:
        tasks.append(tuple(findings))
    return tasks


def plan_tasks(
    options: SourceOptions,
    catalog: Catalog,
    offsets: Iterable[PartitionOffsets],
    wanted: Wanted | None = None,
) -> list[tuple[ReadRange, ...]]:
    """Return the tasks that read `offsets`, without rows that are not `wanted`."""
    wanted = wanted or Wanted()
    needed = [one for one in offsets if wanted.wants(one.partition.topic, one.partition.partition)]
    found = _in_parallel(lambda one: _ranges(catalog, *one, wanted), needed)
    ranges = [one for of_partition in found for one in of_partition]
    total_bytes = sum(one.size_bytes for one in ranges)
    task_bytes = min(options.task_bytes, max(1, -(-total_bytes // options.min_partitions)))
    if options.view in (View.BATCHES, View.SEGMENTS):
        return pack(ranges, task_bytes)
    return pack(_pieces(ranges, catalog.marks, task_bytes), task_bytes)


def _in_parallel(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return the result of `function` for every item, in order. The calls run in parallel, because
    a store answers several requests at a time."""
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="tierlog-plan") as pool:
        return list(pool.map(function, items))


def _ranges(
    catalog: Catalog, partition: Partition, start: int, end: int, wanted: Wanted
) -> list[ReadRange]:
    start, end = max(start, wanted.start_offset), min(end, wanted.end_offset)
    return catalog.ranges(partition, start, end, wanted) if start < end else []


def _pieces(
    ranges: Iterable[ReadRange],
    marks: Callable[[Sequence[ReadRange]], Iterable[Sequence[Mark]]],
    task_bytes: int,
) -> Iterator[ReadRange]:
    """Yield the ranges, but cut each range that is much larger than a task."""
    large = [one for one in ranges if one.size_bytes > _SPLIT_FACTOR * task_bytes]
    cut = {
        id(one): split(one, found, task_bytes)
        for one, found in zip(large, marks(large), strict=True)
    }
    for one in ranges:
        yield from cut.get(id(one), [one])


def split(one: ReadRange, marks: Sequence[Mark], part_bytes: int) -> list[ReadRange]:
    """Cut a range at the marks into parts of about `part_bytes`. Each offset is in exactly one
    part."""
    inside = [mark for mark in marks if one.start_offset < mark.offset < one.end_offset]
    if not inside:
        return [one]
    first = next((m.position for m in reversed(marks) if m.offset <= one.start_offset), 0)
    end = next((m.position for m in marks if m.offset >= one.end_offset), first + one.size_bytes)
    count = max(1, round((end - first) / part_bytes))
    cuts: list[Mark] = [Mark(one.start_offset, first)]
    for mark in inside:
        # If there were no cut here, the part would become much larger.
        if mark.position >= first + len(cuts) * (end - first) // count:
            cuts.append(mark)
    cuts.append(Mark(one.end_offset, max(end, cuts[-1].position)))
    return [
        replace(
            one,
            start_offset=cut.offset,
            end_offset=after.offset,
            size_bytes=max(1, after.position - cut.position),
            aborted=overlapping(one.aborted, cut.offset, after.offset),
        )
        for cut, after in pairwise(cuts)
    ]


def overlapping(
    aborted: Iterable[AbortedTransaction], start: int, end: int
) -> tuple[AbortedTransaction, ...]:
    """Return the transactions that may have records at the offsets [`start`, `end`)."""
    return tuple(one for one in aborted if one.first_offset < end and one.last_offset >= start)


def pack(ranges: Iterable[ReadRange], task_bytes: int) -> list[tuple[ReadRange, ...]]:
    """Group the ranges, in order, into tasks of about `task_bytes`."""
    tasks: list[tuple[ReadRange, ...]] = []
    current: list[ReadRange] = []
    current_bytes = 0
    for one in ranges:
        full = current_bytes + one.size_bytes > task_bytes or len(current) >= _MAX_RANGES
        if current and full:
            tasks.append(tuple(current))
            current, current_bytes = [], 0
        current.append(one)
        current_bytes += one.size_bytes
    return [*tasks, tuple(current)] if current else tasks


def share(size_bytes: int, offsets: int, of_offsets: int) -> int:
    """Return the approximate size of `offsets` offsets in a segment of `size_bytes` with
    `of_offsets` offsets."""
    return max(1, size_bytes * offsets // max(1, of_offsets))

"""Lists the partitions and segments of a log directory or a store.

A listing reads names, checkpoints and headers, but no records; ``verify`` checks the records.
Unknown values are None, never 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError, OutOfRangeError
from tierlog.log.files import printable
from tierlog.log.log_dir import PartitionLog, Skipped, open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.gaps import missing_offsets
from tierlog.reader.nearby import require_archive
from tierlog.reader.sources import Source
from tierlog.remote.segment.bucket import Problem, describe_segments
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.layout import MAX_TOPIC_LABEL, ObjectKey, log_key, partition_prefix
from tierlog.remote.urls import open_store
from tierlog.tools.output import Table, wide_field
from tierlog.types import TopicIdPartition, is_derived_topic_id

__all__ = [
    "GapRow",
    "Listed",
    "PartitionRow",
    "ProblemRow",
    "SegmentRow",
    "SkippedRow",
    "chosen_partitions",
    "list_log_dir",
    "list_source",
    "list_store",
    "no_such_partition",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One partition, which has the offsets [``log_start_offset``, ``log_end_offset``).

    ``topic_id_derived`` is true if the topic id is derived from the name, since the cluster has no
    id for the topic.
    """

    topic: str
    partition: int
    segments: int
    size_bytes: int
    log_start_offset: int | None
    log_end_offset: int | None
    leader_epoch: int | None
    high_watermark: int | None = wide_field()
    compacted: bool | None = wide_field()
    topic_id: str | None = wide_field()
    topic_id_derived: bool | None = wide_field()
    location: str = wide_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    """One segment. ``last_offset`` is inclusive; None if the segment has no batch or the offset is
    unknown."""

    topic: str
    partition: int
    base_offset: int
    last_offset: int | None
    size_bytes: int
    max_timestamp_ms: int | None
    leader_epochs: tuple[int, ...]
    state: str
    batches: int | None = wide_field()
    records: int | None = wide_field()
    codecs: tuple[str, ...] | None = wide_field()
    indexes: tuple[str, ...] | None = wide_field()
    location: str = wide_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRow:
    """Consecutive offsets that the store should have and lacks. Both ends are inclusive."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    topic_id: str | None = wide_field()


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A name in a directory or store that the listing skipped, and the reason."""

    path: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemRow:
    """A damaged checkpoint. The values that come from this checkpoint are unknown."""

    path: str
    position: int
    reason: str
    expected: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A listing. ``segments`` is None when only partitions were requested."""

    partitions: tuple[PartitionRow, ...]
    segments: tuple[SegmentRow, ...] | None
    gaps: tuple[GapRow, ...] = ()
    skipped: tuple[SkippedRow, ...] = ()
    problems: tuple[ProblemRow, ...] = ()

    def tables(self) -> list[Table]:
        """Return the tables to print, in order."""
        if self.segments is None:
            main = Table(name="partitions", row_type=PartitionRow, rows=self.partitions)
        else:
            main = Table(name="segments", row_type=SegmentRow, rows=self.segments)
        return [
            main,
            Table(
                name="gaps",
                row_type=GapRow,
                rows=self.gaps,
                title="Missing offsets:",
                optional=not self.gaps,
            ),
            Table(
                name="skipped",
                row_type=SkippedRow,
                rows=self.skipped,
                title="Not read:",
                optional=True,
            ),
            Table(
                name="problems",
                row_type=ProblemRow,
                rows=self.problems,
                title="Damaged checkpoints:",
                optional=True,
            ),
        ]


def list_source(
    source: Source,
    *,
    topic: str | None = None,
    partition: int | None = None,
    segments: bool = False,
) -> Listed:
    """List partitions or segments of a log directory or a store.

    ``topic`` and ``partition`` limit the listing. Raises OutOfRangeError when the topic or the
    partition does not exist, and RemoteResourceNotFoundError when the store is not an archive. A
    store that is empty but may become an archive is listed as empty. Also raises the errors of
    ``open_log_dir`` and ``open_store``.
    """
    listing = list_store if source.is_store else list_log_dir
    return listing(source.location, topic=topic, partition=partition, segments=segments)


def list_log_dir(
    path: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    segments: bool = False,
) -> Listed:
    """List a broker's log directory as `list_source` does; the broker may be running."""
    listing = open_log_dir(path).listing()
    logs = _chosen(listing.partitions, topic, partition, printable(path))
    skipped = [
        *(() if topic else listing.skipped),
        *chain.from_iterable(log.skipped for log in logs),
    ]
    problems = [*listing.problems, *chain.from_iterable(log.problems for log in logs)]
    return Listed(
        partitions=tuple(_partition_row(log) for log in logs) if not segments else (),
        segments=tuple(chain.from_iterable(map(_segment_rows, logs))) if segments else None,
        skipped=tuple(map(_skipped_row, skipped)),
        problems=tuple(map(_problem_row, problems)),
    )


def list_store(
    url: str,
    *,
    topic: str | None = None,
    partition: int | None = None,
    segments: bool = False,
) -> Listed:
    """List a store as `list_source` does, with one small request per segment."""
    store = open_store(url)
    problems: list[Problem] = []
    seen: set[tuple[str, int]] = set()

    def wanted(key: ObjectKey) -> bool:
        seen.add((key.topic_label, key.partition))
        named = topic in (None, key.topic_id) or (topic or "")[:MAX_TOPIC_LABEL] == key.topic_label
        return named and partition in (None, key.partition)

    held: dict[TopicIdPartition, list[SegmentDescription]] = {}
    for description in describe_segments(store, wanted=wanted, on_problem=problems.append):
        one = description.metadata.topic_id_partition
        if topic in (None, one.topic, one.topic_id):
            held.setdefault(one, []).append(description)
    chosen = sorted(held, key=lambda one: (one.topic, one.partition, one.topic_id))
    if not seen:
        require_archive(store, may_be_empty=topic is None)
    if topic is not None and not chosen:
        raise OutOfRangeError(no_such_partition(store.url, topic, partition, sorted(seen)))
    gaps = chain.from_iterable(_gap_rows(one, held[one]) for one in chosen)
    rows = chain.from_iterable(map(_stored_segment_row, _by_offset(held[one])) for one in chosen)
    return Listed(
        partitions=tuple(_stored_partition_row(one, held[one]) for one in chosen)
        if not segments
        else (),
        segments=tuple(rows) if segments else None,
        gaps=tuple(gaps),
        skipped=tuple(
            SkippedRow(
                path=printable(problem.key),
                reason=problem.reason.value,
                detail=f"expected {problem.expected}, found {problem.found}",
            )
            for problem in problems
        ),
    )


def _by_offset(descriptions: Iterable[SegmentDescription]) -> list[SegmentDescription]:
    return sorted(descriptions, key=lambda one: one.metadata.start_offset)


def _stored_partition_row(
    partition: TopicIdPartition, descriptions: Sequence[SegmentDescription]
) -> PartitionRow:
    held = [description.metadata for description in descriptions]
    return PartitionRow(
        topic=partition.topic,
        partition=partition.partition,
        segments=len(held),
        size_bytes=sum(one.segment_size_bytes for one in held),
        log_start_offset=min(one.start_offset for one in held),
        log_end_offset=max(one.end_offset for one in held) + 1,
        leader_epoch=max(one.leader_epochs[-1][0] for one in held),
        high_watermark=None,
        compacted=None,
        topic_id=partition.topic_id,
        topic_id_derived=is_derived_topic_id(partition.topic_id),
        location=partition_prefix(partition),
    )


def _gap_rows(
    partition: TopicIdPartition, descriptions: Sequence[SegmentDescription]
) -> Iterator[GapRow]:
    """Yield offsets that no segment of any leader holds. A listing does not read the leader epochs
    of the log."""
    starts = {one.metadata.segment_id: one.gap_start_offset for one in descriptions}
    held = (description.metadata for description in descriptions)
    gaps = missing_offsets(held, None, gap_start_of=lambda one: starts[one.segment_id])
    for first, last, _ in gaps:
        yield GapRow(
            topic=partition.topic,
            partition=partition.partition,
            first_offset=first,
            last_offset=last,
            topic_id=partition.topic_id,
        )


def _stored_segment_row(description: SegmentDescription) -> SegmentRow:
    metadata = description.metadata
    return SegmentRow(
        topic=metadata.topic_id_partition.topic,
        partition=metadata.topic_id_partition.partition,
        base_offset=metadata.start_offset,
        last_offset=metadata.end_offset,
        size_bytes=metadata.segment_size_bytes,
        max_timestamp_ms=metadata.max_timestamp_ms,
        leader_epochs=tuple(epoch for epoch, _ in metadata.leader_epochs),
        state=metadata.state.name,
        batches=description.batch_count if description.batch_count >= 0 else None,
        records=description.record_count if description.record_count >= 0 else None,
        codecs=None,
        indexes=None,
        location=log_key(metadata),
    )


def _chosen(
    logs: Sequence[PartitionLog], topic: str | None, partition: int | None, where: str
) -> list[PartitionLog]:
    chosen = [
        log for log in logs if topic in (None, log.topic) and partition in (None, log.partition)
    ]
    if topic is not None and not chosen:
        raise OutOfRangeError(no_such_partition(where, topic, partition, map(_key, logs)))
    return chosen


def _key(log: PartitionLog) -> tuple[str, int]:
    return log.topic, log.partition


def chosen_partitions(
    sources: Sequence[Source], topic: str, partition: int | None = None
) -> list[int]:
    """Return the partitions of a topic (name or id) in any of the sources, in order. If
    ``partition`` is given, return only this partition.

    Raises OutOfRangeError, which names the topics that exist, if there is no such partition. Raises
    RemoteResourceNotFoundError for a store that is no archive.
    """
    held = [one for source in sources for one in _held(source)]
    label = topic[:MAX_TOPIC_LABEL]
    numbers = {
        number
        for name, topic_id, number in held
        if (topic == topic_id or name in (topic, label)) and partition in (None, number)
    }
    if not numbers:
        for source in sources if not held else ():
            if source.is_store:
                require_archive(open_store(source.location), may_be_empty=False)
        where = " and ".join(printable(source.location) for source in sources)
        names = sorted({(name, number) for name, _, number in held})
        raise OutOfRangeError(no_such_partition(where, topic, partition, names))
    return sorted(numbers)


def _held(source: Source) -> list[tuple[str, str | None, int]]:
    """Return the topic, the topic id and the number of each partition, from names alone. The topic
    of a store is the label in its keys, which may be cut off."""
    if not source.is_store:
        logs = open_log_dir(source.location).listing().partitions
        return [(log.topic, log.topic_id, log.partition) for log in logs]
    seen: dict[tuple[str, str | None, int], None] = {}

    def wanted(key: ObjectKey) -> bool:
        seen[key.topic_label, key.topic_id, key.partition] = None
        return False

    deque(describe_segments(open_store(source.location), wanted=wanted), maxlen=0)
    return list(seen)


def no_such_partition(
    where: str, topic: str, partition: int | None, held: Iterable[tuple[str, int]]
) -> str:
    """Return a message that says that a partition is missing and names the existing partitions."""
    topics: dict[str, dict[int, None]] = {}
    for name, number in held:
        topics.setdefault(name, {})[number] = None
    if topic in topics and partition is not None:
        numbers = ", ".join(map(str, list(topics[topic])[:20]))
        return f"{where}: no partition {partition} of {printable(topic)}, only {numbers}"
    if not topics:
        return f"{where}: no topic {printable(topic)}, and no other topic either"
    names = ", ".join(list(topics)[:20]) + (" ..." if len(topics) > 20 else "")
    name, _, digits = topic.rpartition("-")
    is_directory = digits.isdecimal() and int(digits) in topics.get(name, {})
    meant = f"; did you mean {name}:{digits}?" if is_directory else ""
    return f"{where}: no topic {printable(topic)}, only {names}{meant}"


def _partition_row(log: PartitionLog) -> PartitionRow:
    epochs = log.leader_epochs.entries if log.leader_epochs else ()
    return PartitionRow(
        topic=log.topic,
        partition=log.partition,
        segments=len(log.segments),
        size_bytes=sum(segment.size_bytes for segment in log.segments),
        log_start_offset=log.log_start_offset,
        log_end_offset=_log_end_offset(log),
        leader_epoch=epochs[-1].epoch if epochs else None,
        high_watermark=log.high_watermark,
        compacted=log.compacted,
        topic_id=log.topic_id,
        topic_id_derived=None if log.topic_id is None else is_derived_topic_id(log.topic_id),
        location=printable(log.directory),
    )


def _log_end_offset(log: PartitionLog) -> int | None:
    active = log.active_segment
    table = _headers(active) if active else None
    if active is None or table is None:
        return None
    return int(table.last_offset[-1]) + 1 if len(table) else active.base_offset


def _headers(segment: SegmentFiles) -> BatchTable | None:
    """Return the segment's batch headers; None when the broker has deleted the segment."""
    try:
        return scan_segment(segment.log_path, verify_crc=False)
    except FileNotFoundError:
        return None


def _segment_rows(log: PartitionLog) -> Iterator[SegmentRow]:
    for segment in log.segments:
        table = _headers(segment)
        yield SegmentRow(
            topic=log.topic,
            partition=log.partition,
            base_offset=segment.base_offset,
            last_offset=int(table.last_offset[-1]) if table else None,
            size_bytes=segment.size_bytes,
            max_timestamp_ms=int(table.max_timestamp_ms.max()) if table else None,
            leader_epochs=tuple(np.unique(table.leader_epoch).tolist()) if table else (),
            state=_state(segment, table),
            batches=None if table is None else len(table),
            records=None if table is None else int(table.record_count.sum()),
            codecs=_codecs(table) if table else (),
            indexes=_index_files(segment),
            location=printable(segment.log_path),
        )


def _codecs(table: BatchTable) -> tuple[str, ...]:
    """Return the codecs of data batches; markers are never compressed."""
    pairs = zip(table.codec, table.is_control.tolist(), strict=True)
    return tuple(sorted({codec for codec, is_control in pairs if not is_control}))


def _state(segment: SegmentFiles, table: BatchTable | None) -> str:
    if table is None:
        return "vanished"
    return "active" if segment.is_active else "rolled"


def _index_files(segment: SegmentFiles) -> tuple[str, ...]:
    present = {
        "index": segment.offset_index_path,
        "timeindex": segment.time_index_path,
        "txnindex": segment.transaction_index_path,
        "snapshot": segment.start_snapshot_path,
    }
    return tuple(kind for kind, path in present.items() if path)


def _skipped_row(skipped: Skipped) -> SkippedRow:
    return SkippedRow(path=skipped.path, reason=skipped.reason.value, detail=skipped.detail)


def _problem_row(problem: CorruptDataError) -> ProblemRow:
    return ProblemRow(
        path=problem.path or "",
        position=problem.position,
        reason=problem.reason,
        expected=problem.expected,
        found=problem.found,
    )

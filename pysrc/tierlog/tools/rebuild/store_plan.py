"""Plans which `.indexes` objects of a store are rebuilt, and which objects each rebuild uses.

Every `.indexes` object is read, and all of its checksums are checked. A `.log` object without an
`.indexes` object is left alone in two cases: the object is so new that its copy may be active, or a
sound segment holds its first offset. In the second case, an interrupted copy left the `.log` object
behind, and a later copy stored the segment.

Listings, results and chains stay packed, so the plan needs little memory even for many segments.
Only one partition at a time is unpacked, and only if one of its segments needs a rebuild.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from operator import itemgetter

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.reader.nearby import no_archive
from tierlog.remote.parallel import PARALLEL_READS, map_in_parallel
from tierlog.remote.segment.bucket import deposed_copy, is_left_out
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import verify_indexes
from tierlog.remote.segment.layout import (
    LOG_SUFFIX,
    MAX_TOPIC_LABEL,
    ObjectKey,
    Takeover,
    indexes_key,
    is_marker,
    parse_key,
    read_cluster_id,
)
from tierlog.remote.segment.log_index import DEFAULT_GROUP_BYTES
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.listed_segments import ListedSegments, SegmentPair, list_in_columns
from tierlog.tools.packed import pack, unpack
from tierlog.tools.rebuild.remote_index import StoredPartition
from tierlog.tools.rebuild.segment import Outcome, SegmentOutcome, SegmentRow, finding
from tierlog.tools.rebuild.store import StoredChain, StoredSegment, read_whole, salvage
from tierlog.tools.rebuild.tasks import PackedChains, pack_chains
from tierlog.types import TopicIdPartition

__all__ = ["LookAtListed", "LookedSegments", "StorePlan", "look_at_listed", "plan_store"]

# A `.log` object younger than this may belong to an active copy, which stores the `.indexes` object
# much sooner.
_COPY_UNDER_WAY_MS = 600_000
_DEPOSED = "nothing to do: readers ignore this copy, and the sidecar of the later leader removes it"
_NOT_OURS = "nothing to do: tierlog passes over it"
_COPY_AGAIN = (
    "run tierlog tier --repair while the broker still has the segment, or restore the object"
)

_Partition = tuple[str, int]


# A sound segment, a segment to rebuild, or the outcome of a segment that is neither.
Looked = SegmentDescription | StoredSegment | SegmentOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedSegments:
    """Packed results for `ListedSegments`.

    ``segments``, ``usable`` and ``broken`` are numbers of segments. ``broken`` segments will be
    rebuilt, and ``usable`` counts both sound and ``broken`` segments. ``topics`` has pairs of a
    topic id and its name.
    """

    segments: int
    usable: int
    broken: int
    topics: tuple[tuple[str, str], ...]
    packed: bytes

    @classmethod
    def of(cls, looks: Sequence[Looked]) -> LookedSegments:
        """Pack these results, which are in order."""
        told = [one if isinstance(one, SegmentDescription) else None for one in looks]
        broken = [one for one in looks if isinstance(one, StoredSegment)]
        partitions = [
            one.metadata.topic_id_partition
            for one in (*told, *(one.description for one in broken))
            if one is not None
        ]
        return cls(
            segments=len(looks),
            usable=sum(not isinstance(one, SegmentOutcome) for one in looks),
            broken=len(broken),
            topics=tuple({one.topic_id: one.topic for one in partitions}.items()),
            packed=pack(looks),
        )

    def looks(self) -> list[Looked]:
        """Return the results, in order."""
        found: list[Looked] = unpack(self.packed)
        return found

    def outcomes(self) -> Iterator[SegmentOutcome]:
        """Yield the outcomes of all segments that need no task."""
        for looked in self.looks():
            if isinstance(looked, SegmentDescription):
                yield _sound(looked)
            elif isinstance(looked, SegmentOutcome):
                yield looked


# A function that checks listed segments, in order.
LookAtListed = Callable[[Sequence[ListedSegments]], Iterable[LookedSegments]]


@dataclass(slots=True)
class StorePlan:
    """Chains to rebuild, outcomes of segments that need no task, other findings, and all
    partitions."""

    chains: list[PackedChains] = field(default_factory=list)
    looked: list[LookedSegments] = field(default_factory=list)
    outcomes: list[SegmentOutcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    partitions: list[StoredPartition] = field(default_factory=list)


def plan_store(
    store: ObjectStore,
    url: str,
    *,
    now_ms: int,
    dry_run: bool,
    index_interval_bytes: int,
    remote_index_interval_bytes: int = DEFAULT_GROUP_BYTES,
    slots: int = 1,
    least_bytes: int = 0,
    look: LookAtListed | None = None,
) -> StorePlan:
    """List the store and read every `.indexes` object, by ``look`` or in this process.

    Chains are packed for `slots` workers; a task has at least ``least_bytes``. Raises
    RemoteStorageError when the store does not answer, and the errors of ``look``.
    """
    plan = StorePlan()
    listed = list_in_columns(store.list(), lambda info: _foreign(info, plan))
    cluster_id = _cluster_id(store, bool(listed))
    looks = look_at_listed(store, listed) if look is None else look(listed)
    places: defaultdict[_Partition, list[LookedSegments]] = defaultdict(list)
    labels: dict[str, str] = {}
    told: dict[str, str] = {}
    for one, looked in zip(listed, looks, strict=True):
        key = parse_key(f"{one.folder}/{one.first}{LOG_SUFFIX}")
        plan.looked.append(looked)
        if looked.usable:
            places[key.topic_id, key.partition].append(looked)
        if looked.broken:
            # A key may hold only the beginning of the topic's name.
            labels[key.topic_id] = key.topic_label
        told.update(looked.topics)
    topics = labels | told

    def chains() -> Iterator[StoredChain]:
        for (topic_id, number), here in sorted(places.items(), key=itemgetter(0)):
            partition = TopicIdPartition(
                topic_id=topic_id, topic=topics[topic_id], partition=number
            )
            for run, seen in _to_rebuild(partition, here, now_ms, plan):
                yield _chain(
                    run,
                    seen,
                    url=url,
                    partition=partition,
                    cluster_id=cluster_id,
                    dry_run=dry_run,
                    index_interval_bytes=index_interval_bytes,
                    remote_index_interval_bytes=remote_index_interval_bytes,
                )

    plan.chains += pack_chains(chains(), slots, min_bytes=least_bytes)
    return plan


def _to_rebuild(
    partition: TopicIdPartition, here: Sequence[LookedSegments], now_ms: int, plan: StorePlan
) -> Iterator[tuple[tuple[StoredSegment, ...], _Seen]]:
    """Yield the chains of broken segments of a partition, and add the outcomes of other segments to
    the plan."""
    seen = _Seen.of(here)
    plan.partitions.append(
        StoredPartition.of(
            partition,
            (one.indexes_key for one in seen.broken),
            sum(one.usable for one in here),
        )
    )
    topic = partition.topic
    wanted = [one for one in seen.broken if not _left_alone(one, seen, now_ms, topic, plan)]
    for run in _runs(wanted, seen):
        yield run, seen


def _foreign(info: ObjectInfo, plan: StorePlan) -> None:
    if not is_marker(info.key):
        expected, found = "only segment objects", f"another object of {info.size_bytes} B"
        plan.findings.append(
            finding(
                info.key,
                "foreign_object",
                expected,
                found,
                _NOT_OURS,
                severity=Severity.NOTE,
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The segments of a partition. Sound segments are in the order of first offsets, broken
    segments in the order of the listing.

    ``starts`` has the first offsets of the sound segments. ``reaches`` has, for each sound segment,
    the highest last offset up to this segment. ``by_end`` has the sound segments by the offset
    after the segment's last offset. ``first_base`` is the lowest base offset; None if there are no
    segments.
    """

    first_base: int | None
    broken: list[StoredSegment]
    sound: list[SegmentDescription]
    starts: list[int]
    reaches: list[int]
    by_end: Mapping[int, list[SegmentDescription]]

    @classmethod
    def of(cls, here: Iterable[LookedSegments]) -> _Seen:
        """Unpack the segments of a partition, unless no segment needs a rebuild."""
        parts = list(here)
        is_sound = not any(part.broken for part in parts)
        looks = [] if is_sound else [one for part in parts for one in part.looks()]
        sound = sorted(
            (one for one in looks if isinstance(one, SegmentDescription)),
            key=lambda one: (one.metadata.start_offset, indexes_key(one.metadata)),
        )
        broken = [one for one in looks if isinstance(one, StoredSegment)]
        starts = [one.metadata.start_offset for one in sound]
        by_end: defaultdict[int, list[SegmentDescription]] = defaultdict(list)
        for one in sound:
            by_end[one.metadata.end_offset + 1].append(one)
        return cls(
            first_base=min([one.key.base_offset for one in broken] + starts[:1], default=None),
            broken=broken,
            sound=sound,
            starts=starts,
            reaches=[*accumulate((one.metadata.end_offset for one in sound), max)],
            by_end=by_end,
        )

    def holds(self, offset: int) -> bool:
        """Return whether a sound segment holds an offset."""
        before = bisect_right(self.starts, offset)
        return before > 0 and self.reaches[before - 1] >= offset


def _cluster_id(store: ObjectStore, holds_segments: bool) -> str:
    """Return the cluster id of the store; empty when the marker is missing or damaged. Raise an
    error if this is not a store."""
    try:
        return read_cluster_id(store)
    except RemoteResourceNotFoundError as error:
        if not holds_segments:
            raise no_archive(store) from error
    except CorruptDataError:
        return ""
    return ""


def look_at_listed(
    store: ObjectStore, listed: Sequence[ListedSegments], *, parallel_reads: int = PARALLEL_READS
) -> Iterator[LookedSegments]:
    """Yield the results of the listed segments, in order. ``parallel_reads`` segments are read at a
    time."""
    pairs = ((pair, one.takeovers) for one in listed for pair in one.pairs())
    looks = map_in_parallel(lambda pair: _check_segment(store, *pair), pairs, parallel_reads)
    for one in listed:
        yield LookedSegments.of(list(islice(looks, one.segments)))


def _check_segment(store: ObjectStore, pair: SegmentPair, takeovers: Sequence[Takeover]) -> Looked:
    """Check one segment: read its `.indexes` object and verify all checksums of this object."""
    log, indexes = pair.log, pair.indexes
    key = parse_key(pair.stem + LOG_SUFFIX)
    if log is None:
        path = "" if indexes is None else indexes.key
        expected = "a .log object beside it"
        told = finding(path, "indexes_without_log", expected, "none", _COPY_AGAIN)
        return _unusable(key, 0, told)
    broken = StoredSegment(key=key, size_bytes=log.size_bytes, stored_ms=log.last_modified_ms)
    if indexes is None:
        return broken
    path = f"{store.url}/{indexes.key}"
    data = read_whole(store, indexes.key, indexes.size_bytes)
    try:
        _, description = verify_indexes(data, path=path)
    except CorruptDataError as error:
        known, lineage = salvage(data, path, key)
        damage = f"{error.reason} at byte {error.position}"
        return replace(broken, damage=damage, description=known, lineage=lineage)
    described = indexes_key(description.metadata)
    if described != indexes.key:
        action = "the object was moved or renamed: move it back"
        told = finding(indexes.key, "wrong_key", "a description of this segment", described, action)
        return _unusable(key, log.size_bytes, told)
    size_bytes = description.metadata.segment_size_bytes
    if size_bytes != log.size_bytes:
        found = f"{log.size_bytes} bytes"
        told = finding(log.key, "wrong_size", f"{size_bytes} bytes", found, _COPY_AGAIN)
        return _unusable(key, log.size_bytes, told)
    if is_left_out(description, takeovers):
        problem = deposed_copy(description)
        told = finding(
            problem.key,
            problem.reason.value,
            problem.expected,
            problem.found,
            _DEPOSED,
            severity=Severity.NOTE,
        )
        row = _bare_row(key, key.topic_label, log.size_bytes, Outcome.LEFT_ALONE, told)
        return SegmentOutcome(row=row, findings=(told,))
    return description


def _sound(description: SegmentDescription) -> SegmentOutcome:
    metadata = description.metadata
    return SegmentOutcome(
        row=SegmentRow(
            topic=metadata.topic_id_partition.topic,
            partition=metadata.topic_id_partition.partition,
            base_offset=metadata.start_offset,
            end_offset=metadata.end_offset,
            size_bytes=metadata.segment_size_bytes,
            batches=description.batch_count if description.batch_count >= 0 else None,
            records=description.record_count if description.record_count >= 0 else None,
            max_timestamp_ms=metadata.max_timestamp_ms if metadata.max_timestamp_ms >= 0 else None,
            outcome=Outcome.SOUND,
            bytes_per_epoch=metadata.bytes_per_epoch or (),
            log_crc32c=metadata.log_crc32c,
            path=indexes_key(metadata).replace(".indexes", LOG_SUFFIX),
        )
    )


def _unusable(key: ObjectKey, size_bytes: int, found: Finding) -> SegmentOutcome:
    row = _bare_row(key, key.topic_label, size_bytes, Outcome.QUARANTINED, found)
    return SegmentOutcome(row=row, findings=(found,))


def _bare_row(
    key: ObjectKey, topic: str, size_bytes: int, outcome: Outcome, found: Finding
) -> SegmentRow:
    """Return the row of a segment that was not read."""
    return SegmentRow(
        topic=topic,
        partition=key.partition,
        base_offset=key.base_offset,
        size_bytes=size_bytes,
        outcome=outcome,
        bytes_per_epoch=(),
        log_crc32c=None,
        path=key.stem + LOG_SUFFIX,
        findings=(found.what,),
    )


def _left_alone(
    segment: StoredSegment, seen: _Seen, now_ms: int, topic: str, plan: StorePlan
) -> bool:
    """Return whether a `.log` object needs no rebuild. If it needs no rebuild, add the outcome of
    the object to the plan."""
    key = segment.key
    path, outcome, severity = key.stem + LOG_SUFFIX, Outcome.LEFT_ALONE, Severity.NOTE
    if segment.damage is None and seen.holds(key.base_offset):
        what, expected, found = (
            "superseded",
            "offsets of its own",
            "a sound segment that holds them",
        )
        action = "run tierlog tier again, which removes what an interrupted copy left"
    elif segment.damage is None and now_ms - segment.stored_ms < _COPY_UNDER_WAY_MS:
        what, expected, found = "copy_under_way", "an object of an earlier copy", "a new object"
        action = "nothing to do if a copy is active; otherwise run this again in ten minutes"
    elif len(topic) == MAX_TOPIC_LABEL and segment.description is None:
        what, expected, found = "topic_unknown", "the whole name of the topic", "only its beginning"
        action, outcome, severity = _COPY_AGAIN, Outcome.QUARANTINED, Severity.PROBLEM
    else:
        return False
    told = finding(path, what, expected, found, action, severity=severity)
    row = _bare_row(key, topic, segment.size_bytes, outcome, told)
    plan.outcomes.append(SegmentOutcome(row=row, findings=(told,)))
    return True


def _runs(broken: Iterable[StoredSegment], seen: _Seen) -> Iterator[tuple[StoredSegment, ...]]:
    """Yield groups of broken segments that have no sound segment between them, each in the order of
    offsets."""
    run: list[StoredSegment] = []
    for segment in sorted(broken, key=lambda one: (one.key.base_offset, one.key.segment_id)):
        here = segment.key.base_offset
        if run:
            after = bisect_right(seen.starts, run[-1].key.base_offset)
            if after < len(seen.starts) and seen.starts[after] < here:
                yield tuple(run)
                run = []
        run.append(segment)
    if run:
        yield tuple(run)


def _chain(
    run: tuple[StoredSegment, ...],
    seen: _Seen,
    *,
    url: str,
    partition: TopicIdPartition,
    cluster_id: str,
    dry_run: bool,
    index_interval_bytes: int,
    remote_index_interval_bytes: int,
) -> StoredChain:
    bases = sorted({one.key.base_offset for one in run})
    before, after = bisect_left(seen.starts, bases[0]), bisect_right(seen.starts, bases[-1])
    earlier = seen.sound[before - 1] if before else None
    later = seen.sound[after] if after < len(seen.sound) else None
    neighbour = earlier or later
    return StoredChain(
        url=url,
        partition=partition,
        chain=run,
        before=tuple(
            one.metadata
            for base in bases
            for one in seen.by_end.get(base, ())
            if one.metadata.start_offset < bases[0]
        ),
        after=None if later is None else later.metadata,
        begins=bases[0] == seen.first_base,
        broker_id=-1 if neighbour is None else neighbour.metadata.broker_id,
        cluster_id=cluster_id if neighbour is None else neighbour.cluster_id,
        dry_run=dry_run,
        index_interval_bytes=index_interval_bytes,
        remote_index_interval_bytes=remote_index_interval_bytes,
    )

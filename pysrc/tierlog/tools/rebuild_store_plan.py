"""Which `.indexes` objects of a store have to be made again, and from what.

Every `.indexes` object is read and all of its checksums are compared. Left alone are `.log` objects
without one that are younger than a copy takes, and those whose first offset a sound segment holds
already: leavings of a copy that was interrupted and done again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.indexes import verify_indexes
from tierlog.remote.layout import (
    CLUSTER_KEY,
    LOG_SUFFIX,
    MAX_TOPIC_LABEL,
    ObjectKey,
    cluster_of,
    indexes_key,
    parse_key,
)
from tierlog.remote.object_store import ObjectInfo, ObjectStore
from tierlog.remote.segment_json import SegmentDescription
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.rebuild_remote_index import StoredPartition
from tierlog.tools.rebuild_segment import Outcome, SegmentOutcome, SegmentRow, finding
from tierlog.tools.rebuild_store import StoredChain, StoredSegment, read_whole, salvage
from tierlog.types import TopicIdPartition

__all__ = ["LookAtPairs", "Looked", "SegmentPair", "StorePlan", "look_at_pairs", "plan_store"]

_PARALLEL_READS = 8
# Far longer than the moment between the two objects of a segment that is being copied.
_COPY_UNDER_WAY_MS = 600_000
_NOT_OURS = "nothing to do: tierlog passes over it"
_COPY_AGAIN = "copy the segment again while the broker still has it, or restore the object"

_Partition = tuple[str, int]


@dataclass(slots=True)
class SegmentPair:
    """The two objects of a segment; None for one that is not there."""

    key: ObjectKey
    log: ObjectInfo | None = None
    indexes: ObjectInfo | None = None


# A sound segment, one to rebuild, or why neither; and whoever finds that out for many, in order.
Looked = SegmentDescription | StoredSegment | Finding
LookAtPairs = Callable[[Sequence[SegmentPair]], Iterable[Looked]]


@dataclass(slots=True)
class StorePlan:
    """What is to be done, what is already known of segments that need nothing, other findings; and
    all partitions."""

    chains: list[StoredChain] = field(default_factory=list)
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
    look: LookAtPairs | None = None,
) -> StorePlan:
    """Lists the store, and has every `.indexes` object read: by ``look``, or else here.

    RemoteStorageError when the store does not answer, and whatever ``look`` raises.
    """
    plan = StorePlan()
    pairs = _pairs(store, plan)
    cluster_id = _cluster_id(store, bool(pairs))
    sound: dict[_Partition, list[SegmentDescription]] = defaultdict(list)
    broken: dict[_Partition, list[StoredSegment]] = defaultdict(list)
    looks = look_at_pairs(store, pairs) if look is None else look(pairs)
    for pair, looked in zip(pairs, looks, strict=True):
        place = (pair.key.topic_id, pair.key.partition)
        if isinstance(looked, SegmentDescription):
            sound[place].append(looked)
            plan.outcomes.append(_sound(looked))
        elif isinstance(looked, StoredSegment):
            broken[place].append(looked)
        else:
            plan.outcomes.append(_unusable(pair, looked))
    topics = _topics(sound, broken)
    for place in sorted({*sound, *broken}):
        plan.partitions.append(
            StoredPartition(
                partition=_partition(place, topics),
                suspects=frozenset(one.indexes_key for one in broken[place]),
                segments=len(sound[place]) + len(broken[place]),
            )
        )
    for place, segments in sorted(broken.items()):
        wanted = [
            one for one in segments if not _left_alone(one, sound[place], now_ms, topics, plan)
        ]
        for run in _runs(wanted, sound[place]):
            plan.chains.append(
                _chain(
                    run,
                    sound[place],
                    _first_base(segments, sound[place]),
                    url=url,
                    partition=_partition(place, topics),
                    cluster_id=cluster_id,
                    dry_run=dry_run,
                    index_interval_bytes=index_interval_bytes,
                )
            )
    return plan


def _pairs(store: ObjectStore, plan: StorePlan) -> list[SegmentPair]:
    """All segments by key; everything else is a note."""
    pairs: dict[str, SegmentPair] = {}
    for info in store.list():
        try:
            key = parse_key(info.key)
        except ValueError:
            if info.key != CLUSTER_KEY:
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
            continue
        pair = pairs.setdefault(key.stem, SegmentPair(key=key))
        if key.suffix == LOG_SUFFIX:
            pair.log = info
        else:
            pair.indexes = info
    return [pairs[stem] for stem in sorted(pairs)]


def _cluster_id(store: ObjectStore, holds_segments: bool) -> str:
    """Whose store it is; empty where the marker is gone, too. An error if this is no store."""
    try:
        return cluster_of(store)
    except RemoteResourceNotFoundError:
        if not holds_segments:
            raise
    except CorruptDataError:
        return ""
    return ""


def look_at_pairs(
    store: ObjectStore, pairs: Iterable[SegmentPair], *, parallel_reads: int = _PARALLEL_READS
) -> Iterator[Looked]:
    """What becomes of each, in order, a few of them read at a time."""
    with ThreadPoolExecutor(parallel_reads, thread_name_prefix="tierlog-plan") as pool:
        yield from pool.map(lambda one: _look(store, one), pairs)


def _look(store: ObjectStore, pair: SegmentPair) -> Looked:
    """By its `.indexes` object, of which all checksums are compared."""
    log, indexes = pair.log, pair.indexes
    if log is None:
        found = "none"
        key = "" if indexes is None else indexes.key
        return finding(key, "indexes_without_log", "a .log object beside it", found, _COPY_AGAIN)
    broken = StoredSegment(key=pair.key, size_bytes=log.size_bytes, stored_ms=log.last_modified_ms)
    if indexes is None:
        return broken
    path = f"{store.url}/{indexes.key}"
    data = read_whole(store, indexes.key, indexes.size_bytes)
    try:
        _, description = verify_indexes(data, path=path)
    except CorruptDataError as error:
        told, lineage = salvage(data, path, pair.key)
        return StoredSegment(
            key=pair.key,
            size_bytes=log.size_bytes,
            stored_ms=log.last_modified_ms,
            damage=f"{error.reason} at byte {error.position}",
            description=told,
            lineage=lineage,
        )
    described = indexes_key(description.metadata)
    if described != indexes.key:
        action = "somebody moved or renamed the object: move it back"
        return finding(indexes.key, "wrong_key", "a description of this segment", described, action)
    size_bytes = description.metadata.segment_size_bytes
    if size_bytes != log.size_bytes:
        found = f"{log.size_bytes} bytes"
        return finding(log.key, "wrong_size", f"{size_bytes} bytes", found, _COPY_AGAIN)
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


def _unusable(pair: SegmentPair, found: Finding) -> SegmentOutcome:
    size_bytes = 0 if pair.log is None else pair.log.size_bytes
    row = _bare_row(pair.key, pair.key.topic_label, size_bytes, Outcome.QUARANTINED, found)
    return SegmentOutcome(row=row, findings=(found,))


def _bare_row(
    key: ObjectKey, topic: str, size_bytes: int, outcome: Outcome, found: Finding
) -> SegmentRow:
    """A segment that nobody looked into."""
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


def _topics(
    sound: dict[_Partition, list[SegmentDescription]],
    broken: dict[_Partition, list[StoredSegment]],
) -> dict[str, str]:
    """The name of each topic by its id: a key may hold only its beginning."""
    names = {
        topic_id: one.key.topic_label for (topic_id, _), all_ in broken.items() for one in all_
    }
    told = [one for segments in sound.values() for one in segments]
    told += [one.description for all_ in broken.values() for one in all_ if one.description]
    for description in told:
        partition = description.metadata.topic_id_partition
        names[partition.topic_id] = partition.topic
    return names


def _partition(place: _Partition, topics: dict[str, str]) -> TopicIdPartition:
    topic_id, number = place
    return TopicIdPartition(topic_id=topic_id, topic=topics[topic_id], partition=number)


def _left_alone(
    segment: StoredSegment,
    sound: Iterable[SegmentDescription],
    now_ms: int,
    topics: dict[str, str],
    plan: StorePlan,
) -> bool:
    """Whether nothing is to be done about a `.log` object; says so in the plan."""
    key, topic = segment.key, topics[segment.key.topic_id]
    path, outcome, severity = key.stem + LOG_SUFFIX, Outcome.LEFT_ALONE, Severity.NOTE
    held = any(
        one.metadata.start_offset <= key.base_offset <= one.metadata.end_offset for one in sound
    )
    if segment.damage is None and held:
        what, expected, found = (
            "superseded",
            "offsets of its own",
            "a sound segment that holds them",
        )
        action = "run tierlog tier again, which removes what an interrupted copy left"
    elif segment.damage is None and now_ms - segment.stored_ms < _COPY_UNDER_WAY_MS:
        what, expected, found = "copy_under_way", "an object that was left behind", "a new one"
        action = "nothing to do if it is being copied; else run this again in ten minutes"
    elif len(topic) == MAX_TOPIC_LABEL and segment.description is None:
        what, expected, found = "topic_unknown", "the whole name of the topic", "only its beginning"
        action, outcome, severity = _COPY_AGAIN, Outcome.QUARANTINED, Severity.PROBLEM
    else:
        return False
    told = finding(path, what, expected, found, action, severity=severity)
    row = _bare_row(key, topic, segment.size_bytes, outcome, told)
    plan.outcomes.append(SegmentOutcome(row=row, findings=(told,)))
    return True


def _runs(
    broken: list[StoredSegment], sound: list[SegmentDescription]
) -> Iterator[tuple[StoredSegment, ...]]:
    """Broken segments with no sound one between them, each run in the order of offsets."""
    starts = sorted(one.metadata.start_offset for one in sound)
    run: list[StoredSegment] = []
    for segment in sorted(broken, key=lambda one: (one.key.base_offset, one.key.segment_id)):
        here = segment.key.base_offset
        if run and any(run[-1].key.base_offset <= start < here for start in starts):
            yield tuple(run)
            run = []
        run.append(segment)
    if run:
        yield tuple(run)


def _first_base(broken: list[StoredSegment], sound: list[SegmentDescription]) -> int:
    bases = [one.key.base_offset for one in broken]
    return min(bases + [one.metadata.start_offset for one in sound])


def _chain(
    run: tuple[StoredSegment, ...],
    sound: list[SegmentDescription],
    first_base: int,
    *,
    url: str,
    partition: TopicIdPartition,
    cluster_id: str,
    dry_run: bool,
    index_interval_bytes: int,
) -> StoredChain:
    bases = {one.key.base_offset for one in run}
    known = sorted(sound, key=lambda one: (one.metadata.start_offset, indexes_key(one.metadata)))
    earlier = [one for one in known if one.metadata.start_offset < min(bases)]
    later = [one for one in known if one.metadata.start_offset > max(bases)]
    neighbour = earlier[-1] if earlier else later[0] if later else None
    return StoredChain(
        url=url,
        partition=partition,
        chain=run,
        before=tuple(one.metadata for one in earlier if one.metadata.end_offset + 1 in bases),
        after=later[0].metadata if later else None,
        begins=min(bases) == first_base,
        broker_id=-1 if neighbour is None else neighbour.metadata.broker_id,
        cluster_id=cluster_id if neighbour is None else neighbour.cluster_id,
        dry_run=dry_run,
        index_interval_bytes=index_interval_bytes,
    )

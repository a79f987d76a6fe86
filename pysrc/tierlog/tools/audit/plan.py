"""Plans which segments of a store an audit checks, from the listing of the store and the metadata.

A part of the listing stays packed until a worker needs that part. The plan itself reports every
finding that needs no read of a segment's objects: a segment that lacks one object, foreign objects,
a missing or damaged cluster marker, a topic id with two names, and segments that only the metadata
has.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from urllib.parse import unquote, urlsplit

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.reader.nearby import no_archive
from tierlog.remote.segment.bucket import (
    Problem,
    ProblemReason,
    foreign_object,
    list_objects,
    unmatched_object,
)
from tierlog.remote.segment.kafka_layout import KAFKA_SCHEME
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    is_marker,
    parse_key,
    read_cluster_id,
)
from tierlog.remote.store.object_store import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, ObjectStore
from tierlog.tools.audit.metadata import KnownSegments, read_metadata
from tierlog.tools.audit.rows import FINISHED, UNDER_WAY_MS, AuditedSegment
from tierlog.tools.audit.segment import OBJECT_ACTIONS, SegmentTask, place_of
from tierlog.tools.findings import Finding, Tally
from tierlog.tools.listed_segments import ListedSegments, list_in_columns
from tierlog.tools.output import iso_time

__all__ = ["AuditPart", "AuditPlan", "plan_audit"]

_SETTLE = "run tierlog tier again, which settles interrupted copies and deletions"
_RESTORE = (
    "readers fail at these offsets: run tierlog tier --repair while the broker still has the "
    "segment, or restore the objects from a backup or an older version in the bucket"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPart:
    """Adjacent segments of one folder, for one worker.

    ``listed`` has the segments in the store; None if the store has no segment of the folder.
    ``known`` has the metadata, by key, of these segments and of segments between them that the
    store lacks. ``otherwise`` is the state of a segment that has no metadata.
    """

    listed: ListedSegments | None
    known: Mapping[str, AuditedSegment]
    otherwise: str | None

    @property
    def segments(self) -> int:
        """The number of segments in the listing, or in the metadata if nothing is listed."""
        return len(self.known) if self.listed is None else self.listed.segments

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` objects that have an `.indexes` object."""
        if self.listed is None:
            return 0
        if self.listed.alone:
            return sum(task.size_bytes for task in self.tasks())
        return self.listed.size_bytes

    def tasks(self) -> Iterator[SegmentTask]:
        """Yield one task for each segment of the store or the metadata, in the order of keys."""
        objects = {
            pair.log.key: (pair.log, pair.indexes)
            for pair in (() if self.listed is None else self.listed.pairs())
            if pair.log is not None and pair.indexes is not None
        }
        for key in sorted({*objects, *self.known}):
            known = self.known.get(key)
            state = self.otherwise if known is None else known.state
            yield SegmentTask(
                objects=objects.get(key),
                known=known,
                state=state,
                takeovers=() if self.listed is None else self.listed.takeovers,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """The segments of a store, in the order of keys, and the findings of its listing.

    ``cluster_id`` is the id in the cluster marker; None if the marker is missing or damaged.
    """

    url: str
    parts: tuple[AuditPart, ...]
    findings: tuple[Finding, ...]
    cluster_id: str | None

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` objects."""
        return sum(part.size_bytes for part in self.parts)

    def tasks(self) -> Iterator[SegmentTask]:
        """Yield one task for each segment of the store or the metadata, in the order of keys."""
        for part in self.parts:
            yield from part.tasks()


def plan_audit(
    store: ObjectStore,
    *,
    now_ms: int,
    metadata: str | None = None,
    part_bytes: int | None = None,
) -> AuditPlan:
    """List `store`, and read the metadata file `metadata` if given.

    Each part of the plan has at most ``part_bytes`` of `.log` objects, unless a single segment is
    larger. Raises RemoteResourceNotFoundError when the store does not exist, and the errors of the
    store and of `read_metadata`. A file that is not metadata is a finding.
    """
    tally = Tally()
    foreign: list[Problem] = []
    listed = list_in_columns(
        list_objects(store),
        lambda info: None if is_marker(info.key) else foreign.append(foreign_object(info)),
        max_bytes=part_bytes,
    )
    alone = [problem for one in listed if one.alone for problem in _alone(one)]
    for problem in (*foreign, *alone):
        _object_problem(store, problem, now_ms, tally)
    cluster_id = _cluster(store, bool(listed), tally)
    _temporary_files(store.url, tally)
    _names(listed, tally)
    # Read the metadata after the listing. A copy adds its segment to the metadata before it stores
    # the objects, so the metadata has each segment of an active copy.
    known = None if metadata is None else _known(metadata, tally)
    parts = tuple(_parts(listed, known))
    if known is not None:
        _compare(parts, {one.key for one in alone}, now_ms, tally)
    return AuditPlan(
        url=store.url, parts=parts, findings=tuple(tally.findings), cluster_id=cluster_id
    )


def _alone(listed: ListedSegments) -> Iterator[Problem]:
    for pair in listed.pairs():
        info = pair.log or pair.indexes
        if info is not None and (pair.log is None or pair.indexes is None):
            yield unmatched_object(info)


def _object_problem(store: ObjectStore, problem: Problem, now_ms: int, tally: Tally) -> None:
    say = tally.problem
    if problem.reason is ProblemReason.FOREIGN_OBJECT:
        say = tally.note
    if problem.reason is ProblemReason.LOG_WITHOUT_INDEXES:
        try:
            age_ms = now_ms - store.head(problem.key).last_modified_ms
        except RemoteResourceNotFoundError:
            return
        if age_ms < UNDER_WAY_MS:
            say = tally.note
    reason, action = problem.reason.value, OBJECT_ACTIONS[problem.reason]
    place = place_of(problem.key)
    say(problem.key, reason, problem.expected, problem.found, action, place=place)


def _cluster(store: ObjectStore, holds_segments: bool, tally: Tally) -> str | None:
    """Return the id in the cluster marker, and report a missing or damaged marker."""
    expected = "the marker of the cluster that the store belongs to"
    action = "run tierlog tier again, which writes the marker"
    try:
        return read_cluster_id(store)
    except RemoteResourceNotFoundError as error:
        if not holds_segments:
            raise no_archive(store) from error
        if not store.url.startswith(KAFKA_SCHEME):
            tally.problem(CLUSTER_KEY, "missing", expected, "none", action)
    except CorruptDataError as error:
        tally.error(error, CLUSTER_KEY, f"remove it and {action}")
    return None


def _temporary_files(url: str, tally: Tally) -> None:
    """Report temporary files that interrupted writes left in a folder. Only a store of local files
    shows temporary files."""
    parts = urlsplit(url)
    if parts.scheme != "file":
        return
    root = unquote(parts.path)
    for folder, _, names in os.walk(root):
        for name in names:
            if name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX):
                tally.note(
                    os.path.relpath(os.path.join(folder, name), root),
                    "temporary",
                    "whole objects only",
                    "an object half written",
                    "remove it, unless something is being copied just now",
                )


def _names(listed: Sequence[ListedSegments], tally: Tally) -> None:
    """Report a topic id with two topic names. This is a problem because a topic never changes its
    id or its name."""
    named: dict[str, str] = {}
    told: set[str] = set()
    for one in listed:
        if one.alone == one.segments:
            continue
        parsed = parse_key(f"{one.folder}/{one.first}{LOG_SUFFIX}")
        name = named.setdefault(parsed.topic_id, parsed.topic_label)
        if parsed.topic_label != name and parsed.topic_label not in told:
            told.add(parsed.topic_label)
            key = next(pair.log.key for pair in one.pairs() if pair.log and pair.indexes)
            tally.problem(
                key,
                "name_mismatch",
                f"segments of topic {name} only under topic id {parsed.topic_id}",
                f"one of topic {parsed.topic_label}",
                "a folder was copied or renamed: find out which partition these segments belong to",
                place=place_of(key),
            )


def _known(metadata: str, tally: Tally) -> KnownSegments | None:
    try:
        known = read_metadata(metadata)
    except CorruptDataError as error:
        tally.error(error, "", "move the file away and rebuild the metadata from the bucket")
        return None
    tally.findings += known.findings
    return known


def _compare(parts: Sequence[AuditPart], alone: set[str], now_ms: int, tally: Tally) -> None:
    """Report segments of the metadata that are unfinished or missing from the store. Objects
    without metadata are not reported here. A deletion may remove objects without metadata at any
    time, so the task that reads such objects reports them."""
    for task in (task for part in parts for task in part.tasks()):
        if task.known is not None and task.known.state != FINISHED:
            _dangling(task.known, now_ms, tally)
        elif task.known is not None and task.objects is None:
            _missing(task.known, alone, now_ms, tally)


def _dangling(segment: AuditedSegment, now_ms: int, tally: Tally) -> None:
    since_ms = segment.event_timestamp_ms
    say = tally.problem if now_ms - since_ms >= UNDER_WAY_MS else tally.note
    found = f"{segment.state} since {iso_time(since_ms)}"
    say(segment.path, "dangling", FINISHED, found, _SETTLE, place=segment.place())


def _missing(segment: AuditedSegment, alone: set[str], now_ms: int, tally: Tally) -> None:
    """Report the missing objects of a finished segment. The finding is a note if the metadata
    changed a short time ago."""
    is_new = now_ms - segment.event_timestamp_ms < UNDER_WAY_MS
    say = tally.note if is_new else tally.problem
    stem = segment.path.removesuffix(LOG_SUFFIX)
    for suffix in (LOG_SUFFIX, INDEXES_SUFFIX):
        if stem + suffix not in alone:
            expected = f"the object of a segment that the metadata calls {FINISHED}"
            say(stem + suffix, "missing", expected, "none", _RESTORE, place=segment.place())


def _parts(listed: Sequence[ListedSegments], known: KnownSegments | None) -> Iterator[AuditPart]:
    """Yield the parts in the order of keys. Each part has the metadata of all keys before the first
    key of the next part."""
    segments = {} if known is None else known.segments
    unreadable = set() if known is None else known.unreadable
    keys = sorted(segments)
    # Each part begins at a key. The first part of a folder also has the metadata of earlier keys.
    listed_by_folder: defaultdict[str, list[ListedSegments]] = defaultdict(list)
    for one in listed:
        listed_by_folder[one.folder].append(one)
    for folder in sorted({*listed_by_folder, *(key.rpartition("/")[0] for key in keys)}):
        told = known is not None and folder not in unreadable
        here = listed_by_folder[folder]
        begins = [f"{folder}/", *(f"{folder}/{one.first}" for one in here[1:]), f"{folder}0"]
        places: list[ListedSegments | None] = [*here] or [None]
        for place, (begin, end) in zip(places, pairwise(begins), strict=True):
            between = keys[bisect_left(keys, begin) : bisect_left(keys, end)] if keys else []
            yield AuditPart(
                listed=place,
                known={key: segments[key] for key in between},
                otherwise=None if told else FINISHED,
            )

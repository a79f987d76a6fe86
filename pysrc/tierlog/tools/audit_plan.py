"""Which segments of a store there are to look at: its listing against the metadata.

Found on the way is what needs no look into an object: objects that are alone or not ours, the
cluster marker, one topic under two names, and segments that only one of bucket and metadata has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.bucket import Problem, ProblemReason, list_pairs
from tierlog.remote.kafka_layout import KAFKA_SCHEME
from tierlog.remote.layout import (
    CLUSTER_KEY,
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    cluster_of,
    parse_key,
)
from tierlog.remote.object_store import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    ObjectInfo,
    ObjectStore,
)
from tierlog.tools.audit_metadata import KnownSegments, read_metadata
from tierlog.tools.audit_rows import FINISHED, UNDER_WAY_MS, AuditedSegment
from tierlog.tools.audit_segment import OBJECT_ACTIONS, SegmentTask, place_of
from tierlog.tools.findings import Finding, Tally
from tierlog.tools.output import iso_time

__all__ = ["AuditPlan", "plan_audit"]

_Pairs = Mapping[str, tuple[ObjectInfo, ObjectInfo]]

_SETTLE = "run tierlog tier again, which settles interrupted copies and deletions"
_RESTORE = (
    "readers fail there: restore the objects from a backup or an older version in the bucket, or "
    "copy the segment again while the broker still has it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """The segments of a store, by key, and what its listing alone shows.

    ``cluster_id`` is that of the marker, None without a sound one.
    """

    url: str
    tasks: tuple[SegmentTask, ...]
    findings: tuple[Finding, ...]
    cluster_id: str | None

    @property
    def size_bytes(self) -> int:
        """The bytes of all `.log` objects."""
        return sum(task.size_bytes for task in self.tasks)


def plan_audit(store: ObjectStore, *, now_ms: int, metadata: str | None = None) -> AuditPlan:
    """Lists `store`, and reads the metadata file `metadata` if given.

    RemoteResourceNotFoundError when there is no store; errors of the store and of `read_metadata`,
    except that a file that is no metadata is a finding.
    """
    tally = Tally()
    alone: list[Problem] = []
    pairs = {pair[0].key: pair for pair in list_pairs(store, alone.append)}
    for problem in alone:
        _object_problem(store, problem, now_ms, tally)
    ours = [one for one in alone if one.reason is not ProblemReason.FOREIGN_OBJECT]
    cluster_id = _cluster(store, bool(pairs or ours), tally)
    _temporary_files(store.url, tally)
    _names(pairs, tally)
    # After the listing: what is copied meanwhile was known before its objects were there.
    known = None if metadata is None else _known(metadata, tally)
    if known is not None:
        _compare(pairs, {one.key for one in ours}, known, now_ms, tally)
    return AuditPlan(
        url=store.url,
        tasks=tuple(_tasks(pairs, known)),
        findings=tuple(tally.findings),
        cluster_id=cluster_id,
    )


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
    """The id in the cluster marker; a finding when it is missing or damaged."""
    expected = "the marker of the cluster that the store belongs to"
    action = "run tierlog tier again, which writes the marker"
    try:
        return cluster_of(store)
    except RemoteResourceNotFoundError:
        if not holds_segments:
            raise
        if not store.url.startswith(KAFKA_SCHEME):
            tally.problem(CLUSTER_KEY, "missing", expected, "none", action)
    except CorruptDataError as error:
        tally.error(error, CLUSTER_KEY, f"remove it and {action}")
    return None


def _temporary_files(url: str, tally: Tally) -> None:
    """What interrupted writes to a folder left behind; other stores show nothing of the kind."""
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


def _names(pairs: _Pairs, tally: Tally) -> None:
    """A topic keeps its id and its name for life."""
    named: dict[str, str] = {}
    told: set[str] = set()
    for key in sorted(pairs):
        parsed = parse_key(key)
        name = named.setdefault(parsed.topic_id, parsed.topic_label)
        if parsed.topic_label != name and parsed.topic_label not in told:
            told.add(parsed.topic_label)
            tally.problem(
                key,
                "name_mismatch",
                f"segments of topic {name} only under topic id {parsed.topic_id}",
                f"one of topic {parsed.topic_label}",
                "somebody copied or renamed a folder: find out whose segments these are",
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


def _compare(
    pairs: _Pairs, alone: set[str], known: KnownSegments, now_ms: int, tally: Tally
) -> None:
    """What the metadata has that is not finished, or not in the store. What only the store has is
    told by whoever looks at it: by then a deletion may have taken it away."""
    for key, segment in known.segments.items():
        if segment.state != FINISHED:
            _dangling(segment, now_ms, tally)
        elif key not in pairs:
            _missing(segment, alone, now_ms, tally)


def _dangling(segment: AuditedSegment, now_ms: int, tally: Tally) -> None:
    since_ms = segment.event_timestamp_ms
    say = tally.problem if now_ms - since_ms >= UNDER_WAY_MS else tally.note
    found = f"{segment.state} since {iso_time(since_ms)}"
    say(segment.path, "dangling", FINISHED, found, _SETTLE, place=segment.place())


def _missing(segment: AuditedSegment, alone: set[str], now_ms: int, tally: Tally) -> None:
    """Unless it was finished after the store was listed."""
    is_new = now_ms - segment.event_timestamp_ms < UNDER_WAY_MS
    say = tally.note if is_new else tally.problem
    stem = segment.path.removesuffix(LOG_SUFFIX)
    for suffix in (LOG_SUFFIX, INDEXES_SUFFIX):
        if stem + suffix not in alone:
            expected = f"the object of a segment that the metadata calls {FINISHED}"
            say(stem + suffix, "missing", expected, "none", _RESTORE, place=segment.place())


def _tasks(pairs: _Pairs, known: KnownSegments | None) -> list[SegmentTask]:
    """One for each segment that either of both has, by key."""
    segments = {} if known is None else known.segments
    unreadable = set() if known is None else known.unreadable
    tasks = []
    for key in sorted({*pairs, *segments}):
        segment = segments.get(key)
        if segment is not None:
            state = segment.state
        else:
            told = known is not None and key.rpartition("/")[0] not in unreadable
            state = None if told else FINISHED
        tasks.append(SegmentTask(objects=pairs.get(key), known=segment, state=state))
    return tasks

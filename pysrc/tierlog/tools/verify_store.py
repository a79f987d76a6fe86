"""Is a store what it should be? Reads it and changes nothing.

Always checked: the cluster marker; that every `.log` has its `.indexes` and the other way round;
every section's checksum; sizes; that what the sections say fits together and that no offsets are
missing between segments. ``deep`` reads every `.log` object whole: its checksum, its batches and
records, and the indexes against them.

A store that does not answer is an error, not a finding.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from urllib.parse import unquote, urlsplit

import numpy as np

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.log.checkpoint import parse_leader_epochs
from tierlog.log.files import printable
from tierlog.remote.bucket import Problem, ProblemReason, describe_segments
from tierlog.remote.indexes import IndexKind
from tierlog.remote.layout import CLUSTER_KEY, cluster_of, indexes_key, log_key, parse_rdi
from tierlog.remote.log_index import decode_remote_log_index
from tierlog.remote.metadata import RemoteLogSegmentMetadata
from tierlog.remote.object_store import TEMPORARY_PREFIX, TEMPORARY_SUFFIX, ObjectStore
from tierlog.remote.segment_json import SegmentDescription
from tierlog.remote.storage import RemoteStorageManager
from tierlog.remote.store import open_store
from tierlog.tools.findings import Finding, Report, Tally
from tierlog.tools.progress import Progress, QuietProgress
from tierlog.tools.stored_log import StoredLog, read_stored_log
from tierlog.tools.verify_indexes import (
    IndexFault,
    check_offset_index,
    check_snapshot,
    check_time_index,
    check_txn_index,
)
from tierlog.types import TopicIdPartition

__all__ = ["verify_store"]

_PARALLEL_READS = 8
# Far longer than the moment between the two objects of a segment that is being copied.
_COPY_UNDER_WAY_MS = 600_000

_COPY_AGAIN = (
    "copy the segment again while the broker still has it, or restore the object from a backup "
    "or an older version in the bucket"
)
_REBUILD = "the .log object is the truth: rebuild the .indexes object from it"
_UNFINISHED = "run tierlog tier again, which settles interrupted copies; nothing reads this object"
_ACTIONS = {
    ProblemReason.FOREIGN_OBJECT: "nothing to do: tierlog passes over it",
    ProblemReason.LOG_WITHOUT_INDEXES: _UNFINISHED,
    ProblemReason.INDEXES_WITHOUT_LOG: _COPY_AGAIN,
    ProblemReason.CORRUPT_INDEXES: _REBUILD,
    ProblemReason.WRONG_KEY: "somebody moved or renamed the object: move it back",
    ProblemReason.WRONG_SIZE: _COPY_AGAIN,
    ProblemReason.WRONG_CHECKSUM: _COPY_AGAIN,
    ProblemReason.MISSING: "nothing to do if it is being deleted: run verify again",
}


def verify_store(
    url: str, *, now_ms: int, deep: bool = False, progress: Progress | None = None
) -> Report:
    """Check a store. Raises as ``open_store`` and for a store that cannot be read.

    ``now_ms`` tells half of a segment that is just being copied from one that was left behind.
    """
    watching = progress or QuietProgress()
    store = open_store(url)
    tally = Tally()
    alone: list[Problem] = []
    descriptions = list(describe_segments(store, on_problem=alone.append))
    for problem in alone:
        _object_problem(store, problem, now_ms, tally)
    ours = [one for one in alone if one.reason is not ProblemReason.FOREIGN_OBJECT]
    cluster_id = _cluster(store, bool(descriptions or ours), tally)
    _temporary_files(url, tally)
    watching.start(sum(one.metadata.segment_size_bytes for one in descriptions))
    storage = RemoteStorageManager(store)
    check = _deep_check if deep else _indexes_check
    for description, found in _in_parallel(lambda one: check(storage, one), descriptions):
        metadata = description.metadata
        tally.add_segment(metadata.segment_size_bytes)
        tally.batches += max(description.batch_count, 0)
        tally.records += max(description.record_count, 0)
        tally.findings += found
        if cluster_id and description.cluster_id not in ("", cluster_id):
            tally.problem(
                indexes_key(metadata),
                "wrong_cluster",
                f"a segment of cluster {cluster_id}, as {CLUSTER_KEY} says",
                f"one of cluster {printable(description.cluster_id)}",
                "two clusters share this prefix: give each its own",
            )
        watching.advance(metadata.segment_size_bytes, str(metadata.topic_id_partition.topic))
    _coverage((one.metadata for one in descriptions), tally)
    return tally.report(store.url, deep=deep)


def _object_problem(store: ObjectStore, problem: Problem, now_ms: int, tally: Tally) -> None:
    say = tally.problem
    if problem.reason in (ProblemReason.FOREIGN_OBJECT, ProblemReason.MISSING):
        say = tally.note
    if problem.reason is ProblemReason.LOG_WITHOUT_INDEXES:
        try:
            age_ms = now_ms - store.head(problem.key).last_modified_ms
        except RemoteResourceNotFoundError:
            return
        if age_ms < _COPY_UNDER_WAY_MS:
            say = tally.note
    reason = problem.reason.value
    say(problem.key, reason, problem.expected, problem.found, _ACTIONS[problem.reason])


def _cluster(store: ObjectStore, holds_segments: bool, tally: Tally) -> str | None:
    """The id in the cluster marker; a finding when it is missing or damaged."""
    expected = "the marker of the cluster that the store belongs to"
    action = "run tierlog tier again, which writes the marker"
    try:
        return cluster_of(store)
    except RemoteResourceNotFoundError:
        if not holds_segments:
            raise
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


def _indexes_check(storage: RemoteStorageManager, segment: SegmentDescription) -> list[Finding]:
    tally = Tally()
    _check_sections(storage, segment.metadata, tally)
    return tally.findings


def _deep_check(storage: RemoteStorageManager, segment: SegmentDescription) -> list[Finding]:
    tally = Tally()
    metadata = segment.metadata
    sections = _check_sections(storage, metadata, tally)
    try:
        log = read_stored_log(storage, metadata)
    except CorruptDataError as error:
        tally.error(error, log_key(metadata), _COPY_AGAIN)
        return tally.findings
    except RemoteResourceNotFoundError as error:
        tally.note(
            log_key(metadata), "vanished", "the object", str(error), _ACTIONS[ProblemReason.MISSING]
        )
        return tally.findings
    _check_log(segment, log, tally)
    if sections is not None:
        _check_against_log(metadata, sections, log, tally)
    return tally.findings


def _check_log(segment: SegmentDescription, log: StoredLog, tally: Tally) -> None:
    metadata = segment.metadata
    if metadata.log_crc32c is not None and log.crc32c != metadata.log_crc32c:
        tally.problem(
            log_key(metadata),
            "wrong_checksum",
            f"CRC-32C {metadata.log_crc32c:#010x}",
            f"{log.crc32c:#010x}",
            _COPY_AGAIN,
        )
    counts = {
        "batch_count": (segment.batch_count, len(log)),
        "record_count": (segment.record_count, int(log.record_count.sum())),
    }
    for what, (expected, found) in counts.items():
        if expected not in (-1, found):
            tally.problem(log_key(metadata), what, str(expected), str(found), _REBUILD)
    if len(log) and not (
        metadata.start_offset <= log.base_offset[0] and log.last_offset[-1] <= metadata.end_offset
    ):
        tally.problem(
            log_key(metadata),
            "wrong_offsets",
            f"offsets {metadata.start_offset} to {metadata.end_offset}",
            f"{log.base_offset[0]} to {log.last_offset[-1]}",
            _COPY_AGAIN,
        )


def _check_sections(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, tally: Tally
) -> dict[IndexKind, memoryview] | None:
    """All sections by their checksums, and those that can be judged without the log."""
    key = indexes_key(metadata)
    try:
        sections = storage.fetch_indexes(metadata)
        _check_remote_index(metadata, sections[IndexKind.REMOTE_LOG])
        _check_epochs(metadata, sections[IndexKind.LEADER_EPOCH])
    except CorruptDataError as error:
        tally.error(error, key, _REBUILD)
        return None
    except RemoteResourceNotFoundError as error:
        tally.note(key, "vanished", "the object", str(error), _ACTIONS[ProblemReason.MISSING])
        return None
    snapshot = bytes(sections[IndexKind.PRODUCER_SNAPSHOT])
    _index_faults(key, "producer snapshot", check_snapshot(snapshot), tally)
    return sections


def _check_remote_index(metadata: RemoteLogSegmentMetadata, data: memoryview) -> None:
    """The entries lead through the whole `.log`, byte after byte, offset after offset."""
    entries = decode_remote_log_index(data, path=indexes_key(metadata))
    position = 0
    for row in range(len(entries)):
        key, at = parse_rdi(entries.rdi[row], metadata.topic_id_partition)
        if str(key) != log_key(metadata) or at != position:
            raise _wrong_entry(
                metadata, int(entries.position[row]), f"byte {position}", f"{key}:{at}"
            )
        position += int(entries.data_length[row])
    if position != metadata.segment_size_bytes:
        size_bytes = metadata.segment_size_bytes
        raise _wrong_entry(metadata, len(data), f"entries up to byte {size_bytes}", f"{position}")
    outside = (entries.first_offset < metadata.start_offset) | (
        entries.last_offset > metadata.end_offset
    )
    for row in np.flatnonzero(outside)[:1].tolist():
        expected = f"offsets {metadata.start_offset} to {metadata.end_offset}"
        found = f"{entries.first_offset[row]} to {entries.last_offset[row]}"
        raise _wrong_entry(metadata, int(entries.position[row]), expected, found)


def _wrong_entry(
    metadata: RemoteLogSegmentMetadata, position: int, expected: str, found: str
) -> CorruptDataError:
    return CorruptDataError(
        reason="remote_log_index",
        path=indexes_key(metadata),
        position=position,
        expected=f"{expected} in the remoteLogIndex section",
        found=found,
    )


def _check_epochs(metadata: RemoteLogSegmentMetadata, data: memoryview) -> None:
    lineage = parse_leader_epochs(bytes(data), indexes_key(metadata))
    clipped = lineage.clipped(metadata.start_offset, metadata.end_offset + 1).entries
    # A lineage begins inside of the segment when records before that were deleted.
    starts = [metadata.start_offset, *(entry.start_offset for entry in clipped[1:])]
    epochs = tuple(zip((entry.epoch for entry in clipped), starts, strict=False))
    if epochs != metadata.leader_epochs:
        raise CorruptDataError(
            reason="leader_epochs",
            path=indexes_key(metadata),
            position=0,
            expected=f"the epochs of the metadata, {_pairs(metadata.leader_epochs)}",
            found=_pairs(epochs),
        )


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in pairs) or "none"


def _check_against_log(
    metadata: RemoteLogSegmentMetadata,
    sections: dict[IndexKind, memoryview],
    log: StoredLog,
    tally: Tally,
) -> None:
    key, base_offset = indexes_key(metadata), metadata.start_offset
    faults = {
        "offset index": check_offset_index(bytes(sections[IndexKind.OFFSET]), log, base_offset),
        "time index": check_time_index(bytes(sections[IndexKind.TIME]), log, base_offset),
        "transaction index": check_txn_index(bytes(sections[IndexKind.TRANSACTION]), log),
    }
    for name, found in faults.items():
        _index_faults(key, name, found, tally)


def _index_faults(key: str, section: str, faults: list[IndexFault], tally: Tally) -> None:
    for fault in faults:
        expected = f"{fault.expected} in the {section}"
        tally.problem(key, fault.what, expected, fault.found, _REBUILD, fault.position)


def _coverage(segments: Iterable[RemoteLogSegmentMetadata], tally: Tally) -> None:
    """Offsets that no segment holds, and those that two hold."""
    held: dict[TopicIdPartition, list[RemoteLogSegmentMetadata]] = {}
    for metadata in segments:
        held.setdefault(metadata.topic_id_partition, []).append(metadata)
    tally.partitions = len(held)
    for found in held.values():
        found.sort(key=lambda one: (one.start_offset, one.end_offset))
        for before, after in pairwise(found):
            missing = after.start_offset - before.end_offset - 1
            if missing > 0:
                tally.problem(
                    log_key(after),
                    "missing_offsets",
                    f"a segment from offset {before.end_offset + 1} on before this one",
                    f"{missing} offsets that no segment holds",
                    "see why with tierlog tier, or whether objects were deleted from the store",
                )
            elif missing < 0:
                tally.note(
                    log_key(after),
                    "overlap",
                    f"a start after offset {before.end_offset}, where the segment before ends",
                    f"offset {after.start_offset}",
                    "nothing to do: readers follow the leader epochs; one of both may be removed",
                )


def _in_parallel(
    check: Callable[[SegmentDescription], list[Finding]], segments: Iterable[SegmentDescription]
) -> Iterator[tuple[SegmentDescription, list[Finding]]]:
    """Each segment with what was found, in order, a few of them read at a time."""
    with ThreadPoolExecutor(_PARALLEL_READS, thread_name_prefix="tierlog-verify") as pool:
        running: deque[tuple[SegmentDescription, Future[list[Finding]]]] = deque()
        for segment in segments:
            running.append((segment, pool.submit(check, segment)))
            if len(running) > 2 * _PARALLEL_READS:
                done, future = running.popleft()
                yield done, future.result()
        while running:
            done, future = running.popleft()
            yield done, future.result()

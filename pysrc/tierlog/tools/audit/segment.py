"""Checks one segment of a store: its two objects and its metadata.

Each check covers the checksum of every section of the `.indexes` object, the agreement of the
sections, the sizes and the metadata. With ``deep``, a check also reads the whole `.log` object. A
deep check covers the checksum of the object, its batches and records, and the indexes, which it
compares with the batches.

Damage of the objects is a finding. A store that does not answer is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs, parse_leader_epochs
from tierlog.log.files import printable
from tierlog.log.index_files import read_producer_snapshot
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import (
    DescribedIndexes,
    Problem,
    ProblemReason,
    deposed_copy,
    describe_indexes,
    is_left_out,
)
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, read_sections
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    Takeover,
    indexes_key,
    log_key,
    parse_key,
    parse_rdi,
)
from tierlog.remote.segment.log_index import decode_remote_log_index
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.tools.audit.rows import (
    UNDER_WAY_MS,
    AuditedSegment,
    AuditRules,
    OpenTransaction,
    segment_of,
)
from tierlog.tools.audit.stored_log import StoredLog, read_stored_log
from tierlog.tools.findings import Finding, Place, Tally
from tierlog.tools.index_checks import (
    check_batch_checksums,
    check_offset_index,
    check_time_index,
    check_txn_index,
)

__all__ = ["OBJECT_ACTIONS", "SegmentLook", "SegmentTask", "look_at_segment", "place_of"]

# Maximum number of open transactions in a row. If a segment has more open transactions, the audit
# does not check them.
_MAX_OPEN_TRANSACTIONS = 10_000

_COPY_AGAIN = (
    "run tierlog tier --repair while the broker still has the segment, or restore the object from "
    "a backup or an older version in the bucket"
)
_REBUILD = (
    "run tierlog tier --repair beside the broker, or tierlog index rebuild without a broker: both "
    "make the .indexes object again from the .log object"
)
_WRITTEN_SO = (
    "the checksum of the batch is right, so the producer wrote the batch like this, and the broker "
    "has the same bytes; tierlog cat --on-corrupt skip continues after the batch"
)
# Reasons of damage that occur although the checksum of the batch is right.
_SEALED = frozenset(("bad_compression", "bad_header", "bad_record", "too_large"))
_ASK_BOTH = (
    "the objects or the metadata do not belong to this segment: run verify --deep; if it finds the "
    "objects sound, rebuild the metadata from the bucket"
)
_UNKNOWN = (
    "no reader finds the segment through this metadata, and retention never removes it; if the "
    "metadata lost it, rebuild the metadata from the bucket; remove both objects only if no "
    "metadata has the segment"
)
_UNFINISHED = (
    "nothing reads this object; run tierlog tier again to settle interrupted copies; with --repair "
    "it also settles copies that its state directory does not know"
)
OBJECT_ACTIONS = {
    ProblemReason.FOREIGN_OBJECT: "nothing to do: tierlog passes over it",
    ProblemReason.LOG_WITHOUT_INDEXES: _UNFINISHED,
    ProblemReason.INDEXES_WITHOUT_LOG: _COPY_AGAIN,
    ProblemReason.CORRUPT_INDEXES: _REBUILD,
    ProblemReason.WRONG_KEY: "the object was moved or renamed: move it back",
    ProblemReason.WRONG_SIZE: _COPY_AGAIN,
    ProblemReason.WRONG_CHECKSUM: _COPY_AGAIN,
    ProblemReason.MISSING: "nothing to do if it is being deleted: run verify again",
    ProblemReason.DEPOSED_COPY: "nothing to do: readers ignore this copy, and the sidecar of the "
    "later leader removes it",
}

_NOTED = (ProblemReason.MISSING, ProblemReason.DEPOSED_COPY)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTask:
    """A segment to check.

    ``objects`` are the listed `.log` and `.indexes` objects; None unless both were listed.
    ``known`` is the segment's metadata; None if the segment has no metadata. ``state`` has the
    meaning of `AuditedSegment.state`.
    """

    objects: tuple[ObjectInfo, ObjectInfo] | None
    known: AuditedSegment | None
    state: str | None
    takeovers: tuple[Takeover, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The bytes of the `.log` object."""
        return 0 if self.objects is None else self.objects[0].size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentLook:
    """The result of the check of one segment. ``segment`` is None when neither objects nor metadata
    describe a segment."""

    folder: str
    segment: AuditedSegment | None
    findings: tuple[Finding, ...]


def place_of(key: str) -> Place:
    """Return the subject that the key of an object names; empty for a foreign key."""
    try:
        parsed = parse_key(key)
    except ValueError:
        return Place()
    return Place(parsed.topic_label, parsed.partition, parsed.base_offset)


def look_at_segment(
    store: ObjectStore, task: SegmentTask, rules: AuditRules, *, cluster_id: str | None
) -> SegmentLook:
    """Check a segment of `store`. The store belongs to the cluster `cluster_id`; None if
    unknown."""
    if task.objects is None:
        assert task.known is not None
        return SegmentLook(folder=task.known.folder, segment=task.known, findings=())
    log, indexes = task.objects
    folder = log.key.rpartition("/")[0]
    tally = Tally(place=place_of(log.key))
    described = describe_indexes(store, log, indexes)
    if isinstance(described, DescribedIndexes) and is_left_out(
        described.description, task.takeovers
    ):
        described = deposed_copy(described.description)
    if isinstance(described, Problem):
        say = tally.note if described.reason in _NOTED else tally.problem
        action = OBJECT_ACTIONS[described.reason]
        say(described.key, described.reason.value, described.expected, described.found, action)
        segment = task.known
    else:
        segment = _look(store, task, described, tally, rules, cluster_id=cluster_id)
    if task.state is None:
        _orphan(log.key, rules.now_ms - indexes.last_modified_ms, described, tally)
    return SegmentLook(folder=folder, segment=segment, findings=tuple(tally.findings))


def _look(
    store: ObjectStore,
    task: SegmentTask,
    described: DescribedIndexes,
    tally: Tally,
    rules: AuditRules,
    *,
    cluster_id: str | None,
) -> AuditedSegment:
    description, known = described.description, task.known
    metadata = description.metadata
    name = metadata.topic_id_partition
    tally.place = Place(name.topic, name.partition, metadata.start_offset, metadata.end_offset)
    _check_cluster(description, cluster_id, tally)
    if known is not None:
        _check_known(metadata, known.metadata(), tally)
    sections = _sections(store, described, tally)
    log = _deep_look(store, description, sections, tally, rules) if rules.deep else None
    lineage = _lineage(metadata, sections, tally)
    changed_ms = metadata.event_timestamp_ms if known is None else known.event_timestamp_ms
    return segment_of(
        replace(metadata, event_timestamp_ms=changed_ms),
        state=task.state,
        stored=True,
        batches=description.batch_count if description.batch_count >= 0 else None,
        gap_start_offset=description.gap_start_offset,
        records=description.record_count if description.record_count >= 0 else None,
        truncation_offset=None if known is None else known.truncation_offset,
        log_start_offset=None if known is None else known.log_start_offset,
        lineage=None if lineage is None else lineage.entries,
        open_transactions=_open_transactions(metadata, sections, tally),
        ended_producers=None if log is None else _ended_producers(log),
    )


def _orphan(key: str, age_ms: int, described: DescribedIndexes | Problem, tally: Tally) -> None:
    """Report a segment that has no metadata, unless its objects are gone or are the copy of a
    deposed leader."""
    if isinstance(described, Problem) and described.reason in _NOTED:
        return
    say = tally.problem if age_ms >= UNDER_WAY_MS else tally.note
    say(key, "orphan", "a segment that the metadata knows", "one that it does not", _UNKNOWN)


def _check_cluster(description: SegmentDescription, cluster_id: str | None, tally: Tally) -> None:
    if cluster_id and description.cluster_id not in ("", cluster_id):
        tally.problem(
            indexes_key(description.metadata),
            "wrong_cluster",
            f"a segment of cluster {cluster_id}, as {CLUSTER_KEY} says",
            f"one of cluster {printable(description.cluster_id)}",
            "two clusters share this prefix: give each its own",
        )


def _check_known(
    stored: RemoteLogSegmentMetadata, known: RemoteLogSegmentMetadata, tally: Tally
) -> None:
    """Report differences between the objects and the metadata. A value that is missing in the
    objects or in the metadata is no difference."""
    if known.segment_size_bytes != stored.segment_size_bytes:
        tally.problem(
            log_key(stored),
            "wrong_size",
            f"{known.segment_size_bytes} bytes, as the metadata says",
            f"{stored.segment_size_bytes} bytes",
            _ASK_BOTH,
        )
    says = {
        "end offset": (known.end_offset, stored.end_offset),
        "leader epochs": (known.leader_epochs, stored.leader_epochs),
        "max timestamp": (known.max_timestamp_ms, stored.max_timestamp_ms),
        "empty transaction index": (known.txn_index_empty, stored.txn_index_empty),
        "CRC-32C of the .log object": (known.log_crc32c, stored.log_crc32c),
    }
    for name, (expected, found) in says.items():
        if expected != found and None not in (expected, found):
            tally.problem(
                indexes_key(stored),
                "metadata_mismatch",
                f"{name} {expected}, as the metadata says",
                str(found),
                _ASK_BOTH,
            )


_Sections = dict[IndexKind, memoryview]


def _sections(store: ObjectStore, described: DescribedIndexes, tally: Tally) -> _Sections | None:
    """Read all sections; check their checksums and the remoteLogIndex. If the sections are damaged
    or gone, add a finding and return None."""
    metadata = described.description.metadata
    key = indexes_key(metadata)
    try:
        header = described.header
        sections = read_sections(store, key, header, described.first, header.kinds)
        _check_remote_index(metadata, sections[IndexKind.REMOTE_LOG])
    except CorruptDataError as error:
        tally.error(error, key, _REBUILD)
        return None
    except RemoteResourceNotFoundError as error:
        action = OBJECT_ACTIONS[ProblemReason.MISSING]
        tally.note(key, "vanished", "the object", str(error), action)
        return None
    return sections


def _check_remote_index(metadata: RemoteLogSegmentMetadata, data: memoryview) -> None:
    """Check that the entries cover every byte of the `.log` object, and that their offsets lie in
    the segment."""
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


def _lineage(
    metadata: RemoteLogSegmentMetadata, sections: _Sections | None, tally: Tally
) -> LeaderEpochs | None:
    """Return the leader epochs of the `.indexes` object if they agree with the metadata."""
    if sections is None:
        return None
    key = indexes_key(metadata)
    try:
        lineage = parse_leader_epochs(bytes(sections[IndexKind.LEADER_EPOCH]), key)
        _check_epochs(metadata, lineage)
    except CorruptDataError as error:
        tally.error(error, key, _REBUILD)
        return None
    return lineage


def _check_epochs(metadata: RemoteLogSegmentMetadata, lineage: LeaderEpochs) -> None:
    """Raise CorruptDataError when the metadata and `lineage` name different epochs. If earlier
    records were deleted, the lineage begins inside or after the segment. Offsets before the
    beginning of the lineage are not compared."""
    end = metadata.end_offset + 1
    begin = max(metadata.start_offset, lineage.entries[0].start_offset if lineage else end)
    expected = LeaderEpochs(tuple(map(EpochEntry._make, metadata.leader_epochs))).clipped(
        begin, end
    )
    found = lineage.clipped(begin, end)
    if found != expected:
        raise CorruptDataError(
            reason="leader_epochs",
            path=indexes_key(metadata),
            position=0,
            expected=f"the epochs of the metadata, {_pairs(expected)}",
            found=_pairs(found),
        )


def _pairs(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{epoch} from {start}" for epoch, start in pairs) or "none"


def _open_transactions(
    metadata: RemoteLogSegmentMetadata, sections: _Sections | None, tally: Tally
) -> tuple[OpenTransaction, ...] | None:
    """Return the transactions that are open at the segment's end, from the producer snapshot."""
    if sections is None:
        return None
    data = bytes(sections[IndexKind.PRODUCER_SNAPSHOT])
    try:
        states = read_producer_snapshot(data)
    except CorruptDataError as error:
        _index_faults(indexes_key(metadata), "producer snapshot", [error], tally)
        return None
    is_open = states.current_txn_first_offset >= 0
    if int(is_open.sum()) > _MAX_OPEN_TRANSACTIONS:
        return None
    producers, firsts = states.producer_id[is_open], states.current_txn_first_offset[is_open]
    return tuple(map(OpenTransaction, producers.tolist(), firsts.tolist()))


def _ended_producers(log: StoredLog) -> tuple[int, ...]:
    """Return the producers whose transactions end in this segment. Every transactional control
    batch is a marker that ends a transaction."""
    markers = log.is_control & log.is_transactional
    return tuple(np.unique(log.producer_id[markers]).tolist())


def _deep_look(
    store: ObjectStore,
    segment: SegmentDescription,
    sections: _Sections | None,
    tally: Tally,
    rules: AuditRules,
) -> StoredLog | None:
    metadata = segment.metadata
    key = log_key(metadata)
    try:
        log = read_stored_log(
            ObjectStorageManager(store),
            metadata,
            max_decompressed_bytes=rules.max_decompressed_bytes,
        )
    except CorruptDataError as error:
        # If the reason is in _SEALED, the checksum of the batch is right, so the broker has the
        # same bytes.
        another = _WRITTEN_SO if error.reason in _SEALED else _COPY_AGAIN
        tally.error(error, key, error.hint or another)
        return None
    except RemoteResourceNotFoundError as error:
        action = OBJECT_ACTIONS[ProblemReason.MISSING]
        tally.note(key, "vanished", "the object", str(error), action)
        return None
    _check_log(segment, log, tally)
    if sections is not None:
        _check_against_log(metadata, sections, log, tally)
    return log


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


def _check_against_log(
    metadata: RemoteLogSegmentMetadata, sections: _Sections, log: StoredLog, tally: Tally
) -> None:
    key, base_offset = indexes_key(metadata), metadata.start_offset
    faults = {
        "offset index": check_offset_index(bytes(sections[IndexKind.OFFSET]), log, base_offset),
        "time index": check_time_index(bytes(sections[IndexKind.TIME]), log, base_offset),
        "transaction index": check_txn_index(bytes(sections[IndexKind.TRANSACTION]), log),
    }
    if IndexKind.BATCH_CHECKSUM in sections:
        faults["batch checksums"] = check_batch_checksums(
            bytes(sections[IndexKind.BATCH_CHECKSUM]), bytes(sections[IndexKind.OFFSET]), log
        )
    for name, found in faults.items():
        _index_faults(key, name, found, tally)


def _index_faults(key: str, section: str, faults: list[CorruptDataError], tally: Tally) -> None:
    for fault in faults:
        expected = f"{fault.expected} in the {section}"
        tally.problem(key, fault.reason, expected, fault.found, _REBUILD, fault.position)

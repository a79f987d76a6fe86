"""Rebuilds `.indexes` objects of a store from the `.log` objects of the same segments.

Only missing and damaged objects are rebuilt. Facts that the log lacks come from the sound parts of
the damaged object, otherwise from the segments around it:

| Field | Taken from |
|---|---|
| metadata, leader epochs | the damaged object's own sections, if their checksums hold |
| producer state at the start | the segment that ends where this one starts |
| leader epochs | the next sound segment; otherwise the segment before, and the batches |
| topic, broker and cluster id | a sound segment of the partition; or the key, -1, the marker |
| created_ms | the time at which the `.log` object was stored |

All of these facts come from the store, so every run over the same store makes the same bytes, even
when two runs overlap. A missing object is created unless another run has created it. A damaged
object is read again and then replaced by the bytes that any run would write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tierlog.errors import (
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs, parse_leader_epochs
from tierlog.log.files import SegmentHandle
from tierlog.log.rebuild import DEFAULT_INDEX_INTERVAL_BYTES, RebuiltIndexes
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import (
    MAX_INDEXES_BYTES,
    IndexesHeader,
    IndexKind,
    read_indexes_header,
    read_sections,
    verify_indexes,
)
from tierlog.remote.segment.layout import INDEXES_SUFFIX, ObjectKey, indexes_key
from tierlog.remote.segment.log_index import DEFAULT_GROUP_BYTES
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import PreparedSegment, encode_segment_indexes, segment_tables
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.rebuild.segment import (
    Examined,
    Outcome,
    SegmentOutcome,
    examine,
    finding,
    finding_of,
)
from tierlog.tools.rebuild.segment_bytes import open_stored_segment
from tierlog.types import TopicIdPartition

__all__ = [
    "StoredChain",
    "StoredSegment",
    "read_whole",
    "rebuild_stored_chain",
    "salvage",
    "sections_of",
]

_COPY_AGAIN = (
    "run tierlog tier --repair while the broker still has the segment, or restore the object from "
    "a backup or an older version in the bucket"
)
_BEFORE = "restore the segment before it, then run this again"
_FAILED = "see why the store or the disk failed, then run this again: finished work is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSegment:
    """A `.log` object without a sound `.indexes` object. ``damage`` is None when the object is
    missing.

    ``description`` and ``lineage`` are the sound parts of the damaged object.
    """

    key: ObjectKey
    size_bytes: int
    stored_ms: int
    damage: str | None = None
    description: SegmentDescription | None = None
    lineage: LeaderEpochs | None = None

    @property
    def indexes_key(self) -> str:
        """The key of the `.indexes` object to write."""
        return self.key.stem + INDEXES_SUFFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChain:
    """Consecutive segments of one partition that one worker takes in order.

    ``before`` has the sound segments that end right before a segment of the chain. ``after`` is the
    first sound segment that starts after the whole chain. ``begins`` is true if the store has no
    earlier segment of the partition.
    """

    url: str
    partition: TopicIdPartition
    chain: tuple[StoredSegment, ...]
    before: tuple[RemoteLogSegmentMetadata, ...]
    after: RemoteLogSegmentMetadata | None
    begins: bool
    broker_id: int
    cluster_id: str
    dry_run: bool
    index_interval_bytes: int = DEFAULT_INDEX_INTERVAL_BYTES
    remote_index_interval_bytes: int = DEFAULT_GROUP_BYTES

    @property
    def size_bytes(self) -> int:
        """The bytes of the segments."""
        return sum(segment.size_bytes for segment in self.chain)

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.chain)

    @property
    def name(self) -> str:
        """The name of the partition."""
        return f"{self.partition.topic}-{self.partition.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The state at the end of a segment, with which the next segment begins. ``snapshot`` is None
    when unknown."""

    snapshot: bytes | None
    lineage: LeaderEpochs


class _RefusedError(Exception):
    """The reason why a segment is not rebuilt, as a finding."""

    def __init__(self, found: Finding) -> None:
        self.finding = found


def salvage(
    data: bytes, path: str, key: ObjectKey
) -> tuple[SegmentDescription | None, LeaderEpochs | None]:
    """Return the description and the leader epochs of a damaged `.indexes` object. Each of the two
    parts is None if it is not sound."""
    try:
        header = IndexesHeader.parse(data, path=path)
        description = header.description(header.read_section(IndexKind.METADATA, data))
    except CorruptDataError:
        return None, None
    if indexes_key(description.metadata) != key.stem + INDEXES_SUFFIX:
        return None, None
    try:
        text = header.read_section(IndexKind.LEADER_EPOCH, data)
        return description, parse_leader_epochs(bytes(text), path)
    except CorruptDataError:
        return description, None


def rebuild_stored_chain(chain: StoredChain) -> Iterator[SegmentOutcome]:
    """Yield one outcome per segment, in order. Damage is a finding, never an error."""
    store = open_store(chain.url)
    states: dict[int, _State] = {}
    if chain.begins:
        states[chain.chain[0].key.base_offset] = _State(snapshot=None, lineage=LeaderEpochs())
    for number in range(len(chain.chain)):
        yield _rebuild_segment(chain, number, store, states)


def _rebuild_segment(
    chain: StoredChain, number: int, store: ObjectStore, states: dict[int, _State]
) -> SegmentOutcome:
    """Rebuild a segment, and add the state at its end to `states`."""
    segment = chain.chain[number]
    path, findings = f"{segment.key.stem}.log", list[Finding]()
    examined = Examined(rebuilt=None, damage=None)
    outcome = Outcome.QUARANTINED
    base = segment.key.base_offset
    try:
        before = states.get(base) or _state_before(chain, store, base)
        with open_stored_segment(chain.url, path, segment.size_bytes) as handle:
            examined = _examine(chain, segment, handle, before)
            _require_sound(segment, examined)
            if examined.rebuilt is not None and examined.end_offset is not None:
                found = _prepare(chain, segment, examined, examined.rebuilt, before, store)
                data = _encode(chain, segment, handle, *found)
                if before is not None and before.snapshot is None and base > 0:
                    findings.append(_begins(path))
                if before is None:
                    findings.append(_unknown_state(path, examined.has_transactions))
                outcome = _write(chain, segment, store, data, findings)
                snapshot = examined.rebuilt.producer_snapshot
                if before is not None:
                    states[examined.end_offset + 1] = _State(
                        snapshot=snapshot, lineage=found[0].leader_epochs
                    )
    except _RefusedError as error:
        findings.append(error.finding)
    except CorruptDataError as error:
        findings.append(finding_of(error, path, _COPY_AGAIN))
    except (OSError, RemoteStorageError) as error:
        findings.append(finding(path, "failed", "a store at work", str(error), _FAILED))
    row = examined.row(
        chain.partition.topic,
        chain.partition.partition,
        base,
        segment.size_bytes,
        outcome,
        path,
        findings,
    )
    return SegmentOutcome(row=row, findings=tuple(findings))


def _begins(path: str) -> Finding:
    return finding(
        path,
        "producer_state_unknown",
        "the state of producers at its base offset",
        "the first segment of the store",
        "nothing to do: a broker that recovers a log from this offset has no more to go by",
        severity=Severity.NOTE,
    )


def _unknown_state(path: str, matters: bool) -> Finding:
    found = finding(
        path,
        "producer_state_unknown",
        "a sound segment that ends where this one starts",
        "none",
        _BEFORE if matters else "its producer snapshot has only the producers of this segment",
        severity=Severity.PROBLEM if matters else Severity.NOTE,
    )
    if matters:
        # If this segment were rebuilt without the producer state, readers would get aborted records
        # as committed records.
        raise _RefusedError(found)
    return found


def _state_before(chain: StoredChain, store: ObjectStore, base_offset: int) -> _State | None:
    """Return the state at the end of the sound segment right before `base_offset`; None if there is
    no such segment."""
    for metadata in chain.before:
        if metadata.end_offset + 1 == base_offset:
            kinds = (IndexKind.PRODUCER_SNAPSHOT, IndexKind.LEADER_EPOCH)
            sections = sections_of(store, metadata, *kinds)
            return _State(
                snapshot=bytes(sections[IndexKind.PRODUCER_SNAPSHOT]),
                lineage=parse_leader_epochs(bytes(sections[IndexKind.LEADER_EPOCH])),
            )
    return None


def sections_of(
    store: ObjectStore, metadata: RemoteLogSegmentMetadata, *kinds: IndexKind
) -> dict[IndexKind, memoryview]:
    """Return sections of a segment's `.indexes` object after a check of their checksums. Raises
    CorruptDataError and RemoteStorageError."""
    key = indexes_key(metadata)
    header, first = read_indexes_header(store, key)
    return read_sections(store, key, header, first, kinds)


def _examine(
    chain: StoredChain, segment: StoredSegment, handle: SegmentHandle, before: _State | None
) -> Examined:
    told = segment.description
    return examine(
        handle,
        base_offset=segment.key.base_offset,
        next_base_offset=None if told is None else told.metadata.end_offset + 1,
        is_active=False,
        lineage=segment.lineage,
        # The description has the checksum of the whole `.log` object. If this checksum is right,
        # any gaps between batches were in the log when the segment was copied.
        allow_gaps=told is not None and told.metadata.log_crc32c is not None,
        producer_snapshot=None if before is None else before.snapshot,
        index_interval_bytes=chain.index_interval_bytes,
    )


def _require_sound(segment: StoredSegment, examined: Examined) -> None:
    """Raise the finding of a `.log` object that is damaged or is not the object that was copied."""
    path = f"{segment.key.stem}.log"
    if examined.damage is not None:
        raise examined.damage
    told = segment.description
    if told is not None and told.metadata.segment_size_bytes != segment.size_bytes:
        expected_bytes = told.metadata.segment_size_bytes
        raise _RefusedError(
            finding(
                path,
                "wrong_size",
                f"{expected_bytes} bytes, as its .indexes object says",
                f"{segment.size_bytes} bytes",
                _COPY_AGAIN,
            )
        )
    if told is not None and told.metadata.log_crc32c not in (None, examined.log_crc32c):
        expected, found = told.metadata.log_crc32c or 0, examined.log_crc32c or 0
        raise _RefusedError(
            finding(
                path,
                "wrong_checksum",
                f"CRC-32C {expected:#010x}, as its .indexes object says",
                f"{found:#010x}",
                _COPY_AGAIN,
            )
        )
    if examined.end_offset is None:
        raise _RefusedError(finding(path, "empty", "batches", "none", _COPY_AGAIN, position=0))


def _prepare(
    chain: StoredChain,
    segment: StoredSegment,
    examined: Examined,
    rebuilt: RebuiltIndexes,
    before: _State | None,
    store: ObjectStore,
) -> tuple[PreparedSegment, RemoteLogSegmentMetadata]:
    """Return the segment and its metadata in the form from which the copy task encodes an
    `.indexes` object."""
    told, base = segment.description, segment.key.base_offset
    end_offset = rebuilt.end_offset - 1 if told is None else told.metadata.end_offset
    prepared = PreparedSegment(
        partition=chain.partition,
        segment=SegmentFiles(
            base_offset=base,
            next_base_offset=end_offset + 1,
            log_path=f"{segment.key.stem}.log",
            size_bytes=segment.size_bytes,
        ),
        end_offset=end_offset,
        rebuilt=rebuilt,
        leader_epochs=_lineage(chain, segment, rebuilt, end_offset, before, store),
        log_crc32c=examined.log_crc32c or 0,
        size_bytes=rebuilt.table.stop_position,
    )
    if told is not None:
        return prepared, told.metadata
    try:
        metadata = prepared.metadata(
            segment.key.segment_id, broker_id=chain.broker_id, event_timestamp_ms=segment.stored_ms
        )
    except ValueError as error:
        raise _RefusedError(
            finding(segment.key.stem, "no_metadata", "a describable segment", str(error), _BEFORE)
        ) from None
    return prepared, metadata


def _lineage(
    chain: StoredChain,
    segment: StoredSegment,
    rebuilt: RebuiltIndexes,
    end_offset: int,
    before: _State | None,
    store: ObjectStore,
) -> LeaderEpochs:
    """Return the leader epochs up to the segment's end."""
    if segment.lineage is not None:
        return segment.lineage
    own = [EpochEntry(*pair) for pair in rebuilt.leader_epochs if pair[0] >= 0]
    if chain.after is not None:
        text = sections_of(store, chain.after, IndexKind.LEADER_EPOCH)[IndexKind.LEADER_EPOCH]
        later = parse_leader_epochs(bytes(text)).up_to(end_offset + 1)
        if _agree(later, own, segment.key.base_offset, end_offset):
            return later
    earlier = () if before is None else before.lineage.entries
    known = earlier[-1].epoch if earlier else -1
    lineage = LeaderEpochs((*earlier, *(entry for entry in own if entry.epoch > known)))
    if lineage.up_to(end_offset + 1):
        return lineage
    # Batches before message format 2 have no leader epochs.
    return lineage.with_front(segment.key.base_offset)


def _agree(lineage: LeaderEpochs, own: list[EpochEntry], base_offset: int, end_offset: int) -> bool:
    """Return whether a lineage agrees with a segment's own batches. Records below the beginning of
    the lineage are not compared, because they were deleted."""
    batches = LeaderEpochs(tuple(own))
    here = lineage.clipped(base_offset, end_offset + 1)
    return all(lineage.epoch_for(one.start_offset) in (one.epoch, None) for one in own) and all(
        batches.epoch_for(one.start_offset) == one.epoch for one in here
    )


def _encode(
    chain: StoredChain,
    segment: StoredSegment,
    handle: SegmentHandle,
    prepared: PreparedSegment,
    metadata: RemoteLogSegmentMetadata,
) -> bytes:
    told = segment.description
    cluster_id = chain.cluster_id if told is None else told.cluster_id
    tables = segment_tables(prepared.rebuilt, handle)
    return encode_segment_indexes(
        prepared,
        tables,
        metadata,
        cluster_id=cluster_id,
        remote_index_interval_bytes=chain.remote_index_interval_bytes,
        gap_start_offset=None if told is None else told.gap_start_offset,
        claim_epoch=None if told is None else told.claim_epoch,
    )[0]


def _write(
    chain: StoredChain,
    segment: StoredSegment,
    store: ObjectStore,
    data: bytes,
    findings: list[Finding],
) -> Outcome:
    """Create the object. Replace an existing object only after a second read has shown that it is
    still damaged."""
    key = segment.indexes_key
    if chain.dry_run:
        return Outcome.WOULD_WRITE
    if segment.damage is None and store.put_if_absent(key, data):
        return Outcome.WRITTEN
    there = read_whole(store, key)
    if there == data:
        return Outcome.SAME
    try:
        verify_indexes(there, path=f"{store.url}/{key}")
    except CorruptDataError:
        store.put_bytes(key, data, overwrite=True)
        return Outcome.WRITTEN
    findings.append(
        finding(
            key,
            "made_meanwhile",
            "a missing or damaged object",
            "a sound one, which stays",
            "nothing to do",
            severity=Severity.NOTE,
        )
    )
    return Outcome.SOUND


def read_whole(store: ObjectStore, key: str, size_bytes: int | None = None) -> bytes:
    """Return the bytes of an `.indexes` object; ``b""`` when the object is empty or missing.

    Raises CorruptDataError for an object above 256 MiB.
    """
    try:
        size = store.head(key).size_bytes if size_bytes is None else size_bytes
        if size > MAX_INDEXES_BYTES:
            raise CorruptDataError(
                reason="too_large",
                path=f"{store.url}/{key}",
                position=MAX_INDEXES_BYTES,
                expected=f"an object of at most {MAX_INDEXES_BYTES} bytes",
                found=f"one of {size}",
            )
        return bytes(store.get_range(key, 0, size)) if size else b""
    except RemoteResourceNotFoundError:
        return b""

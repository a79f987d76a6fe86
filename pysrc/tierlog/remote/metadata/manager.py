"""Remote log metadata: location and state of every segment, and the interface for querying them.

States and legal changes (KIP-405, Kafka's ``RemoteLogSegmentState``):

    none -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED
            COPY_SEGMENT_STARTED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED -> forgotten

Repeating the current state changes nothing. Any other change raises RemoteMetadataError and has no
effect. The states of deleting a partition are none -> DELETE_PARTITION_MARKED ->
DELETE_PARTITION_STARTED -> DELETE_PARTITION_FINISHED; then the partition is forgotten with all its
segments.

**Fencing.** A leader claims its partition and sends its leader epoch with every event. After the
first event or claim of a later epoch, events and claims of earlier epochs raise FencedLeaderError
and change nothing. An epoch never fences itself, so a retry after a lost answer is harmless.
Therefore two processes that use the *same* epoch are not distinguished; Kafka's controller never
gives one epoch to two brokers. Events without an epoch, which tools send, are not fenced.

**Truncation.** A leader of an unclean election may have truncated the log inside copied segments.
`truncation_offset` records where. The segment's offsets from `truncation_offset` on are no longer
part of the log and are not served. The truncation offset may be lowered, but never raised or
removed.

This module has the value classes and the interface `RemoteLogMetadataManager`. The module
`partition` computes the answers to queries; the managers are in `memory`, `sqlite` and `topic`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

from tierlog._hot import ChangeCount
from tierlog.errors import RemoteMetadataError
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = [
    "ArchiveOutline",
    "ChangeCount",
    "EpochRange",
    "RemoteLogMetadataManager",
    "RemoteLogSegmentMetadata",
    "RemoteLogSegmentMetadataUpdate",
    "RemoteLogSegmentState",
    "RemotePartitionDeleteMetadata",
    "RemotePartitionDeleteState",
    "is_legal_transition",
]

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class RemoteLogSegmentState(IntEnum):
    """Kafka's states with Kafka's numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


_LEGAL = {
    (None, RemoteLogSegmentState.COPY_SEGMENT_STARTED),
    (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.COPY_SEGMENT_FINISHED),
    (RemoteLogSegmentState.COPY_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
    (RemoteLogSegmentState.COPY_SEGMENT_FINISHED, RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
    (RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED),
}


def is_legal_transition(
    source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> bool:
    """Return whether the state `source` (None: not added yet) may change to `target`, or equals
    it."""
    return source is target or (source, target) in _LEGAL


class EpochRange(NamedTuple):
    """The offsets `start_offset` to `end_offset`, both inclusive, were written in one leader
    epoch."""

    epoch: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """Metadata of one segment in any state. The class has the fields of Kafka's class of the same
    name, and some more.

    Offsets are inclusive at both ends. `leader_epochs` holds (epoch, first offset) pairs, sorted by
    epoch; the first pair covers `start_offset`. `bytes_per_epoch` holds (epoch, bytes of the log)
    pairs whose bytes add up to `segment_size_bytes`; None when the bytes were not counted per
    epoch. `log_crc32c` is the CRC-32C of the `.log` object; None for segments that tierlog did not
    write. `truncation_offset` is the first offset that is no longer part of the log, or None.
    Contradictory values raise ValueError.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    leader_epochs: tuple[tuple[int, int], ...]
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    txn_index_empty: bool = False
    custom_metadata: bytes | None = None
    bytes_per_epoch: tuple[tuple[int, int], ...] | None = None
    log_crc32c: int | None = None
    truncation_offset: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "leader_epochs", _sorted_pairs(self.leader_epochs))
        if self.bytes_per_epoch is not None:
            object.__setattr__(self, "bytes_per_epoch", _sorted_pairs(self.bytes_per_epoch))
        self._check_offsets()
        self._check_leader_epochs()
        self._check_sizes()

    def _check_offsets(self) -> None:
        if not 0 <= self.start_offset <= self.end_offset < _MAX_INT64:
            raise ValueError(
                f"{self.segment_id}: offsets {self.start_offset}..{self.end_offset} are not a range"
            )
        _check_truncation(self.segment_id, self.truncation_offset)
        if not 0 <= self.segment_size_bytes <= _MAX_INT32:
            raise ValueError(
                f"{self.segment_id}: expected a size of 0..2^31-1 bytes, found "
                f"{self.segment_size_bytes}"
            )
        for number in (self.max_timestamp_ms, self.event_timestamp_ms):
            if not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
                raise ValueError(f"{self.segment_id}: {number} does not fit in 64 bits")
        if not -_MAX_INT32 - 1 <= self.broker_id <= _MAX_INT32:
            raise ValueError(f"{self.segment_id}: broker id {self.broker_id} exceeds 32 bits")
        if self.log_crc32c is not None and not 0 <= self.log_crc32c < 2**32:
            raise ValueError(f"{self.segment_id}: {self.log_crc32c} is not a CRC-32C")

    def _check_leader_epochs(self) -> None:
        epochs = self.leader_epochs
        if not epochs or epochs[0][0] < 0 or epochs[-1][0] > _MAX_INT32:
            raise ValueError(
                f"{self.segment_id}: expected leader epochs in 0..2^31-1, found {epochs}"
            )
        if epochs[0][1] > self.start_offset:
            raise ValueError(
                f"{self.segment_id}: starts at offset {self.start_offset}, before its first epoch "
                f"{epochs[0][0]} at {epochs[0][1]}"
            )
        for (earlier, earlier_start), (later, later_start) in pairwise(epochs):
            if later == earlier or later_start < earlier_start:
                raise ValueError(
                    f"{self.segment_id}: epoch {later} at offset {later_start} does not follow "
                    f"epoch {earlier} at offset {earlier_start}"
                )

    def _check_sizes(self) -> None:
        if self.bytes_per_epoch is None:
            return
        if self.bytes_per_epoch == ((self.leader_epochs[0][0], self.segment_size_bytes),):
            return
        epochs = {epoch for epoch, _ in self.leader_epochs}
        sizes = dict(self.bytes_per_epoch)
        if (
            len(sizes) != len(self.bytes_per_epoch)
            or not epochs.issuperset(sizes)
            or min(sizes.values(), default=0) < 0
            or sum(sizes.values()) != self.segment_size_bytes
        ):
            raise ValueError(
                f"{self.segment_id}: bytes per epoch {self.bytes_per_epoch} do not split "
                f"{self.segment_size_bytes} bytes over the epochs {sorted(epochs)}"
            )

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition

    @property
    def served_end_offset(self) -> int:
        """The segment's last offset that is part of the log. The value is below `start_offset` when
        no offset of the segment is part of the log."""
        if self.truncation_offset is None:
            return self.end_offset
        return min(self.end_offset, self.truncation_offset - 1)

    def epoch_ranges(self) -> tuple[EpochRange, ...]:
        """Return the offsets of each epoch in this segment, lowest first."""
        return self._ranges_up_to(self.end_offset)

    def served_epoch_ranges(self) -> tuple[EpochRange, ...]:
        """Return `epoch_ranges` without truncated offsets."""
        return self._ranges_up_to(self.served_end_offset)

    def _ranges_up_to(self, end_offset: int) -> tuple[EpochRange, ...]:
        if len(self.leader_epochs) == 1:
            only = EpochRange(self.leader_epochs[0][0], self.start_offset, end_offset)
            return (only,) if self.start_offset <= end_offset else ()
        starts = [max(start, self.start_offset) for _, start in self.leader_epochs]
        ends = [min(start - 1, end_offset) for start in starts[1:]] + [end_offset]
        return tuple(
            EpochRange(epoch, start, end)
            for (epoch, _), start, end in zip(self.leader_epochs, starts, ends, strict=True)
            if start <= end
        )

    def size_per_epoch(self) -> tuple[tuple[int, int], ...]:
        """Return (epoch, bytes) pairs. If the bytes were not counted per epoch, all bytes count for
        the last epoch."""
        if self.bytes_per_epoch is not None:
            return self.bytes_per_epoch
        return ((self.epoch_ranges()[-1].epoch, self.segment_size_bytes),)

    def served_size_per_epoch(self) -> tuple[tuple[int, int], ...]:
        """Return `size_per_epoch` without truncated epochs, because it is unknown how many of their
        bytes are still part of the log. So the sum is at most the size that is still part of the
        log."""
        if self.served_end_offset == self.end_offset:
            return self.size_per_epoch()
        truncated = {
            epoch
            for epoch, _, end_offset in self.epoch_ranges()
            if end_offset > self.served_end_offset
        }
        return tuple(pair for pair in self.size_per_epoch() if pair[0] not in truncated)

    def update_to(
        self,
        state: RemoteLogSegmentState,
        *,
        event_timestamp_ms: int,
        broker_id: int | None = None,
        truncation_offset: int | None = None,
    ) -> RemoteLogSegmentMetadataUpdate:
        """Return the event that changes this segment to `state`. The event repeats the segment's
        custom metadata, because an update without custom metadata removes the present custom
        metadata."""
        return RemoteLogSegmentMetadataUpdate(
            segment_id=self.segment_id,
            event_timestamp_ms=event_timestamp_ms,
            broker_id=self.broker_id if broker_id is None else broker_id,
            state=state,
            custom_metadata=self.custom_metadata,
            truncation_offset=truncation_offset,
        )

    def is_changed_by(self, update: RemoteLogSegmentMetadataUpdate) -> bool:
        """Return whether `update` has another state or a lower truncation offset."""
        cut = update.truncation_offset
        lower = cut is not None and (self.truncation_offset is None or cut < self.truncation_offset)
        return lower or update.state is not self.state

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Return this segment after `update`; raise RemoteMetadataError when the segment's state
        does not allow the update."""
        if update.segment_id != self.segment_id:
            raise ValueError(f"{self.segment_id}: got an update of {update.segment_id}")
        if not is_legal_transition(self.state, update.state):
            raise RemoteMetadataError(
                f"{self.segment_id}: cannot go from {self.state.name} to {update.state.name}"
            )
        return replace(
            self,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
            state=update.state,
            custom_metadata=update.custom_metadata,
            truncation_offset=_min_offset(self.truncation_offset, update.truncation_offset),
        )


def _min_offset(current: int | None, update: int | None) -> int | None:
    if current is None or update is None:
        return update if current is None else current
    return min(current, update)


def _check_truncation(segment_id: RemoteLogSegmentId, truncation_offset: int | None) -> None:
    if truncation_offset is not None and not 0 <= truncation_offset <= _MAX_INT64:
        raise ValueError(f"{segment_id}: expected a truncation offset, found {truncation_offset}")


def _sorted_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    if isinstance(pairs, tuple) and len(pairs) == 1:
        # Fast path, because nearly every segment has one epoch, and a million segments may load at
        # once.
        ((first, second),) = pairs
        return ((int(first), int(second)),)
    return tuple(sorted((int(first), int(second)) for first, second in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A new state of an existing segment. The update's fields replace the segment's fields.

    A `truncation_offset` of None keeps the present truncation offset, and only a lower value
    replaces it. An update to the present state is a change if it lowers the truncation offset.
    """

    segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    broker_id: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None
    truncation_offset: int | None = None

    def __post_init__(self) -> None:
        _check_truncation(self.segment_id, self.truncation_offset)
        if self.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                f"{self.segment_id}: an update to COPY_SEGMENT_STARTED is not possible; add a new "
                "segment instead"
            )


class RemotePartitionDeleteState(IntEnum):
    """Progress of deleting a whole partition; Kafka's states with Kafka's numbers."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """One step of deleting a partition, like Kafka's class of the same name."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


class ArchiveOutline(NamedTuple):
    """Summary of all segments of a partition.

    ``epochs`` holds the leader epochs of all segments, ascending. ``unfinished`` holds the segments
    whose copy or deletion is active or was interrupted. ``first`` is the served finished segment
    with the lowest start offset (of several, the shortest), or None.
    """

    segment_count: int
    epochs: tuple[int, ...]
    unfinished: tuple[RemoteLogSegmentMetadata, ...]
    first: RemoteLogSegmentMetadata | None


class RemoteLogMetadataManager(Protocol):
    """Kafka's interface of the same name, as tierlog uses it.

    A manager of another package subclasses this class. The setting
    ``remote.log.metadata.manager.class.name`` names the manager's class, as an entry point of the
    group ``tierlog.metadata_managers`` or as ``module:Class``. The manager is created without
    arguments, and `configure` is its first call. `tierlog.testing.MetadataConformance` tests a
    manager.

    Until a partition is loaded, every call for it raises MetadataNotReadyError instead of returning
    an empty answer. Calls may come from any thread. After `close`, calls raise ClosedError. A
    change is durable and visible when its call returns; a call that raises has changed nothing.
    """

    change_count: ChangeCount
    """The manager calls ``change_count.changed()`` after every event that may change the result of
    `changes` for any partition, or after which `changes` may raise."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Accept the settings that begin with the manager's prefix, without this prefix, plus
        ``tierlog.store.url``."""
        return

    @abstractmethod
    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        """Add a segment in COPY_SEGMENT_STARTED.

        Raises RemoteMetadataError when the id exists with other fields, or when the partition is
        being deleted. Raises FencedLeaderError when a later epoch than `leader_epoch` has been
        seen.
        """
        ...

    @abstractmethod
    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        """Apply a new state.

        Raises RemoteMetadataError for a missing segment or an illegal change, and FencedLeaderError
        when a later epoch than `leader_epoch` has been seen. Finishing the deletion of a missing
        segment succeeds, because it is a retry.
        """
        ...

    @abstractmethod
    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """Reject events of epochs before `leader_epoch` from now on. The same claim may be
        repeated.

        Raises FencedLeaderError when a later epoch has been seen.
        """
        ...

    @abstractmethod
    def leader_epoch(self, partition: TopicIdPartition) -> int:
        """Return the latest epoch of all claims and events of `partition`; -1 when there is
        none."""
        ...

    @abstractmethod
    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """Apply the next step of deleting a whole partition; repeats change nothing.

        DELETE_PARTITION_FINISHED removes the partition and its segments in any state, so the caller
        must delete their objects first. Raises RemoteMetadataError for a skipped step or a step
        back.
        """
        ...

    @abstractmethod
    def partition_delete_state(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteState | None:
        """Return the progress of the deletion; None before the partition is marked and after the
        deletion has finished."""
        ...

    @abstractmethod
    def changes(self, partition: TopicIdPartition) -> int:
        """Return a number that differs after every visible change of `partition`. It takes one
        look-up."""
        ...

    @abstractmethod
    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """Return the segment in any state; None when it does not exist or was deleted."""
        ...

    @abstractmethod
    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return a finished segment that serves `offset` of `epoch`, else None."""
        ...

    @abstractmethod
    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the first finished segment that serves `offset` or a later offset of `epoch` and
        has a transaction index (KIP-1058)."""
        ...

    @abstractmethod
    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the finished segments that serve offsets at or after `start_offset` and may hold a
        record of `timestamp_ms` or later, sorted by epoch and then by start offset.

        If a segment has no such record, the caller tries the next segment.
        """
        ...

    @abstractmethod
    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return all segments in any state, or only those of `epoch`, sorted by start offset."""
        ...

    @abstractmethod
    def outline(self, partition: TopicIdPartition) -> ArchiveOutline:
        """Return a summary of all segments. The cost of the call grows with the number of leader
        epochs and unfinished segments, not with the number of segments."""
        ...

    @abstractmethod
    def segments_from(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return the finished segments that serve `offset` or later offsets, sorted by start
        offset. The cost grows with the number of returned segments."""
        ...

    @abstractmethod
    def segments_by_offset(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        """Yield the finished segments sorted by start offset; of several with the same start
        offset, the shortest comes first. Each segment is looked up when the caller asks for it, so
        the cost grows with the number of yielded segments. Changes after the call may be
        visible."""
        ...

    @abstractmethod
    def overlapping_segments(
        self, partition: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Return the finished segments that overlap another finished segment, sorted by start
        offset. Truncated offsets count, too. The cost grows with the number of returned
        segments."""
        ...

    @abstractmethod
    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """Return the highest offset of `epoch` in any segment that was ever finished, or None.
        Deleting a segment does not lower this offset.

        Truncating a segment lowers the highest offset to the last offset of `epoch` before the
        truncation offset, or to the highest offset that other segments serve, whichever is higher.
        """
        ...

    @abstractmethod
    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Return the number of bytes of finished segments that were written in `epoch` (KIP-852).
        The call takes one look-up.

        The sum over the epochs of a lineage counts every byte once. Truncated epochs of a segment
        do not count (`served_size_per_epoch`).
        """
        ...

    @abstractmethod
    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """Return the archive's log start offset, which `advance_log_start_offset` records; None
        before its first call."""
        ...

    @abstractmethod
    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        """Record the archive's log start offset durably. An offset below the present one is
        ignored."""
        ...

    @abstractmethod
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Return all partitions that have a segment or are being deleted."""
        ...

    @abstractmethod
    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Return whether queries for `partition` can be answered."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Release files and locks. The call may be repeated."""
        ...

"""Remote log metadata: which segment is where, in which state, and what may be asked about it.

States and legal changes (KIP-405, Kafka's ``RemoteLogSegmentState``):

    none -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED
            COPY_SEGMENT_STARTED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED -> forgotten

A repeat of the state a segment is in changes nothing; anything else is a RemoteMetadataError and
changes nothing either.

This module holds the values and the seam `RemoteLogMetadataManager`. What follows from the states
is computed in `partition_metadata`; the managers are in `metadata_memory` and `metadata_sqlite`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

from tierlog.errors import RemoteMetadataError
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = [
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
    """Whether a segment in `source` (None: unknown so far) may go to `target`, or is there."""
    return source is target or (source, target) in _LEGAL


class EpochRange(NamedTuple):
    """Offsets `start_offset` to `end_offset`, both inclusive, written in one leader epoch."""

    epoch: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadata:
    """One uploaded (or half-uploaded) segment; the fields of Kafka's class of that name.

    Offsets are inclusive at both ends. `leader_epochs` holds (epoch, first offset) pairs and is
    kept sorted by epoch; the first one covers `start_offset`. `bytes_per_epoch` holds (epoch,
    bytes of the log) pairs that add up to `segment_size_bytes`, None when nobody counted them.
    `log_crc32c` is the CRC-32C of the whole `.log` object, None for foreign segments.
    ValueError for values that contradict each other.
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
                f"{self.segment_id}: offsets {self.start_offset}..{self.end_offset} are no range"
            )
        if not 0 <= self.segment_size_bytes <= _MAX_INT32:
            raise ValueError(
                f"{self.segment_id}: {self.segment_size_bytes} bytes, a segment has 0..2^31-1"
            )
        for number in (self.max_timestamp_ms, self.event_timestamp_ms):
            if not -_MAX_INT64 - 1 <= number <= _MAX_INT64:
                raise ValueError(f"{self.segment_id}: {number} does not fit 64 bits")
        if not -_MAX_INT32 - 1 <= self.broker_id <= _MAX_INT32:
            raise ValueError(f"{self.segment_id}: broker id {self.broker_id} has over 32 bits")
        if self.log_crc32c is not None and not 0 <= self.log_crc32c < 2**32:
            raise ValueError(f"{self.segment_id}: {self.log_crc32c} is no CRC-32C")

    def _check_leader_epochs(self) -> None:
        epochs = self.leader_epochs
        if not epochs or epochs[0][0] < 0 or epochs[-1][0] > _MAX_INT32:
            raise ValueError(f"{self.segment_id}: needs leader epochs in 0..2^31-1, has {epochs}")
        if epochs[0][1] > self.start_offset:
            raise ValueError(
                f"{self.segment_id}: starts at offset {self.start_offset}, but its first epoch "
                f"{epochs[0][0]} starts at {epochs[0][1]}"
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
        known = {epoch for epoch, _ in self.leader_epochs}
        sizes = dict(self.bytes_per_epoch)
        if (
            len(sizes) != len(self.bytes_per_epoch)
            or not known.issuperset(sizes)
            or min(sizes.values(), default=0) < 0
            or sum(sizes.values()) != self.segment_size_bytes
        ):
            raise ValueError(
                f"{self.segment_id}: bytes per epoch {self.bytes_per_epoch} do not split "
                f"{self.segment_size_bytes} bytes over the epochs {sorted(known)}"
            )

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition

    def epoch_ranges(self) -> tuple[EpochRange, ...]:
        """The offsets of each epoch that has any here, lowest first."""
        starts = [max(start, self.start_offset) for _, start in self.leader_epochs]
        ends = [min(start - 1, self.end_offset) for start in starts[1:]] + [self.end_offset]
        return tuple(
            EpochRange(epoch, start, end)
            for (epoch, _), start, end in zip(self.leader_epochs, starts, ends, strict=True)
            if start <= end
        )

    def size_per_epoch(self) -> tuple[tuple[int, int], ...]:
        """(epoch, bytes) pairs; uncounted bytes all go to the last epoch of the segment."""
        if self.bytes_per_epoch is not None:
            return self.bytes_per_epoch
        return ((self.epoch_ranges()[-1].epoch, self.segment_size_bytes),)

    def update_to(
        self, state: RemoteLogSegmentState, *, event_timestamp_ms: int, broker_id: int | None = None
    ) -> RemoteLogSegmentMetadataUpdate:
        """The event that takes this segment to `state`; keeps the custom metadata, which an
        update replaces even when it has none."""
        return RemoteLogSegmentMetadataUpdate(
            segment_id=self.segment_id,
            event_timestamp_ms=event_timestamp_ms,
            broker_id=self.broker_id if broker_id is None else broker_id,
            state=state,
            custom_metadata=self.custom_metadata,
        )

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """This segment after `update`. RemoteMetadataError when the state does not allow it."""
        if update.segment_id != self.segment_id:
            raise ValueError(f"update of {update.segment_id} given to {self.segment_id}")
        if not is_legal_transition(self.state, update.state):
            raise RemoteMetadataError(
                f"{self.segment_id}: no way from {self.state.name} to {update.state.name}"
            )
        return replace(
            self,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
            state=update.state,
            custom_metadata=update.custom_metadata,
        )


def _sorted_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted((int(first), int(second)) for first, second in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A later state of a known segment; its fields replace those of the segment."""

    segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    broker_id: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None

    def __post_init__(self) -> None:
        if self.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(f"{self.segment_id}: COPY_SEGMENT_STARTED is added, never updated to")


class RemotePartitionDeleteState(IntEnum):
    """How far the deletion of a whole partition is; Kafka's states with Kafka's numbers."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePartitionDeleteMetadata:
    """A partition is being deleted (Kafka's class of that name)."""

    partition: TopicIdPartition
    broker_id: int
    event_timestamp_ms: int
    state: RemotePartitionDeleteState


class RemoteLogMetadataManager(Protocol):
    """Kafka's interface of that name, in the form the rest of tierlog uses.

    What is not loaded yet is a MetadataNotReadyError in every call, never an empty answer. All
    calls may come from any thread. After `close` everything is a ClosedError.
    """

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """A new segment in COPY_SEGMENT_STARTED; durable and visible when this returns."""
        ...

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """A later state; durable and visible when this returns.

        RemoteMetadataError for an unknown segment or an illegal change, which then changes
        nothing. Finishing the deletion of an unknown segment is a repeat: it is forgotten.
        """
        ...

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """That segment in whatever state, None once it is forgotten."""
        ...

    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """A finished segment that holds `offset` written in `epoch`, None if there is none."""
        ...

    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of `epoch` that ends at or after `offset` and has a
        transaction index (KIP-1058)."""
        ...

    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Finished segments that end at or after `start_offset` and may hold a record of
        `timestamp_ms` or later, by epoch, then start offset.

        Go on to the next one when a segment turns out to have none at or past `start_offset`.
        """
        ...

    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Every known segment, whatever its state (of `epoch` if given), by start offset."""
        ...

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset ever finished for `epoch`, None for none; deletes do not lower it."""
        ...

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the finished segments that were written in `epoch`; one look-up (KIP-852).

        The sum over a lineage counts every byte once.
        """
        ...

    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Every partition with a known segment."""
        ...

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the calls above have an answer for `partition`."""
        ...

    def close(self) -> None:
        """Let go of files and locks; may be repeated."""
        ...

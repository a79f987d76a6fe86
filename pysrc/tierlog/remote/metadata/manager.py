"""Remote log metadata: which segment is where, in which state, and what may be asked about it.

States and legal changes (KIP-405, Kafka's ``RemoteLogSegmentState``):

    none -> COPY_SEGMENT_STARTED -> COPY_SEGMENT_FINISHED -> DELETE_SEGMENT_STARTED
            COPY_SEGMENT_STARTED -> DELETE_SEGMENT_STARTED -> DELETE_SEGMENT_FINISHED -> forgotten

A repeat of the state a segment is in changes nothing; anything else is a RemoteMetadataError and
changes nothing either. A partition that is deleted goes none -> DELETE_PARTITION_MARKED ->
DELETE_PARTITION_STARTED -> DELETE_PARTITION_FINISHED and is then forgotten with all its segments.

**Fencing.** A leader claims its partition and names its leader epoch with every event. From the
first event or claim of a later epoch on, those of an earlier one are a FencedLeaderError and change
nothing, however late they come. An epoch never fences itself: a repeat after a lost answer is
harmless. So two processes that believe to have the *same* epoch cannot be told apart; Kafka's
controller never gives an epoch to two of them. An event without an epoch (a tool's) is not fenced.

**Truncation.** A leader elected uncleanly may have cut the log inside segments that were copied
before. `truncation_offset` records where: what the segment holds from there on is no longer part
of the log and is not served. It may be lowered, never raised or taken back.

This module holds the values and the seam `RemoteLogMetadataManager`. What follows from the states
is computed in `partition`; the managers are in `memory`, `sqlite` and
`topic`.
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
    `truncation_offset` is the first offset that is no longer part of the log, None for none.
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
                f"{self.segment_id}: offsets {self.start_offset}..{self.end_offset} are no range"
            )
        _check_truncation(self.segment_id, self.truncation_offset)
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
        if self.bytes_per_epoch == ((self.leader_epochs[0][0], self.segment_size_bytes),):
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

    @property
    def served_end_offset(self) -> int:
        """The last offset here that is part of the log; below `start_offset` if none is."""
        if self.truncation_offset is None:
            return self.end_offset
        return min(self.end_offset, self.truncation_offset - 1)

    def epoch_ranges(self) -> tuple[EpochRange, ...]:
        """The offsets of each epoch that has any here, lowest first."""
        return self._ranges_up_to(self.end_offset)

    def served_epoch_ranges(self) -> tuple[EpochRange, ...]:
        """As `epoch_ranges`, without what was cut off the log."""
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
        """(epoch, bytes) pairs; uncounted bytes all go to the last epoch of the segment."""
        if self.bytes_per_epoch is not None:
            return self.bytes_per_epoch
        return ((self.epoch_ranges()[-1].epoch, self.segment_size_bytes),)

    def served_size_per_epoch(self) -> tuple[tuple[int, int], ...]:
        """As `size_per_epoch`, but only epochs that are whole: of one that was cut nobody knows how
        many bytes are left. So never more than what is part of the log."""
        if self.served_end_offset == self.end_offset:
            return self.size_per_epoch()
        cut_off = {
            epoch
            for epoch, _, end_offset in self.epoch_ranges()
            if end_offset > self.served_end_offset
        }
        return tuple(pair for pair in self.size_per_epoch() if pair[0] not in cut_off)

    def update_to(
        self,
        state: RemoteLogSegmentState,
        *,
        event_timestamp_ms: int,
        broker_id: int | None = None,
        truncation_offset: int | None = None,
    ) -> RemoteLogSegmentMetadataUpdate:
        """The event that takes this segment to `state`; keeps the custom metadata, which an
        update replaces even when it has none."""
        return RemoteLogSegmentMetadataUpdate(
            segment_id=self.segment_id,
            event_timestamp_ms=event_timestamp_ms,
            broker_id=self.broker_id if broker_id is None else broker_id,
            state=state,
            custom_metadata=self.custom_metadata,
            truncation_offset=truncation_offset,
        )

    def is_changed_by(self, update: RemoteLogSegmentMetadataUpdate) -> bool:
        """Whether `update` says more than is known: another state, or a lower cut."""
        cut = update.truncation_offset
        lower = cut is not None and (self.truncation_offset is None or cut < self.truncation_offset)
        return lower or update.state is not self.state

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
            truncation_offset=_lower(self.truncation_offset, update.truncation_offset),
        )


def _lower(known: int | None, update: int | None) -> int | None:
    if known is None or update is None:
        return update if known is None else known
    return min(known, update)


def _check_truncation(segment_id: RemoteLogSegmentId, truncation_offset: int | None) -> None:
    if truncation_offset is not None and not 0 <= truncation_offset <= _MAX_INT64:
        raise ValueError(f"{segment_id}: truncated at {truncation_offset}, which is no offset")


def _sorted_pairs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    if isinstance(pairs, tuple) and len(pairs) == 1:
        # Nearly every segment has one epoch, and a million of them are read at once.
        ((first, second),) = pairs
        return ((int(first), int(second)),)
    return tuple(sorted((int(first), int(second)) for first, second in pairs))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogSegmentMetadataUpdate:
    """A later state of a known segment; its fields replace those of the segment.

    Except `truncation_offset`: None leaves a cut as it is, and a cut is only ever lowered. With a
    lower one than known an update to the state the segment is in already is a change of its own.
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


class ArchiveOutline(NamedTuple):
    """What is known of all segments of a partition together.

    ``epochs``: the leader epochs that any segment holds offsets of, ascending. ``unfinished``: the
    segments that are being copied or deleted, or were when something stopped that. ``first``: the
    finished segment that starts first, of several the shortest; None without any.
    """

    segment_count: int
    epochs: tuple[int, ...]
    unfinished: tuple[RemoteLogSegmentMetadata, ...]
    first: RemoteLogSegmentMetadata | None


class RemoteLogMetadataManager(Protocol):
    """Kafka's interface of that name, in the form the rest of tierlog uses.

    A manager of another package subclasses it. It is named by
    ``remote.log.metadata.manager.class.name``: an entry point of the group
    ``tierlog.metadata_managers``, or ``module:Class``. It is made without arguments and configured
    before its first call. `tierlog.testing.MetadataConformance` tests it.

    What is not loaded yet is a MetadataNotReadyError in every call, never an empty answer. All
    calls may come from any thread. After `close` everything is a ClosedError. What returns is
    durable and visible; what raises has changed nothing.
    """

    change_count: ChangeCount
    """Its ``changed()`` is called by the manager after whatever may make `changes` of any
    partition another number, or an error."""

    def configure(self, settings: Mapping[str, str]) -> None:
        """Take the settings of the manager's own prefix, without the prefix, and besides
        ``tierlog.store.url``."""
        return

    @abstractmethod
    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        """A new segment in COPY_SEGMENT_STARTED.

        RemoteMetadataError for an id that is known otherwise, or when the partition is being
        deleted; FencedLeaderError when a later epoch than `leader_epoch` is known.
        """
        ...

    @abstractmethod
    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        """A later state.

        RemoteMetadataError for an unknown segment or an illegal change, FencedLeaderError when a
        later epoch than `leader_epoch` is known. Finishing the deletion of an unknown segment is a
        repeat: it is forgotten.
        """
        ...

    @abstractmethod
    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        """From now on events of earlier epochs change nothing. The same claim may be repeated.

        FencedLeaderError when a later epoch is known.
        """
        ...

    @abstractmethod
    def leader_epoch(self, partition: TopicIdPartition) -> int:
        """The latest epoch that claimed `partition` or was named with an event, -1 for none."""
        ...

    @abstractmethod
    def update_partition_delete(
        self, metadata: RemotePartitionDeleteMetadata, *, leader_epoch: int | None = None
    ) -> None:
        """The next step of deleting a whole partition; repeats change nothing.

        DELETE_PARTITION_FINISHED forgets the partition and all its segments, whatever their state:
        their objects have to be gone before. RemoteMetadataError for a step left out or taken back.
        """
        ...

    @abstractmethod
    def partition_delete_state(
        self, partition: TopicIdPartition
    ) -> RemotePartitionDeleteState | None:
        """How far the deletion is, None if nobody asked for it or all of it is done."""
        ...

    @abstractmethod
    def changes(self, partition: TopicIdPartition) -> int:
        """A number that is another one after every visible change of `partition`; one look-up."""
        ...

    @abstractmethod
    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """That segment in whatever state, None once it is forgotten."""
        ...

    @abstractmethod
    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """A finished segment that holds and serves `offset` written in `epoch`, None if there is
        none."""
        ...

    @abstractmethod
    def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """The first finished segment of `epoch` that serves `offset` or later ones of that epoch
        and has a transaction index (KIP-1058)."""
        ...

    @abstractmethod
    def segments_by_timestamp(
        self, partition: TopicIdPartition, timestamp_ms: int, start_offset: int = 0
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Finished segments that serve offsets at or after `start_offset` and may hold a record of
        `timestamp_ms` or later, by epoch, then start offset.

        Go on to the next one when a segment turns out to have none at or past `start_offset`.
        """
        ...

    @abstractmethod
    def list(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Every known segment, whatever its state (of `epoch` if given), by start offset."""
        ...

    @abstractmethod
    def outline(self, partition: TopicIdPartition) -> ArchiveOutline:
        """What is known of all segments together, at a cost that grows with the leader epochs and
        the unfinished segments, not with the segments."""
        ...

    @abstractmethod
    def segments_from(
        self, partition: TopicIdPartition, offset: int
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Finished segments that serve `offset` or later ones, by start offset; the cost grows with
        those."""
        ...

    @abstractmethod
    def segments_by_offset(self, partition: TopicIdPartition) -> Iterator[RemoteLogSegmentMetadata]:
        """Finished segments by start offset, of several the shorter first, each when it is asked
        for: the cost grows with those that are taken. A change after the call may show."""
        ...

    @abstractmethod
    def overlapping_segments(
        self, partition: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Finished segments that share an offset with another finished one, cut or not, by start
        offset; the cost grows with those."""
        ...

    @abstractmethod
    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest offset ever finished for `epoch`, None for none; deletes do not lower it.

        Cutting a segment does: to the last offset of `epoch` before the cut, or to the highest one
        that other segments serve.
        """
        ...

    @abstractmethod
    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of the finished segments that were written in `epoch`; one look-up (KIP-852).

        The sum over a lineage counts every byte once. Of a segment that was cut only the epochs
        that are whole count (`served_size_per_epoch`).
        """
        ...

    @abstractmethod
    def log_start_offset(self, partition: TopicIdPartition) -> int | None:
        """What `advance_log_start_offset` was last told, None before the first time."""
        ...

    @abstractmethod
    def advance_log_start_offset(self, partition: TopicIdPartition, offset: int) -> None:
        """Remember durably where the partition's archive begins; it never moves back."""
        ...

    @abstractmethod
    def partitions(self) -> tuple[TopicIdPartition, ...]:
        """Every partition with a known segment, or whose deletion is under way."""
        ...

    @abstractmethod
    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the calls above have an answer for `partition`."""
        ...

    @abstractmethod
    def close(self) -> None:
        """Let go of files and locks; may be repeated."""
        ...

"""What the states of one partition's segments mean: a pure data structure, no locks, no storage.

Kafka keeps, per epoch, an ordered map from start offset to one finished segment
(``RemoteLogLeaderEpochState``), and thereby loses segments that overlap in the wrong order. Here
every finished segment stays in its epochs' range lists, so

* of two segments with one start offset the longer one answers, whichever finished last;
* an offset that the nearest lower segment does not reach is looked for in earlier ones;
* a segment hidden by another serves again once that one is deleted;
* an epoch goes when its last segment does. What stays is one number, its highest offset.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tierlog.errors import FencedLeaderError, RemoteMetadataError
from tierlog.remote.metadata.manager import (
    ArchiveOutline,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.segment_sets import Extents, PlainSegment, Ranges, Row, Segments
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["NO_EPOCH", "PartitionChange", "PartitionMetadata"]

NO_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
_MAX_OFFSET = 2**63 - 1

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_PARTITION_GONE = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """What one event changes: a durable manager writes it down before `PartitionMetadata.apply`
    makes it visible. None and ``()`` stand for what stays as it is.

    `segment` is that segment afterwards (DELETE_SEGMENT_FINISHED: forgotten); `highest` holds
    (epoch, highest offset) pairs, -1 for none any more, and `sizes` (epoch, bytes) pairs.
    `delete_state` DELETE_PARTITION_FINISHED forgets everything but the leader epoch.
    """

    segment: RemoteLogSegmentMetadata | None = None
    highest: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    leader_epoch: int | None = None
    delete_state: RemotePartitionDeleteState | None = None
    log_start_offset: int | None = None


class _Epoch:
    """One leader epoch: all its known segments, and the ranges of the finished ones."""

    __slots__ = ("finished", "members", "with_txn_index")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.finished = Ranges()
        self.with_txn_index = Ranges()


class _Loading:
    """What the segments of a partition add up to, by epoch, while they come in."""

    __slots__ = ("extents", "finished", "sizes", "with_txn_index")

    def __init__(self) -> None:
        self.extents: list[tuple[int, int, str]] = []
        self.sizes: defaultdict[int, int] = defaultdict(int)
        self.finished: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
        self.with_txn_index: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)


class PartitionMetadata:
    """One partition's segments and the answers of `RemoteLogMetadataManager` about them.

    `change_of_...` check an event and say what it changes, None for a repeat; `apply` makes that
    visible. `add` and `update` do both. `change_number` is another one of `numbers` after every
    change.

    The segments may be elsewhere for the time being (`is_loaded` is False): what is known of the
    partition and its epochs as a whole is answered all the same, the rest not to be asked.
    """

    def __init__(self, partition: TopicIdPartition, numbers: Iterator[int] | None = None) -> None:
        self.partition = partition
        self.change_number = 0
        self.is_loaded = True
        self.leader_epoch = NO_EPOCH
        self.log_start_offset: int | None = None
        self.delete_state: RemotePartitionDeleteState | None = None
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._segments = Segments()
        self._epochs: dict[int, _Epoch] = {}
        # The keys of the above in order, None while nobody has asked since one came or went.
        self._sorted_epochs: tuple[int, ...] | None = None
        self._unfinished: set[str] = set()
        # The finished segments from first to last offset, cut or not.
        self._extents = Extents()
        self._sizes: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None = None) -> None:
        """Check and apply a new segment."""
        self._apply_if_any(self.change_of_add(metadata, leader_epoch))

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, leader_epoch: int | None = None
    ) -> None:
        """Check and apply a later state."""
        self._apply_if_any(self.change_of_update(update, leader_epoch))

    def change_of_add(
        self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None
    ) -> PartitionChange | None:
        """FencedLeaderError for an old epoch, else as `after_add`."""
        epoch = self._epoch_after(leader_epoch)
        self.after_add(metadata)
        is_new = metadata.segment_id.id not in self._segments
        return self._change(epoch, metadata if is_new else None)

    def change_of_update(
        self, update: RemoteLogSegmentMetadataUpdate, leader_epoch: int | None
    ) -> PartitionChange | None:
        """FencedLeaderError for an old epoch, else as `after_update`."""
        epoch = self._epoch_after(leader_epoch)
        return self._change(epoch, self.after_update(update))

    def change_of_claim(self, leader_epoch: int) -> PartitionChange | None:
        """FencedLeaderError for an old epoch."""
        return self._change(self._epoch_after(leader_epoch), None)

    def change_of_delete(
        self, metadata: RemotePartitionDeleteMetadata, leader_epoch: int | None
    ) -> PartitionChange | None:
        """FencedLeaderError for an old epoch, RemoteMetadataError for a step left out or back."""
        epoch = self._epoch_after(leader_epoch)
        known, target = self.delete_state, metadata.state
        if target is known or (known is None and target is _PARTITION_GONE and self.is_empty()):
            return self._change(epoch, None)
        if target != (0 if known is None else known + 1):
            raise RemoteMetadataError(
                f"{self.partition}: no way from {'no deletion' if known is None else known.name} "
                f"to {target.name}"
            )
        return PartitionChange(leader_epoch=epoch, delete_state=target)

    def change_of_log_start(self, offset: int) -> PartitionChange | None:
        """None unless `offset` is above the one known."""
        if not 0 <= offset <= _MAX_OFFSET:
            raise ValueError(f"{self.partition}: log start offset {offset}")
        if self.log_start_offset is not None and offset <= self.log_start_offset:
            return None
        return PartitionChange(log_start_offset=offset)

    def after_add(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """`metadata` itself if it may be added (or is known just so), else RemoteMetadataError."""
        if metadata.state is not _STARTED:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: a new segment starts as {_STARTED.name}, "
                f"not as {metadata.state.name}"
            )
        known = self._segments.get(metadata.segment_id.id)
        if known is None and self.delete_state is not None:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: its partition is being deleted ({self.delete_state.name})"
            )
        if known is not None and known != metadata:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: known already, in {known.state.name}; every copy attempt "
                "needs an id of its own"
            )
        return metadata

    def after_update(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata | None:
        """The segment after `update`, None for a repeat; RemoteMetadataError if not allowed."""
        known = self._segments.get(update.segment_id.id)
        if known is None:
            if update.state is _GONE:
                return None
            raise RemoteMetadataError(
                f"{update.segment_id}: {update.state.name} for a segment nobody added"
            )
        return known.updated(update) if known.is_changed_by(update) else None

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Take `metadata` as the truth about its segment, in whatever state, without checks."""
        change = self._change(None, metadata)
        if change is not None:
            self.apply(change)

    def load_segments(
        self,
        segments: Iterable[RemoteLogSegmentMetadata | PlainSegment],
        read_row: Callable[[Row], RemoteLogSegmentMetadata] | None = None,
    ) -> None:
        """Take back what `unload` gave up, in any order; ValueError when that is something else.

        The rows of plain segments stay rows, and go through `read_row` when they are asked for.
        """
        loading = _Loading()
        self._segments.read_row = read_row
        for found in segments:
            if isinstance(found, RemoteLogSegmentMetadata):
                self._load_segment(found, loading)
                continue
            name, epoch, start_offset, end_offset, size_bytes, finished, has_txn_index, row = found
            self._segments.put_row(name, row)
            self._epoch(epoch).members.add(name)
            if not finished:
                self._unfinished.add(name)
            else:
                extent = (start_offset, end_offset, name)
                loading.sizes[epoch] += size_bytes
                loading.extents.append(extent)
                loading.finished[epoch].append(extent)
                if has_txn_index:
                    loading.with_txn_index[epoch].append(extent)
        self._extents.extend(loading.extents)
        for epoch, rows in loading.finished.items():
            self._epochs[epoch].finished.extend(rows)
            self._epochs[epoch].with_txn_index.extend(loading.with_txn_index[epoch])
        self._check_totals({epoch: size for epoch, size in loading.sizes.items() if size})
        self.is_loaded = True

    def _load_segment(self, metadata: RemoteLogSegmentMetadata, loading: _Loading) -> None:
        name = metadata.segment_id.id
        if name in self._segments:
            raise ValueError(f"{metadata.segment_id} stands there twice")
        self._segments.put(name, metadata)
        for epoch, _, _ in metadata.epoch_ranges():
            self._epoch(epoch).members.add(name)
        if metadata.state is not _FINISHED:
            self._unfinished.add(name)
        else:
            loading.extents.append(_extent(metadata))
            for epoch, start_offset, end_offset in metadata.served_epoch_ranges():
                loading.finished[epoch].append((start_offset, end_offset, name))
                if not metadata.txn_index_empty:
                    loading.with_txn_index[epoch].append(loading.finished[epoch][-1])
            for epoch, size_bytes in metadata.served_size_per_epoch():
                loading.sizes[epoch] += size_bytes

    def _epoch(self, epoch: int) -> _Epoch:
        state = self._epochs.get(epoch)
        if state is None:
            state = self._epochs[epoch] = _Epoch()
            self._sorted_epochs = None
        return state

    def _check_totals(self, sizes: dict[int, int]) -> None:
        if sizes != self._sizes:
            raise ValueError(
                f"{self.partition}: finished segments have {sizes} bytes per epoch, "
                f"but their sums are {self._sizes}"
            )
        for epoch, state in self._epochs.items():
            if state.finished.highest_end(without="") > self._highest.get(epoch, -1):
                raise ValueError(
                    f"{self.partition}: segments of epoch {epoch} end after its highest offset"
                )

    def unload(self) -> None:
        """Give up the segments but keep the totals, until `load_segments`."""
        self.is_loaded = self.is_loaded and len(self._segments) == 0
        self._forget_segments()

    def copy(self) -> PartitionMetadata:
        """Another one that knows the same."""
        other = PartitionMetadata(self.partition, self._numbers)
        other.change_number, other.leader_epoch = self.change_number, self.leader_epoch
        other.log_start_offset, other.delete_state = self.log_start_offset, self.delete_state
        other._sizes, other._highest = dict(self._sizes), dict(self._highest)
        other.load_segments(self._segments.all())
        return other

    def apply(self, change: PartitionChange) -> None:
        """Make `change` visible."""
        if change.leader_epoch is not None:
            self.leader_epoch = change.leader_epoch
        if change.segment is not None:
            self._put(change.segment)
        for epoch, offset in change.highest:
            self.set_highest(epoch, offset)
        for epoch, size_bytes in change.sizes:
            self.set_size(epoch, size_bytes)
        if change.log_start_offset is not None:
            self.log_start_offset = change.log_start_offset
        if change.delete_state is _PARTITION_GONE:
            self._forget()
        elif change.delete_state is not None:
            self.delete_state = change.delete_state
        self.change_number = next(self._numbers)

    def set_highest(self, epoch: int, offset: int) -> None:
        """`offset` is the highest one ever finished in `epoch`; -1: nothing is."""
        if offset < 0:
            self._highest.pop(epoch, None)
        else:
            self._highest[epoch] = offset

    def set_size(self, epoch: int, size_bytes: int) -> None:
        """Bytes of the finished segments in `epoch`."""
        if size_bytes:
            self._sizes[epoch] = size_bytes
        else:
            self._sizes.pop(epoch, None)

    def _epoch_after(self, leader_epoch: int | None) -> int | None:
        """`leader_epoch` if it is news, None if not; FencedLeaderError for one of the past."""
        if leader_epoch is None:
            return None
        if not 0 <= leader_epoch <= _MAX_EPOCH:
            raise ValueError(f"{self.partition}: {leader_epoch} is no leader epoch")
        if leader_epoch == self.leader_epoch:
            return None
        if leader_epoch < self.leader_epoch:
            raise FencedLeaderError(
                f"{self.partition}: leader epoch {leader_epoch} is over, {self.leader_epoch} owns "
                "the partition; nothing was changed"
            )
        return leader_epoch

    def _change(
        self, leader_epoch: int | None, segment: RemoteLogSegmentMetadata | None
    ) -> PartitionChange | None:
        if leader_epoch is None and segment is None:
            return None
        if segment is None:
            return PartitionChange(leader_epoch=leader_epoch)
        return PartitionChange(
            leader_epoch=leader_epoch,
            segment=segment,
            highest=self._highest_after(segment),
            sizes=self._sizes_after(segment),
        )

    def _sizes_after(self, after: RemoteLogSegmentMetadata) -> tuple[tuple[int, int], ...]:
        """(epoch, bytes) pairs of the sums that are others once `after` is known."""
        changed: dict[int, int] = {}
        known = self._segments.get(after.segment_id.id)
        for sign, metadata in ((-1, known), (1, after)):
            if metadata is not None and metadata.state is _FINISHED:
                for epoch, size_bytes in metadata.served_size_per_epoch():
                    before = changed.get(epoch, self._sizes.get(epoch, 0))
                    changed[epoch] = before + sign * size_bytes
        return tuple(changed.items())

    def _highest_after(self, after: RemoteLogSegmentMetadata) -> tuple[tuple[int, int], ...]:
        """(epoch, offset) pairs of the highest offsets that are others once `after` is known."""
        name, cut = after.segment_id.id, after.truncation_offset
        known = self._segments.get(name)
        changed: dict[int, int] = {}
        if cut is not None and known is not None and known.truncation_offset != cut:
            first_offsets = dict(after.leader_epochs)
            for epoch, _, end_offset in after.epoch_ranges():
                if end_offset >= cut and self._highest.get(epoch, -1) >= cut:
                    below = cut - 1 if first_offsets[epoch] < cut else -1
                    changed[epoch] = max(below, self._highest_served(epoch, without=name))
        if after.state is _FINISHED and (known is None or known.state is not _FINISHED):
            for epoch, _, end_offset in after.served_epoch_ranges():
                if end_offset > changed.get(epoch, self._highest.get(epoch, -1)):
                    changed[epoch] = end_offset
        return tuple(changed.items())

    def _highest_served(self, epoch: int, *, without: str) -> int:
        state = self._epochs.get(epoch)
        return -1 if state is None else state.finished.highest_end(without=without)

    def _put(self, metadata: RemoteLogSegmentMetadata) -> None:
        name = metadata.segment_id.id
        known = self._segments.pop(name)
        self._unfinished.discard(name)
        if known is not None:
            self._leave_epochs(known)
        if metadata.state is _GONE:
            return
        self._segments.put(name, metadata)
        for epoch, _, _ in metadata.epoch_ranges():
            self._epoch(epoch).members.add(name)
        if metadata.state is _FINISHED:
            self._serve(metadata)
        else:
            self._unfinished.add(name)

    def _serve(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._extents.add(*_extent(metadata))
        for epoch, start_offset, end_offset in metadata.served_epoch_ranges():
            row = (start_offset, end_offset, metadata.segment_id.id)
            self._epochs[epoch].finished.add(*row)
            if not metadata.txn_index_empty:
                self._epochs[epoch].with_txn_index.add(*row)

    def _leave_epochs(self, known: RemoteLogSegmentMetadata) -> None:
        name = known.segment_id.id
        if known.state is _FINISHED:
            self._extents.remove(*_extent(known))
            for epoch, start_offset, end_offset in known.served_epoch_ranges():
                self._epochs[epoch].finished.remove(start_offset, end_offset, name)
                if not known.txn_index_empty:
                    self._epochs[epoch].with_txn_index.remove(start_offset, end_offset, name)
        for epoch, _, _ in known.epoch_ranges():
            self._epochs[epoch].members.discard(name)
            if not self._epochs[epoch].members:
                del self._epochs[epoch]
                self._sorted_epochs = None

    def _forget_segments(self) -> None:
        self._segments, self._epochs, self._unfinished = Segments(), {}, set()
        self._sorted_epochs, self._extents = None, Extents()

    def _forget(self) -> None:
        self._forget_segments()
        self._sizes.clear()
        self._highest.clear()
        self.is_loaded = True
        self.delete_state = None
        self.log_start_offset = None

    def _apply_if_any(self, change: PartitionChange | None) -> None:
        if change is not None:
            self.apply(change)

    # -- questions; see `RemoteLogMetadataManager`

    def has_segments(self) -> bool:
        """Whether any segment is known, loaded or not."""
        return len(self._segments) > 0 or not self.is_loaded

    def is_empty(self) -> bool:
        """Whether nothing is known but the leader epoch."""
        nothing_else = self.delete_state is None and self.log_start_offset is None
        return nothing_else and not self.has_segments() and not self._highest

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        return self._segments.get(segment_id.id)

    def lookup(self, epoch: int, offset: int) -> RemoteLogSegmentMetadata | None:
        state = self._epochs.get(epoch)
        name = state.finished.find(offset) if state is not None else None
        return None if name is None else self._segments[name]

    def next_segment_with_txn_index(
        self, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        state = self._epochs.get(epoch)
        name = state.with_txn_index.find_or_next(offset) if state is not None else None
        return None if name is None else self._segments[name]

    def segments_by_timestamp(
        self, timestamp_ms: int, start_offset: int
    ) -> Iterator[RemoteLogSegmentMetadata]:
        """Reads a snapshot: changes after the call do not show."""
        order: dict[str, None] = {}
        for epoch in sorted(self._epochs):
            order.update(dict.fromkeys(self._epochs[epoch].finished.names()))
        candidates = [self._segments[name] for name in order]
        return (
            segment
            for segment in candidates
            if segment.max_timestamp_ms >= timestamp_ms
            and segment.served_end_offset >= start_offset
        )

    def list(self, epoch: int | None) -> tuple[RemoteLogSegmentMetadata, ...]:
        if epoch is None:
            found = self._segments.all()
        elif epoch in self._epochs:
            found = [self._segments[name] for name in self._epochs[epoch].members]
        else:
            return ()
        return tuple(sorted(found, key=_extent))

    def outline(self) -> ArchiveOutline:
        if self._sorted_epochs is None:
            self._sorted_epochs = tuple(sorted(self._epochs))
        return ArchiveOutline(
            segment_count=len(self._segments),
            epochs=self._sorted_epochs,
            unfinished=self._in_order(self._unfinished),
            first=self._first_served(),
        )

    def _first_served(self) -> RemoteLogSegmentMetadata | None:
        first = self.finished_after(None)
        while first is not None and first.served_end_offset < first.start_offset:
            first = self.finished_after(first)
        return first

    def finished_after(
        self, segment: RemoteLogSegmentMetadata | None
    ) -> RemoteLogSegmentMetadata | None:
        """The finished segment that follows `segment` by `segments_by_offset`, or the first one."""
        row = self._extents.next_after(None if segment is None else _extent(segment))
        return None if row is None else self._segments[row[2]]

    def overlapping_segments(self) -> tuple[RemoteLogSegmentMetadata, ...]:
        return self._in_order(self._extents.overlapping())

    def segments_from(self, offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        found = map(self._segments.__getitem__, self._extents.names_from(offset))
        return tuple(one for one in found if one.served_end_offset >= max(offset, one.start_offset))

    def _in_order(self, names: Iterable[str]) -> tuple[RemoteLogSegmentMetadata, ...]:
        return tuple(sorted(map(self._segments.__getitem__, names), key=_extent))

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        return self._highest.get(epoch)

    def remote_log_size(self, epoch: int) -> int:
        return self._sizes.get(epoch, 0)

    def totals(self) -> dict[int, tuple[int, int]]:
        """By epoch, the highest offset (-1 for none) and the bytes of the finished segments."""
        epochs = {**self._highest, **self._sizes}
        return {
            epoch: (self._highest.get(epoch, -1), self._sizes.get(epoch, 0)) for epoch in epochs
        }

    def totals_after(self, change: PartitionChange) -> dict[int, tuple[int, int]]:
        """As `totals`, of the epochs that `change` touches, as they are afterwards."""
        highest, sizes = dict(change.highest), dict(change.sizes)
        return {
            epoch: (
                highest.get(epoch, self._highest.get(epoch, -1)),
                sizes.get(epoch, self._sizes.get(epoch, 0)),
            )
            for epoch in {**highest, **sizes}
        }


def _extent(metadata: RemoteLogSegmentMetadata) -> tuple[int, int, str]:
    return metadata.start_offset, metadata.end_offset, metadata.segment_id.id

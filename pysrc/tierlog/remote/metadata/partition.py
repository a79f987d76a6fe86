"""A data structure, without locks or I/O, for the segments of one partition and queries about them.

Kafka keeps, per epoch, an ordered map from start offset to one finished segment
(``RemoteLogLeaderEpochState``), and loses segments that overlap in the wrong order. In this module,
every finished segment stays in the range lists of its epochs. Therefore:

* of two segments with the same start offset, the longer one is found, whichever finished last;
* an offset past the end of the nearest lower segment is searched in earlier segments;
* after a segment is deleted, a segment that it overlapped is found again;
* when the last segment of an epoch is removed, only the epoch's highest offset is kept.
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
_DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_PARTITION_DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """The effect of one event. A durable manager stores the change before `PartitionMetadata.apply`
    makes it visible. None and ``()`` mean no change.

    `segment` is the segment after the change; in the state DELETE_SEGMENT_FINISHED it is removed.
    `highest` holds (epoch, highest offset) pairs, with -1 for no offset. `sizes` holds (epoch,
    bytes) pairs. The `delete_state` DELETE_PARTITION_FINISHED removes everything except the leader
    epoch.
    """

    segment: RemoteLogSegmentMetadata | None = None
    highest: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    leader_epoch: int | None = None
    delete_state: RemotePartitionDeleteState | None = None
    log_start_offset: int | None = None


class _Epoch:
    """One leader epoch: all its segments, and the offset ranges of its finished segments."""

    __slots__ = ("finished", "members", "with_txn_index")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.finished = Ranges()
        self.with_txn_index = Ranges()


class _Loading:
    """Ranges and sizes for each epoch, collected while the segments of a partition load."""

    __slots__ = ("extents", "finished", "sizes", "with_txn_index")

    def __init__(self) -> None:
        self.extents: list[tuple[int, int, str]] = []
        self.sizes: defaultdict[int, int] = defaultdict(int)
        self.finished: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)
        self.with_txn_index: defaultdict[int, list[tuple[int, int, str]]] = defaultdict(list)


class PartitionMetadata:
    """The segments of one partition. This class answers the queries of `RemoteLogMetadataManager`
    about these segments.

    The `change_of_...` methods check an event and return its change, or None for a repeat. `apply`
    makes a change visible. `add` and `update` both check an event and apply its change. Every
    change sets `change_number` to the next value of `numbers`.

    The segments may be unloaded (`is_loaded` is False). While the segments are unloaded, callers
    may query only the facts about the partition and its epochs.
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
        # The sorted keys of `_epochs`; None until they are sorted again after a change.
        self._sorted_epochs: tuple[int, ...] | None = None
        self._unfinished: set[str] = set()
        # Offset ranges of the finished segments, before truncation.
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
        """Check and apply a new state."""
        self._apply_if_any(self.change_of_update(update, leader_epoch))

    def change_of_add(
        self, metadata: RemoteLogSegmentMetadata, leader_epoch: int | None
    ) -> PartitionChange | None:
        """Return the change of `add`. Raises FencedLeaderError for an old epoch, and the errors of
        `after_add`."""
        epoch = self._check_leader_epoch(leader_epoch)
        self.after_add(metadata)
        is_new = metadata.segment_id.id not in self._segments
        return self._make_change(epoch, metadata if is_new else None)

    def change_of_update(
        self, update: RemoteLogSegmentMetadataUpdate, leader_epoch: int | None
    ) -> PartitionChange | None:
        """Return the change of `update`. Raises FencedLeaderError for an old epoch, and the errors
        of `after_update`."""
        epoch = self._check_leader_epoch(leader_epoch)
        return self._make_change(epoch, self.after_update(update))

    def change_of_claim(self, leader_epoch: int) -> PartitionChange | None:
        """Return the change of a claim. Raises FencedLeaderError for an old epoch."""
        return self._make_change(self._check_leader_epoch(leader_epoch), None)

    def change_of_delete(
        self, metadata: RemotePartitionDeleteMetadata, leader_epoch: int | None
    ) -> PartitionChange | None:
        """Return the change of a delete step. Raises FencedLeaderError for an old epoch, and
        RemoteMetadataError for a skipped step or a step back."""
        epoch = self._check_leader_epoch(leader_epoch)
        current, target = self.delete_state, metadata.state
        if target is current or (
            current is None and target is _PARTITION_DELETED and self.is_empty()
        ):
            return self._make_change(epoch, None)
        if target != (0 if current is None else current + 1):
            raise RemoteMetadataError(
                f"{self.partition}: cannot go from "
                f"{'no deletion' if current is None else current.name} to {target.name}"
            )
        return PartitionChange(leader_epoch=epoch, delete_state=target)

    def change_of_log_start(self, offset: int) -> PartitionChange | None:
        """Return the change to the log start offset `offset`, or None if this offset is not above
        the present one."""
        if not 0 <= offset <= _MAX_OFFSET:
            raise ValueError(f"{self.partition}: expected a log start offset, found {offset}")
        if self.log_start_offset is not None and offset <= self.log_start_offset:
            return None
        return PartitionChange(log_start_offset=offset)

    def after_add(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """Return `metadata` if it may be added or exists unchanged, else raise
        RemoteMetadataError."""
        if metadata.state is not _STARTED:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: a new segment starts as {_STARTED.name}, "
                f"not as {metadata.state.name}"
            )
        current = self._segments.get(metadata.segment_id.id)
        if current is None and self.delete_state is not None:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: its partition is being deleted ({self.delete_state.name})"
            )
        if current is not None and current != metadata:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: exists already, in {current.state.name}; every copy "
                "attempt needs a new id"
            )
        return metadata

    def after_update(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> RemoteLogSegmentMetadata | None:
        """Return the segment after `update`, or None for a repeat. Raises RemoteMetadataError when
        the update is illegal."""
        current = self._segments.get(update.segment_id.id)
        if current is None:
            if update.state is _DELETED:
                return None
            raise RemoteMetadataError(
                f"{update.segment_id}: {update.state.name} for a segment that was never added"
            )
        return current.updated(update) if current.is_changed_by(update) else None

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Replace the segment's metadata with `metadata`, in any state, without checks."""
        change = self._make_change(None, metadata)
        if change is not None:
            self.apply(change)

    def load_segments(
        self,
        segments: Iterable[RemoteLogSegmentMetadata | PlainSegment],
        read_row: Callable[[Row], RemoteLogSegmentMetadata] | None = None,
    ) -> None:
        """Load the segments, in any order, after `unload`. Raises ValueError when the totals
        differ.

        Plain segments are kept as rows; `read_row` decodes a row on the segment's first use.
        """
        loading = _Loading()
        self._segments.read_row = read_row
        for found in segments:
            if isinstance(found, RemoteLogSegmentMetadata):
                self._load_segment(found, loading)
                continue
            name, epoch, start_offset, end_offset, size_bytes, finished, has_txn_index, row = found
            self._segments.put_row(name, row)
            if not finished:
                self._find_or_add_epoch(epoch).members.add(name)
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
            self._find_or_add_epoch(epoch).members.update([name for _, _, name in rows])
            self._epochs[epoch].finished.extend(rows)
            self._epochs[epoch].with_txn_index.extend(loading.with_txn_index[epoch])
        self._check_totals({epoch: size for epoch, size in loading.sizes.items() if size})
        self.is_loaded = True

    def _load_segment(self, metadata: RemoteLogSegmentMetadata, loading: _Loading) -> None:
        name = metadata.segment_id.id
        if name in self._segments:
            raise ValueError(f"{metadata.segment_id} occurs twice")
        self._segments.put(name, metadata)
        for epoch, _, _ in metadata.epoch_ranges():
            self._find_or_add_epoch(epoch).members.add(name)
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

    def _find_or_add_epoch(self, epoch: int) -> _Epoch:
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
                    f"{self.partition}: a segment of epoch {epoch} ends above its highest offset"
                )

    def unload(self) -> None:
        """Drop the segments but keep the totals, until `load_segments`."""
        self.is_loaded = self.is_loaded and len(self._segments) == 0
        self._clear_segments()

    def copy(self) -> PartitionMetadata:
        """Return an independent copy."""
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
            self._put_segment(change.segment)
        for epoch, offset in change.highest:
            self.set_highest(epoch, offset)
        for epoch, size_bytes in change.sizes:
            self.set_size(epoch, size_bytes)
        if change.log_start_offset is not None:
            self.log_start_offset = change.log_start_offset
        if change.delete_state is _PARTITION_DELETED:
            self._clear()
        elif change.delete_state is not None:
            self.delete_state = change.delete_state
        self.change_number = next(self._numbers)

    def set_highest(self, epoch: int, offset: int) -> None:
        """Set the highest offset ever finished in `epoch`; -1 for none."""
        if offset < 0:
            self._highest.pop(epoch, None)
        else:
            self._highest[epoch] = offset

    def set_size(self, epoch: int, size_bytes: int) -> None:
        """Set the bytes of the finished segments in `epoch`."""
        if size_bytes:
            self._sizes[epoch] = size_bytes
        else:
            self._sizes.pop(epoch, None)

    def _check_leader_epoch(self, leader_epoch: int | None) -> int | None:
        """Return `leader_epoch` if it is later than the present epoch, or None if it is the same.
        Raises FencedLeaderError if `leader_epoch` is earlier."""
        if leader_epoch is None:
            return None
        if not 0 <= leader_epoch <= _MAX_EPOCH:
            raise ValueError(f"{self.partition}: expected a leader epoch, found {leader_epoch}")
        if leader_epoch == self.leader_epoch:
            return None
        if leader_epoch < self.leader_epoch:
            raise FencedLeaderError(
                f"{self.partition}: leader epoch {leader_epoch} is over, epoch "
                f"{self.leader_epoch} owns the partition; nothing was changed"
            )
        return leader_epoch

    def _make_change(
        self, leader_epoch: int | None, segment: RemoteLogSegmentMetadata | None
    ) -> PartitionChange | None:
        if leader_epoch is None and segment is None:
            return None
        if segment is None:
            return PartitionChange(leader_epoch=leader_epoch)
        return PartitionChange(
            leader_epoch=leader_epoch,
            segment=segment,
            highest=self._changed_highest_offsets(segment),
            sizes=self._changed_sizes(segment),
        )

    def _changed_sizes(self, after: RemoteLogSegmentMetadata) -> tuple[tuple[int, int], ...]:
        """Return the (epoch, bytes) pairs that change when `after` replaces its segment."""
        changed: dict[int, int] = {}
        current = self._segments.get(after.segment_id.id)
        for sign, metadata in ((-1, current), (1, after)):
            if metadata is not None and metadata.state is _FINISHED:
                for epoch, size_bytes in metadata.served_size_per_epoch():
                    before = changed.get(epoch, self._sizes.get(epoch, 0))
                    changed[epoch] = before + sign * size_bytes
        return tuple(changed.items())

    def _changed_highest_offsets(
        self, after: RemoteLogSegmentMetadata
    ) -> tuple[tuple[int, int], ...]:
        """Return the (epoch, highest offset) pairs that change when `after` replaces its
        segment."""
        name, cut = after.segment_id.id, after.truncation_offset
        current = self._segments.get(name)
        changed: dict[int, int] = {}
        if cut is not None and current is not None and current.truncation_offset != cut:
            first_offsets = dict(after.leader_epochs)
            for epoch, _, end_offset in after.epoch_ranges():
                if end_offset >= cut and self._highest.get(epoch, -1) >= cut:
                    below = cut - 1 if first_offsets[epoch] < cut else -1
                    changed[epoch] = max(below, self._highest_served_offset(epoch, without=name))
        if after.state is _FINISHED and (current is None or current.state is not _FINISHED):
            for epoch, _, end_offset in after.served_epoch_ranges():
                if end_offset > changed.get(epoch, self._highest.get(epoch, -1)):
                    changed[epoch] = end_offset
        return tuple(changed.items())

    def _highest_served_offset(self, epoch: int, *, without: str) -> int:
        state = self._epochs.get(epoch)
        return -1 if state is None else state.finished.highest_end(without=without)

    def _put_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        name = metadata.segment_id.id
        current = self._segments.pop(name)
        self._unfinished.discard(name)
        if current is not None:
            self._remove_ranges(current)
        if metadata.state is _DELETED:
            return
        self._segments.put(name, metadata)
        for epoch, _, _ in metadata.epoch_ranges():
            self._find_or_add_epoch(epoch).members.add(name)
        if metadata.state is _FINISHED:
            self._add_ranges(metadata)
        else:
            self._unfinished.add(name)

    def _add_ranges(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._extents.add(*_extent(metadata))
        for epoch, start_offset, end_offset in metadata.served_epoch_ranges():
            row = (start_offset, end_offset, metadata.segment_id.id)
            self._epochs[epoch].finished.add(*row)
            if not metadata.txn_index_empty:
                self._epochs[epoch].with_txn_index.add(*row)

    def _remove_ranges(self, current: RemoteLogSegmentMetadata) -> None:
        name = current.segment_id.id
        if current.state is _FINISHED:
            self._extents.remove(*_extent(current))
            for epoch, start_offset, end_offset in current.served_epoch_ranges():
                self._epochs[epoch].finished.remove(start_offset, end_offset, name)
                if not current.txn_index_empty:
                    self._epochs[epoch].with_txn_index.remove(start_offset, end_offset, name)
        for epoch, _, _ in current.epoch_ranges():
            self._epochs[epoch].members.discard(name)
            if not self._epochs[epoch].members:
                del self._epochs[epoch]
                self._sorted_epochs = None

    def _clear_segments(self) -> None:
        self._segments, self._epochs, self._unfinished = Segments(), {}, set()
        self._sorted_epochs, self._extents = None, Extents()

    def _clear(self) -> None:
        self._clear_segments()
        self._sizes.clear()
        self._highest.clear()
        self.is_loaded = True
        self.delete_state = None
        self.log_start_offset = None

    def _apply_if_any(self, change: PartitionChange | None) -> None:
        if change is not None:
            self.apply(change)

    # -- queries; see `RemoteLogMetadataManager`

    def has_segments(self) -> bool:
        """Return whether the partition has segments, loaded or not."""
        return len(self._segments) > 0 or not self.is_loaded

    def is_empty(self) -> bool:
        """Return whether the partition has nothing but a leader epoch."""
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
        """See `RemoteLogMetadataManager`. Changes after the call are not visible."""
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
            unfinished=self._sort_segments(self._unfinished),
            first=self._find_first_served(),
        )

    def _find_first_served(self) -> RemoteLogSegmentMetadata | None:
        first = self.finished_after(None)
        while first is not None and first.served_end_offset < first.start_offset:
            first = self.finished_after(first)
        return first

    def finished_after(
        self, segment: RemoteLogSegmentMetadata | None
    ) -> RemoteLogSegmentMetadata | None:
        """Return the finished segment after `segment` in offset order, or the first finished
        segment for None."""
        row = self._extents.next_after(None if segment is None else _extent(segment))
        return None if row is None else self._segments[row[2]]

    def overlapping_segments(self) -> tuple[RemoteLogSegmentMetadata, ...]:
        return self._sort_segments(self._extents.overlapping())

    def segments_from(self, offset: int) -> tuple[RemoteLogSegmentMetadata, ...]:
        found = map(self._segments.__getitem__, self._extents.names_from(offset))
        return tuple(one for one in found if one.served_end_offset >= max(offset, one.start_offset))

    def _sort_segments(self, names: Iterable[str]) -> tuple[RemoteLogSegmentMetadata, ...]:
        return tuple(sorted(map(self._segments.__getitem__, names), key=_extent))

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        return self._highest.get(epoch)

    def remote_log_size(self, epoch: int) -> int:
        return self._sizes.get(epoch, 0)

    def totals(self) -> dict[int, tuple[int, int]]:
        """Return for each epoch the highest offset (-1 for none) and the number of bytes of
        finished segments."""
        epochs = {**self._highest, **self._sizes}
        return {
            epoch: (self._highest.get(epoch, -1), self._sizes.get(epoch, 0)) for epoch in epochs
        }

    def totals_after(self, change: PartitionChange) -> dict[int, tuple[int, int]]:
        """Return the totals after `change`, for the epochs that it changes."""
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

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

from bisect import bisect_left, insort
from collections.abc import Iterator

from tierlog.errors import RemoteMetadataError
from tierlog.remote.metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

__all__ = ["PartitionMetadata"]

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class _Ranges:
    """Offset ranges of segments, ordered by (start, end, id); they may overlap."""

    __slots__ = ("_longest", "_rows")

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, str]] = []
        # The longest range ever held: how far below an offset a range that holds it can start.
        self._longest = 0

    def add(self, start_offset: int, end_offset: int, name: str) -> None:
        insort(self._rows, (start_offset, end_offset, name))
        self._longest = max(self._longest, end_offset - start_offset)

    def remove(self, start_offset: int, end_offset: int, name: str) -> None:
        index = bisect_left(self._rows, (start_offset, end_offset, name))
        del self._rows[index]

    def find(self, offset: int) -> str | None:
        """The range that holds `offset` and starts last; of several such, the longest."""
        index = self._first_above(offset) - 1
        while index >= 0:
            start_offset, end_offset, name = self._rows[index]
            if end_offset >= offset:
                return name
            if offset - start_offset > self._longest:
                return None
            index -= 1
        return None

    def find_or_next(self, offset: int) -> str | None:
        """As `find`, else the first range that starts after `offset`."""
        found = self.find(offset)
        if found is not None:
            return found
        index = self._first_above(offset)
        return self._rows[index][2] if index < len(self._rows) else None

    def names(self) -> list[str]:
        return [name for _, _, name in self._rows]

    def _first_above(self, offset: int) -> int:
        return bisect_left(self._rows, (offset + 1, -1, ""))


class _Epoch:
    """One leader epoch: all its known segments, and the ranges of the finished ones."""

    __slots__ = ("finished", "members", "with_txn_index")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.finished = _Ranges()
        self.with_txn_index = _Ranges()


class PartitionMetadata:
    """The segments of one partition and the answers of `RemoteLogMetadataManager` about them.

    `add` and `update` check and apply an event; `after_add` and `after_update` only check, so
    that a durable manager can write the outcome down before `put` makes it visible.
    """

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self._segments: dict[str, RemoteLogSegmentMetadata] = {}
        self._epochs: dict[int, _Epoch] = {}
        self._sizes: dict[int, int] = {}
        self._highest: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._segments)

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Apply `after_add`."""
        self.put(self.after_add(metadata))

    def update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Apply `after_update`."""
        after = self.after_update(update)
        if after is not None:
            self.put(after)

    def after_add(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """`metadata` itself if it may be added (or is known just so), else RemoteMetadataError."""
        if metadata.state is not _STARTED:
            raise RemoteMetadataError(
                f"{metadata.segment_id}: a new segment starts as {_STARTED.name}, "
                f"not as {metadata.state.name}"
            )
        known = self._segments.get(metadata.segment_id.id)
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
        return None if known.state is update.state else known.updated(update)

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Take `metadata` as the truth about its segment, in whatever state, without checks."""
        name = metadata.segment_id.id
        known = self._segments.pop(name, None)
        if known is not None:
            self._leave_epochs(known)
        if metadata.state is _GONE:
            return
        self._segments[name] = metadata
        for epoch, _, _ in metadata.epoch_ranges():
            self._epochs.setdefault(epoch, _Epoch()).members.add(name)
        if metadata.state is _FINISHED:
            self._serve(metadata)

    def raise_highest(self, epoch: int, offset: int) -> None:
        """Remember that `offset` was once finished in `epoch`."""
        self._highest[epoch] = max(self._highest.get(epoch, -1), offset)

    def _serve(self, metadata: RemoteLogSegmentMetadata) -> None:
        for epoch, start_offset, end_offset in metadata.epoch_ranges():
            row = (start_offset, end_offset, metadata.segment_id.id)
            self._epochs[epoch].finished.add(*row)
            if not metadata.txn_index_empty:
                self._epochs[epoch].with_txn_index.add(*row)
            self.raise_highest(epoch, end_offset)
        for epoch, size_bytes in metadata.size_per_epoch():
            self._sizes[epoch] = self._sizes.get(epoch, 0) + size_bytes

    def _leave_epochs(self, known: RemoteLogSegmentMetadata) -> None:
        name = known.segment_id.id
        for epoch, start_offset, end_offset in known.epoch_ranges():
            state = self._epochs[epoch]
            if known.state is _FINISHED:
                state.finished.remove(start_offset, end_offset, name)
                if not known.txn_index_empty:
                    state.with_txn_index.remove(start_offset, end_offset, name)
            state.members.discard(name)
            if not state.members:
                del self._epochs[epoch]
        if known.state is _FINISHED:
            for epoch, size_bytes in known.size_per_epoch():
                left = self._sizes.pop(epoch, 0) - size_bytes
                if left:
                    self._sizes[epoch] = left

    # -- questions; see `RemoteLogMetadataManager`

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
            if segment.max_timestamp_ms >= timestamp_ms and segment.end_offset >= start_offset
        )

    def list(self, epoch: int | None) -> tuple[RemoteLogSegmentMetadata, ...]:
        if epoch is None:
            found = list(self._segments.values())
        elif epoch in self._epochs:
            found = [self._segments[name] for name in self._epochs[epoch].members]
        else:
            return ()
        return tuple(sorted(found, key=_by_offset))

    def highest_offset_for_epoch(self, epoch: int) -> int | None:
        return self._highest.get(epoch)

    def remote_log_size(self, epoch: int) -> int:
        return self._sizes.get(epoch, 0)

    def highest_offsets(self) -> dict[int, int]:
        """Highest finished offset by epoch, deleted segments included."""
        return dict(self._highest)


def _by_offset(metadata: RemoteLogSegmentMetadata) -> tuple[int, int, str]:
    return metadata.start_offset, metadata.end_offset, metadata.segment_id.id

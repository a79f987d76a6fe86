"""A naive model of a metadata manager, and the machine that drives both with the same events.

The model keeps a plain list of segments and answers every question by looking at all of them.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.remote.builders import DELETING, FINISHED, GONE, STARTED, partition_of, segment
from tierlog.errors import RemoteMetadataError
from tierlog.remote.metadata import (
    EpochRange,
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from tierlog.types import TopicIdPartition

PARTITIONS = [partition_of("orders", 0), partition_of("payments", 3)]
EPOCHS = range(6)
OFFSETS = range(-1, 75)
NAMES = [f"segment {number}" for number in range(8)]
NEXT = {STARTED: {FINISHED, DELETING}, FINISHED: {DELETING}, DELETING: {GONE}}


@st.composite
def st_segment(draw: st.DrawFn, name: str) -> RemoteLogSegmentMetadata:
    """A started segment of 1 to 40 offsets and up to four epochs, some of them empty."""
    start_offset = draw(st.integers(0, 30))
    end_offset = start_offset + draw(st.integers(0, 39))
    epochs = sorted(draw(st.sets(st.sampled_from(EPOCHS), min_size=1, max_size=4)))
    starts = sorted(
        draw(st.lists(st.integers(start_offset, 72), min_size=len(epochs), max_size=len(epochs)))
    )
    starts[0] = draw(st.integers(0, start_offset))
    counted = draw(st.booleans())
    sizes = [draw(st.integers(0, 9)) for _ in epochs]
    return segment(
        name,
        start_offset,
        end_offset,
        epochs=tuple(zip(epochs, starts, strict=True)),
        partition=draw(st.sampled_from(PARTITIONS)),
        size_bytes=sum(sizes),
        bytes_per_epoch=tuple(zip(epochs, sizes, strict=True)) if counted else None,
        max_timestamp_ms=draw(st.integers(0, 9)),
        txn_index_empty=draw(st.booleans()),
    )


class NaiveMetadata:
    """All segments ever added with the state they are in; forgotten ones stay in the list."""

    def __init__(self) -> None:
        self.segments: dict[tuple[TopicIdPartition, str], RemoteLogSegmentMetadata] = {}
        self.highest: dict[tuple[TopicIdPartition, int], int] = {}

    def add(self, metadata: RemoteLogSegmentMetadata) -> bool:
        key = (metadata.topic_id_partition, metadata.segment_id.id)
        known = self.segments.get(key)
        if known is not None and known.state is not GONE:
            return known == metadata
        self.segments[key] = metadata
        return True

    def update(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, at_ms: int
    ) -> bool:
        key = (metadata.topic_id_partition, metadata.segment_id.id)
        known = self.segments.get(key)
        if known is None or known.state is GONE:
            return state is GONE
        if known.state is state:
            return True
        if state not in NEXT[known.state]:
            return False
        self.segments[key] = known.updated(known.update_to(state, event_timestamp_ms=at_ms))
        if state is FINISHED:
            for epoch, _, end_offset in known.epoch_ranges():
                place = (known.topic_id_partition, epoch)
                self.highest[place] = max(self.highest.get(place, -1), end_offset)
        return True

    def known(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            metadata
            for (owner, _), metadata in self.segments.items()
            if owner == partition and metadata.state is not GONE
        ]

    def ranges(
        self, partition: TopicIdPartition, epoch: int
    ) -> list[tuple[EpochRange, RemoteLogSegmentMetadata]]:
        return [
            (extent, metadata)
            for metadata in self.known(partition)
            if metadata.state is FINISHED
            for extent in metadata.epoch_ranges()
            if extent.epoch == epoch
        ]

    def lookup(
        self, partition: TopicIdPartition, epoch: int, offset: int, *, txn: bool = False
    ) -> RemoteLogSegmentMetadata | None:
        holding = [
            (extent, metadata.segment_id.id, metadata)
            for extent, metadata in self.ranges(partition, epoch)
            if extent.start_offset <= offset <= extent.end_offset
            and not (txn and metadata.txn_index_empty)
        ]
        return max(holding, key=lambda row: row[:2])[2] if holding else None

    def next_with_txn(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        later = [
            (extent, metadata.segment_id.id, metadata)
            for extent, metadata in self.ranges(partition, epoch)
            if extent.start_offset > offset and not metadata.txn_index_empty
        ]
        after = min(later, key=lambda row: row[:2])[2] if later else None
        return self.lookup(partition, epoch, offset, txn=True) or after

    def size(self, partition: TopicIdPartition, epoch: int) -> int:
        return sum(
            size_bytes
            for metadata in self.known(partition)
            if metadata.state is FINISHED
            for counted_epoch, size_bytes in metadata.size_per_epoch()
            if counted_epoch == epoch
        )


class MetadataMachine(RuleBasedStateMachine):
    """The same random events for a real manager and for the model; then compare everything."""

    manager: RemoteLogMetadataManager

    def __init__(self) -> None:
        super().__init__()
        self.model = NaiveMetadata()
        self.added: dict[str, RemoteLogSegmentMetadata] = {}
        self.now_ms = 10_000

    def open_manager(self) -> RemoteLogMetadataManager:
        """The manager under test; called again after a restart."""
        raise AssertionError("a subclass opens one")

    @initialize()
    def start(self) -> None:
        self.manager = self.open_manager()

    def teardown(self) -> None:
        self.manager.close()

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def add(self, data: st.DataObject, name: str) -> None:
        # Ids are never used again: a name stands for one segment for good.
        if name not in self.added:
            self.added[name] = data.draw(st_segment(name))
        metadata = self.added[name]
        known = self.model.segments.get((metadata.topic_id_partition, metadata.segment_id.id))
        if known is None or known.state is not GONE:
            self._both(self.model.add(metadata), lambda: self.manager.add(metadata))

    @rule(name=st.sampled_from(NAMES), state=st.sampled_from([FINISHED, DELETING, GONE]))
    def update(self, name: str, state: RemoteLogSegmentState) -> None:
        metadata = self.added.get(name)
        if metadata is not None:
            self.now_ms += 1
            event = metadata.update_to(state, event_timestamp_ms=self.now_ms)
            legal = self.model.update(metadata, state, self.now_ms)
            self._both(legal, lambda: self.manager.update(event))

    def _both(self, legal: bool, call: object) -> None:
        assert callable(call)
        try:
            call()
        except RemoteMetadataError:
            assert not legal
        else:
            assert legal

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "manager"):
            return
        for partition in PARTITIONS:
            known = self.model.known(partition)
            assert set(self.manager.list(partition)) == set(known)
            assert (partition in self.manager.partitions()) == bool(known)
            self._check_timestamps(partition)
            for epoch in EPOCHS:
                self._check_epoch(partition, epoch)

    def _check_epoch(self, partition: TopicIdPartition, epoch: int) -> None:
        manager, model = self.manager, self.model
        assert manager.remote_log_size(partition, epoch) == model.size(partition, epoch)
        highest = manager.highest_offset_for_epoch(partition, epoch)
        assert highest == model.highest.get((partition, epoch))
        listed = manager.list(partition, epoch)
        assert sorted(listed, key=lambda row: row.start_offset) == list(listed)
        assert set(listed) == {
            metadata
            for metadata in model.known(partition)
            if any(extent.epoch == epoch for extent in metadata.epoch_ranges())
        }
        for offset in OFFSETS:
            found = manager.lookup(partition, epoch, offset)
            assert found == model.lookup(partition, epoch, offset)
            found = manager.next_segment_with_txn_index(partition, epoch, offset)
            assert found == model.next_with_txn(partition, epoch, offset)

    def _check_timestamps(self, partition: TopicIdPartition) -> None:
        for timestamp_ms, start_offset in ((0, 0), (4, 20), (9, 50)):
            found = list(self.manager.segments_by_timestamp(partition, timestamp_ms, start_offset))
            expected = {
                metadata
                for metadata in self.model.known(partition)
                if metadata.state is FINISHED
                and metadata.max_timestamp_ms >= timestamp_ms
                and metadata.end_offset >= start_offset
            }
            assert set(found) == expected
            assert len(found) == len(expected)

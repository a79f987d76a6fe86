"""A naive model of a metadata manager, and the machine that drives both with the same events.

The model keeps a plain list of segments and answers every question by looking at all of them.
Several leaders take part, and none of them knows whether it is still the one.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tierlog.errors import FencedLeaderError, RemoteMetadataError
from tierlog.remote.metadata.manager import (
    EpochRange,
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from tierlog.testing.events import DELETION_FINISHED, MARKED, delete_partition
from tierlog.testing.segments import DELETING, FINISHED, GONE, STARTED, partition_of, segment
from tierlog.types import TopicIdPartition

PARTITIONS = [partition_of("orders", 0), partition_of("payments", 3)]
EPOCHS = range(6)
OFFSETS = range(-1, 75)
NAMES = [f"segment {number}" for number in range(8)]
LEADERS = st.none() | st.integers(0, 3)
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


class FencedError(Exception):
    """The model says that a later leader is known."""


class NaiveMetadata:
    """All segments ever added with the state they are in; forgotten ones stay in the list."""

    def __init__(self) -> None:
        self.segments: dict[tuple[TopicIdPartition, str], RemoteLogSegmentMetadata] = {}
        self.highest: dict[tuple[TopicIdPartition, int], int] = {}
        self.leaders: dict[TopicIdPartition, int] = {}
        self.deletions: dict[TopicIdPartition, RemotePartitionDeleteState] = {}

    # Each event says whether it is legal, and has happened then.

    def add(self, metadata: RemoteLogSegmentMetadata, leader: int | None) -> bool:
        partition = metadata.topic_id_partition
        self._check_leader(partition, leader)
        key = (partition, metadata.segment_id.id)
        known = self.segments.get(key)
        if known is not None and known.state is not GONE:
            if known != metadata:
                return False
        elif partition in self.deletions:
            return False
        self.segments[key] = metadata
        return self._led_by(partition, leader)

    def update(self, update: RemoteLogSegmentMetadataUpdate, leader: int | None) -> bool:
        partition = update.segment_id.topic_id_partition
        self._check_leader(partition, leader)
        key = (partition, update.segment_id.id)
        known = self.segments.get(key)
        if known is None or known.state is GONE:
            return update.state is GONE and self._led_by(partition, leader)
        if update.state is not known.state and update.state not in NEXT[known.state]:
            return False
        if not known.is_changed_by(update):
            return self._led_by(partition, leader)
        after = self.segments[key] = known.updated(update)
        if after.truncation_offset != known.truncation_offset:
            self._cut_highest(after)
        if after.state is FINISHED and known.state is not FINISHED:
            for epoch, _, end_offset in after.served_epoch_ranges():
                place = (partition, epoch)
                self.highest[place] = max(self.highest.get(place, -1), end_offset)
        return self._led_by(partition, leader)

    def claim(self, partition: TopicIdPartition, leader: int) -> bool:
        self._check_leader(partition, leader)
        return self._led_by(partition, leader)

    def delete(
        self, partition: TopicIdPartition, state: RemotePartitionDeleteState, leader: int | None
    ) -> bool:
        self._check_leader(partition, leader)
        known = self.deletions.get(partition)
        if state is DELETION_FINISHED and known is None:
            nothing = not any(place[0] == partition for place in self.highest)
            legal = nothing and not self.known(partition)
        elif state is DELETION_FINISHED and known == state - 1:
            legal = True
            del self.deletions[partition]
            self.segments = {key: s for key, s in self.segments.items() if key[0] != partition}
            self.highest = {key: o for key, o in self.highest.items() if key[0] != partition}
        else:
            legal = state is known or state == (MARKED if known is None else known + 1)
            if legal:
                self.deletions[partition] = state
        return legal and self._led_by(partition, leader)

    def _check_leader(self, partition: TopicIdPartition, leader: int | None) -> None:
        if leader is not None and leader < self.leaders.get(partition, -1):
            raise FencedError

    def _led_by(self, partition: TopicIdPartition, leader: int | None) -> bool:
        if leader is not None:
            self.leaders[partition] = leader
        return True

    def _cut_highest(self, after: RemoteLogSegmentMetadata) -> None:
        partition, cut = after.topic_id_partition, after.truncation_offset
        assert cut is not None
        for epoch, _, end_offset in after.epoch_ranges():
            place = (partition, epoch)
            if end_offset < cut or self.highest.get(place, -1) < cut:
                continue
            others = [
                extent.end_offset
                for extent, metadata in self.ranges(partition, epoch)
                if metadata is not after
            ]
            began_below = dict(after.leader_epochs)[epoch] < cut
            highest = max([*others, cut - 1 if began_below else -1])
            if highest < 0:
                del self.highest[place]
            else:
                self.highest[place] = highest

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
            for extent in metadata.served_epoch_ranges()
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
            and not any(
                extent.epoch == epoch and extent.end_offset > metadata.served_end_offset
                for extent in metadata.epoch_ranges()
            )
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

    @rule(data=st.data(), name=st.sampled_from(NAMES), leader=LEADERS)
    def add(self, data: st.DataObject, name: str, leader: int | None) -> None:
        # Ids are never used again: a name stands for one segment for good.
        if name not in self.added:
            self.added[name] = data.draw(st_segment(name))
        metadata = self.added[name]
        known = self.model.segments.get((metadata.topic_id_partition, metadata.segment_id.id))
        if known is None or known.state is not GONE:
            self._both(
                metadata.topic_id_partition,
                lambda: self.model.add(metadata, leader),
                lambda: self.manager.add(metadata, leader_epoch=leader),
            )

    @rule(
        name=st.sampled_from(NAMES),
        state=st.sampled_from([FINISHED, DELETING, GONE]),
        cut=st.none() | st.none() | st.integers(0, 75),
        leader=LEADERS,
    )
    def update(
        self, name: str, state: RemoteLogSegmentState, cut: int | None, leader: int | None
    ) -> None:
        metadata = self.added.get(name)
        if metadata is not None:
            self.now_ms += 1
            event = metadata.update_to(state, event_timestamp_ms=self.now_ms, truncation_offset=cut)
            self._both(
                metadata.topic_id_partition,
                lambda: self.model.update(event, leader),
                lambda: self.manager.update(event, leader_epoch=leader),
            )

    @rule(partition=st.sampled_from(PARTITIONS), leader=st.integers(0, 3))
    def claim(self, partition: TopicIdPartition, leader: int) -> None:
        self._both(
            partition,
            lambda: self.model.claim(partition, leader),
            lambda: self.manager.claim_leadership(partition, leader),
        )

    # Only one of them, since a partition that is being deleted takes no segments.
    @rule(
        partition=st.sampled_from(PARTITIONS[1:]),
        state=st.sampled_from(RemotePartitionDeleteState),
        leader=LEADERS,
    )
    def delete(
        self, partition: TopicIdPartition, state: RemotePartitionDeleteState, leader: int | None
    ) -> None:
        self._both(
            partition,
            lambda: self.model.delete(partition, state, leader),
            lambda: delete_partition(self.manager, state, partition=partition, leader_epoch=leader),
        )

    def _both(
        self, partition: TopicIdPartition, model: Callable[[], bool], real: Callable[[], None]
    ) -> None:
        """The two agree on whether an event happens; what does not leaves no trace."""
        before = self.manager.changes(partition)
        try:
            outcome: object = model()
        except FencedError:
            outcome = FencedLeaderError
        try:
            real()
        except FencedLeaderError:
            assert outcome is FencedLeaderError
        except RemoteMetadataError:
            assert outcome is False
        else:
            assert outcome is True
        assert outcome is True or self.manager.changes(partition) == before

    @invariant()
    def everything_agrees(self) -> None:
        if not hasattr(self, "manager"):
            return
        for partition in PARTITIONS:
            known = self.model.known(partition)
            assert set(self.manager.list(partition)) == set(known)
            deletion = self.model.deletions.get(partition)
            assert self.manager.partition_delete_state(partition) is deletion
            listed = bool(known) or deletion is not None
            assert (partition in self.manager.partitions()) == listed
            assert self.manager.leader_epoch(partition) == self.model.leaders.get(partition, -1)
            self._check_timestamps(partition)
            self._check_outline(partition)
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

    def _check_outline(self, partition: TopicIdPartition) -> None:
        known, outline = self.model.known(partition), self.manager.outline(partition)
        finished = [one for one in known if one.state is FINISHED]
        assert outline.segment_count == len(known)
        assert outline.epochs == tuple(
            sorted({extent.epoch for one in known for extent in one.epoch_ranges()})
        )
        assert set(outline.unfinished) == {one for one in known if one.state is not FINISHED}
        served = [one for one in finished if one.served_epoch_ranges()]
        first = min((one.start_offset for one in served), default=None)
        assert (outline.first and outline.first.start_offset) == first
        in_order = sorted((one.start_offset, one.end_offset) for one in finished)
        listed = list(self.manager.segments_by_offset(partition))
        assert set(listed) == set(finished)
        assert [(one.start_offset, one.end_offset) for one in listed] == in_order
        assert set(self.manager.overlapping_segments(partition)) == {
            one
            for one in finished
            for other in finished
            if one is not other
            and one.start_offset <= other.end_offset
            and other.start_offset <= one.end_offset
        }
        for offset in OFFSETS:
            found = self.manager.segments_from(partition, offset)
            assert list(found) == sorted(found, key=lambda one: one.start_offset)
            assert set(found) == {one for one in served if one.served_end_offset >= offset}

    def _check_timestamps(self, partition: TopicIdPartition) -> None:
        for timestamp_ms, start_offset in ((0, 0), (4, 20), (9, 50)):
            found = list(self.manager.segments_by_timestamp(partition, timestamp_ms, start_offset))
            expected = {
                metadata
                for metadata in self.model.known(partition)
                if metadata.state is FINISHED
                and metadata.max_timestamp_ms >= timestamp_ms
                and metadata.served_end_offset >= max(start_offset, metadata.start_offset)
            }
            assert set(found) == expected
            assert len(found) == len(expected)

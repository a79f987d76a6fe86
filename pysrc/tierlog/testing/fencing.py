"""The rules of every metadata manager for leaders, truncated segments and deleted partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tierlog.errors import FencedLeaderError, RemoteMetadataError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemotePartitionDeleteState
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.testing.events import (
    DELETION_FINISHED,
    DELETION_STARTED,
    MARKED,
    cut,
    delete_partition,
    finish,
    found_at,
    move,
)
from tierlog.testing.segments import (
    DELETING,
    FINISHED,
    GONE,
    PARTITION,
    STARTED,
    partition_of,
    segment,
    uuid_of,
)

__all__ = ["EmbeddedConformance", "FencingConformance"]

OTHER = partition_of("orders", 1)


def visible(manager: RemoteLogMetadataManager) -> tuple[object, ...]:
    """Return every answer about the partition."""
    return (
        manager.list(PARTITION),
        [manager.lookup(PARTITION, 0, offset) for offset in range(0, 60, 5)],
        manager.highest_offset_for_epoch(PARTITION, 0),
        manager.remote_log_size(PARTITION, 0),
        manager.partition_delete_state(PARTITION),
        manager.leader_epoch(PARTITION),
        manager.changes(PARTITION),
    )


class FencingConformance:
    """Takes the fixture `manager`: an empty, loaded manager."""

    # -- leaders

    def test_an_old_leader_changes_nothing(self, manager: RemoteLogMetadataManager) -> None:
        known, copying = segment("a", 0, 9), segment("b", 10, 19)
        finish(manager, known, leader_epoch=4)
        manager.add(copying, leader_epoch=4)
        manager.claim_leadership(PARTITION, 5)
        before = visible(manager)
        late: list[Callable[[], object]] = [
            lambda: manager.add(segment("c", 20, 29), leader_epoch=4),
            lambda: manager.add(copying, leader_epoch=4),
            lambda: move(manager, copying, FINISHED, leader_epoch=4),
            lambda: move(manager, known, FINISHED, leader_epoch=4),
            lambda: move(manager, known, DELETING, leader_epoch=0),
            lambda: move(manager, segment("never", 0, 9), GONE, leader_epoch=4),
            lambda: delete_partition(manager, MARKED, leader_epoch=4),
            lambda: manager.claim_leadership(PARTITION, 4),
        ]
        for event in late:
            with pytest.raises(FencedLeaderError) as caught:
                event()
            assert not caught.value.retriable
            assert visible(manager) == before

    def test_a_later_leader_needs_no_claim(self, manager: RemoteLogMetadataManager) -> None:
        first, second = segment("a", 0, 9), segment("b", 10, 19)
        assert manager.leader_epoch(PARTITION) == -1
        manager.add(first, leader_epoch=0)
        assert manager.leader_epoch(PARTITION) == 0
        manager.add(second, leader_epoch=3)
        with pytest.raises(FencedLeaderError):
            move(manager, first, FINISHED, leader_epoch=0)
        move(manager, first, FINISHED, leader_epoch=7)
        assert manager.leader_epoch(PARTITION) == 7
        with pytest.raises(FencedLeaderError):
            move(manager, second, FINISHED, leader_epoch=3)

    def test_an_epoch_does_not_fence_itself(self, manager: RemoteLogMetadataManager) -> None:
        """The answer to a successful commit was lost, so the writer repeats it."""
        manager.claim_leadership(PARTITION, 5)
        manager.claim_leadership(PARTITION, 5)
        metadata = segment("a", 0, 9)
        manager.add(metadata, leader_epoch=5)
        manager.add(metadata, leader_epoch=5)
        for state in (FINISHED, DELETING, GONE):
            move(manager, metadata, state, leader_epoch=5)
            before = visible(manager)
            move(manager, metadata, state, leader_epoch=5)
            assert visible(manager) == before

    def test_a_repeat_may_still_claim(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 9)
        finish(manager, metadata, leader_epoch=1)
        move(manager, metadata, FINISHED, leader_epoch=2)
        assert manager.leader_epoch(PARTITION) == 2
        with pytest.raises(FencedLeaderError):
            move(manager, metadata, DELETING, leader_epoch=1)

    def test_events_without_an_epoch_are_not_fenced(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        manager.claim_leadership(PARTITION, 5)
        metadata = segment("a", 0, 9)
        finish(manager, metadata)
        move(manager, metadata, DELETING, GONE)
        assert manager.leader_epoch(PARTITION) == 5

    def test_an_illegal_event_claims_nothing(self, manager: RemoteLogMetadataManager) -> None:
        manager.add(segment("a", 0, 9), leader_epoch=1)
        before = visible(manager)
        with pytest.raises(RemoteMetadataError):
            move(manager, segment("b", 10, 19), FINISHED, leader_epoch=2)
        with pytest.raises(RemoteMetadataError):
            delete_partition(manager, DELETION_STARTED, leader_epoch=2)
        assert visible(manager) == before

    def test_every_partition_has_its_own_leader(self, manager: RemoteLogMetadataManager) -> None:
        manager.claim_leadership(PARTITION, 5)
        finish(manager, segment("a", 0, 9, partition=OTHER), leader_epoch=2)
        assert manager.leader_epoch(OTHER) == 2
        assert manager.partitions() == (OTHER,)

    @pytest.mark.parametrize("epoch", [-1, 2**31])
    def test_impossible_epochs(self, manager: RemoteLogMetadataManager, epoch: int) -> None:
        with pytest.raises(ValueError, match="leader epoch"):
            manager.claim_leadership(PARTITION, epoch)
        with pytest.raises(ValueError, match="leader epoch"):
            manager.add(segment("a", 0, 9), leader_epoch=epoch)
        assert manager.list(PARTITION) == ()

    # -- cut segments

    def test_a_cut_segment_serves_what_is_left(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment(
            "a", 10, 49, epochs=((0, 0), (1, 30), (2, 40)), custom_metadata=b"locator"
        )
        finish(manager, metadata)
        cut(manager, metadata, 35)
        known = manager.get(metadata.segment_id)
        assert known == replace(
            metadata, state=FINISHED, event_timestamp_ms=7_000, truncation_offset=35
        )
        assert (known.served_end_offset, known.end_offset) == (34, 49)
        held = {
            epoch: [offset for offset in range(5, 55) if found_at(manager, offset, epoch)]
            for epoch in range(3)
        }
        assert held == {0: list(range(10, 30)), 1: list(range(30, 35)), 2: []}
        assert manager.list(PARTITION, 2) == (known,)

        def after(offset: int, epoch: int) -> object:
            return manager.next_segment_with_txn_index(PARTITION, epoch, offset)

        assert [after(30, 0), after(34, 1), after(35, 1), after(40, 2)] == [None, known, None, None]
        by_time = [list(manager.segments_by_timestamp(PARTITION, 0, start)) for start in (34, 35)]
        assert by_time == [[known], []]

    def test_a_cut_is_lowered_but_never_raised(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 49)
        finish(manager, metadata)
        cut(manager, metadata, 30)
        before = visible(manager)
        for offset in (30, 31, 100):
            cut(manager, metadata, offset)
            assert visible(manager) == before
        move(manager, metadata, FINISHED)
        assert visible(manager) == before
        cut(manager, metadata, 20)
        assert [found_at(manager, offset) for offset in (19, 20)] == [uuid_of("a"), None]
        cut(manager, metadata, 25, DELETING)
        assert [known.truncation_offset for known in manager.list(PARTITION)] == [20]
        cut(manager, metadata, 10, DELETING)
        assert [known.truncation_offset for known in manager.list(PARTITION)] == [10]

    def test_a_cut_may_come_with_a_new_state(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 49)
        manager.add(metadata)
        with pytest.raises(ValueError, match="an update to COPY_SEGMENT_STARTED"):
            cut(manager, metadata, 30, STARTED)
        cut(manager, metadata, 30)
        assert [found_at(manager, offset) for offset in (29, 30)] == [uuid_of("a"), None]
        assert manager.highest_offset_for_epoch(PARTITION, 0) == 29
        with pytest.raises(RemoteMetadataError, match="cannot go from"):
            cut(manager, metadata, 20, GONE)
        assert found_at(manager, 25) == uuid_of("a")

    @pytest.mark.parametrize("offset", [0, 10])
    def test_a_segment_cut_to_nothing(self, manager: RemoteLogMetadataManager, offset: int) -> None:
        metadata = segment("a", 10, 49, epochs=((0, 10), (1, 30)))
        finish(manager, metadata)
        cut(manager, metadata, offset)
        for epoch in (0, 1):
            assert [found_at(manager, at, epoch) for at in range(50)] == [None] * 50
            assert manager.remote_log_size(PARTITION, epoch) == 0
            assert manager.highest_offset_for_epoch(PARTITION, epoch) is None
            assert manager.next_segment_with_txn_index(PARTITION, epoch, 0) is None
        assert list(manager.segments_by_timestamp(PARTITION, 0)) == []
        assert len(manager.list(PARTITION)) == len(manager.list(PARTITION, 1)) == 1
        move(manager, metadata, DELETING, GONE)
        assert manager.list(PARTITION) == manager.list(PARTITION, 1) == ()

    def test_what_a_cut_hid_elsewhere_serves_again(self, manager: RemoteLogMetadataManager) -> None:
        long, short = segment("long", 10, 90), segment("short", 20, 59)
        again = segment("again", 40, 90, epochs=((1, 40),))
        finish(manager, short, long)
        cut(manager, long, 40)
        finish(manager, again)
        assert found_at(manager, 45) == uuid_of("short")
        cut(manager, short, 40)
        assert [found_at(manager, offset) for offset in (39, 40)] == [uuid_of("short"), None]
        assert found_at(manager, 40, epoch=1) == uuid_of("again")

    def test_highest_offsets_are_cut_too(self, manager: RemoteLogMetadataManager) -> None:
        first = segment("a", 0, 49, epochs=((0, 0), (1, 30)))
        second = segment("b", 50, 99, epochs=((1, 30), (2, 80)))
        finish(manager, first, second)

        def highest() -> list[int | None]:
            return [manager.highest_offset_for_epoch(PARTITION, epoch) for epoch in range(3)]

        assert highest() == [29, 79, 99]
        cut(manager, second, 90)
        assert highest() == [29, 79, 89]
        cut(manager, second, 60)
        assert highest() == [29, 59, None]
        cut(manager, second, 40)
        assert highest() == [29, 49, None]
        cut(manager, first, 40)
        assert highest() == [29, 39, None]
        move(manager, first, DELETING, GONE)
        assert highest() == [29, 39, None]

    def test_sizes_count_only_epochs_that_are_whole(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        counted = segment(
            "a",
            0,
            99,
            epochs=((0, 0), (1, 40), (2, 80)),
            size_bytes=1_000,
            bytes_per_epoch=((0, 500), (1, 300), (2, 200)),
        )
        foreign = segment("b", 100, 199, epochs=((2, 80), (3, 150)), size_bytes=70)
        finish(manager, counted, foreign)

        def sizes() -> list[int]:
            return [manager.remote_log_size(PARTITION, epoch) for epoch in range(4)]

        assert sizes() == [500, 300, 200, 70]
        cut(manager, foreign, 199)
        assert sizes() == [500, 300, 200, 0]
        cut(manager, counted, 99)
        assert sizes() == [500, 300, 0, 0]
        cut(manager, counted, 80)
        assert sizes() == [500, 300, 0, 0]
        cut(manager, counted, 79)
        assert sizes() == [500, 0, 0, 0]
        move(manager, counted, DELETING)
        assert sizes() == [0, 0, 0, 0]

    # -- deleted partitions

    def test_a_partition_is_deleted_in_steps(self, manager: RemoteLogMetadataManager) -> None:
        kept = segment("other", 0, 9, partition=OTHER)
        metadata, copying = segment("a", 0, 9), segment("b", 10, 19)
        finish(manager, metadata, kept)
        manager.add(copying)
        assert manager.partition_delete_state(PARTITION) is None
        for state in (MARKED, DELETION_STARTED):
            for _ in range(2):
                delete_partition(manager, state)
                assert manager.partition_delete_state(PARTITION) is state
            assert found_at(manager, 5) == uuid_of("a")
        move(manager, metadata, DELETING, GONE)
        for _ in range(2):
            delete_partition(manager, DELETION_FINISHED)
            assert manager.partition_delete_state(PARTITION) is None
            assert manager.list(PARTITION) == ()
            assert manager.highest_offset_for_epoch(PARTITION, 0) is None
            assert manager.remote_log_size(PARTITION, 0) == 0
            assert manager.partitions() == (OTHER,)
        assert manager.list(OTHER) != ()

    @pytest.mark.parametrize("known", [None, MARKED, DELETION_STARTED])
    @pytest.mark.parametrize("target", [MARKED, DELETION_STARTED, DELETION_FINISHED])
    def test_steps_of_a_deletion(
        self,
        manager: RemoteLogMetadataManager,
        known: RemotePartitionDeleteState | None,
        target: RemotePartitionDeleteState,
    ) -> None:
        manager.add(segment("a", 0, 9))
        if known is not None:
            delete_partition(manager, *list(RemotePartitionDeleteState)[: known + 1])
        before = visible(manager)
        if target is known:
            delete_partition(manager, target)
            assert visible(manager) == before
        elif target == (0 if known is None else known + 1):
            delete_partition(manager, target)
            done = target is DELETION_FINISHED
            assert manager.partition_delete_state(PARTITION) is (None if done else target)
        else:
            with pytest.raises(RemoteMetadataError, match=target.name):
                delete_partition(manager, target)
            assert visible(manager) == before

    def test_nothing_is_added_to_a_partition_being_deleted(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        metadata = segment("a", 0, 9)
        manager.add(metadata)
        delete_partition(manager, MARKED)
        manager.add(metadata)
        with pytest.raises(RemoteMetadataError):
            manager.add(segment("b", 10, 19))
        move(manager, metadata, FINISHED, DELETING, GONE)
        assert manager.partitions() == (PARTITION,)
        delete_partition(manager, DELETION_STARTED, DELETION_FINISHED)
        assert manager.partitions() == ()

    # -- the change counter

    def test_every_visible_change_counts(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 9)
        events: list[Callable[[], object]] = [
            lambda: manager.claim_leadership(PARTITION, 1),
            lambda: manager.add(metadata),
            lambda: move(manager, metadata, FINISHED),
            lambda: cut(manager, metadata, 5),
            lambda: manager.claim_leadership(PARTITION, 2),
            lambda: move(manager, metadata, DELETING),
            lambda: move(manager, metadata, GONE),
            lambda: delete_partition(manager, MARKED),
            lambda: delete_partition(manager, DELETION_STARTED),
            lambda: delete_partition(manager, DELETION_FINISHED),
        ]
        seen, count = [manager.changes(PARTITION)], manager.change_count.count
        for event in events:
            event()
            now = manager.changes(PARTITION)
            assert now not in seen
            # Callers that have not seen that change need no claim.
            assert manager.change_count.count > count
            count = manager.change_count.count
            seen.append(now)
            if event is not events[1]:
                event()
            manager.add(segment("other", 0, 9, partition=OTHER))
            assert manager.list(PARTITION) == manager.list(PARTITION)
            assert manager.changes(PARTITION) == now


class EmbeddedConformance:
    """The additional rules of managers without a cluster; takes the same fixture."""

    def test_the_log_start_goes_up(self, manager: InMemoryRemoteLogMetadataManager) -> None:
        assert manager.log_start_offset(PARTITION) is None
        for offset, expected in ((0, 0), (10, 10), (10, 10), (7, 10), (2**62, 2**62)):
            manager.advance_log_start_offset(PARTITION, offset)
            assert manager.log_start_offset(PARTITION) == expected
        assert manager.log_start_offset(OTHER) is None
        with pytest.raises(ValueError, match="-1"):
            manager.advance_log_start_offset(PARTITION, -1)
        before = manager.changes(PARTITION)
        manager.advance_log_start_offset(PARTITION, 9)
        assert manager.changes(PARTITION) == before
        manager.advance_log_start_offset(PARTITION, 2**63 - 1)
        assert manager.changes(PARTITION) != before
        assert manager.partitions() == ()

    def test_the_leader_epoch_outlives_the_partition(
        self, manager: InMemoryRemoteLogMetadataManager
    ) -> None:
        manager.advance_log_start_offset(PARTITION, 7)
        delete_partition(manager, MARKED, DELETION_STARTED, DELETION_FINISHED, leader_epoch=5)
        assert manager.log_start_offset(PARTITION) is None
        with pytest.raises(FencedLeaderError):
            manager.add(segment("late", 0, 9), leader_epoch=4)
        assert manager.partitions() == ()
        manager.add(segment("a", 0, 9), leader_epoch=5)
        assert len(manager.list(PARTITION)) == 1

"""The rules of every metadata manager."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tierlog.errors import ClosedError, RemoteMetadataError
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from tierlog.testing.events import MARKED, delete_partition, finish, found_at, move
from tierlog.testing.fencing import FencingConformance
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

__all__ = ["MetadataConformance", "finish", "found_at", "move"]

PATH_TO = {
    STARTED: [],
    FINISHED: [FINISHED],
    DELETING: [FINISHED, DELETING],
    GONE: [FINISHED, DELETING, GONE],
}
LEGAL = {
    (STARTED, FINISHED),
    (STARTED, DELETING),
    (FINISHED, DELETING),
    (DELETING, GONE),
}


class MetadataConformance(FencingConformance):
    """Takes the fixture `manager`: an empty, loaded manager."""

    # -- states

    def test_the_life_of_a_segment(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 10, 19, custom_metadata=b"locator")
        manager.add(metadata)
        assert manager.get(metadata.segment_id) == metadata
        assert found_at(manager, 10) is None
        manager.update(metadata.update_to(FINISHED, event_timestamp_ms=6_000, broker_id=2))
        finished = manager.lookup(PARTITION, 0, 15)
        assert finished == replace(metadata, state=FINISHED, event_timestamp_ms=6_000, broker_id=2)
        move(manager, metadata, DELETING)
        assert found_at(manager, 15) is None
        assert [known.state for known in manager.list(PARTITION)] == [DELETING]
        assert [known.state for known in manager.list(PARTITION, 0)] == [DELETING]
        move(manager, metadata, GONE)
        assert manager.get(metadata.segment_id) is None
        assert manager.list(PARTITION) == manager.list(PARTITION, 0) == ()

    @pytest.mark.parametrize("source", [STARTED, FINISHED, DELETING])
    @pytest.mark.parametrize("target", [FINISHED, DELETING, GONE])
    def test_transitions(
        self,
        manager: RemoteLogMetadataManager,
        source: RemoteLogSegmentState,
        target: RemoteLogSegmentState,
    ) -> None:
        metadata = segment("a", 0, 9)
        manager.add(metadata)
        move(manager, metadata, *PATH_TO[source])
        before = manager.list(PARTITION)
        event = metadata.update_to(target, event_timestamp_ms=9_999)
        if source is target:
            manager.update(event)
            assert manager.list(PARTITION) == before
        elif (source, target) in LEGAL:
            manager.update(event)
            after = manager.get(metadata.segment_id)
            assert (target is GONE) if after is None else (after.state is target)
        else:
            with pytest.raises(RemoteMetadataError, match=f"{source.name} to {target.name}"):
                manager.update(event)
            assert manager.list(PARTITION) == before

    @pytest.mark.parametrize("state", [FINISHED, DELETING, GONE])
    def test_only_started_segments_are_added(
        self, manager: RemoteLogMetadataManager, state: RemoteLogSegmentState
    ) -> None:
        with pytest.raises(RemoteMetadataError, match=state.name):
            manager.add(segment("a", 0, 9, state=state))
        assert manager.list(PARTITION) == ()
        assert manager.partitions() == ()

    def test_adding_again_changes_nothing_or_fails(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 9)
        manager.add(metadata)
        manager.add(metadata)
        with pytest.raises(RemoteMetadataError):
            manager.add(segment("a", 0, 8))
        move(manager, metadata, FINISHED)
        with pytest.raises(RemoteMetadataError, match="COPY_SEGMENT_FINISHED"):
            manager.add(metadata)
        assert found_at(manager, 9) == uuid_of("a")

    @pytest.mark.parametrize("state", [FINISHED, DELETING])
    def test_unknown_segments_are_errors(
        self, manager: RemoteLogMetadataManager, state: RemoteLogSegmentState
    ) -> None:
        with pytest.raises(RemoteMetadataError):
            move(manager, segment("a", 0, 9), state)
        assert manager.list(PARTITION) == ()

    def test_deleting_what_is_gone_is_harmless(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 9)
        finish(manager, metadata)
        move(manager, metadata, DELETING, GONE, GONE)
        assert manager.list(PARTITION) == ()

    def test_an_update_replaces_what_kafka_says_it_replaces(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        metadata = segment("a", 0, 9, custom_metadata=b"locator")
        manager.add(metadata)
        manager.update(
            RemoteLogSegmentMetadataUpdate(
                segment_id=metadata.segment_id,
                event_timestamp_ms=7,
                broker_id=3,
                state=FINISHED,
                custom_metadata=None,
            )
        )
        assert manager.get(metadata.segment_id) == replace(
            metadata, event_timestamp_ms=7, broker_id=3, state=FINISHED, custom_metadata=None
        )

    # -- look-ups

    def test_lookup_knows_the_epochs_of_a_segment(self, manager: RemoteLogMetadataManager) -> None:
        # Epoch 2 wrote nothing here; epoch 1 began before the segment.
        finish(manager, segment("a", 100, 199, epochs=((1, 50), (2, 150), (3, 150), (5, 180))))
        held = {
            epoch: [offset for offset in range(95, 205) if found_at(manager, offset, epoch)]
            for epoch in range(7)
        }
        assert held[1] == list(range(100, 150))
        assert held[3] == list(range(150, 180))
        assert held[5] == list(range(180, 200))
        assert held[0] == held[2] == held[4] == held[6] == []
        assert [manager.highest_offset_for_epoch(PARTITION, epoch) for epoch in range(6)] == [
            None,
            149,
            None,
            179,
            None,
            199,
        ]

    def test_unknown_places_have_no_answer(self, manager: RemoteLogMetadataManager) -> None:
        finish(manager, segment("a", 10, 19))
        assert found_at(manager, 9) is found_at(manager, 20) is None
        other = partition_of("orders", 1)
        assert manager.lookup(other, 0, 15) is None
        assert manager.list(other) == ()
        assert manager.list(PARTITION, 7) == ()
        assert manager.highest_offset_for_epoch(other, 0) is None
        assert manager.remote_log_size(other, 0) == 0
        assert manager.next_segment_with_txn_index(other, 0, 0) is None
        assert list(manager.segments_by_timestamp(other, 0)) == []
        assert manager.partitions() == (PARTITION,)

    def test_topics_go_by_id(self, manager: RemoteLogMetadataManager) -> None:
        again = replace(PARTITION, topic_id=uuid_of("second life"))
        finish(manager, segment("a", 0, 9), segment("b", 0, 4, partition=again))
        assert found_at(manager, 3) == uuid_of("a")
        second = manager.lookup(again, 0, 3)
        assert second is not None
        assert second.segment_id.id == uuid_of("b")
        assert set(manager.partitions()) == {PARTITION, again}

    @pytest.mark.parametrize("first", ["short", "long"])
    def test_the_longer_of_two_with_one_start_answers(
        self, manager: RemoteLogMetadataManager, first: str
    ) -> None:
        both = {"short": segment("short", 10, 49), "long": segment("long", 10, 90)}
        order = [both.pop(first), *both.values()]
        finish(manager, *order)
        assert {found_at(manager, offset) for offset in range(10, 91)} == {uuid_of("long")}
        assert len(manager.list(PARTITION, 0)) == 2

    @pytest.mark.parametrize("last", ["10-90", "5-100"])
    def test_partial_overlap_answers_in_both_orders(
        self, manager: RemoteLogMetadataManager, last: str
    ) -> None:
        both = {"10-90": segment("10-90", 10, 90), "5-100": segment("5-100", 5, 100)}
        final = both.pop(last)
        finish(manager, *both.values(), final)
        assert all(found_at(manager, offset) for offset in range(5, 101))
        assert found_at(manager, 95) == found_at(manager, 7) == uuid_of("5-100")
        assert found_at(manager, 4) is found_at(manager, 101) is None

    def test_a_hidden_segment_serves_again(self, manager: RemoteLogMetadataManager) -> None:
        short, long = segment("short", 10, 49), segment("long", 10, 90)
        finish(manager, short, long)
        move(manager, long, DELETING, GONE)
        assert found_at(manager, 30) == uuid_of("short")
        assert found_at(manager, 60) is None
        move(manager, short, DELETING, GONE)
        assert found_at(manager, 30) is None

    def test_many_segments_below_a_long_one(self, manager: RemoteLogMetadataManager) -> None:
        finish(manager, segment("long", 0, 1_000))
        finish(manager, *(segment(f"s{n}", n * 10, n * 10 + 4) for n in range(1, 40)))
        assert found_at(manager, 204) == uuid_of("s20")
        assert found_at(manager, 205) == uuid_of("long")
        assert found_at(manager, 1_000) == uuid_of("long")

    # -- lists, sizes, highest offsets

    def test_lists_are_sorted_and_hold_every_state(self, manager: RemoteLogMetadataManager) -> None:
        finish(manager, segment("c", 40, 49), segment("a", 0, 19))
        deleting = segment("b", 20, 39, epochs=((0, 0), (1, 30)))
        finish(manager, deleting)
        move(manager, deleting, DELETING)
        manager.add(segment("d", 50, 59, epochs=((1, 50),)))
        states = [(known.start_offset, known.state) for known in manager.list(PARTITION)]
        assert states == [(0, FINISHED), (20, DELETING), (40, FINISHED), (50, STARTED)]
        assert [known.start_offset for known in manager.list(PARTITION, 0)] == [0, 20, 40]
        assert [known.start_offset for known in manager.list(PARTITION, 1)] == [20, 50]

    def test_sizes_count_each_byte_of_finished_segments_once(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        spanning = segment(
            "a",
            0,
            99,
            epochs=((0, 0), (1, 60)),
            size_bytes=1_000,
            bytes_per_epoch=((0, 700), (1, 300)),
        )
        foreign = segment("b", 100, 199, epochs=((1, 60), (2, 150)), size_bytes=500)
        started = segment("c", 200, 299, epochs=((2, 150),), size_bytes=77)

        def sizes() -> list[int]:
            return [manager.remote_log_size(PARTITION, epoch) for epoch in range(4)]

        finish(manager, spanning, foreign)
        manager.add(started)
        assert sizes() == [700, 300, 500, 0]
        move(manager, started, FINISHED)
        assert sizes() == [700, 300, 577, 0]
        move(manager, spanning, DELETING)
        assert sizes() == [0, 0, 577, 0]
        move(manager, spanning, GONE)
        move(manager, foreign, DELETING)
        assert sizes() == [0, 0, 77, 0]

    def test_the_outline_of_an_archive(self, manager: RemoteLogMetadataManager) -> None:
        assert manager.outline(PARTITION) == (0, (), (), None)
        later, first = segment("a", 100, 199, epochs=((1, 100),)), segment("b", 0, 99)
        started = segment("c", 200, 299, epochs=((2, 200),))
        finish(manager, later, first)
        manager.add(started)
        outline = manager.outline(PARTITION)
        assert (outline.segment_count, outline.epochs) == (3, (0, 1, 2))
        assert [one.segment_id for one in outline.unfinished] == [started.segment_id]
        assert outline.first is not None
        assert outline.first.segment_id == first.segment_id
        move(manager, first, DELETING)
        outline = manager.outline(PARTITION)
        assert [one.start_offset for one in outline.unfinished] == [0, 200]
        assert outline.first is not None
        assert outline.first.segment_id == later.segment_id
        move(manager, first, GONE)
        assert manager.outline(PARTITION)[:2] == (2, (1, 2))

    def test_finished_segments_from_an_offset_on(self, manager: RemoteLogMetadataManager) -> None:
        finish(manager, segment("a", 0, 99), segment("b", 100, 199), segment("c", 50, 120))
        manager.add(segment("d", 200, 299))

        def starts(offset: int) -> list[int]:
            return [one.start_offset for one in manager.segments_from(PARTITION, offset)]

        assert starts(0) == starts(99) == [0, 50, 100]
        assert starts(100) == starts(120) == [50, 100]
        assert starts(121) == starts(199) == [100]
        assert starts(200) == []

    def test_finished_segments_one_by_one_from_the_front(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        assert list(manager.segments_by_offset(PARTITION)) == []
        finish(manager, segment("a", 50, 120), segment("b", 0, 99), segment("c", 0, 49))
        manager.add(segment("d", 0, 9))
        found = manager.segments_by_offset(PARTITION)
        assert next(found).segment_id.id == uuid_of("c")
        finish(manager, segment("e", 200, 299))
        move(manager, segment("c", 0, 49), DELETING)
        rest = [one.segment_id.id for one in found]
        assert rest[:2] == [uuid_of("b"), uuid_of("a")]
        assert set(rest[2:]) <= {uuid_of("e")}
        front = [one.end_offset for one in manager.segments_by_offset(PARTITION)]
        assert front == [99, 120, 299]

    def test_finished_segments_that_overlap(self, manager: RemoteLogMetadataManager) -> None:
        def names() -> list[str]:
            return [one.segment_id.id for one in manager.overlapping_segments(PARTITION)]

        wide, inside = segment("a", 0, 99), segment("b", 10, 19)
        finish(manager, wide, inside, segment("c", 99, 150), segment("d", 151, 200))
        manager.add(segment("e", 0, 300))
        assert names() == [uuid_of(name) for name in "abc"]
        move(manager, wide, DELETING)
        assert names() == []
        finish(manager, segment("f", 150, 151))
        assert names() == [uuid_of(name) for name in "cfd"]
        move(manager, segment("d", 151, 200), DELETING)
        assert names() == [uuid_of(name) for name in "cf"]

    def test_segments_without_bytes(self, manager: RemoteLogMetadataManager) -> None:
        empty = [segment(name, 0, 9, size_bytes=0) for name in ("a", "b")]
        finish(manager, *empty)
        for metadata in empty:
            move(manager, metadata, DELETING, GONE)
        assert manager.remote_log_size(PARTITION, 0) == 0

    def test_deletes_do_not_lower_the_highest_offset(
        self, manager: RemoteLogMetadataManager
    ) -> None:
        metadata = segment("a", 0, 99)
        manager.add(metadata)
        assert manager.highest_offset_for_epoch(PARTITION, 0) is None
        move(manager, metadata, FINISHED, DELETING, GONE)
        assert manager.highest_offset_for_epoch(PARTITION, 0) == 99
        finish(manager, segment("b", 0, 49))
        assert manager.highest_offset_for_epoch(PARTITION, 0) == 99

    def test_an_aborted_copy_never_counts(self, manager: RemoteLogMetadataManager) -> None:
        metadata = segment("a", 0, 99)
        manager.add(metadata)
        move(manager, metadata, DELETING, GONE)
        assert manager.highest_offset_for_epoch(PARTITION, 0) is None
        assert manager.remote_log_size(PARTITION, 0) == 0

    # -- transactions and timestamps

    def test_next_segment_with_txn_index(self, manager: RemoteLogMetadataManager) -> None:
        finish(
            manager,
            segment("a", 0, 9, txn_index_empty=True),
            segment("b", 10, 19),
            segment("c", 20, 29, txn_index_empty=True),
            segment("d", 30, 39, epochs=((0, 0), (1, 35))),
        )
        unfinished = segment("e", 20, 29)
        manager.add(unfinished)

        def after(offset: int, epoch: int = 0) -> str | None:
            found = manager.next_segment_with_txn_index(PARTITION, epoch, offset)
            return None if found is None else found.segment_id.id

        assert [after(offset) for offset in (0, 10, 19)] == [uuid_of("b")] * 3
        assert [after(offset) for offset in (20, 30, 34)] == [uuid_of("d")] * 3
        assert after(35) is None
        assert after(0, epoch=1) == after(39, epoch=1) == uuid_of("d")
        assert after(0, epoch=2) is None
        move(manager, unfinished, FINISHED, DELETING)
        assert after(20) == uuid_of("d")

    def test_segments_by_timestamp(self, manager: RemoteLogMetadataManager) -> None:
        finish(
            manager,
            segment("a", 0, 9, max_timestamp_ms=500),
            segment("b", 10, 19, max_timestamp_ms=300, epochs=((0, 0), (1, 15))),
            segment("c", 20, 29, max_timestamp_ms=400, epochs=((1, 15),)),
        )
        manager.add(segment("d", 30, 39, max_timestamp_ms=900, epochs=((1, 15),)))

        def after(timestamp_ms: int, start_offset: int = 0) -> list[str]:
            found = manager.segments_by_timestamp(PARTITION, timestamp_ms, start_offset)
            return [metadata.segment_id.id for metadata in found]

        a, b, c = uuid_of("a"), uuid_of("b"), uuid_of("c")
        assert after(0) == [a, b, c]
        assert after(301) == [a, c]
        assert after(500) == [a]
        assert after(501) == []
        assert after(0, start_offset=10) == [b, c]
        assert after(0, start_offset=20) == [c]

    def test_answers_are_snapshots(self, manager: RemoteLogMetadataManager) -> None:
        first = segment("a", 0, 9)
        finish(manager, first, segment("b", 10, 19))
        listed = manager.list(PARTITION)
        by_time = manager.segments_by_timestamp(PARTITION, 0)
        move(manager, first, DELETING, GONE)
        assert len(listed) == len(list(by_time)) == 2

    # -- life of the manager

    def test_readiness_and_close(self, manager: RemoteLogMetadataManager) -> None:
        assert manager.is_ready(PARTITION)
        manager.close()
        manager.close()
        assert not manager.is_ready(PARTITION)
        calls: list[Callable[[], object]] = [
            lambda: manager.add(segment("a", 0, 9)),
            lambda: move(manager, segment("a", 0, 9), FINISHED),
            lambda: manager.lookup(PARTITION, 0, 0),
            lambda: manager.list(PARTITION),
            lambda: manager.partitions(),
            lambda: manager.remote_log_size(PARTITION, 0),
            lambda: manager.claim_leadership(PARTITION, 1),
            lambda: manager.leader_epoch(PARTITION),
            lambda: delete_partition(manager, MARKED),
            lambda: manager.partition_delete_state(PARTITION),
            lambda: manager.changes(PARTITION),
        ]
        for call in calls:
            with pytest.raises(ClosedError):
                call()

    def test_threads(self, manager: RemoteLogMetadataManager) -> None:
        """Every event of four threads is visible at the end, and sizes add up."""
        partitions = [partition_of("orders", number) for number in (0, 1)]

        def work(worker: int) -> None:
            for number in range(25):
                start = (worker * 25 + number) * 10
                metadata = segment(
                    f"{worker} {number}", start, start + 9, partition=partitions[worker % 2]
                )
                finish(manager, metadata)
                if number % 2:
                    move(manager, metadata, DELETING)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for partition in partitions:
            states = [known.state for known in manager.list(partition)]
            assert (states.count(FINISHED), states.count(DELETING)) == (26, 24)
            assert manager.remote_log_size(partition, 0) == 26 * 100

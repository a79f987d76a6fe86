"""The remote log manager over real segments of a broker: what it copies, expires and follows.

Driven by hand under a manual clock wherever threads are not what is tested.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.descriptors import open_below
from tests.kafka_tools.support import wait_until
from tests.tiering.hosts import GoldenLog
from tests.tiering.node import (
    EPOCH,
    EVERYTHING_MAY_GO,
    Node,
    Told,
    rolled,
)
from tierlog._hot import QuotaSensor
from tierlog.clock import ManualClock, SystemClock
from tierlog.config import QuotaMode, RemoteIndexConfig
from tierlog.errors import ClosedError, RemoteResourceNotFoundError
from tierlog.log.eligibility import Ineligible, copy_facts, decide_segments
from tierlog.quota import QuotaManager
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import (
    ArchiveOutline,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import Happened, coverage
from tierlog.tiering.retention import HeldBack
from tierlog.types import TopicIdPartition

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


# -- copying


def test_copies_what_is_rolled_and_stable_and_then_nothing_more(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPIED) == rolled(log)
    assert node.states(log) == [FINISHED] * 3
    assert log.highest_remote_offset == log.log.segments[-1].base_offset - 1
    assert node.told.sent_bytes >= sum(one.size_bytes for one in log.log.rolled_segments)
    decisions = node.manager.decisions(log.partition)
    assert decisions is not None
    assert [one.reason for one in decisions] == [Ineligible.COPIED] * 3 + [Ineligible.ACTIVE]
    calls = len(node.store.calls)
    node.pass_time()
    assert len(node.store.calls) == calls, "an idle partition costs the store nothing"
    reader = StoreReader(node.storage, node.metadata)
    begin, end = reader.bounds(log.partition.topic, 0)
    assert (begin, end) == (0, log.log.segments[-1].base_offset)


def test_partitions_take_turns(node: Node, tmp_path: Path) -> None:
    logs = [GoldenLog(tmp_path, name) for name in ("transactions-0", "epochs-0", "idempotent-0")]
    for log in logs:
        node.lead(log)
    node.manager.run_until_idle()
    topics = [event.partition.topic for event in node.told.events]
    assert topics[:9] == ["transactions", "epochs", "idempotent"] * 3
    assert topics[9:] == ["transactions"] * 2


def test_what_is_not_stable_is_copied_once_it_is(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "codec-none-0")
    bases = rolled(log)
    everything, log.high_watermark = log.high_watermark, bases[2]
    log.changed()
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPIED) == bases[:2]
    log.high_watermark = everything
    log.changed()
    node.pass_time()
    assert node.told.of(Happened.COPIED) == bases


def test_a_copy_lag_holds_back_until_the_records_are_old_enough(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0", copy_lag_ms=3_600_000)
    node.lead(log)
    node.manager.run_until_idle()
    # By the clock of this test the records are from the future, which holds nothing back.
    assert node.told.of(Happened.COPIED) == rolled(log)
    written_ms = node.metadata.list(log.partition)[0].max_timestamp_ms

    other = Node(tmp_path / "other")
    other.clock = ManualClock(now_ms=written_ms + 60_000)
    other.restart()
    other.lead(log)
    other.manager.run_until_idle()
    assert other.told.of(Happened.COPIED) == []
    held = other.manager.decisions(log.partition)
    assert held is not None
    assert [one.reason for one in held][:3] == [Ineligible.COPY_LAG] * 3
    newest_ms = max(one.max_timestamp_ms for one in node.metadata.list(log.partition))
    other.pass_time(newest_ms - written_ms + 3_600_000)
    assert other.told.of(Happened.COPIED) == rolled(log)


def test_a_damaged_segment_is_refused_once_and_does_not_stop_the_others(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "codec-none-0", local_retention_bytes=0)
    bases = rolled(log)
    path = log.directory / f"{bases[1]:020d}.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.of(Happened.REFUSED) == [bases[1]]
    assert node.told.of(Happened.COPIED) == [bases[0], *bases[2:]]
    assert log.highest_remote_offset == bases[1] - 1, "not beyond the hole"
    node.pass_time()
    assert node.told.of(Happened.REFUSED) == [bases[1]]
    assert rolled(log) == bases[1:], "what is not in the tier stays on disk, and all behind it"


@pytest.mark.parametrize("damaged", [False, True])
def test_after_each_run_the_decisions_are_those_of_a_look_at_everything(
    node: Node, tmp_path: Path, damaged: bool
) -> None:
    log = GoldenLog(tmp_path, "codec-none-0")
    bases = rolled(log)
    if damaged:
        os.truncate(log.directory / f"{bases[1]:020d}.log", 100)
        log.changed()
    node.lead(log)
    view = log.view()
    assert view is not None
    assert view.log.leader_epochs is not None
    while node.manager.copy_pool.run_due():
        finished = node.metadata.list(log.partition)
        copied = coverage(finished, view.log.leader_epochs)
        facts = copy_facts(view.log, view.stable, copied=copied, compacted=view.compacted)
        assert node.manager.decisions(log.partition) == decide_segments(view.log.segments, facts)
        assert log.highest_remote_offset == copied.reaches(0)
    assert node.told.of(Happened.COPIED) == [bases[0], *bases[1 + damaged :]]


def test_a_failed_copy_is_tried_again_and_the_lag_is_never_wrong(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.store.refuses["put_stream"] = lambda key: True
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPY_FAILED) == [0]
    (failure,) = node.told.failures
    assert 400 <= failure.retry_ms <= 600
    behind = sum(one.size_bytes for one in log.log.rolled_segments)
    assert node.manager.metrics.snapshot().total_sums.copy_lag == (behind, 3)
    node.clock.advance(600)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPY_FAILED) == [0, 0]
    node.store.refuses.clear()
    node.clock.advance(2_000)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPIED) == rolled(log)
    assert node.manager.metrics.snapshot().total_sums.copy_lag == (0, 0)
    assert node.states(log) == [FINISHED] * 3
    assert len(node.objects()) == 6


def test_an_interrupted_copy_is_finished_or_removed_by_the_next_leader(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    whole, half, gone = node.metadata.list(log.partition)
    others = InMemoryRemoteLogMetadataManager()
    for segment in (whole, half, gone):
        others.add(replace(segment, state=STARTED))
    node.metadata = others
    keys = sorted(node.objects())
    for key in keys:
        if half.segment_id.id in key and key.endswith(".indexes"):
            node.store.delete(key)  # type: ignore[operator]
        if gone.segment_id.id in key:
            node.store.delete(key)  # type: ignore[operator]
    node.restart()
    node.lead(log, EPOCH + 1)
    # The copy task comes first here; the expiration task would have removed all three.
    while node.manager.copy_pool.run_due():
        pass
    assert node.told.of(Happened.COPY_RESUMED) == [whole.start_offset]
    assert node.told.of(Happened.COPY_REMOVED) == [half.start_offset, gone.start_offset]
    assert node.told.of(Happened.COPIED) == [half.start_offset, gone.start_offset]
    node.manager.run_until_idle()
    assert node.states(log) == [FINISHED] * 3
    assert len(node.objects()) == 6


def test_an_interrupted_copy_that_cannot_be_settled_is_not_copied_beside_it(
    node: Node, tmp_path: Path
) -> None:
    """Later it may be finished after all: then the segment would be stored twice."""
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    first, *others = node.metadata.list(log.partition)
    interrupted = InMemoryRemoteLogMetadataManager()
    interrupted.add(replace(first, state=STARTED))
    for other in others:
        node.storage.delete_log_segment_data(other)
    node.metadata = interrupted
    node.restart()
    for name in ("head", "get_range"):
        node.store.refuses[name] = lambda key: first.segment_id.id in key
    node.lead(log, EPOCH + 1)
    for _ in range(3):
        while node.manager.copy_pool.run_due():
            pass
        node.clock.advance(31_000)
    assert set(node.told.of(Happened.NOT_SETTLED)) == {first.start_offset}
    assert first.start_offset not in node.told.of(Happened.COPIED)
    node.store.refuses.clear()
    node.pass_time()
    assert node.states(log) == [FINISHED] * 3
    assert len(node.objects()) == 6


def test_a_copy_that_ends_with_an_unexpected_error_is_settled_before_the_next(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is short, a bug: the pool runs the task again, and the objects may be stored."""
    log = GoldenLog(tmp_path, "epochs-0")
    real, failures = node.storage.copy_log_segment_data, [MemoryError()]

    def copy(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(node.storage, "copy_log_segment_data", copy)
    node.lead(log)
    # The expiration task, which removes interrupted copies, comes later.
    for _ in range(3):
        while node.manager.copy_pool.run_due():
            pass
        node.clock.advance(31_000)
    assert node.told.of(Happened.COPY_RESUMED) == [0]
    assert node.states(log) == [FINISHED] * 3
    assert len(node.objects()) == 6


# -- leading and following


def test_roles_are_taken_once_and_given_up_wholly(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    manager = node.manager
    for _ in range(3):
        node.lead(log)
    assert (len(manager.copy_pool), len(manager.expiration_pool)) == (1, 1)
    assert manager.partitions() == {log.partition: True}
    while manager.expiration_pool.run_due():
        pass
    assert node.metadata.leader_epoch(log.partition) == EPOCH, "the first act of a leader"
    manager.become_follower(log.partition, EPOCH + 1, log)
    assert (len(manager.copy_pool), len(manager.expiration_pool)) == (0, 0)
    assert len(manager.follower_pool) == 1
    manager.run_until_idle()
    assert node.told.events == []
    assert log.partition.topic not in manager.metrics.snapshot().topics
    manager.stop_partition(log.partition)
    manager.stop_partition(log.partition)
    assert manager.partitions() == {}
    assert len(manager.follower_pool) == 0


def own_threads() -> int:
    return sum(one.name.startswith("tierlog") for one in threading.enumerate())


def test_a_thousand_changes_of_leadership_leave_nothing_behind(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    descriptors = threads = 0
    for round_number in range(1_000):
        if round_number == 10:
            gc.collect()
            descriptors = open_below(tmp_path)
            threads = own_threads()
        node.manager.become_follower(log.partition, EPOCH + 2 * round_number, log)
        node.manager.run_until_idle()
        node.lead(log, EPOCH + 2 * round_number + 1)
        node.manager.run_until_idle()
    assert node.told.of(Happened.COPIED) == rolled(log)
    assert len(node.objects()) == 6
    gc.collect()
    assert open_below(tmp_path) <= descriptors
    assert own_threads() <= threads
    assert len(node.manager.follower_pool) == 0
    assert node.told.failures == []


def test_a_follower_learns_how_far_the_leader_is_and_drops_its_own_copy(
    node: Node, tmp_path: Path
) -> None:
    leaders = GoldenLog(tmp_path / "leader", "epochs-0")
    followers = GoldenLog(tmp_path / "follower", "epochs-0", local_retention_bytes=0)
    bases = rolled(followers)
    node.manager.become_follower(followers.partition, EPOCH, followers)
    node.manager.run_until_idle()
    assert rolled(followers) == bases, "nothing is in the tier yet"
    node.restart()
    node.lead(leaders)
    node.manager.run_until_idle()
    node.restart()
    node.store.calls.clear()
    node.manager.become_follower(followers.partition, EPOCH, followers)
    node.manager.run_until_idle()
    assert followers.highest_remote_offset == leaders.highest_remote_offset
    assert rolled(followers) == []
    assert node.told.of(Happened.LOCAL_DELETED) == bases
    assert {name for name, _ in node.store.calls} <= {"head", "get_range"}
    assert rolled(leaders) == bases


def test_the_older_leader_is_fenced(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0", retention_ms=1)
    node.metadata.claim_leadership(log.partition, EPOCH + 1)
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.fenced == [(log.partition, EPOCH)]
    assert node.told.events == []
    assert node.objects() == set()
    node.pass_time()
    assert node.told.failures == []


def test_a_log_that_is_gone_or_not_known_yet_is_left_alone(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    log.gone = True
    node.lead(log)
    node.manager.run_until_idle()
    log.gone = False
    node.metadata._ready = False
    node.pass_time()
    assert node.told.events == []
    assert node.told.failures == []
    node.metadata.mark_ready()
    node.pass_time()
    assert node.told.of(Happened.COPIED) == rolled(log)


# -- expiring


def test_what_is_too_old_goes_after_the_log_start_has_moved(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    bases = rolled(log)
    node.lead(log)
    node.manager.run_until_idle()
    seen: list[tuple[str, int]] = []

    def watch(key: str) -> bool:
        seen.append((key, log.log_start_offset))
        return False

    node.store.refuses["delete"] = watch
    newest_ms = max(one.max_timestamp_ms for one in node.metadata.list(log.partition))
    log.configure(retention_ms=86_400_000)
    node.pass_time(max(0, newest_ms - node.clock.now_ms()) + 86_400_000 + 60_000)
    assert node.told.of(Happened.DELETED) == bases
    assert log.starts == [log.log.segments[-1].base_offset]
    assert {start for _, start in seen} == {log.log_start_offset}, "durable before the first delete"
    assert node.objects() == set()
    assert node.states(log) == []
    assert [event.reason for event in node.told.events if event.happened is Happened.DELETED] == [
        "retention_time"
    ] * 3


def test_size_retention_never_leaves_less_than_it_promises(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "codec-none-0")
    sizes, bases = [segment.size_bytes for segment in log.log.segments], rolled(log)
    node.lead(log)
    node.manager.run_until_idle()
    log.configure(retention_bytes=sum(sizes[2:]))
    node.pass_time()
    assert node.told.of(Happened.DELETED) == bases[:2]
    assert rolled(log) == bases[2:], "what nobody can read any more leaves the disk too"
    log.configure(retention_bytes=sum(sizes[3:]) + 1)
    node.pass_time()
    assert node.told.of(Happened.DELETED) == bases[:2]


def test_a_store_that_denies_deletions_keeps_neither_the_log_start_nor_the_disk(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "codec-none-0", local_retention_bytes=0)
    bases = rolled(log)
    node.lead(log)
    while node.manager.copy_pool.run_due():
        pass
    node.store.refuses["delete"] = lambda key: True
    log.configure(retention_bytes=0, local_retention_bytes=0)
    node.pass_time()
    assert log.log_start_offset == log.log.segments[-1].base_offset
    assert node.told.of(Happened.DELETE_FAILED) == bases
    assert rolled(log) == []
    lag = node.manager.metrics.snapshot().total_sums.delete_lag
    assert lag is not None
    assert lag[1] == len(bases)
    node.store.refuses.clear()
    node.pass_time(60_000)
    assert node.objects() == set()
    assert node.states(log) == []


def test_the_disk_is_freed_only_of_what_the_store_really_holds(node: Node, tmp_path: Path) -> None:
    log = GoldenLog(tmp_path, "codec-none-0")
    bases = rolled(log)
    node.lead(log)
    node.manager.run_until_idle()
    lost = node.metadata.list(log.partition)[1].segment_id.id
    for key in node.objects():
        if lost in key and key.endswith(".log"):
            node.store.delete(key)  # type: ignore[operator]
    log.configure(local_retention_bytes=0)
    node.pass_time()
    assert node.told.of(Happened.LOCAL_DELETED) == bases[:1]
    assert set(node.told.of(Happened.LOCAL_KEPT)) == {bases[1]}
    assert rolled(log) == bases[1:]


def test_a_jump_of_the_wall_clock_expires_nothing_until_it_is_trusted(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "epochs-0", retention_ms=365 * 86_400_000)
    bases = rolled(log)
    node.lead(log)
    node.manager.run_until_idle()
    for jump_ms in (10 * 365 * 86_400_000, -20 * 365 * 86_400_000):
        node.clock.jump_wall(jump_ms)
        log.changed()
        node.pass_time()
        assert node.told.of(Happened.DELETED) == []
        assert HeldBack.CLOCK_SUSPECT in node.told.held_back
    node.clock.jump_wall(20 * 365 * 86_400_000)
    assert node.clock.now_ms() > 2_000_000_000_000
    node.manager.trust_clock()
    log.changed()
    node.pass_time()
    assert node.told.of(Happened.DELETED) == bases


def test_a_segment_is_served_up_to_where_a_later_leader_cut_the_log(
    node: Node, tmp_path: Path
) -> None:
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    node.manager.run_until_idle()
    segment = next(one for one in node.metadata.list(log.partition) if one.start_offset < 160)
    # The next leader had epoch 0 up to offset 99 only, and goes on there in epoch 5.
    cut = GoldenLog(tmp_path / "cut", "epochs-0")
    (cut.directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n5 100\n")
    for segment_files in cut.log.segments[1:]:
        for path in cut.directory.glob(f"{segment_files.base_offset:020d}.*"):
            path.unlink()
    cut.high_watermark = 100
    cut.changed()
    node.lead(cut, 5)
    node.manager.run_until_idle()
    known = node.metadata.get(segment.segment_id)
    assert known is not None
    assert known.truncation_offset == 100
    assert node.metadata.lookup(log.partition, 0, 99) is not None
    assert node.metadata.lookup(log.partition, 0, 100) is None
    assert segment.start_offset in node.told.of(Happened.TRUNCATED)


# -- deleting a partition


def test_a_deleted_topic_leaves_nothing(node: Node, tmp_path: Path) -> None:
    log, other = GoldenLog(tmp_path, "epochs-0"), GoldenLog(tmp_path, "idempotent-0")
    node.lead(log)
    node.lead(other)
    node.manager.run_until_idle()
    node.store.refuses["delete"] = lambda key: key.endswith(".log")
    node.manager.stop_partition(log.partition, delete_remote=True)
    node.manager.run_until_idle()
    deleting = node.metadata.partition_delete_state(log.partition)
    assert deleting is RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    node.store.refuses.clear()
    node.restart()
    assert node.manager.resume_deletions() == (log.partition,)
    node.manager.run_until_idle()
    assert node.metadata.partitions() == (other.partition,)
    assert len(node.objects()) == 2 * len(node.metadata.list(other.partition))
    assert node.manager.resume_deletions() == ()


# -- threads


def threaded(folder: Path, told: Told, quota: QuotaManager | None = None) -> RemoteLogManager:
    (folder / "store").mkdir(exist_ok=True, parents=True)
    return RemoteLogManager(
        ObjectStorageManager(open_store((folder / "store").as_uri())),
        InMemoryRemoteLogMetadataManager(),
        broker_id=1,
        options=ManagerOptions(config=EVERYTHING_MAY_GO, listener=told, copy_quota=quota),
    )


def test_expiration_goes_on_while_the_copy_quota_stops_every_copy(tmp_path: Path) -> None:
    told = Told()
    quota = QuotaManager("copy", QuotaSensor(limit_bytes_per_second=None), SystemClock())
    old, waiting = GoldenLog(tmp_path, "epochs-0"), GoldenLog(tmp_path, "codec-none-0")
    bases = rolled(old)
    with threaded(tmp_path, told, quota) as manager:
        manager.become_leader(old.partition, EPOCH, old)
        assert manager.wait_until_idle(60_000)
        assert told.of(Happened.COPIED) == bases
        quota.set_limit(0)
        quota.record(1)
        manager.become_leader(waiting.partition, EPOCH, waiting)
        old.configure(retention_ms=1)
        manager.expiration_pool.hurry()
        assert manager.expiration_pool.wait_until_idle(60_000)
        assert told.of(Happened.DELETED) == bases
        copying = manager.copy_pool.running
        wait_until(lambda: [run.key for run in copying()] == [waiting.partition], 60)
        assert told.of(Happened.COPIED) == bases
        # Nor does the wait keep a partition from being given up, or the manager from closing.
        manager.become_follower(waiting.partition, EPOCH + 1, waiting)
        assert manager.copy_pool.wait_until_idle(60_000)
        manager.become_leader(waiting.partition, EPOCH + 2, waiting)
    assert manager.close() == ()
    assert told.failures == []
    with pytest.raises(ClosedError):
        manager.become_leader(old.partition, EPOCH, old)


def test_inside_an_event_loop_nothing_blocks_it(tmp_path: Path) -> None:
    turned = threading.Event()

    class Waits(Told):
        def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
            assert turned.wait(60), "the loop stood still"

    told = Waits()
    logs = [GoldenLog(tmp_path, name) for name in ("transactions-0", "epochs-0", "idempotent-0")]

    async def main() -> None:
        async with threaded(tmp_path, told) as manager:
            for log in logs:
                manager.become_leader(log.partition, EPOCH, log)
            idle = asyncio.ensure_future(asyncio.to_thread(manager.wait_until_idle, 60_000))
            # Copies are under way and the loop goes on.
            for _ in range(10):
                await asyncio.wait([idle], timeout=0.001)
            assert not idle.done()
            turned.set()
            assert await idle

    asyncio.run(main())
    assert told.failures == []
    copied = [event for event in told.events if event.happened is Happened.COPIED]
    assert len(copied) == sum(len(rolled(log)) for log in logs)


def test_close_takes_back_the_copy_under_way(tmp_path: Path) -> None:
    """A copy that waits for its quota in the middle of a segment leaves no object behind."""
    sensor = QuotaSensor(limit_bytes_per_second=None)
    sent = threading.Event()

    class Stops(Told):
        def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
            sent.set()
            quota.set_limit(0)

    told = Stops()
    quota = QuotaManager("copy", sensor, SystemClock(), mode=QuotaMode.PACE)
    log = GoldenLog(tmp_path, "sizes-0")
    manager = threaded(tmp_path, told, quota)
    manager.start()
    manager.become_leader(log.partition, EPOCH, log)
    assert sent.wait(60)
    assert manager.close() == ()
    assert list(open_store((tmp_path / "store").as_uri()).list()) == []
    assert told.of(Happened.COPIED) == []


# -- copy and expiration side by side


def test_expiration_leaves_the_copy_under_way_alone(node: Node, tmp_path: Path) -> None:
    """Also when it looks at every call that the copy makes to the store."""
    log = GoldenLog(tmp_path, "epochs-0", retention_bytes=10**9)

    def expire(_: str) -> bool:
        log.changed()
        node.manager.expiration_pool.hurry()
        while node.manager.expiration_pool.run_due():
            pass
        return False

    node.lead(log)
    for call in ("put_stream", "put_bytes", "head", "get_range"):
        node.store.refuses[call] = expire
    while node.manager.copy_pool.run_due():
        pass
    assert node.told.of(Happened.COPIED) == rolled(log)
    assert node.told.of(Happened.DELETED) == []
    assert node.states(log) == [FINISHED] * 3


class _StopsAfterListing(InMemoryRemoteLogMetadataManager):
    """Between a listing and its use lies whatever `meanwhile` does."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def outline(self, partition: TopicIdPartition) -> ArchiveOutline:
        outline = super().outline(partition)
        self.meanwhile()
        return outline


def test_a_copy_that_ends_while_expiration_looks_is_not_taken_for_interrupted(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    metadata = _StopsAfterListing()
    node.metadata = metadata
    node.restart()
    log = GoldenLog(tmp_path, "epochs-0")
    node.lead(log)
    listed, ended = threading.Event(), threading.Event()

    def wait_for_listing(_: str) -> bool:
        assert listed.wait(60)
        return False

    def wait_for_copy() -> None:
        if threading.current_thread() is expiring:
            listed.set()
            assert ended.wait(60)

    def copy_one() -> None:
        node.manager.copy_pool.run_due()
        ended.set()

    copying = threading.Thread(target=copy_one)
    expiring = threading.Thread(target=node.manager.expiration_pool.run_due)
    node.store.refuses["put_bytes"] = wait_for_listing
    metadata.meanwhile = wait_for_copy
    copying.start()
    while not [one for one in node.store.calls if one[0] == "put_bytes"]:
        assert copying.is_alive()
    expiring.start()
    copying.join(60)
    expiring.join(60)
    assert node.told.of(Happened.COPIED) == rolled(log)[:1]
    assert node.told.of(Happened.DELETED) == []
    assert node.states(log) == [FINISHED]


# -- remote index files


def index_files(folder: Path, log: GoldenLog) -> dict[str, bytes]:
    files = RemoteIndexFiles(folder, log.partition, rotate_bytes=1 << 20, rotate_ms=-1)
    found = {path.name: path.read_bytes() for path in Path(files.path).iterdir()}
    files.close()
    return found


def test_leader_and_follower_keep_the_same_remote_index_files(tmp_path: Path) -> None:
    led, followed = tmp_path / "led", tmp_path / "followed"
    log = GoldenLog(tmp_path, "codec-none-0")
    node = Node(tmp_path, index_config=RemoteIndexConfig(dir=str(led)))
    node.lead(log)
    node.manager.run_until_idle()
    expected = index_files(led, log)
    assert len(expected) == 3
    node.manager.close()

    node.options = {"index_config": RemoteIndexConfig(dir=str(followed))}
    node.restart()
    node.manager.become_follower(log.partition, EPOCH, log)
    node.manager.run_until_idle()
    assert index_files(followed, log) == expected
    # What is lost comes back from the store.
    for path in followed.rglob("*.remote*"):
        path.unlink()
    node.restart()
    node.lead(log)
    node.manager.run_until_idle()
    assert index_files(followed, log) == expected
    node.manager.stop_partition(log.partition, delete_remote=True)
    node.manager.run_until_idle()
    assert list(followed.rglob("*.remote*")) == []


def test_a_disk_that_takes_no_index_files_stops_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.write_text("a file where a folder belongs")
    log = GoldenLog(tmp_path, "codec-none-0")
    bases = rolled(log)
    node = Node(tmp_path, index_config=RemoteIndexConfig(dir=str(folder)))
    node.lead(log)
    node.manager.run_until_idle()
    assert node.told.of(Happened.COPIED) == bases
    assert node.told.index_failures
    assert node.told.failures == []
    folder.unlink()
    log.changed()
    node.pass_time()
    assert len(index_files(folder, log)) == 3
    log.configure(retention_bytes=0)
    node.pass_time()
    assert node.told.of(Happened.DELETED) == bases


def test_a_segment_deleted_while_the_index_files_catch_up_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "index"
    log = GoldenLog(tmp_path, "codec-none-0")
    node = Node(tmp_path, index_config=RemoteIndexConfig(dir=str(folder)))
    node.lead(log)
    node.manager.run_until_idle()
    for path in folder.rglob("*.remote*"):
        path.unlink()
    node.restart()
    fetch = node.storage.fetch_indexes
    vanished: list[RemoteLogSegmentMetadata] = []

    def fetch_after_deletion(segment: RemoteLogSegmentMetadata, kinds: Any) -> Any:
        if not vanished:
            vanished.append(segment)
            state = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
            node.metadata.update(segment.update_to(state, event_timestamp_ms=0))
            raise RemoteResourceNotFoundError("deleted")
        return fetch(segment, kinds)

    monkeypatch.setattr(node.storage, "fetch_indexes", fetch_after_deletion)
    node.lead(log)
    node.manager.run_until_idle()
    node.pass_time()
    assert vanished
    assert node.told.index_failures == []

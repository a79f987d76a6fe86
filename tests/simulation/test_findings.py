"""Defects of the product that the simulation found, each as the shortest story that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation.cluster import Partition
from tests.simulation.readers import read_and_check
from tests.simulation.run import in_simulation
from tests.simulation.settling import settle_and_check
from tests.simulation.sidecars import Process
from tests.simulation.store import simulated_error
from tests.simulation.truth import Kind
from tests.simulation.world import Setup, World
from tierlog.remote.segment.layout import INDEXES_SUFFIX, LOG_SUFFIX

QUIET = Setup(
    topics=(("a", 1),),
    error_rate=0,
    kill_rate=0,
    sleep_rate=0,
    moodiness=0,
    retention_ms=-1,
    retention_bytes=-1,
    deleted_topic_retention_ms=-1,
    max_deleted_ratio=1.0,
    shares_metadata=False,
    weights={"read": 1},
)


class Story(World):
    """A world without chance. ``during``: what happens at the next requests of a kind."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, QUIET)
        self.during: list[tuple[str, Callable[[Process], object]]] = []
        # Every follower is behind until `replicate`.
        self.one = self.cluster.partitions["a-0"]
        self.lead_by(1)

    def at_request(self, process: Process, point: str) -> None:
        if self.during and self.during[0][0] == point:
            self.during.pop(0)[1](process)

    def lead_by(self, number: int) -> None:
        one = self.one
        one.leader, one.epoch = number, one.epoch + 1
        leader = one.lead()
        leader.epochs = [e for e in leader.epochs if e[1] < leader.end] + [(one.epoch, leader.end)]
        leader.write_epochs()

    def write(self, batches: int) -> None:
        """Append, roll and replicate."""
        for _ in range(batches):
            self.cluster.append(self.one)
        self.one.lead().roll()
        self.replicate_all()

    def replicate_all(self) -> None:
        for number in self.cluster.dirs:
            self.cluster.replicate(self.one, number)
        self.cluster.write_checkpoints()

    def kill(self, process: Process) -> None:
        self.abandon(process.number)

    def read_all(self) -> None:
        read_and_check(self, self.one.truth, committed_only=False, must_succeed=True)
        if self.breach is not None:
            raise self.breach


def fail(_: Process) -> None:
    raise simulated_error("request")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    told = Story(tmp_path)
    with in_simulation(told):
        yield told
    told.close()


@contextmanager
def all_is_stored(one: Partition) -> Iterator[None]:
    """Nothing that was stored before is missing after."""
    before = one.truth.present
    assert before
    yield
    assert one.truth.present & before == before


def interrupt_copy(story: Story) -> None:
    """Copy a segment, and die when it is whole and not finished yet."""
    story.during = [("put.done", lambda _: None), ("put.done", story.kill)]
    story.look(1)
    assert not story.during
    story.archive.check()


def test_whole_copy_is_finished_while_the_partition_cannot_be_claimed(story: Story) -> None:
    story.write(3)
    interrupt_copy(story)
    before = set(story.objects)
    # The copy task cannot list the claims; the expiration task can.
    story.during = [("claim.done", lambda _: None), ("claim.done", fail)]
    with all_is_stored(story.one):
        story.look(1)
        story.archive.check()
    assert not story.during
    assert before <= set(story.objects)


def test_interrupted_copy_outlives_the_brokers_own_segment(story: Story) -> None:
    story.write(3)
    interrupt_copy(story)
    for replica in story.one.replicas.values():
        replica.clean(story.one.high_watermark)
    story.cluster.write_checkpoints()
    with all_is_stored(story.one):
        story.look(1)
        story.archive.check()
    # Segments that are copied in the same pass must not hide it either.
    story.write(2)
    story.look(1)
    story.archive.check()
    story.read_all()


def test_segment_whose_front_was_deleted_across_leader_epochs_is_copied(story: Story) -> None:
    story.write(2)
    story.look(1)
    story.cluster.append(story.one)
    story.replicate_all()
    story.lead_by(2)
    story.write(3)
    story.write(2)
    # Into the middle of the segment that begins in the earlier epoch.
    leader = story.one.lead()
    leader.start_at(leader.bases[2] - 1)
    story.one.truth.deleted_below = leader.log_start
    story.replicate_all()
    story.look(2)
    story.archive.check()
    stored = story.one.truth.stored
    assert stored >> (leader.rolled_end() - 1) == 1
    story.read_all()


def test_deposed_leader_ends_its_deletion(story: Story) -> None:
    story.write(2)
    story.look(1)
    story.look(2)
    sidecar = story.sidecars[2]
    (partition,) = sidecar.manager.partitions()
    (segment,) = sidecar.metadata.list(partition)
    story.lead_by(2)
    story.replicate_all()
    story.look(2)
    story.during = [("delete", fail)]
    manager_copier = sidecar.manager._tier.copier
    with pytest.raises(Exception, match="simulated"):
        manager_copier.delete(segment, leader_epoch=story.one.epoch)
    story.lead_by(1)
    story.replicate_all()
    story.one.truth.gone_below = segment.end_offset + 1
    story.look(2)
    assert sidecar.metadata.list(partition) == ()


def test_new_leader_loses_nothing_when_the_last_one_deleted(story: Story) -> None:
    story.write(2)
    story.write(2)
    story.look(1)
    story.look(2)
    first = min(key for key in story.objects if key.endswith(LOG_SUFFIX))
    for key in (first, first.removesuffix(LOG_SUFFIX) + INDEXES_SUFFIX):
        del story.objects[key]
    story.one.truth.gone_below = story.one.lead().bases[1]
    for replica in story.one.replicas.values():
        replica.clean(story.one.truth.gone_below)
    story.lead_by(2)
    story.replicate_all()
    story.look(2)
    story.archive.check()
    assert story.sidecars[2].manager.metrics.snapshot().broken_segments == 0
    settle_and_check(story)


def test_indexes_below_the_log_start_do_not_fail_reads_for_ever(story: Story) -> None:
    story.write(2)
    story.write(2)
    story.look(1)
    story.archive.check()
    first = min(key for key in story.objects if key.endswith(LOG_SUFFIX))
    story.one.truth.gone_below = story.one.lead().bases[1]
    del story.objects[first]
    # The new leader has never seen the segment, and its broker has no records of it any more.
    for replica in story.one.replicas.values():
        replica.clean(story.one.truth.gone_below)
    story.lead_by(2)
    story.replicate_all()
    story.repairs = True
    story.look(2)
    story.archive.check()
    story.read_all()


def test_copy_lag_is_unknown_while_a_new_leader_cannot_list_the_store(story: Story) -> None:
    story.write(2)
    story.look(1)
    story.lead_by(1)
    story.write(2)
    story.during = [("list", fail)]
    story.look(1)
    assert not story.during
    metrics = story.sidecars[1].manager.metrics
    assert metrics.snapshot().total_sums.copy_lag is None
    story.look(1)
    assert metrics.snapshot().total_sums.copy_lag == (0, 0)
    story.archive.check()
    assert story.breach is None


def test_old_answer_makes_no_leader_of_the_epoch_in_the_log(story: Story) -> None:
    story.write(2)
    story.look(1)
    broker = story.brokers[1]
    old = broker._present()
    story.lead_by(2)
    story.write(2)
    story.look(2)
    objects = set(story.objects)
    # The metadata cache of broker 1 is behind its own log.
    broker._present = lambda: old  # type: ignore[method-assign]
    story.look(1)
    assert set(story.objects) == objects


def test_transaction_whose_end_was_deleted_uncopied_is_not_served(story: Story) -> None:
    one, producer = story.one, 1000
    for kind in (Kind.TRANSACTIONAL, Kind.ABORT, Kind.PLAIN):
        is_plain = kind is Kind.PLAIN
        story.cluster._append(one, one.lead().end, 1, kind, -1 if is_plain else producer)
        one.lead().roll()
    story.replicate_all()
    # The segment of the marker is not copied before the broker deletes it.
    story.during = [("put", lambda _: None), ("put", lambda _: None), ("put", fail)]
    story.look(1)
    assert not story.during
    story.archive.check()
    one.truth.deleted_below = one.high_watermark - 1
    for replica in one.replicas.values():
        replica.start_at(one.truth.deleted_below)
        replica.clean(replica.log_start)
    story.cluster.write_checkpoints()
    story.look(1)
    story.archive.check()
    assert one.truth.present == 0b101
    read_and_check(story, one.truth, committed_only=True)
    assert story.breach is None
    story.read_all()


def test_story_without_faults_ends_well(story: Story) -> None:
    story.write(3)
    story.look(1)
    settle_and_check(story)

"""A leader that sleeps through its own deposition, whatever it was about to do: it commits nothing,
deletes nothing that a later leader needs, and leaves nothing that nobody would clean up."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.reliability.compare import differences, violations
from tests.reliability.points import watched
from tests.reliability.seams import SeamedMemory, SeamedMetadata
from tests.reliability.workload import append_some
from tests.reliability.world import BEGIN_MS, World
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.layout import partition_prefix
from tierlog.testing.segments import uuid_of
from tierlog.tiering.local_log import TopicSettings
from tierlog.tiering.task_pool import TaskPool
from tierlog.types import TopicIdPartition

PARTITION = TopicIdPartition(topic_id=uuid_of("zombie"), topic="zombie", partition=0)
MINUTE_MS = 60_000
SETTINGS = TopicSettings(retention_ms=10 * MINUTE_MS, local_retention_bytes=2_000)
TIMEOUT_S = 30.0

WHILE_COPYING = [
    "metadata.claim.before",
    "metadata.claim.after",
    "metadata.copy_started.before",
    "metadata.copy_started.after",
    "store.put_log.before",
    "store.put_log.first_chunk",
    "store.put_log.after",
    "store.draft.after",
    "store.put_draft.before",
    "store.put_draft.after",
    "store.put_indexes.before",
    "store.put_indexes.after",
    "store.head.before",
    "metadata.copy_finished.before",
    "metadata.copy_finished.after",
]
WHILE_EXPIRING = [
    "host.advance_log_start.before",
    "host.advance_log_start.after",
    "metadata.delete_started.before",
    "metadata.delete_started.after",
    "store.delete_indexes.after",
    "store.delete_log.before",
    "store.delete_log.after",
    "metadata.delete_finished.before",
]


class Sleeper(threading.Thread):
    """Runs `work` until it is for the first time at `point`; there it sleeps until `wake`."""

    def __init__(self, point: str, work: Callable[[], None]) -> None:
        super().__init__(name="zombie")
        self._point = point
        self._work = work
        self._asleep = threading.Event()
        self._woken = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the test is to see it
            self.failure = error
        self._asleep.set()

    def reached(self, name: str) -> None:
        here = threading.current_thread() is self and name == self._point
        if here and not self._asleep.is_set():
            self._asleep.set()
            assert self._woken.wait(TIMEOUT_S)

    def fall_asleep(self) -> None:
        self.start()
        assert self._asleep.wait(TIMEOUT_S)
        assert self.is_alive(), f"{self._point} was never reached: {self.failure}"

    def wake(self) -> None:
        self._woken.set()
        self.join(TIMEOUT_S)
        assert not self.is_alive()
        assert self.failure is None


@pytest.fixture(params=[SeamedMemory, SeamedMetadata])
def metadata(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteLogMetadataManager]:
    """One manager of metadata, which both leaders use."""
    memory = request.param is SeamedMemory
    made = SeamedMemory() if memory else SeamedMetadata(tmp_path / "metadata.sqlite")
    yield made
    made.close()


@pytest.fixture
def old(tmp_path: Path, metadata: RemoteLogMetadataManager) -> World:
    """A leader of three rolled segments; the first two are in the tier."""
    world = World(tmp_path / "old", make_metadata=lambda _: metadata)
    log = world.host.topic(PARTITION, SETTINGS)
    rng = random.Random("zombie")
    world.lead(log)
    for number in range(3):
        append_some(log, rng, BEGIN_MS + number * MINUTE_MS, batches=5, transactions=True)
        log.roll()
        if number == 1:
            world.run()
    return world


def replica_of(old: World, metadata: RemoteLogMetadataManager, root: Path) -> World:
    """Another broker with the same log, on the same store."""
    for part in ("host", "ledger"):
        shutil.copytree(old.root / part, root / part)
    return World(root, make_metadata=lambda _: metadata, store_dir=old.store_dir)


def with_drafts(world: World, metadata: RemoteLogMetadataManager) -> World:
    """The same leader, started again, and from now on its copies go through drafts."""
    world.manager.close()
    world.host.close()
    world.ledger.close()
    (world.root / "drafts").touch()
    again = World(world.root, make_metadata=lambda _: metadata)
    again.lead(again.host.logs["zombie-0"])
    return again


def state_of(world: World) -> tuple[object, ...]:
    """What the tier is made of."""
    objects = sorted(info.key for info in world.store.list())
    return (world.metadata.list(PARTITION), objects, world.metadata.leader_epoch(PARTITION))


@pytest.mark.parametrize(
    ("point", "expiring"),
    [*((point, False) for point in WHILE_COPYING), *((point, True) for point in WHILE_EXPIRING)],
)
def test_a_leader_that_sleeps_through_its_deposition(
    tmp_path: Path, old: World, metadata: RemoteLogMetadataManager, point: str, expiring: bool
) -> None:
    if "draft" in point:
        old = with_drafts(old, metadata)
    new = replica_of(old, metadata, tmp_path / "new")
    log = new.host.logs["zombie-0"]
    if expiring:
        old.run()
        new.pass_time(12 * MINUTE_MS)
        old.pass_time(12 * MINUTE_MS)
    if point.startswith("metadata.claim"):
        old.lead(old.host.logs["zombie-0"])
        log.leader_epoch = old.host.logs["zombie-0"].leader_epoch
    zombie = Sleeper(point, old.run)
    with watched(zombie.reached):
        zombie.fall_asleep()
        new.lead(log)
        append_some(log, random.Random(1), new.clock.now_ms(), batches=4)
        log.roll()
        new.run()
        new.run()
        assert violations(new) == []
        before = state_of(new)
        zombie.wake()
    old.run()
    assert state_of(new) == before, "the zombie changed something"
    assert violations(new) == []
    new.run()
    assert differences(new) == []
    assert new.metadata.list(PARTITION), "the new leader has tiered something"
    for world in (old, new):
        world.manager.close()
        world.host.close()
        world.ledger.close()


@pytest.mark.parametrize("point", [one for one in WHILE_COPYING if "claim" not in one])
def test_a_copy_that_sleeps_through_the_deletion_of_its_topic(
    old: World, metadata: RemoteLogMetadataManager, point: str
) -> None:
    """The topic is gone when it wakes, and nothing of it comes back."""
    world = with_drafts(old, metadata) if "draft" in point else old
    log = world.host.logs["zombie-0"]

    def copy() -> None:
        world.manager.copy_pool.hurry()
        while world.manager.copy_pool.run_due():
            pass

    sleeper = Sleeper(point, copy)
    with watched(sleeper.reached):
        sleeper.fall_asleep()
        world.delete_topic(log)
        world.manager.expiration_pool.hurry()
        while world.manager.expiration_pool.run_due():
            pass
        sleeper.wake()
    world.run()
    world.run()
    assert differences(world) == []
    assert list(world.store.list()) == []
    world.manager.close()
    world.host.close()
    world.ledger.close()


def test_indexes_that_are_caught_up_slowly_bring_nothing_back(old: World) -> None:
    """The copy task makes lost index files again; meanwhile the expiration task learns that the log
    was cut inside what is being indexed."""
    log = old.host.logs["zombie-0"]
    old.run()
    old.manager.stop_partition(log.partition)
    shutil.rmtree(old.index_dir / partition_prefix(PARTITION))
    log.truncate_to(log.batch_offsets()[-3])
    old.lead(log)

    def run(pool: TaskPool) -> None:
        while pool.run_due():
            pass

    copying = Sleeper("store.get_range.before", partial(run, old.manager.copy_pool))
    expiring = threading.Thread(target=run, args=(old.manager.expiration_pool,))
    with watched(copying.reached):
        copying.fall_asleep()
        expiring.start()
        expiring.join(0.3)
        copying.wake()
    expiring.join(TIMEOUT_S)
    assert not expiring.is_alive()
    old.run()
    assert differences(old) == []
    for part in (old.manager, old.host, old.ledger):
        part.close()


@pytest.mark.parametrize("copying_first", [True, False])
def test_an_interrupted_copy_is_either_adopted_or_removed(old: World, copying_first: bool) -> None:
    """After a restart the copy task settles it while the expiration task would, or the other way
    round: it is whole, so one of them finishes it and none removes it."""
    metadata = old.metadata

    class DiedError(BaseException):
        """Nothing catches it."""

    def die(name: str) -> None:
        if name == "metadata.copy_finished.before":
            raise DiedError

    def run(pool: TaskPool) -> None:
        while pool.run_due():
            pass

    old.manager.copy_pool.hurry()
    with watched(die):
        run(old.manager.copy_pool)
    assert "DiedError" in str(old.failures.told)
    for part in (old.manager, old.host, old.ledger):
        part.close()
    world = World(old.root, make_metadata=lambda _: metadata)
    world.lead_all()
    copying = partial(run, world.manager.copy_pool)
    expiring = partial(run, world.manager.expiration_pool)
    slow = Sleeper("metadata.copy_finished.before", copying if copying_first else expiring)
    with watched(slow.reached):
        slow.fall_asleep()
        (expiring if copying_first else copying)()
        slow.wake()
    world.run()
    world.run()
    assert differences(world) == []
    for part in (world.manager, world.host, world.ledger):
        part.close()

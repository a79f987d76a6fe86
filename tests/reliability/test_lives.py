"""Lives of a log without a crash: cut, deleted, throttled, under clocks that jump."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability.compare import differences, violations
from tests.reliability.conftest import MakeLog
from tests.reliability.host import OwnedLog
from tests.reliability.points import watched
from tests.reliability.workload import append_some
from tests.reliability.world import World
from tierlog._hot import QuotaSensor
from tierlog.clock import SystemClock
from tierlog.config import QuotaMode
from tierlog.quota import QuotaManager
from tierlog.testing.segments import uuid_of
from tierlog.tiering.local_log import TopicSettings

MINUTE_MS = 60_000
TIMEOUT_S = 30.0
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


def write(world: World, log: OwnedLog, seed: int = 0, batches: int = 5) -> None:
    append_some(log, random.Random(seed), world.clock.now_ms(), batches=batches)
    log.roll()


def copied_offsets(world: World, log: OwnedLog) -> list[tuple[int, int]]:
    return [(one.start_offset, one.end_offset) for one in world.metadata.list(log.partition)]


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_is_cut_again_and_again(world: World, make_log: MakeLog, seed: int) -> None:
    """The tier serves, and its index files name, what the log holds now."""
    log = make_log(world, "cut", local_retention_bytes=4_000)
    world.run()
    rng = random.Random(seed)
    for number in range(4):
        log.truncate_to(rng.choice([one for one in log.batch_offsets() if one >= log.bases[0]]))
        world.lead(log)
        write(world, log, seed=seed * 10 + number, batches=rng.randrange(1, 6))
        if rng.random() < 0.7:
            world.run()
    world.run()
    world.run()
    assert differences(world) == []


@pytest.mark.parametrize("years", [-10, 10])
def test_a_wall_clock_that_jumps_deletes_nothing(
    world: World, make_log: MakeLog, years: int
) -> None:
    log = make_log(world, "jump", 4, retention_ms=10 * MINUTE_MS, local_retention_ms=5 * MINUTE_MS)
    world.run()
    before = copied_offsets(world, log)
    assert len(before) == 4
    world.clock.jump_wall(years * YEAR_MS)
    for _ in range(5):
        world.run(clock_is_right=False)
    assert copied_offsets(world, log) == before
    assert log.log_start_offset == 0
    assert log.bases[0] == 0, "nor from the disk"
    # Copies go on meanwhile, and once the clock is right again so does retention.
    write(world, log)
    world.run(clock_is_right=False)
    assert len(copied_offsets(world, log)) == 5
    world.clock.jump_wall(-years * YEAR_MS)
    assert violations(world) == []
    world.pass_time(14 * MINUTE_MS)
    world.run()
    assert log.log_start_offset > 0
    assert all(start >= log.log_start_offset for start, _ in copied_offsets(world, log))
    assert differences(world) == []


def test_a_jump_that_was_there_before_the_start_is_bounded_by_the_records(
    world: World, make_log: MakeLog
) -> None:
    """Nobody can tell a wrong clock from a long pause at the start; but what is deleted then is
    what retention says by that clock, and the ledger knows the clock."""
    log = make_log(world, "late", 3, retention_ms=10 * MINUTE_MS)
    world.run()
    world.pass_time(10 * YEAR_MS)
    world.run()
    assert log.log_start_offset == log.bases[-1], "all that was rolled, and nothing else"
    assert differences(world) == []


@pytest.mark.parametrize("mode", list(QuotaMode))
def test_what_has_expired_goes_while_copies_are_throttled_to_nothing(
    tmp_path: Path, make_log: MakeLog, mode: QuotaMode
) -> None:
    sensor = QuotaSensor(num_samples=61, window_ms=1000)
    # The copy waits in real time, everything else goes by hand.
    quota = QuotaManager("copy", sensor, SystemClock(), mode=mode)
    world = World(tmp_path / "world", copy_quota=quota)
    log = make_log(world, "slow", 4, retention_ms=10 * MINUTE_MS)
    world.run()
    copied = copied_offsets(world, log)
    assert len(copied) == 4
    write(world, log)
    quota.set_limit(0)
    quota.record(1)
    world.pass_time(14 * MINUTE_MS)
    copying = threading.Thread(target=world.manager.copy_pool.run_due)
    copying.start()
    world.manager.expiration_pool.hurry()
    while world.manager.expiration_pool.run_due():
        pass
    assert copied_offsets(world, log) == []
    assert log.log_start_offset == copied[-1][1] + 1
    assert copying.is_alive(), "it still waits"
    assert violations(world) == []
    quota.set_limit(None)
    copying.join(TIMEOUT_S)
    assert len(copied_offsets(world, log)) == 1
    world.run()
    assert differences(world) == []
    world.close()


def test_a_deleted_topic_leaves_nothing_and_its_namesake_everything(
    world: World, make_log: MakeLog
) -> None:
    """Identity is the topic's id: an earlier topic of the same name does not take along what a
    later one has."""
    gone = make_log(world, "again", 3, local_retention_bytes=0)
    world.run()
    stays = make_log(world, "other", 2)
    world.run()
    world.delete_topic(gone)
    world.run()
    assert world.metadata.list(gone.partition) == ()
    namesake = replace(gone.partition, topic_id=uuid_of("again, a second time"))
    world.manager.stop_partition(gone.partition, delete_remote=True)
    world.run()
    del world.host.logs["again-0"]
    (world.host.state_dir / "again-0.json").unlink()
    later = world.host.topic(namesake, TopicSettings())
    world.lead(later)
    write(world, later)
    world.manager.stop_partition(gone.partition, delete_remote=True)
    world.run()
    assert [one.partition for one in world.host.logs.values()] == [stays.partition, namesake]
    assert len(copied_offsets(world, later)) == 1
    assert len(copied_offsets(world, stays)) == 2
    prefixes = {info.key.split("/")[0] for info in world.store.list()}
    assert prefixes == {f"again-{namesake.topic_id}", f"other-{stays.partition.topic_id}"}


def test_a_deletion_that_is_interrupted_everywhere_goes_on_everywhere(
    tmp_path: Path, make_log: MakeLog
) -> None:
    """At every step the process is given up, and another one goes on without being asked."""
    steps = ["partition_marked", "partition_started", "delete_started", "delete_finished"]
    for number, step in enumerate([*steps, "partition_finished"]):
        root = tmp_path / str(number)
        world = World(root)
        log = make_log(world, "doomed", 3)
        world.run()

        class GivenUpError(BaseException):
            """Nothing catches it."""

        def give_up(name: str, step: str = step) -> None:
            if name == f"metadata.{step}.after":
                raise GivenUpError

        with watched(give_up), suppress(GivenUpError):
            world.delete_topic(log)
            world.run()
        world.close()
        again = World(root)
        again.manager.resume_deletions()
        again.run()
        again.run()
        assert again.metadata.partitions() == ()
        assert list(again.store.list()) == []
        again.close()


@pytest.mark.parametrize("step", ["partition_marked", "partition_started", "delete_started"])
def test_a_deletion_may_be_asked_for_again_at_any_time(
    world: World, make_log: MakeLog, step: str
) -> None:
    log = make_log(world, "doomed", 2)
    world.run()
    asked: list[str] = []

    def ask_again(name: str) -> None:
        if name == f"metadata.{step}.after" and not asked:
            asked.append(name)
            world.manager.stop_partition(log.partition, delete_remote=True)

    with watched(ask_again):
        world.delete_topic(log)
        world.run()
    world.run()
    assert asked
    assert world.failures.told == []
    assert differences(world) == []

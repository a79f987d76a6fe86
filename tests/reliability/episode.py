"""One state and what is done to it: written, tiered, expired, cut, deleted, in a random order.

A seed decides everything: `prepare` makes the state on disk, `script` is the work that is killed
somewhere, `recover` is what the next process does and finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from tests.reliability.compare import differences, violations
from tests.reliability.workload import append_large, append_some
from tests.reliability.world import World
from tierlog.testing.segments import uuid_of
from tierlog.tiering.local_log import TopicSettings
from tierlog.types import TopicIdPartition

__all__ = ["MakeWorld", "prepare", "recover", "script"]

MakeWorld = Callable[[Path], World]

MINUTE_MS = 60_000
# Beyond the retention of the topic that expires by time.
LONG_MS = 11 * MINUTE_MS
TOPICS = {
    "by-time": TopicSettings(retention_ms=10 * MINUTE_MS, local_retention_ms=MINUTE_MS),
    "by-size": TopicSettings(retention_bytes=9_000, local_retention_bytes=3_000),
    "large": TopicSettings(local_retention_bytes=0),
    "doomed": TopicSettings(retention_ms=10 * MINUTE_MS, local_retention_bytes=0),
}
# Three of them make a segment that goes to the store in more than two pieces.
LARGE_BYTES = 800_000


def prepare(root: Path, seed: int, make: MakeWorld) -> None:
    """Logs of a few segments; in half of the states they were tiered before, and every second
    one copies through drafts, every fourth pair works in threads."""
    rng = random.Random(f"prepare {seed}")
    root.mkdir()
    if seed % 2:
        (root / "drafts").touch()
    if seed // 2 % 4 == 1:
        (root / "threads").touch()
    world = make(root)
    for topic, settings in TOPICS.items():
        partition = TopicIdPartition(topic_id=uuid_of(f"{topic} {seed}"), topic=topic, partition=0)
        world.host.topic(partition, settings)
    world.lead_all()
    for topic in TOPICS:
        for _ in range(1 if topic == "large" else rng.randrange(2, 4)):
            write(world, topic, rng)
    if rng.random() < 0.5:
        world.run()
    world.close()


def write(world: World, topic: str, rng: random.Random) -> None:
    """One more segment."""
    log = world.host.logs[f"{topic}-0"]
    if log.deletion_begun:
        return
    if topic == "large":
        append_large(log, rng, world.clock.now_ms(), batches=3, value_bytes=LARGE_BYTES)
    else:
        transactions = topic == "by-size"
        batches = rng.randrange(2, 6)
        append_some(log, rng, world.clock.now_ms(), batches=batches, transactions=transactions)
    log.roll()


def script(root: Path, seed: int, make: MakeWorld) -> None:
    """Everything that a leader's life has, each step followed by a pass of the manager."""
    rng = random.Random(f"script {seed}")
    world = make(root)
    world.lead_all()
    world.run()
    steps: list[Callable[[], None]] = [
        partial(write, world, "by-time", rng),
        partial(write, world, "by-size", rng),
        partial(write, world, "by-size", rng),
        partial(write, world, "doomed", rng),
        partial(_next_epoch, world, "by-size", rng),
        partial(_cut, world, "by-size", rng),
        partial(_delete_records, world, "by-time", rng),
        partial(_follow, world, "by-time"),
        partial(_configure, world, "by-size", rng),
        partial(_wait, world),
        partial(_delete_topic, world),
    ]
    rng.shuffle(steps)
    for step in steps:
        step()
        world.run()
    assert world.failures.told == []
    world.close()


def _next_epoch(world: World, topic: str, rng: random.Random) -> None:
    world.lead(world.host.logs[f"{topic}-0"])
    write(world, topic, rng)


def _cut(world: World, topic: str, rng: random.Random) -> None:
    """Uncleanly elected: a leader that lacks a part of what was tiered, if it can."""
    log = world.host.logs[f"{topic}-0"]
    log_start = max(log.bases[0], log.log_start_offset)
    offsets = [one for one in log.batch_offsets() if one > log_start]
    if offsets:
        world.manager.stop_partition(log.partition)
        log.truncate_to(rng.choice(offsets[-6:]))
        world.lead(log)
        write(world, topic, rng)


def _follow(world: World, topic: str) -> None:
    """For a while another node leads, of which nothing is heard."""
    log = world.host.logs[f"{topic}-0"]
    world.manager.become_follower(log.partition, log.begin_epoch(), log)
    world.run()
    world.lead(log)


def _configure(world: World, topic: str, rng: random.Random) -> None:
    """Another retention; what the earlier ones allowed stays allowed."""
    log = world.host.logs[f"{topic}-0"]
    log.configure(
        replace(
            log.settings,
            retention_bytes=rng.choice([5_000, 20_000, None]),
            local_retention_bytes=rng.choice([0, 6_000]),
        )
    )


def _delete_records(world: World, topic: str, rng: random.Random) -> None:
    log = world.host.logs[f"{topic}-0"]
    log.delete_records(rng.randrange(log.log_start_offset, log.high_watermark + 1))


def _wait(world: World) -> None:
    world.pass_time(LONG_MS)


def _delete_topic(world: World) -> None:
    world.delete_topic(world.host.logs["doomed-0"])


def recover(root: Path, make: MakeWorld) -> list[str]:
    """What is wrong right after a crash, and after a restart, a rest and one clean-up pass."""
    world = make(root)
    problems = violations(world)
    if not problems:
        world.lead_all()
        world.run()
        world.run()
        problems = differences(world)
    world.close()
    return problems

"""Worlds for the tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.host import OwnedLog
from tests.reliability.workload import append_some
from tests.reliability.world import World
from tests.remote.builders import uuid_of
from tierlog.tiering.local_log import TopicSettings
from tierlog.types import TopicIdPartition

MakeLog = Callable[..., OwnedLog]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An empty one, by hand, under a manual clock."""
    made = World(tmp_path / "world")
    yield made
    made.close()


@pytest.fixture
def make_log() -> MakeLog:
    """``make_log(world, topic, segments=3, **settings)``: led, with so many rolled segments, each
    a minute after the one before."""

    def make(world: World, topic: str, segments: int = 3, **settings: Any) -> OwnedLog:
        partition = TopicIdPartition(topic_id=uuid_of(topic), topic=topic, partition=0)
        log = world.host.topic(partition, TopicSettings(**settings))
        world.lead(log)
        rng = random.Random(topic)
        for number in range(segments):
            written_ms = world.clock.now_ms() + number * 60_000
            append_some(log, rng, written_ms, batches=5, transactions=True)
            log.roll()
        return log

    return make

"""Worlds for the tests of this folder."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.host import OwnedLog
from tests.reliability.workload import append_some
from tests.reliability.world import World
from tests.remote.fault_proxy import HEALTHY_MS, Fault, FaultProxy
from tests.remote.s3_server import S3Server, running_s3_server
from tierlog.remote.urls import open_store
from tierlog.testing.segments import uuid_of
from tierlog.tiering.local_log import TopicSettings
from tierlog.types import TopicIdPartition

MakeLog = Callable[..., OwnedLog]
OpenWorld = Callable[[], World]
HEALING_PASSES = 8
# A deadline that is worth waiting for, where a request may stall.
STALLED_MS = 400
WRITE_FAULTS = [
    Fault.STALL,
    Fault.RESET_BEFORE,
    Fault.RESET_AFTER,
    Fault.FORBIDDEN,
    Fault.MISSING,
    Fault.CONFLICT,
    Fault.UNAVAILABLE,
]


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


# -- a bucket behind a proxy


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with running_s3_server() as started:
        yield started


_struck: Counter[Fault] = Counter()


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(server) as running:
        yield running
        _struck.update(fault for _, fault in running.struck)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many requests were struck by which fault: a row of RELIABILITY.md."""
    if _struck:
        kinds = ", ".join(f"{fault} {count:,}" for fault, count in sorted(_struck.items()))
        terminalreporter.write_line(
            f"| requests struck by a fault | {_struck.total():,}: {kinds} |"
        )


@pytest.fixture
def open_world(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[OpenWorld]:
    """Opens the world anew, as a restart does, over one bucket behind the proxy. Impatient only
    where something may stall."""
    url = f"s3://{server.new_bucket()}/p"
    callspec = getattr(request.node, "callspec", None)
    fault = callspec.params.get("fault", Fault.STALL) if callspec else Fault.STALL
    deadline_ms = STALLED_MS if fault is Fault.STALL else HEALTHY_MS
    opened: list[World] = []

    def make() -> World:
        if opened:
            opened.pop().close()
        store = open_store(url, **proxy.options(deadline_ms))
        opened.append(World(tmp_path / "world", store=store))
        return opened[-1]

    yield make
    opened.pop().close()


def heal(world: World, proxy: FaultProxy) -> None:
    """Passes without faults until one fails at nothing; the lag is known to be nothing then."""
    proxy.heal()
    for _ in range(HEALING_PASSES):
        world.failures.told.clear()
        world.run()
        if not world.failures.told:
            break
    world.run()
    sums = world.manager.metrics.snapshot().total_sums
    assert sums.copy_lag == (0, 0)
    assert sums.delete_lag == (0, 0)

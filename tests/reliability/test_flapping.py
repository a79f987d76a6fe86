"""Leadership that goes back and forth a thousand times: nothing leaks, nothing is lost, one of the
two owns the partition at any time."""

from __future__ import annotations

import gc
import os
import random
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.reliability.compare import differences, violations
from tests.reliability.conftest import MakeLog
from tests.reliability.host import OwnedLog
from tests.reliability.seams import SeamedMetadata
from tests.reliability.workload import append_some
from tests.reliability.world import BEGIN_MS, World
from tierlog.clock import SystemClock
from tierlog.config import RemoteIndexConfig, RemoteLogConfig
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager

ROUNDS = 1_000
IDLE_MS = 30_000


def open_files(nodes: tuple[World, World]) -> int:
    """Descriptors, but for objects that the stores keep open for a while."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            found += not target.startswith(str(nodes[0].store_dir))
    return found


@pytest.fixture
def nodes(tmp_path: Path, make_log: MakeLog) -> Iterator[tuple[World, World]]:
    """Two brokers with the same log, one store, one manager of metadata."""
    metadata = SeamedMetadata(tmp_path / "metadata.sqlite")
    first = World(tmp_path / "first", make_metadata=lambda _: metadata)
    make_log(first, "flapping", 2, local_retention_bytes=2_000)
    for part in ("host", "ledger"):
        shutil.copytree(first.root / part, tmp_path / "second" / part)
    second = World(tmp_path / "second", make_metadata=lambda _: metadata, store_dir=first.store_dir)
    yield first, second
    for world in (first, second):
        world.manager.close()
        world.host.close()
        world.ledger.close()
    metadata.close()


def threaded(world: World) -> RemoteLogManager:
    """A manager in threads, with a short interval, over what the world has."""
    config = RemoteLogConfig(
        manager_task_interval_ms=20,
        manager_copier_thread_pool_size=2,
        manager_expiration_thread_pool_size=2,
        manager_follower_thread_pool_size=1,
    )
    return RemoteLogManager(
        world.storage,
        world.metadata,
        broker_id=1,
        clock=SystemClock(),
        options=ManagerOptions(
            config=config,
            index_config=RemoteIndexConfig(dir=str(world.index_dir)),
            listener=world.failures,
        ),
    )


def test_a_thousand_changes_of_leadership_between_two_nodes(nodes: tuple[World, World]) -> None:
    """In threads and in a hurry: most leaderships end in the middle of something."""
    rng = random.Random("flapping")
    logs = [world.host.logs["flapping-0"] for world in nodes]
    managers = [threaded(world) for world in nodes]
    for manager in managers:
        manager.start()
    before: tuple[int, int] | None = None
    for epoch in range(1, ROUNDS + 1):
        leader, follower = epoch % 2, 1 - epoch % 2
        managers[follower].become_follower(logs[follower].partition, epoch, logs[follower])
        elect(logs[leader], epoch)
        managers[leader].become_leader(logs[leader].partition, epoch, logs[leader])
        if epoch % 50 == 0:
            write_on_both(logs, epoch, rng.random())
        if epoch % 10 == 0:
            assert managers[leader].wait_until_idle(IDLE_MS)
        if epoch == 200:
            gc.collect()
            before = threading.active_count(), open_files(nodes)
    assert all(manager.wait_until_idle(IDLE_MS) for manager in managers)
    gc.collect()
    assert before is not None
    assert threading.active_count() <= before[0]
    assert open_files(nodes) <= before[1] + 2
    for manager in managers:
        assert len(manager.partitions()) == 1
        pools = (manager.copy_pool, manager.expiration_pool, manager.follower_pool)
        assert sum(map(len, pools)) <= 2
        assert manager.close() == ()
    assert [world.failures.told for world in nodes] == [[], []]
    last = nodes[ROUNDS % 2]
    last.lead(last.host.logs["flapping-0"])
    last.run()
    last.run()
    assert violations(last) == []
    assert differences(last) == []


def elect(log: OwnedLog, epoch: int) -> None:
    log.leader_epoch = epoch - 1
    log.begin_epoch()


def write_on_both(logs: list[OwnedLog], epoch: int, seed: float) -> None:
    """A segment that the leader writes and the follower has at once, byte for byte."""
    for log in logs:
        elect(log, epoch)
        append_some(log, random.Random(seed), BEGIN_MS, batches=4)
        log.roll()

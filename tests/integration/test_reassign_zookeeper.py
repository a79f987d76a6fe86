"""``tierlog reassign`` and ``tierlog config`` on Kafka 3.9 with ZooKeeper, beside its own tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import wait_until
from tests.kafka_tools.clusters import Cluster, three_old_brokers
from tests.reassign.running import (
    Placed,
    create_topics,
    is_clear,
    lines,
    move_back,
    run_tierlog,
    throttles,
    write_plan,
)
from tierlog.admin import ClusterAdmin
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.throttles import FOLLOWER_RATE, FOLLOWER_REPLICAS

pytestmark = pytest.mark.integration

SLOW = {"replica.fetch.response.max.bytes": 20_000, "replica.fetch.max.bytes": 20_000}
STUCK = 2_000
BEFORE: Placed = {"foo": {0: [1, 2], 1: [2, 1]}, "bar": {0: [1]}}
AFTER: Placed = {"foo": {0: [3, 2], 1: [1, 2]}, "bar": {0: [3]}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with three_old_brokers(tmp_path_factory.mktemp("old") / "cluster", SLOW) as running:
        create_topics(running.bootstrap, BEFORE, batches=40)
        yield running


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[ClusterAdmin]:
    with ClusterAdmin(cluster.bootstrap) as client:
        yield client


def test_a_plan_does_what_kafkas_tool_does(
    cluster: Cluster, admin: ClusterAdmin, tmp_path: Path
) -> None:
    file = write_plan(tmp_path / "plan.json", AFTER)
    ours = partial(run_tierlog, "reassign", "--bootstrap", cluster.bootstrap)
    tools: dict[str, Callable[..., str]] = {
        "kafka": cluster.reassign,
        "tierlog": lambda *args: ours(*args).out,
    }
    seen: dict[str, list[Any]] = {}
    for who, tool in tools.items():
        started = lines(tool("--execute", *file, "--throttle", str(STUCK)))
        # The tool of 3.9 prints "any" for each directory, that of 4.3 prints the directory.
        started = [re.sub(r',"log_dirs":\[[^]]*\]', "", line) for line in started]
        wait_until(lambda: len(admin.reassignments()) == 2, 60, what="two partitions that move")
        state = (throttles(admin, *BEFORE), admin.reassignments())
        verified = lines(tool("--verify", *file))
        cancelled = lines(tool("--cancel", *file))
        assert is_clear(admin, *BEFORE)
        seen[who] = [started, state, verified, cancelled]
        move_back(admin, BEFORE)
    for mine, kafkas in zip(seen["tierlog"], seen["kafka"], strict=True):
        assert mine == kafkas


def test_a_move_ends_and_leaves_no_throttle(
    cluster: Cluster, admin: ClusterAdmin, tmp_path: Path
) -> None:
    file = write_plan(tmp_path / "plan.json", AFTER)
    ran = run_tierlog(
        *("reassign", "--bootstrap", cluster.bootstrap, "--execute", *file, "--wait"),
        *("--throttle", "10M", "--sample", "0.2", "--interval", "0.2"),
    )
    assert ran.code == 0, ran.err
    found = {one: state.replicas for one, state in admin.partitions(BEFORE).items()}
    assert found == {
        TopicPartition(topic, number): tuple(replicas)
        for topic, some in AFTER.items()
        for number, replicas in some.items()
    }
    assert is_clear(admin, *BEFORE)


def test_settings_that_we_set_are_those_that_kafkas_tool_shows(cluster: Cluster) -> None:
    config = ("config", "--bootstrap", cluster.bootstrap)
    assert run_tierlog(*config, "--broker", "2", "--set", f"{FOLLOWER_RATE}=1MiB").code == 0
    assert run_tierlog(*config, "--topic", "foo", "--set", f"{FOLLOWER_REPLICAS}=0-3").code == 0
    shown = cluster.configs("--describe", "--entity-type", "brokers", "--entity-name", "2")
    assert f"{FOLLOWER_RATE}=1048576 " in shown
    shown = cluster.configs("--describe", "--entity-type", "topics", "--entity-name", "foo")
    assert f"{FOLLOWER_REPLICAS}=0:3 " in shown

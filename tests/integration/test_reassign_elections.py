"""Another controller is elected while partitions move: ``tierlog reassign`` goes on with it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.kafka_tools import wait_until
from tests.kafka_tools.clusters import Cluster, three_brokers, three_old_brokers
from tests.reassign.running import create_topics, write_plan
from tierlog.admin import ClusterAdmin, Resource, ResourceKind
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.throttles import BROKER_RATES, FOLLOWER_RATE, REPLICA_LISTS

pytestmark = pytest.mark.integration

SLOW = {"replica.fetch.response.max.bytes": 20_000, "replica.fetch.max.bytes": 20_000}
STUCK = "2000"
THROTTLES = {*BROKER_RATES, *REPLICA_LISTS}
MOVING = TopicPartition("foo", 0)


def quorum(root: Path) -> AbstractContextManager[Cluster]:
    """Kafka 4.3 with three controllers."""
    return three_brokers(root, dict.fromkeys((1, 2, 3), SLOW), controllers=3)


def beside_zookeeper(root: Path) -> AbstractContextManager[Cluster]:
    """Kafka 3.9; ZooKeeper takes a broker for dead after six seconds."""
    return three_old_brokers(root, {**SLOW, "zookeeper.session.timeout.ms": 6_000})


def kraft_controller(cluster: Cluster, asked: int) -> int | None:
    """The active controller as broker `asked` knows it, once all three may be elected."""
    found = cluster.run_tool(
        "org.apache.kafka.tools.MetadataQuorumCommand",
        *("--bootstrap-server", cluster.addresses[asked], "describe", "--status"),
    )
    voters = re.search(r"CurrentVoters: *(.*)", found)
    leader = re.search(r"LeaderId: *(-?\d+)", found)
    assert voters is not None, found
    assert leader is not None, found
    return int(leader[1]) if voters[1].count('"id"') == 3 else None


def zookeeper_controller(cluster: Cluster, asked: int) -> int | None:
    """The controller that the brokers elected in ZooKeeper."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoNodeError

    client = KazooClient(hosts=cluster.zookeeper)
    client.start(timeout=60)
    try:
        found = re.search(rb'"brokerid":(\d+)', client.get("/controller")[0])
    except NoNodeError:
        return None
    finally:
        client.stop()
        client.close()
    return int(found[1]) if found else None


@pytest.fixture(params=[quorum, beside_zookeeper], ids=["kraft", "zookeeper"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with request.param(tmp_path / "cluster") as running:
        yield running


def test_a_move_goes_on_with_the_next_controller(cluster: Cluster, tmp_path: Path) -> None:
    find: Callable[[Cluster, int], int | None]
    find = zookeeper_controller if cluster.zookeeper else kraft_controller
    wait_until(lambda: find(cluster, 1) is not None, 60, what="a controller")
    first = find(cluster, 1)
    assert first is not None
    source, target = sorted({1, 2, 3} - {first})
    create_topics(cluster.bootstrap, {"foo": {0: [source]}}, batches=40)
    file = write_plan(tmp_path / "plan.json", {"foo": {0: [target]}})
    tool = [sys.executable, "-m", "tierlog", "reassign", "--bootstrap", cluster.addresses[source]]
    tool += ["--timeout", "5", "--sample", "0", "--execute", *file]
    subprocess.run([*tool, "--throttle", STUCK], check=True, capture_output=True)
    with ClusterAdmin(cluster.addresses[source]) as admin:
        # This client knows the first controller.
        assert MOVING in admin.reassignments()
        cluster.kill(first)
        wait_until(lambda: find(cluster, source) not in {None, first}, 60, what="the next one")
        wait_until(lambda: len(admin.brokers()) == 2, 60, what="the dead broker gone")
        assert MOVING in admin.reassignments(), "the move outlives its controller"
        limits = [Resource(ResourceKind.BROKER, str(one)) for one in (source, target)]
        limits.append(Resource(ResourceKind.TOPIC, "foo"))
        assert admin.settings(limits)[limits[1]][FOLLOWER_RATE] == STUCK
        ran = subprocess.run(
            [*tool, "--throttle", "10M", "--wait", "--interval", "0.2"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert admin.partitions(["foo"])[MOVING].replicas == (target,)
        wait_until(
            lambda: (
                not any(
                    name in THROTTLES for one in admin.settings(limits).values() for name in one
                )
            ),
            60,
            what="no throttle left",
        )

"""Consumers of librdkafka in groups of a server, and its administrators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.node.running import Running, running
from tierlog.config import Config, GroupConfig

# Of a hundredth of a second each, on a machine that may be loaded.
MAX_POLLS = 6_000
QUICK = Config(group=GroupConfig(initial_rebalance_delay_ms=0))


@pytest.fixture
def server() -> Iterator[Running]:
    with running(config=QUICK) as found:
        yield found


@contextmanager
def consumers(server: Running, count: int, **settings: Any) -> Iterator[list[Consumer]]:
    """That many consumers in a group of a topic with three partitions."""
    shared = {
        "bootstrap.servers": server.bootstrap,
        "group.id": "g",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 100,
        "enable.auto.commit": False,
        "log_level": 0,
    }
    static = settings.pop("instance_ids", [None] * count)
    found = [
        Consumer(shared | settings | ({"group.instance.id": one} if one else {})) for one in static
    ]
    try:
        for one in found:
            one.subscribe(["orders"])
        yield found
    finally:
        for one in found:
            one.close()


def poll_until(members: list[Consumer], is_done: Callable[[], bool]) -> None:
    for _ in range(MAX_POLLS):
        for one in members:
            one.poll(0.01)
        if is_done():
            return
    raise AssertionError([one.assignment() for one in members])


def shares(members: list[Consumer]) -> list[set[int]]:
    return [{one.partition for one in member.assignment()} for member in members]


def are_shared(members: list[Consumer]) -> Callable[[], bool]:
    """Each partition has one member, and each member about as many as the others."""

    def check() -> bool:
        found = shares(members)
        sizes = [len(one) for one in found]
        return sum(sizes) == len(set().union(*found)) == 3 and max(sizes) - min(sizes) <= 1

    return check


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@pytest.mark.parametrize("count", [2, 3])
def test_members_share_the_partitions(server: Running, strategy: str, count: int) -> None:
    with consumers(server, count, **{"partition.assignment.strategy": strategy}) as members:
        poll_until(members, are_shared(members))
        gone = members.pop()
        gone.close()
        poll_until(members, are_shared(members))


def test_a_restarted_static_member_gets_its_partitions_back(server: Running) -> None:
    with consumers(server, 2, instance_ids=["i1", "i2"]) as members:
        poll_until(members, are_shared(members))
        before = shares(members)
        generation = server.call(lambda: server.node.groups._coordinator._groups["g"].generation)
        members.pop().close()
        with consumers(server, 1, instance_ids=["i2"]) as restarted:
            both = members + restarted
            poll_until(both, are_shared(both))
            assert shares(both) == before
        assert generation == server.call(
            lambda: server.node.groups._coordinator._groups["g"].generation
        )


def test_commits_of_members_and_of_others(server: Running) -> None:
    at = TopicPartition("orders", 1, 42)
    with consumers(server, 1) as members:
        (member,) = members
        poll_until(members, are_shared(members))
        member.commit(offsets=[at], asynchronous=False)
        (found,) = member.committed([TopicPartition("orders", 1)], 10)
        assert found.offset == 42
        outsider = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            outsider.commit(offsets=[at], asynchronous=False)
        outsider.close()
    simple = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "simple", "log_level": 0})
    simple.commit(offsets=[at], asynchronous=False)
    (found,) = simple.committed([TopicPartition("orders", 1)], 10)
    assert found.offset == 42
    simple.close()


def test_an_administrator_sees_and_changes_groups(server: Running) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    with consumers(server, 2) as members:
        poll_until(members, are_shared(members))
        (listed,) = admin.list_consumer_groups().result(10).valid
        assert (listed.group_id, listed.state.name) == ("g", "STABLE")
        described = admin.describe_consumer_groups(["g"])["g"].result(10)
        assert described.partition_assignor == "range"
        assigned = [
            (one.topic, one.partition)
            for member in described.members
            for one in member.assignment.topic_partitions
        ]
        assert sorted(assigned) == [("orders", 0), ("orders", 1), ("orders", 2)]
        with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups(["g"])["g"].result(10)
    moved = ConsumerGroupTopicPartitions("g", [TopicPartition("orders", 0, 9)])
    admin.alter_consumer_group_offsets([moved])["g"].result(10)
    asked = [ConsumerGroupTopicPartitions("g")]
    found = admin.list_consumer_group_offsets(asked)["g"].result(10)
    assert [(one.partition, one.offset) for one in found.topic_partitions] == [(0, 9)]
    admin.delete_consumer_groups(["g"])["g"].result(10)
    assert admin.list_consumer_groups().result(10).valid == []

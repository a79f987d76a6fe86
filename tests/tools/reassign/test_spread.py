"""Proposed assignments: Kafka's own class is the judge of its spread, counting of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka_tools import classpath
from tests.kafka_tools.old_kafka import POMS
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.spread import Racks, spread_as_kafka, spread_minimally

Replicas = tuple[int, ...]


def topic(*replicas: Replicas, name: str = "foo") -> dict[TopicPartition, Replicas]:
    return {TopicPartition(name, n): some for n, some in enumerate(replicas)}


def moves(before: dict[TopicPartition, Replicas], after: dict[TopicPartition, Replicas]) -> int:
    return sum(len(set(after[one]) - set(before[one])) for one in before)


def rack(racks: Racks, broker_id: int) -> str:
    return racks[broker_id] or f"of its own {broker_id}"


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[TopicPartition, Replicas], Racks]:
    """Replicas on brokers 0 to 9, and the brokers that are to hold them."""
    count = draw(st.integers(1, 4))
    names = st.sampled_from([None, "a", "b", "c"])
    racks = draw(st.dictionaries(st.integers(0, 9), names, min_size=count, max_size=8))
    one = st.lists(st.integers(0, 9), min_size=count, max_size=count, unique=True)
    current = draw(st.lists(one.map(tuple), min_size=1, max_size=30))
    return topic(*current), racks


@given(clusters())
def test_minimal_spread_holds_what_it_promises(
    given: tuple[dict[TopicPartition, Replicas], Racks],
) -> None:
    current, racks = given
    after = spread_minimally(current, racks)
    assert after.keys() == current.keys()
    rack_count = len({rack(racks, one) for one in racks})
    for partition, replicas in after.items():
        assert len(set(replicas)) == len(replicas) == len(current[partition])
        assert set(replicas) <= set(racks)
        assert len({rack(racks, one) for one in replicas}) == min(len(replicas), rack_count)
    # A replica that stays keeps its position, and the result needs no further move.
    for partition, replicas in after.items():
        for index, one in enumerate(replicas):
            if one in current[partition]:
                assert current[partition][index] == one
    assert spread_minimally(after, racks) == after


@given(clusters())
def test_minimal_spread_is_level_where_racks_do_not_count(
    given: tuple[dict[TopicPartition, Replicas], Racks],
) -> None:
    current, racks = given
    free: Racks = dict.fromkeys(racks)
    after = spread_minimally(current, free)
    held = Counter(dict.fromkeys(free, 0))
    held.update(one for some in after.values() for one in some)
    assert max(held.values()) - min(held.values()) <= 1
    # No assignment that is level moves fewer: every broker keeps what it may keep.
    total = sum(held.values())
    least, extra = divmod(total, len(free))
    before = Counter(one for some in current.values() for one in some if one in free)
    kept = sum(min(before[one], least) for one in free)
    kept += min(extra, sum(before[one] > least for one in free))
    lower_bound = total - kept
    assert lower_bound <= moves(current, after) <= lower_bound + len(free)


def test_what_lies_well_does_not_move() -> None:
    current = topic((1, 2), (2, 3), (3, 1))
    assert spread_minimally(current, {1: None, 2: None, 3: None}) == current


def test_only_replicas_of_a_leaving_broker_move() -> None:
    current = topic((1, 2), (2, 3), (3, 1), (2, 1))
    after = spread_minimally(current, {2: None, 3: None, 4: None})
    for partition, replicas in after.items():
        assert set(current[partition]) - {1} <= set(replicas)
    assert moves(current, after) == 3


def test_a_new_broker_gets_its_share_and_no_more() -> None:
    current = topic(*[(1, 2)] * 6)
    after = spread_minimally(current, {1: None, 2: None, 3: None})
    assert Counter(one for some in after.values() for one in some) == {1: 4, 2: 4, 3: 4}
    assert moves(current, after) == 4


def test_ten_brokers_join_a_large_cluster() -> None:
    """20,000 partitions on 30 brokers: each new one gets its 1,500 replicas, and nothing else
    moves."""
    current = topic(*[((n * 7) % 30, (n * 7 + 1) % 30, (n * 7 + 2) % 30) for n in range(20_000)])
    after = spread_minimally(current, dict.fromkeys(range(40)))
    assert set(Counter(one for some in after.values() for one in some).values()) == {1_500}
    assert moves(current, after) == 15_000


def test_two_replicas_in_a_rack_part_when_another_has_none() -> None:
    after = spread_minimally(topic((1, 2)), {1: "a", 2: "a", 3: "b"})
    assert after == topic((1, 3))


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"foo-0 has 2 replicas.*found 1"):
        spread_minimally(topic((1, 2)), {3: None})


@pytest.fixture(scope="module")
def kafka() -> Iterator[Any]:
    """A JVM with the classes of Kafka 3.9."""
    from py4j.java_gateway import JavaGateway

    jars = classpath(pom=POMS / "kafka-3.9.xml")
    gateway = JavaGateway.launch_gateway(classpath=jars, die_on_exit=True)
    yield gateway
    gateway.shutdown()


@pytest.mark.integration
@pytest.mark.parametrize(
    "racks",
    [
        dict.fromkeys(range(1, 6)),
        dict.fromkeys([3, 5, 7]),
        {1: "a", 2: "b", 3: "a", 4: "b", 5: "c", 6: "a"},
        {1: "a", 2: "a", 3: "b"},
    ],
    ids=["5 brokers", "3 brokers", "6 in 3 racks", "3 in 2 racks"],
)
@pytest.mark.parametrize("start", [0, 2])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_kafkas_spread_is_kafkas(kafka: Any, racks: Racks, start: int, count: int) -> None:
    """With the same first broker and the same first distance."""
    jvm = kafka.jvm
    brokers = jvm.java.util.ArrayList()
    for one, name in racks.items():
        brokers.add(
            jvm.org.apache.kafka.admin.BrokerMetadata(one, jvm.java.util.Optional.ofNullable(name))
        )
    found = jvm.org.apache.kafka.admin.AdminUtils.assignReplicasToBrokers(
        brokers, 17, count, start, -1
    )
    expected = {TopicPartition("foo", n): tuple(found[n]) for n in range(17)}
    current = topic(*[tuple(list(racks)[:count])] * 17)
    assert spread_as_kafka(current, racks, lambda _: start) == expected

"""Estimates, with the KIP's own numbers where it has any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Placement
from tierlog.tools.reassign.estimate import (
    ClusterFacts,
    PartitionFacts,
    check_throttle,
    estimate_move,
)
from tierlog.tools.reassign.report import estimate_text, time_text

MB = 1_000_000


def facts(*partitions: PartitionFacts, response: int | None = None) -> ClusterFacts:
    return ClusterFacts(
        partitions={TopicPartition("foo", n): one for n, one in enumerate(partitions)},
        broker_ids=(1, 2, 3),
        fetch_response_max_bytes=response,
        window_seconds=10.0,
    )


def partition(*replicas: int, size: int = 100 * MB, rate: float = 0.0) -> PartitionFacts:
    return PartitionFacts(
        replicas=replicas, leader_id=replicas[0], size_bytes=size, bytes_in_per_second=rate
    )


def to(number: int, *replicas: int) -> dict[TopicPartition, Placement]:
    return {TopicPartition("foo", number): Placement(replicas)}


def test_move_ratio_and_move_time_of_the_kip() -> None:
    """MoveTime = MoveRatio x TotalLogSizePerBroker x #Brokers / (quota - max(BytesIn))."""
    cluster = facts(*[partition(1, 2, rate=100_000.0)] * 4)
    found = estimate_move(cluster, to(0, 1, 3), 2 * MB)
    assert found.move_ratio == 0.25
    assert found.max_bytes_in_per_second == 400_000
    assert found.log_size_per_broker_bytes == 800 * MB // 3
    assert found.kip_seconds == 0.25 * 800 * MB / (2 * MB - 400_000)


def test_the_slowest_broker_decides() -> None:
    cluster = facts(partition(1), partition(2))
    found = estimate_move(cluster, to(0, 3) | to(1, 3), 10 * MB)
    assert [one.send_bytes for one in found.brokers] == [100 * MB, 100 * MB, 0]
    assert [one.receive_bytes for one in found.brokers] == [0, 0, 200 * MB]
    assert found.move_bytes == 200 * MB
    assert found.seconds == 20.0


def test_what_producers_add_slows_the_move() -> None:
    """The leader throttle counts the followers in sync as well (KAFKA-4313)."""
    cluster = facts(partition(1, 2, rate=1.0 * MB))
    stays = estimate_move(cluster, to(0, 1, 3), 5 * MB)
    assert stays.brokers[0].send_bytes_per_second == 2 * MB
    assert stays.seconds == pytest.approx(100 / 3)
    leaves = estimate_move(cluster, to(0, 3, 2), 5 * MB)
    assert leaves.brokers[0].send_bytes_per_second == 1 * MB
    assert leaves.seconds == 25.0


def test_the_first_responses_of_further_peers_pass_beside_the_throttle() -> None:
    # Half a response per window of 10 s is counted too much: 11 MB/s act as 10 MB/s.
    cluster = facts(partition(1), partition(1), response=20 * MB)
    assert estimate_move(cluster, to(0, 2) | to(1, 2), 11 * MB).seconds == 20.0
    assert estimate_move(cluster, to(0, 2) | to(1, 3), 11 * MB).seconds == 18.0


def test_a_change_of_order_moves_nothing() -> None:
    found = estimate_move(facts(partition(1, 2)), to(0, 2, 1), MB)
    assert (found.moved_partitions, found.move_bytes, found.seconds) == (0, 0, 0.0)


def test_a_move_that_never_ends() -> None:
    cluster = facts(partition(1, 2, rate=1.0 * MB))
    found = estimate_move(cluster, to(0, 1, 3), 2 * MB)
    assert found.seconds is None
    never, _ = check_throttle(cluster, found)
    text = (
        "broker 1: producers add 2,000,000 B/s to what it sends of the partitions that move, "
        "expected less than its leader throttle of 2,000,000 B/s"
    )
    assert never == [text]
    assert "Estimated time: never" in "\n".join(estimate_text(found))


def test_a_throttle_below_what_empty_answers_take() -> None:
    cluster = facts(partition(1))
    for throttle, count in ((99, 1), (100, 0)):
        never, _ = check_throttle(cluster, estimate_move(cluster, to(0, 2), throttle))
        assert len(never) == count


def test_without_a_throttle_nothing_is_checked() -> None:
    cluster = facts(partition(1, 2, rate=1.0 * MB), response=1 << 40)
    found = estimate_move(cluster, to(0, 3, 2))
    assert (found.seconds, found.kip_seconds) == (None, None)
    assert check_throttle(cluster, found, 1) == ([], [])


def test_fetch_responses_larger_than_the_window_are_doubtful() -> None:
    """Question 5: 1 MB/s and a window of 10 s permit at most 10 MB."""
    for response, count in ((10 * MB, 1), (10 * MB - 1, 0)):
        cluster = facts(partition(1), response=response)
        _, doubts = check_throttle(cluster, estimate_move(cluster, to(0, 2), MB))
        assert len(doubts) == count


def test_partitions_of_unknown_size_are_named() -> None:
    cluster = replace(facts(partition(1)), unknown_sizes=frozenset({TopicPartition("foo", 7)}))
    _, doubts = check_throttle(cluster, estimate_move(cluster, to(0, 2), MB))
    assert "the size of 1 partitions is unknown" in doubts[0]


def test_a_throttle_above_the_network_is_doubtful() -> None:
    """Question 4: IN < T < N - IN/R."""
    cluster = facts(partition(1, 2, rate=2.0 * MB))
    found = estimate_move(cluster, to(0, 3, 2), 9 * MB)
    assert check_throttle(cluster, found, 11 * MB)[1] == []
    never, doubts = check_throttle(cluster, found, 10 * MB)
    assert never == []
    assert [text.split(":")[0] for text in doubts] == ["broker 1"]
    assert "KIP-73 wants T < N - IN/R" in doubts[0]


def test_times_for_people() -> None:
    shown = [time_text(one) for one in (0.04, 9.96, 45.4, 130, 5_000, None)]
    assert shown == ["0.0 s", "10.0 s", "45 s", "2 min 10 s", "1 h 23 min", "never"]

"""Estimates how long a move takes under a throttle, and whether it ever ends (KIP-73, questions 1,
4, 5).

The KIP's formula is for the whole cluster. `Estimate.seconds` is computed for each broker
separately, and is the time of the slowest broker. The leader throttle limits all bytes that a
broker sends to followers of partitions that move. The limit includes followers in sync
(KAFKA-4313). The follower throttle limits what a broker receives for new replicas.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Assignment

__all__ = [
    "MIN_THROTTLE",
    "BrokerLoad",
    "ClusterFacts",
    "Estimate",
    "PartitionFacts",
    "check_throttle",
    "estimate_move",
    "moved_partitions",
]


MIN_THROTTLE = 100
"""The lowest throttle in B/s under which a real broker moved a partition. With a throttle of 50
B/s, the broker's empty responses to followers used up the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The facts about a partition: its replicas, its leader, the size of the leader's log and the
    bytes per second that producers add. If the leader is unknown, the first replica counts as the
    leader."""

    replicas: tuple[int, ...]
    leader_id: int | None
    size_bytes: int
    bytes_in_per_second: float = 0.0

    @property
    def sender(self) -> int:
        """The broker from which new replicas copy."""
        return self.replicas[0] if self.leader_id is None else self.leader_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """All partitions of the cluster, and the settings of its brokers that the checks need.

    ``fetch_response_max_bytes`` is the largest ``replica.fetch.response.max.bytes`` of the brokers.
    ``window_seconds`` is their smallest quota window (``replication.quota.window.num`` times
    ``.size.seconds``). None means unknown. The sizes of partitions in ``unknown_sizes`` are
    unknown, so these partitions count as empty.
    """

    partitions: Mapping[TopicPartition, PartitionFacts]
    broker_ids: tuple[int, ...]
    fetch_response_max_bytes: int | None = None
    window_seconds: float | None = None
    unknown_sizes: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """The load of one broker in a move. ``send_bytes`` and ``receive_bytes`` are the bytes that the
    move copies once. The rates are the throttled bytes per second that producers add during the
    move."""

    broker_id: int
    send_bytes: int
    receive_bytes: int
    send_bytes_per_second: float
    receive_bytes_per_second: float
    bytes_in_per_second: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The size of a move and, with a throttle, its time.

    ``move_ratio`` is the MoveRatio of the KIP: the share of partitions that move. ``kip_seconds``
    is the MoveTime of the KIP: MoveRatio x log size per broker x brokers / (throttle - largest
    bytes in). ``seconds`` is the time of the slowest broker. Both times are None if there is no
    throttle or the move never ends.
    """

    partitions: int
    moved_partitions: int
    move_ratio: float
    move_bytes: int
    log_size_per_broker_bytes: int
    max_bytes_in_per_second: float
    throttle_bytes_per_second: int | None
    kip_seconds: float | None
    seconds: float | None
    brokers: tuple[BrokerLoad, ...]


def moved_partitions(
    current: Mapping[TopicPartition, tuple[int, ...]], target: Assignment
) -> list[TopicPartition]:
    """Return the partitions that get a new replica, in order."""
    return [
        partition
        for partition, placement in sorted(target.items())
        if not set(placement.replicas) <= set(current[partition])
    ]


def estimate_move(
    facts: ClusterFacts, target: Assignment, throttle_bytes_per_second: int | None = None
) -> Estimate:
    """Return the estimate of a move to `target`. `facts` must have all partitions of `target`."""
    current = {partition: one.replicas for partition, one in facts.partitions.items()}
    moved = moved_partitions(current, target)
    loads = _loads(facts, target, moved, throttle_bytes_per_second)
    total = len(facts.partitions)
    ratio = len(moved) / total if total else 0.0
    all_bytes = sum(one.size_bytes * len(one.replicas) for one in facts.partitions.values())
    max_in = max((one.bytes_in_per_second for one in loads), default=0.0)
    kip_seconds = seconds = None
    if throttle_bytes_per_second is not None:
        if throttle_bytes_per_second > max_in:
            kip_seconds = ratio * all_bytes / (throttle_bytes_per_second - max_in)
        times = [one.seconds for one in loads]
        known = [one for one in times if one is not None]
        seconds = max(known, default=0.0) if len(known) == len(times) else None
    return Estimate(
        partitions=total,
        moved_partitions=len(moved),
        move_ratio=ratio,
        move_bytes=sum(one.receive_bytes for one in loads),
        log_size_per_broker_bytes=all_bytes // max(1, len(facts.broker_ids)),
        max_bytes_in_per_second=max_in,
        throttle_bytes_per_second=throttle_bytes_per_second,
        kip_seconds=kip_seconds,
        seconds=seconds,
        brokers=loads,
    )


def _loads(
    facts: ClusterFacts,
    target: Assignment,
    moved: Iterable[TopicPartition],
    throttle: int | None,
) -> tuple[BrokerLoad, ...]:
    send: dict[int, int] = defaultdict(int)
    receive: dict[int, int] = defaultdict(int)
    send_rate: dict[int, float] = defaultdict(float)
    receive_rate: dict[int, float] = defaultdict(float)
    bytes_in: dict[int, float] = defaultdict(float)
    receivers: dict[int, set[int]] = defaultdict(set)
    for one in facts.partitions.values():
        for broker_id in one.replicas:
            bytes_in[broker_id] += one.bytes_in_per_second
    for partition in moved:
        one = facts.partitions[partition]
        new = [b for b in target[partition].replicas if b not in one.replicas]
        send[one.sender] += one.size_bytes * len(new)
        # The leader throttle also counts the bytes that followers in sync fetch of these
        # partitions. If a partition moves away from its leader, another broker leads the partition
        # after its move. On average, a partition's move ends after half of the total time.
        followers = len(new) + len(one.replicas) - 1
        share = 1.0 if one.sender in target[partition].replicas else 0.5
        send_rate[one.sender] += one.bytes_in_per_second * followers * share
        receivers[one.sender].update(new)
        for broker_id in new:
            receive[broker_id] += one.size_bytes
            receive_rate[broker_id] += one.bytes_in_per_second
    ids = sorted({*facts.broker_ids, *bytes_in, *send, *receive})
    return tuple(
        BrokerLoad(
            broker_id=one,
            send_bytes=send[one],
            receive_bytes=receive[one],
            send_bytes_per_second=send_rate[one],
            receive_bytes_per_second=receive_rate[one],
            bytes_in_per_second=bytes_in[one],
            seconds=_slower(
                _seconds(facts, send[one], send_rate[one], throttle, len(receivers[one])),
                _seconds(facts, receive[one], receive_rate[one], throttle),
            ),
        )
        for one in ids
    )


def _seconds(
    facts: ClusterFacts, size_bytes: int, rate: float, throttle: int | None, receivers: int = 1
) -> float | None:
    """Return the time until `size_bytes` and the bytes added in this time have passed the throttle;
    None if these bytes never pass.

    A broker permits the first responses to all ``receivers`` before it counts the first of these
    responses. So all of these responses but one are not limited by the throttle.
    """
    if size_bytes == 0:
        return 0.0
    if throttle is None or throttle <= rate:
        return None
    throttled = size_bytes - (receivers - 1) * (facts.fetch_response_max_bytes or 0)
    free = throttle - rate
    return max(0, throttled) / max(free / 2, free - _unused(facts, throttle))


def _unused(facts: ClusterFacts, throttle: int) -> float:
    """Return how many bytes per second of its throttle a broker leaves unused.

    A broker divides the bytes of all samples by the time since its oldest sample, although the
    bytes of that sample took time as well. So the broker overstates the rate, on average by half a
    response per window. If a single response uses up the quota of a window, this average is not
    reliable.
    """
    response, window = facts.fetch_response_max_bytes, facts.window_seconds
    if response is None or window is None or response >= throttle * window:
        return 0.0
    return response / (2 * window)


def _slower(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def check_throttle(
    facts: ClusterFacts,
    estimate: Estimate,
    network_bytes_per_second: int | None = None,
) -> tuple[list[str], list[str]]:
    """Return the reasons why the move never ends under its throttle, and other doubts about it.

    The KIP's conditions are IN < T < N - IN/R: IN is the incoming bytes of a broker, T the
    throttle, N the network bandwidth (left out when unknown) and R the number of replicas. The KIP
    also requires ``replica.fetch.response.max.bytes`` below the throttle times the quota window.
    """
    throttle = estimate.throttle_bytes_per_second
    if throttle is None:
        return [], []
    never = [_never(one, throttle) for one in estimate.brokers if one.seconds is None]
    if throttle < MIN_THROTTLE and estimate.moved_partitions:
        never.append(
            f"a throttle of {throttle:,} B/s: brokers also count their empty responses, "
            f"so expected at least {MIN_THROTTLE} B/s"
        )
    doubts = list(_doubts(facts, estimate.brokers, throttle, network_bytes_per_second))
    return never, doubts


def _never(load: BrokerLoad, throttle: int) -> str:
    worst = max(
        (load.send_bytes_per_second if load.send_bytes else 0.0, "leader", "sends"),
        (load.receive_bytes_per_second if load.receive_bytes else 0.0, "follower", "receives"),
    )
    return (
        f"broker {load.broker_id}: producers add {worst[0]:,.0f} B/s to what it {worst[2]} of the "
        f"partitions that move, expected less than its {worst[1]} throttle of {throttle:,} B/s"
    )


def _doubts(
    facts: ClusterFacts, loads: Sequence[BrokerLoad], throttle: int, network: int | None
) -> Iterable[str]:
    factor = max((len(one.replicas) for one in facts.partitions.values()), default=1)
    for load in loads:
        if not load.send_bytes and not load.receive_bytes:
            continue
        incoming = load.bytes_in_per_second
        if load.seconds is not None and throttle <= incoming:
            yield (
                f"broker {load.broker_id}: {incoming:,.0f} B/s come in, the throttle is "
                f"{throttle:,} B/s: KIP-73 wants IN < T"
            )
        if network is not None and throttle >= network - incoming / factor:
            yield (
                f"broker {load.broker_id}: the throttle of {throttle:,} B/s leaves clients less "
                f"than their {incoming / factor:,.0f} B/s of a network of {network:,} B/s: "
                "KIP-73 wants T < N - IN/R"
            )
    if facts.unknown_sizes:
        yield (
            f"the size of {len(facts.unknown_sizes)} partitions is unknown, as their leaders or "
            "log directories are offline: they count as empty"
        )
    response, window = facts.fetch_response_max_bytes, facts.window_seconds
    if response is not None and window is not None and response >= throttle * window:
        yield (
            f"replica.fetch.response.max.bytes is {response:,}: expected less than throttle x "
            f"quota window, {throttle:,} B/s x {window:g} s; the first responses exceed the "
            "throttle"
        )

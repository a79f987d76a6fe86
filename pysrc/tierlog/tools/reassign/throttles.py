"""KIP-73's settings: the throttled replicas of topics and the rates of brokers.

A list of throttled replicas is ``partition:broker,...`` or ``*`` for all replicas of the topic.
Kafka sorts the entries as text. The parser also accepts ``partition-broker``, as in the KIP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Assignment

__all__ = [
    "ALL_REPLICAS",
    "BROKER_RATES",
    "DISK_RATE",
    "FOLLOWER_RATE",
    "FOLLOWER_REPLICAS",
    "LEADER_RATE",
    "LEADER_REPLICAS",
    "REPLICA_LISTS",
    "TopicThrottle",
    "format_replicas",
    "merge_replicas",
    "parse_replicas",
    "throttled_replicas",
]

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DISK_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
BROKER_RATES = (LEADER_RATE, FOLLOWER_RATE, DISK_RATE)
REPLICA_LISTS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)

ALL_REPLICAS = "*"
_ENTRY = re.compile(r"([0-9]{1,10})[:-]([0-9]{1,10})")
_MAX_NUMBER = (1 << 31) - 1


class TopicThrottle(NamedTuple):
    """The throttled replicas of a topic, as (partition, broker) pairs."""

    leader: frozenset[tuple[int, int]]
    follower: frozenset[tuple[int, int]]


def parse_replicas(text: str) -> frozenset[tuple[int, int]] | None:
    """Return the (partition, broker) pairs of a list of throttled replicas; None for ``*``.

    Raises ValueError for an entry that Kafka would refuse, and names it: blanks, text, negative
    numbers, an empty entry, or ``*`` beside other entries.
    """
    if text == ALL_REPLICAS:
        return None
    if not text:
        return frozenset()
    found = set()
    for entry in text.split(","):
        match = _ENTRY.fullmatch(entry)
        pair = (int(match[1]), int(match[2])) if match else (-1, -1)
        if match is None or max(pair) > _MAX_NUMBER:
            raise ValueError(
                f"expected partition:broker, as in 0:101,1:102, or * alone, found {entry[:40]!r}"
            )
        found.add(pair)
    return frozenset(found)


def format_replicas(pairs: Iterable[tuple[int, int]]) -> str:
    """Return the value of the setting as Kafka's tool writes it, with entries sorted as text."""
    return ",".join(sorted(f"{partition}:{broker}" for partition, broker in set(pairs)))


def merge_replicas(existing: str | None, added: Iterable[tuple[int, int]]) -> str:
    """Return a list with the entries of both lists. If ``existing`` is ``*``, the result is
    ``*``."""
    try:
        before = parse_replicas(existing or "")
    except ValueError:
        # The existing list cannot be parsed, although Kafka accepted it. The new entries replace
        # the existing list.
        before = frozenset()
    return ALL_REPLICAS if before is None else format_replicas({*before, *added})


def throttled_replicas(
    origins: Mapping[TopicPartition, tuple[int, ...]], target: Assignment
) -> dict[str, TopicThrottle]:
    """Return the throttled replicas of each topic of a move.

    According to KIP-73, the leader throttle applies to all existing replicas of the partitions that
    move, since each of these replicas may lead. The follower throttle applies to the new replicas.
    """
    leaders: dict[str, set[tuple[int, int]]] = {}
    followers: dict[str, set[tuple[int, int]]] = {}
    for partition, placement in target.items():
        origin = origins[partition]
        number = partition.partition
        leaders.setdefault(partition.topic, set()).update((number, one) for one in origin)
        followers.setdefault(partition.topic, set()).update(
            (number, one) for one in placement.replicas if one not in origin
        )
    return {
        topic: TopicThrottle(frozenset(leaders[topic]), frozenset(followers[topic]))
        for topic in sorted(leaders)
    }

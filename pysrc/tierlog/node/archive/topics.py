"""Joins the topics of stores and directories to those that clients see: a pure function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from tierlog.log.log_dir import PartitionLog
from tierlog.node.archive.tiers import StoredTopic
from tierlog.node.cluster_view import PartitionView, TopicView
from tierlog.types import MAX_TOPIC_NAME_LENGTH, TopicIdPartition, derived_topic_id

__all__ = ["JoinedTopic", "join_topics"]

_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTopic:
    """A topic that clients see. ``tier``: the number of its store, None without one. ``local``: its
    partitions in the directories. ``stored_name`` differs from the name that clients see for an
    older topic of the same name."""

    name: str
    stored_name: str
    topic_id: str
    stored_id: str
    tier: int | None
    local: frozenset[int]
    partitions: tuple[TopicIdPartition, ...]
    is_compacted: bool = False

    def view(self, leader_epoch: Callable[[TopicIdPartition], int]) -> TopicView:
        """Return what clients see of it."""
        settings = {"cleanup.policy": "compact" if self.is_compacted else "delete"}
        if self.tier is not None:
            settings["remote.storage.enable"] = "true"
        return TopicView(
            name=self.name,
            topic_id=self.topic_id,
            partitions=tuple(
                PartitionView(index=one.partition, stored_as=one, leader_epoch=leader_epoch(one))
                for one in self.partitions
            ),
            is_internal=self.name in _INTERNAL,
            settings=settings,
        )


def join_topics(
    stored: Sequence[Mapping[str, StoredTopic]],
    logs: Iterable[PartitionLog],
    cluster_id: str,
    newest_ms: Callable[[int, StoredTopic], int],
) -> list[JoinedTopic]:
    """Return the topics of some stores (by the id under which each is stored) and of the logs of
    one broker.

    A topic in several stores is read from the first one. If several topics have the same name, the
    topic in the directories keeps the name, or else the newest topic. An older topic is called
    ``<name>.<topic id>``. Clients expect partition numbers without gaps, so a partition missing
    from the store is shown as an empty one. ``newest_ms`` returns when a topic of a store was last
    copied. It is called only when several topics of stores have the same name.
    """
    by_shown_id: dict[str, tuple[int, StoredTopic]] = {}
    for tier, topics in enumerate(stored):
        for topic in topics.values():
            by_shown_id.setdefault(topic.shown_id, (tier, topic))
    joined: list[JoinedTopic] = []
    for name, topic_id, partitions in _local_topics(logs, cluster_id):
        tier_topic = by_shown_id.pop(topic_id, None)
        joined.append(_join(name, topic_id, tier_topic, partitions))
    taken = {one.name for one in joined}
    rest: dict[str, list[tuple[int, StoredTopic]]] = {}
    for tier, topic in by_shown_id.values():
        rest.setdefault(topic.topic, []).append((tier, topic))
    for name, found in rest.items():
        if len(found) > 1:
            found.sort(key=lambda one: (-newest_ms(*one), one[1].topic_id))
        for tier, topic in found:
            shown = name if name not in taken else f"{name}.{topic.shown_id}"
            if len(shown) <= MAX_TOPIC_NAME_LENGTH:
                joined.append(_join(shown, topic.shown_id, (tier, topic), {}))
                taken.add(shown)
    return joined


def _local_topics(
    logs: Iterable[PartitionLog], cluster_id: str
) -> Iterable[tuple[str, str, dict[int, PartitionLog]]]:
    """Yield (name, topic id, logs by partition) of each topic of the directories."""
    topics: dict[str, dict[int, PartitionLog]] = {}
    for log in sorted(logs, key=attrgetter("topic", "partition")):
        if not log.is_cluster_metadata:
            topics.setdefault(log.topic, {})[log.partition] = log
    for name, partitions in topics.items():
        known = next((log.topic_id for log in partitions.values() if log.topic_id), None)
        yield name, known or derived_topic_id(cluster_id, name), partitions


def _join(
    name: str,
    topic_id: str,
    tier_topic: tuple[int, StoredTopic] | None,
    local: Mapping[int, PartitionLog],
) -> JoinedTopic:
    tier, topic = (None, None) if tier_topic is None else tier_topic
    stored_id = topic_id if topic is None else topic.topic_id
    stored_name = name if topic is None else topic.topic
    numbers = {*local, *(() if topic is None else topic.partitions)}
    return JoinedTopic(
        name=name,
        stored_name=stored_name,
        topic_id=topic_id,
        stored_id=stored_id,
        tier=tier,
        local=frozenset(local),
        partitions=tuple(
            TopicIdPartition(topic=stored_name, topic_id=stored_id, partition=number)
            for number in range(max(numbers, default=-1) + 1)
        ),
        is_compacted=any(log.compacted for log in local.values()),
    )

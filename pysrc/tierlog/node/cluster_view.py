"""The view that a node has of its cluster at one moment: plain values that never change.

An archive makes the view from stores and log directories. Handlers read only the view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tierlog.types import TopicIdPartition

__all__ = ["ClusterView", "LogDirView", "PartitionView", "TopicView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """A partition that this node leads.

    ``stored_as`` has the topic id of its archive, which may differ from that of the topic.
    ``leader_epoch`` is -1 while it is unknown; clients then send no epoch.
    """

    index: int
    stored_as: TopicIdPartition
    leader_epoch: int = -1


@dataclass(frozen=True, kw_only=True)
class TopicView:
    """A topic with the id that clients see. Its partitions are in ascending order."""

    name: str
    topic_id: str
    partitions: tuple[PartitionView, ...]
    is_internal: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_index(self) -> Mapping[int, PartitionView]:
        """The partitions by index."""
        return {one.index: one for one in self.partitions}


@dataclass(frozen=True, slots=True)
class LogDirView:
    """A directory or a store, and the bytes of each partition in it, as (topic, index, bytes)."""

    path: str
    sizes: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class ClusterView:
    """The cluster that clients see: one node, and its topics in the order of their names."""

    cluster_id: str
    node_id: int
    topics: tuple[TopicView, ...] = ()

    @classmethod
    def of(cls, cluster_id: str, node_id: int, topics: Iterable[TopicView]) -> ClusterView:
        """Return the view with `topics` in the order of names."""
        ordered = tuple(sorted(topics, key=lambda one: one.name))
        return cls(cluster_id=cluster_id, node_id=node_id, topics=ordered)

    @cached_property
    def by_name(self) -> Mapping[str, TopicView]:
        """The topics by name."""
        return {one.name: one for one in self.topics}

    @cached_property
    def by_id(self) -> Mapping[str, TopicView]:
        """The topics by the id that clients see."""
        return {one.topic_id: one for one in self.topics}

    def find(self, topic: str, partition: int) -> PartitionView | None:
        """Return a partition by the topic's name; None when it does not exist."""
        found = self.by_name.get(topic)
        return None if found is None else found.by_index.get(partition)

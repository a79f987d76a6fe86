"""Finds the partitions that a request names, by topic name or id."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tierlog.node.cluster_view import ClusterView, PartitionView
from tierlog.node.error_codes import ErrorCode
from tierlog.types import kafka_uuid

__all__ = ["FoundPartition", "find_partition"]


class FoundPartition(NamedTuple):
    """A partition of the cluster, or None and why."""

    partition: PartitionView | None
    error: ErrorCode


def find_partition(
    view: ClusterView, name: str | None, topic_id: UUID | None, index: int
) -> FoundPartition:
    """Return the partition of the topic with that id, or without an id with that name."""
    if topic_id is not None:
        topic = view.by_id.get(kafka_uuid(topic_id))
        if topic is None:
            return FoundPartition(None, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        topic = view.by_name.get(name or "")
    partition = None if topic is None else topic.by_index.get(index)
    if partition is None:
        return FoundPartition(None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return FoundPartition(partition, ErrorCode.NONE)

"""DescribeTopicPartitions (75), version 0: topics page by page. No authorized operations."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kafka.protocol.admin import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

from tierlog.node.cluster_view import ClusterView, TopicView
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node
from tierlog.types import kafka_uuid_bytes

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 75
VERSIONS = (0, 0)
REQUEST = DescribeTopicPartitionsRequest

_MAX_PARTITIONS = 2_000
_Topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
_Partition = _Topic.DescribeTopicPartitionsResponsePartition
_Cursor = DescribeTopicPartitionsResponse.Cursor


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the partitions of the topics, or of all, from the cursor on."""
    view, cursor = node.view, request.cursor
    names = sorted({one.name for one in request.topics} or view.by_name)
    left = max(1, min(request.response_partition_limit, _MAX_PARTITIONS))
    topics: list[Any] = []
    following = None
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor and name == cursor.topic_name else 0
        if left <= 0:
            following = _Cursor(topic_name=name, partition_index=first)
            break
        topic = view.by_name.get(name)
        if topic is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(_Topic(error_code=code, name=name, partitions=[]))
            continue
        topics.append(_described(view, topic, first, left))
        left -= len(topics[-1].partitions)
        if (
            topic.partitions
            and topics[-1].partitions[-1].partition_index < len(topic.partitions) - 1
        ):
            after = topics[-1].partitions[-1].partition_index + 1
            following = _Cursor(topic_name=name, partition_index=after)
            break
    return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=topics, next_cursor=following)


def _described(view: ClusterView, topic: TopicView, first: int, most: int) -> Any:
    shown = [one for one in topic.partitions if one.index >= first][:most]
    return _Topic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=UUID(bytes=kafka_uuid_bytes(topic.topic_id)),
        is_internal=topic.is_internal,
        partitions=[
            _Partition(
                error_code=ErrorCode.NONE,
                partition_index=one.index,
                leader_id=view.node_id,
                leader_epoch=one.leader_epoch,
                replica_nodes=[view.node_id],
                isr_nodes=[view.node_id],
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=[],
            )
            for one in shown
        ],
    )

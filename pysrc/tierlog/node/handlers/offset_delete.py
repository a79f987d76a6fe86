"""OffsetDelete (47), version 0."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import OffsetDeleteRequest, OffsetDeleteResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import TopicPartition
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 47
VERSIONS = (0, 0)
REQUEST = OffsetDeleteRequest

_Topic = OffsetDeleteResponse.OffsetDeleteResponseTopic


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Delete committed offsets of topics that no member of the group subscribes to."""
    known = [
        TopicPartition(topic.name, one.partition_index)
        for topic in request.topics
        for one in topic.partitions
        if node.view.find(topic.name, one.partition_index) is not None
    ]
    error, errors = await node.groups.delete_offsets(request.group_id, known)
    if error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=error, topics=[])
    return OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Topic.OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=errors.get(
                            TopicPartition(topic.name, one.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )

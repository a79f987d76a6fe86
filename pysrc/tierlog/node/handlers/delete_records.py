"""DeleteRecords (21), versions 0 to 2. Refused: an archive is read only."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 21
VERSIONS = (0, 2)
REQUEST = DeleteRecordsRequest

_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every partition."""
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    refused = [
        _Topic(
            name=topic.name,
            partitions=[
                _Partition(partition_index=one.partition_index, low_watermark=-1, error_code=code)
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return DeleteRecordsResponse(throttle_time_ms=0, topics=refused)

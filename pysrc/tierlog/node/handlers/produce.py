"""Produce (0), versions 0 to 13. Refused for every partition: an archive is read only.

librdkafka fetches only from servers that have this API from version 0 on.
"""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 0
VERSIONS = (0, 13)
REQUEST = ProduceRequest

_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every partition; a client that wants no answer gets none."""
    if request.acks == 0:
        return None
    return ProduceResponse(
        throttle_time_ms=0,
        responses=[
            _Topic(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_refusal(one.index) for one in topic.partition_data],
            )
            for topic in request.topic_data
        ],
    )


def _refusal(index: int) -> Any:
    return _Partition(
        index=index,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[],
        error_message=READ_ONLY,
    )

"""CreateTopics (19), versions 2 to 7. Refused: an archive is read only."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 19
VERSIONS = (2, 7)
REQUEST = CreateTopicsRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every topic."""
    refused = [
        CreateTopicsResponse.CreatableTopicResult(
            name=topic.name,
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=READ_ONLY,
            topic_config_error_code=ErrorCode.NONE,
            num_partitions=-1,
            replication_factor=-1,
            configs=None,
        )
        for topic in request.topics
    ]
    return CreateTopicsResponse(throttle_time_ms=0, topics=refused)

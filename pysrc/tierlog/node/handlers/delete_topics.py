"""DeleteTopics (20), versions 1 to 6. Refused: an archive is read only."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 20
VERSIONS = (1, 6)
REQUEST = DeleteTopicsRequest

_FIRST_WITH_IDS = 6


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every topic."""
    if request.version >= _FIRST_WITH_IDS:
        named = [(one.name, one.topic_id) for one in request.topics]
    else:
        named = [(name, None) for name in request.topic_names]
    refused = [
        DeleteTopicsResponse.DeletableTopicResult(
            name=name,
            topic_id=topic_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message=READ_ONLY,
        )
        for name, topic_id in named
    ]
    return DeleteTopicsResponse(throttle_time_ms=0, responses=refused)

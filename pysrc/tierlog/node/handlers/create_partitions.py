"""CreatePartitions (37), versions 0 to 3. Refused: an archive is read only."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 37
VERSIONS = (0, 3)
REQUEST = CreatePartitionsRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every topic."""
    refused = [
        CreatePartitionsResponse.CreatePartitionsTopicResult(
            name=topic.name, error_code=ErrorCode.POLICY_VIOLATION, error_message=READ_ONLY
        )
        for topic in request.topics
    ]
    return CreatePartitionsResponse(throttle_time_ms=0, results=refused)

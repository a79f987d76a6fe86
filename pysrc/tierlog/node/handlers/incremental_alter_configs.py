"""IncrementalAlterConfigs (44), versions 0 to 1. Refused: an archive is read only."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 44
VERSIONS = (0, 1)
REQUEST = IncrementalAlterConfigsRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Refuse every resource."""
    refused = [
        IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
            error_code=ErrorCode.POLICY_VIOLATION,
            error_message=READ_ONLY,
            resource_type=one.resource_type,
            resource_name=one.resource_name,
        )
        for one in request.resources
    ]
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=refused)

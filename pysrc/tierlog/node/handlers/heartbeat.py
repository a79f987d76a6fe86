"""Heartbeat (12), versions 0 to 4."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import HeartbeatRequest, HeartbeatResponse

from tierlog.node.connection import Client
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 12
VERSIONS = (0, 4)
REQUEST = HeartbeatRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Prolong the session of a member."""
    error = node.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    return HeartbeatResponse(error_code=error)

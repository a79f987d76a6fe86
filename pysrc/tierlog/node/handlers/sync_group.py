"""SyncGroup (14), versions 0 to 5."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import SyncGroupRequest, SyncGroupResponse

from tierlog.node.connection import Client
from tierlog.node.groups.types import SyncRequest
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 14
VERSIONS = (0, 5)
REQUEST = SyncGroupRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the member's assignment, once the leader has sent it."""
    answer = await node.groups.sync(
        SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments=[(one.member_id, one.assignment) for one in request.assignments],
        )
    )
    return SyncGroupResponse(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )

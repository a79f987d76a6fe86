"""JoinGroup (11), versions 0 to 9. Only the classic protocol."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import JoinGroupRequest, JoinGroupResponse

from tierlog.node.connection import Client
from tierlog.node.groups.types import JoinRequest, Protocol
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 11
VERSIONS = (0, 9)
REQUEST = JoinGroupRequest

_REBALANCE_TIMEOUT = 1
_REQUIRES_MEMBER_ID = 4
_NULL_PROTOCOL = 7
_SKIPS_ASSIGNMENT = 9


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return what the member needs to know of the next generation, when it starts."""
    version = request.version
    has_rebalance_timeout = version >= _REBALANCE_TIMEOUT
    answer = await node.groups.join(
        JoinRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=client.client_id,
            client_host=f"/{client.host}",
            protocol_type=request.protocol_type,
            protocols=[Protocol(one.name, one.metadata) for one in request.protocols],
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=(
                request.rebalance_timeout_ms
                if has_rebalance_timeout
                else request.session_timeout_ms
            ),
            requires_member_id=version >= _REQUIRES_MEMBER_ID,
            can_skip_assignment=version >= _SKIPS_ASSIGNMENT,
        )
    )
    protocol_name = answer.protocol_name
    return JoinGroupResponse(
        error_code=answer.error,
        generation_id=answer.generation,
        protocol_type=answer.protocol_type,
        protocol_name=protocol_name if version >= _NULL_PROTOCOL else protocol_name or "",
        leader=answer.leader_id,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=one.member_id, group_instance_id=one.instance_id, metadata=one.metadata
            )
            for one in answer.members
        ],
    )

"""LeaveGroup (13), versions 0 to 5."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.types import LeavingMember
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 13
VERSIONS = (0, 5)
REQUEST = LeaveGroupRequest

_SEVERAL_MEMBERS = 3


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Remove members from their group."""
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, members=[])
    if request.version < _SEVERAL_MEMBERS:
        (error,) = node.groups.leave(request.group_id, [LeavingMember(request.member_id)])
        return LeaveGroupResponse(error_code=error)
    leaving = [LeavingMember(one.member_id, one.group_instance_id) for one in request.members]
    errors = node.groups.leave(request.group_id, leaving)
    return LeaveGroupResponse(
        error_code=ErrorCode.NONE,
        members=[
            LeaveGroupResponse.MemberResponse(
                member_id=one.member_id, group_instance_id=one.instance_id, error_code=error
            )
            for one, error in zip(leaving, errors, strict=True)
        ],
    )

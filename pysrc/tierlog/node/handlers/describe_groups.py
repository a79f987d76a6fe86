"""DescribeGroups (15), versions 0 to 6. Every operation is authorized."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DescribeGroupsRequest, DescribeGroupsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.types import GroupState
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 15
VERSIONS = (0, 6)
REQUEST = DescribeGroupsRequest

_GROUP_NOT_FOUND = 6
# Kafka's numbers of the operations on a group: read, delete, describe, and those of its settings.
_OPERATIONS = frozenset((3, 6, 8, 10, 11))

_Group = DescribeGroupsResponse.DescribedGroup


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return state and members of each group; a group that does not exist is dead."""
    return DescribeGroupsResponse(groups=[_describe(node, request, one) for one in request.groups])


def _describe(node: Node, request: Any, group_id: str) -> Any:
    found = node.groups.describe(group_id)
    is_error = found.state is GroupState.DEAD and request.version >= _GROUP_NOT_FOUND
    is_asked = request.include_authorized_operations and not is_error
    return _Group(
        error_code=ErrorCode.GROUP_ID_NOT_FOUND if is_error else ErrorCode.NONE,
        error_message=f"Group {group_id} not found." if is_error else None,
        group_id=group_id,
        group_state=found.state.value,
        protocol_type=found.protocol_type,
        protocol_data=found.protocol_name,
        members=[
            _Group.DescribedGroupMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=one.client_host,
                member_metadata=one.metadata,
                member_assignment=one.assignment,
            )
            for one in found.members
        ],
        authorized_operations=_OPERATIONS if is_asked else None,
    )

"""ListGroups (16), versions 0 to 5. Every group is a classic one."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 16
VERSIONS = (0, 5)
REQUEST = ListGroupsRequest

_TYPE = "classic"


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the groups in the states and of the types that the request names."""
    states = {state.lower() for state in request.states_filter or ()}
    types = {name.lower() for name in request.types_filter or ()}
    has_type = not types or _TYPE in types
    return ListGroupsResponse(
        error_code=ErrorCode.NONE,
        groups=[
            ListGroupsResponse.ListedGroup(
                group_id=one.group_id,
                protocol_type=one.protocol_type,
                group_state=one.state.value,
                group_type=_TYPE,
            )
            for one in node.groups.list_groups()
            if has_type and (not states or one.state.value.lower() in states)
        ],
    )

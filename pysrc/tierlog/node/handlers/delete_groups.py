"""DeleteGroups (42), versions 0 to 2."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest, DeleteGroupsResponse

from tierlog.node.connection import Client
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 42
VERSIONS = (0, 2)
REQUEST = DeleteGroupsRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Delete groups without members, with their committed offsets."""
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(
                group_id=name, error_code=await node.groups.delete(name)
            )
            for name in request.groups_names
        ]
    )

"""FindCoordinator (10), versions 0 to 6. This node coordinates every group, and unless it is an
archive every transaction; there are no share groups."""

from __future__ import annotations

from typing import Any

from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 10
VERSIONS = (0, 6)
REQUEST = FindCoordinatorRequest

_GROUP, _TRANSACTION = 0, 1
_SEVERAL_KEYS = 4
_NO_NODE = {"node_id": -1, "host": "", "port": -1}


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return this node for groups and transactions."""
    error, message = ErrorCode.NONE, ""
    place = {
        "node_id": node.view.node_id,
        "host": client.node_host,
        "port": client.node_port,
    }
    if request.key_type == _TRANSACTION and node.transactions is None:
        error, place = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _NO_NODE
        message = "The archive is read-only: it has no transactions."
    elif request.key_type not in (_GROUP, _TRANSACTION):
        error, place = ErrorCode.INVALID_REQUEST, _NO_NODE
        message = "Only transactions and groups of the classic protocol have a coordinator here."
    if request.version < _SEVERAL_KEYS:
        return FindCoordinatorResponse(error_code=error, error_message=message or "NONE", **place)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(
                key=key, error_code=error, error_message=message, **place
            )
            for key in request.coordinator_keys
        ]
    )

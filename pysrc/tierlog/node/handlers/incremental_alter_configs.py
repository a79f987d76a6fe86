"""IncrementalAlterConfigs (44), versions 0 to 1: changes of single settings of topics and of this
node. Refused by an archive."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.resources import Outcome, alter, alter_each
from tierlog.node.node import Node
from tierlog.node.settings import Operation, SettingChange

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 44
VERSIONS = (0, 1)
REQUEST = IncrementalAlterConfigsRequest

_Answer = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_OPERATIONS = frozenset(Operation)


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Change the settings of one resource after the other."""
    answers = await alter_each(
        request, _Answer, lambda asked: _change(node, asked, bool(request.validate_only))
    )
    return IncrementalAlterConfigsResponse(throttle_time_ms=0, responses=answers)


async def _change(node: Node, asked: Any, validate_only: bool) -> Outcome:
    changes = [SettingChange(one.name, one.config_operation, one.value) for one in asked.configs]
    for one in changes:
        if one.operation not in _OPERATIONS:
            return ErrorCode.UNKNOWN_SERVER_ERROR, f"unknown operation {one.operation}"
    kind, name = asked.resource_type, asked.resource_name
    return await alter(node, kind, name, lambda _: changes, validate_only=validate_only)

"""AlterConfigs (33), versions 0 to 2: all settings of topics and of this node anew; those that are
not named get their defaults. Refused by an archive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kafka.protocol.admin import AlterConfigsRequest, AlterConfigsResponse

from tierlog.node.connection import Client
from tierlog.node.handlers.resources import Outcome, ResourceType, alter, alter_each
from tierlog.node.node import LocalTopics, Node
from tierlog.node.settings import Operation, SettingChange

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 33
VERSIONS = (0, 2)
REQUEST = AlterConfigsRequest

_Answer = AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Replace the settings of one resource after the other."""
    answers = await alter_each(
        request, _Answer, lambda asked: _replace(node, asked, bool(request.validate_only))
    )
    return AlterConfigsResponse(throttle_time_ms=0, responses=answers)


async def _replace(node: Node, asked: Any, validate_only: bool) -> Outcome:
    kind, name = asked.resource_type, asked.resource_name
    given = [SettingChange(one.name, Operation.SET, one.value) for one in asked.configs]

    def changes(local: LocalTopics) -> Sequence[SettingChange]:
        present = _present(local, kind, name)
        others = sorted(present - {one.name for one in given})
        return [*given, *(SettingChange(one, Operation.DELETE, None) for one in others)]

    return await alter(node, kind, name, changes, validate_only=validate_only)


def _present(local: LocalTopics, kind: int, name: str) -> set[str]:
    """Return the names of the settings that a resource has of its own."""
    if kind == ResourceType.TOPIC:
        return set(local.cluster_view().by_name[name].settings)
    return set(local.settings.this_node if name else local.settings.all_nodes)

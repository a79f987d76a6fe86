"""The table of APIs: one handler module for each. What ApiVersions advertises derives from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tierlog.node.connection import Client
from tierlog.node.handlers import (
    api_versions,
    delete_groups,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)
from tierlog.node.node import Node

__all__ = ["APIS", "Handler", "supported_versions"]


class Handler(Protocol):
    """A module of `handlers`."""

    KEY: int
    VERSIONS: tuple[int, int]
    REQUEST: Any

    async def handle(self, node: Node, request: Any, client: Client) -> Any:
        """Return the answer."""
        ...


_HANDLERS: tuple[Handler, ...] = (
    api_versions,
    delete_groups,
    describe_groups,
    fetch,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)

APIS: Mapping[int, Handler] = {handler.KEY: handler for handler in _HANDLERS}


def supported_versions() -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version of each API, by its key."""
    return {key: handler.VERSIONS for key, handler in APIS.items()}

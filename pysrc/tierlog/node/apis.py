"""The table of APIs: one handler module for each. What ApiVersions advertises derives from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tierlog.node.connection import Client
from tierlog.node.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
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
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    api_versions,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
    write_txn_markers,
    txn_offset_commit,
    describe_configs,
    alter_configs,
    describe_log_dirs,
    create_partitions,
    delete_groups,
    incremental_alter_configs,
    offset_delete,
    describe_cluster,
    describe_producers,
    describe_transactions,
    list_transactions,
    describe_topic_partitions,
)

APIS: Mapping[int, Handler] = {handler.KEY: handler for handler in _HANDLERS}


def supported_versions() -> dict[int, tuple[int, int]]:
    """Return the lowest and highest version of each API, by its key."""
    return {key: handler.VERSIONS for key, handler in APIS.items()}

"""Resources that settings belong to: topics and nodes, and what is wrong with a request for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import IntEnum

from tierlog.errors import ConfigError, TierlogError
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.node import LocalTopics, Node
from tierlog.node.settings import SettingChange
from tierlog.types import check_topic_name

__all__ = ["Outcome", "ResourceType", "alter", "find_fault"]

# A code, and the text that goes with it.
Outcome = tuple[ErrorCode, str | None]


class ResourceType(IntEnum):
    """What settings belong to, by Kafka's number."""

    TOPIC = 2
    NODE = 4


def find_fault(node: Node, kind: int, name: str) -> Outcome | None:
    """Return what is wrong with a resource; None for a topic that exists, this node, or with an
    empty name all nodes."""
    if kind == ResourceType.TOPIC:
        try:
            check_topic_name(name)
        except ValueError as error:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {error}"
        if name not in node.view.by_name:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        return None
    if kind != ResourceType.NODE:
        return ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}"
    if name in ("", str(node.view.node_id)):
        return None
    text = f"Unexpected broker id, expected {node.view.node_id} or empty string, found {name}"
    return ErrorCode.INVALID_REQUEST, text


async def alter(
    node: Node,
    kind: int,
    name: str,
    changes: Callable[[LocalTopics], Sequence[SettingChange]],
    *,
    validate_only: bool,
) -> Outcome:
    """Change settings of a resource of a node with topics of its own. `changes` are those of the
    request; it is called in a thread."""
    if node.local is None:
        return ErrorCode.POLICY_VIOLATION, READ_ONLY
    if kind == ResourceType.TOPIC and not name:
        return ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed."
    fault = find_fault(node, kind, name)
    if fault is not None:
        return fault
    return await asyncio.to_thread(_alter, node.local, kind, name, changes, validate_only)


def _alter(
    local: LocalTopics,
    kind: int,
    name: str,
    changes: Callable[[LocalTopics], Sequence[SettingChange]],
    validate_only: bool,
) -> Outcome:
    change = local.alter_topic if kind == ResourceType.TOPIC else local.alter_node
    try:
        change(name, changes(local), validate_only=validate_only)
    except KeyError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
    except ConfigError as error:
        return ErrorCode.INVALID_CONFIG, str(error)
    except (TierlogError, OSError) as error:
        return error_code_of(error), str(error)
    except ValueError as error:
        return ErrorCode.INVALID_REQUEST, str(error)
    return ErrorCode.NONE, None

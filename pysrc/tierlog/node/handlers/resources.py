"""Resources that settings belong to: topics and nodes, and what is wrong with a request for one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from typing import Any

from tierlog.errors import ConfigError, TierlogError
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.node import LocalTopics, Node
from tierlog.node.settings import SettingChange
from tierlog.types import check_topic_name

__all__ = ["Outcome", "ResourceType", "alter", "alter_each", "find_fault"]

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


async def alter_each(
    request: Any, answer_type: type[Any], change: Callable[[Any], Awaitable[Outcome]]
) -> list[Any]:
    """Change one resource of a request after the other; return their answers. A resource that the
    request names more than once is not changed."""
    named = [(one.resource_type, one.resource_name) for one in request.resources]
    answers = []
    for asked, name in zip(request.resources, named, strict=True):
        outcome: Outcome = ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
        if named.count(name) == 1:
            outcome = await change(asked)
        code, text = outcome
        answers.append(
            answer_type(
                error_code=code,
                error_message=text,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
        )
    return answers


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

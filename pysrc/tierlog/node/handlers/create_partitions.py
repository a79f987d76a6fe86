"""CreatePartitions (37), versions 0 to 3: more partitions of a topic. Refused by an archive."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreatePartitionsResponse

from tierlog.errors import TierlogError
from tierlog.node.connection import Client
from tierlog.node.error_codes import MAX_PARTITIONS, READ_ONLY, ErrorCode, error_code_of
from tierlog.node.node import LocalTopics, Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 37
VERSIONS = (0, 3)
REQUEST = CreatePartitionsRequest

_Result = CreatePartitionsResponse.CreatePartitionsTopicResult
# A code, and the text that goes with it.
_Outcome = tuple[ErrorCode, str | None]


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Add the partitions, one topic after the other."""
    names = [topic.name for topic in request.topics]
    results = []
    for asked in request.topics:
        if node.local is None:
            outcome: _Outcome = ErrorCode.POLICY_VIOLATION, READ_ONLY
        elif names.count(asked.name) > 1:
            outcome = ErrorCode.INVALID_REQUEST, "Duplicate topic name."
        else:
            validate_only = bool(request.validate_only)
            outcome = await asyncio.to_thread(_add, node.local, asked, validate_only)
        code, text = outcome
        results.append(_Result(name=asked.name, error_code=code, error_message=text))
    # As in Kafka, a topic that is named twice has one answer.
    unique = {one.name: one for one in results}
    return CreatePartitionsResponse(throttle_time_ms=0, results=list(unique.values()))


def _add(local: LocalTopics, asked: Any, validate_only: bool) -> _Outcome:
    view = local.cluster_view()
    topic = view.by_name.get(asked.name)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    refused = _refusal(asked, len(topic.partitions), view.node_id)
    if refused is not None:
        return refused
    if validate_only:
        return ErrorCode.NONE, None
    try:
        local.add_partitions(asked.name, asked.count)
    except KeyError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    except (TierlogError, OSError) as error:
        return error_code_of(error), str(error)
    except ValueError as error:
        # Another client was faster.
        return ErrorCode.INVALID_PARTITIONS, str(error)
    return ErrorCode.NONE, None


def _refusal(asked: Any, present: int, node_id: int) -> _Outcome | None:
    """Return why a topic with `present` partitions cannot have what is asked; None when it can."""
    count, assignments = asked.count, asked.assignments
    if count == present:
        return ErrorCode.INVALID_PARTITIONS, f"Topic already has {count} partition(s)."
    if count < present:
        return ErrorCode.INVALID_PARTITIONS, (
            f"The topic {asked.name} currently has {present} partition(s); "
            f"{count} would not be an increase."
        )
    if count > MAX_PARTITIONS:
        text = f"expected at most {MAX_PARTITIONS} partitions, found {count}"
        return ErrorCode.INVALID_PARTITIONS, text
    if assignments is None:
        return None
    if len(assignments) != count - present:
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, (
            f"Attempted to add {count - present} additional partition(s), "
            f"but only {len(assignments)} assignment(s) were specified."
        )
    if any(list(one.broker_ids) != [node_id] for one in assignments):
        text = f"expected every partition on node {node_id} alone"
        return ErrorCode.INVALID_REPLICA_ASSIGNMENT, text
    return None

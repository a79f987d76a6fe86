"""DeleteTopics (20), versions 1 to 6. An archive refuses it."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import DeleteTopicsRequest, DeleteTopicsResponse

from tierlog.errors import TierlogError
from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.node import LocalTopics, Node
from tierlog.types import kafka_uuid

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 20
VERSIONS = (1, 6)
REQUEST = DeleteTopicsRequest

_FIRST_WITH_IDS = 6
_Topic = DeleteTopicsResponse.DeletableTopicResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Delete the topics one after the other."""
    if request.version >= _FIRST_WITH_IDS:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    responses = []
    for name, topic_id in asked:
        code, text = await _delete(node, name, topic_id)
        row = _Topic(name=name, topic_id=topic_id, error_code=code, error_message=text)
        responses.append(row)
    return DeleteTopicsResponse(throttle_time_ms=0, responses=responses)


async def _delete(node: Node, name: str | None, topic_id: Any) -> tuple[ErrorCode, str | None]:
    if name is None and topic_id is not None:
        topic = node.view.by_id.get(kafka_uuid(topic_id))
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID, None
        name = topic.name
    if name is None or name not in node.view.by_name:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if node.local is None:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, READ_ONLY
    return await asyncio.to_thread(_delete_here, node.local, name)


def _delete_here(local: LocalTopics, name: str) -> tuple[ErrorCode, str | None]:
    try:
        local.delete_topic(name)
    except KeyError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    except (TierlogError, OSError) as error:
        return error_code_of(error), str(error)
    return ErrorCode.NONE, None

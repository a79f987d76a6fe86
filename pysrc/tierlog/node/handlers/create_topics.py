"""CreateTopics (19), versions 2 to 7. One replica; an archive refuses every topic."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from kafka.protocol.admin import CreateTopicsRequest, CreateTopicsResponse

from tierlog.errors import ConfigError, TierlogError
from tierlog.node.connection import Client
from tierlog.node.error_codes import MAX_PARTITIONS, READ_ONLY, ErrorCode, error_code_of
from tierlog.node.node import LocalTopics, Node
from tierlog.types import kafka_uuid_bytes

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 19
VERSIONS = (2, 7)
REQUEST = CreateTopicsRequest

_DEFAULT = -1
_Topic = CreateTopicsResponse.CreatableTopicResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Create the topics one after the other."""
    names = [topic.name for topic in request.topics]
    topics = []
    for asked in request.topics:
        if node.local is None:
            code = ErrorCode.POLICY_VIOLATION
            topics.append(_refuse(asked, code, READ_ONLY))
        elif names.count(asked.name) > 1:
            topics.append(_refuse(asked, ErrorCode.INVALID_REQUEST, "named more than once"))
        else:
            validate_only = bool(request.validate_only)
            topics.append(await asyncio.to_thread(_create, node.local, asked, validate_only))
    return CreateTopicsResponse(throttle_time_ms=0, topics=topics)


def _create(local: LocalTopics, asked: Any, validate_only: bool) -> Any:
    partitions = asked.num_partitions
    if asked.assignments:
        partitions = len(asked.assignments)
        wanted = sorted(one.partition_index for one in asked.assignments)
        nodes = {tuple(one.broker_ids) for one in asked.assignments}
        if wanted != list(range(partitions)) or nodes != {(local.cluster_view().node_id,)}:
            text = f"expected every partition on node {local.cluster_view().node_id} alone"
            return _refuse(asked, ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    elif partitions == _DEFAULT:
        partitions = 1
    if not 1 <= partitions <= MAX_PARTITIONS:
        text = f"expected 1 to {MAX_PARTITIONS} partitions, found {partitions}"
        return _refuse(asked, ErrorCode.INVALID_PARTITIONS, text)
    if asked.replication_factor not in (_DEFAULT, 1):
        text = f"expected replication factor 1, found {asked.replication_factor}: there is one node"
        return _refuse(asked, ErrorCode.INVALID_REPLICATION_FACTOR, text)
    settings = {one.name: one.value for one in asked.configs if one.value is not None}
    try:
        if validate_only:
            local.check_topic(asked.name, partitions, settings)
            return _Topic(name=asked.name, error_code=ErrorCode.NONE)
        created = local.create_topic(asked.name, partitions, settings)
    except KeyError:
        return _refuse(asked, ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists")
    except ConfigError as error:
        return _refuse(asked, ErrorCode.INVALID_CONFIG, str(error))
    except ValueError as error:
        return _refuse(asked, ErrorCode.INVALID_TOPIC_EXCEPTION, str(error))
    except (TierlogError, OSError) as error:
        return _refuse(asked, error_code_of(error), str(error))
    return _Topic(
        name=asked.name,
        topic_id=UUID(bytes=kafka_uuid_bytes(created.topic_id)),
        error_code=ErrorCode.NONE,
        num_partitions=partitions,
        replication_factor=1,
        configs=[],
    )


def _refuse(asked: Any, code: ErrorCode, text: str) -> Any:
    return _Topic(
        name=asked.name,
        error_code=code,
        error_message=text,
        num_partitions=-1,
        replication_factor=-1,
        configs=[],
    )

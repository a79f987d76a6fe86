"""OffsetCommit (8), versions 2 to 10."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import OffsetCommitRequest, OffsetCommitResponse

from tierlog.node.cluster_view import TopicView
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import CommittedOffset, TopicPartition
from tierlog.node.node import Node
from tierlog.types import kafka_uuid

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 8
VERSIONS = (2, 10)
REQUEST = OffsetCommitRequest

_GROUP_NOT_FOUND = 9
_TOPIC_IDS = 10
_NO_RETENTION = -1

_Topic = OffsetCommitResponse.OffsetCommitResponseTopic


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Store offsets of partitions that exist, durable before the answer."""
    offsets: dict[TopicPartition, CommittedOffset] = {}
    now_ms = node.clock.now_ms()
    has_retention = request.retention_time_ms != _NO_RETENTION
    expire_ms = now_ms + request.retention_time_ms if has_retention else None
    # Each partition with its error; NONE for those to be stored.
    checked: list[tuple[Any, list[tuple[int, ErrorCode]]]] = []
    for asked in request.topics:
        topic = _find_topic(node, request.version, asked)
        errors = [
            (one.partition_index, _check(node, request, topic, one)) for one in asked.partitions
        ]
        checked.append((asked, errors))
        for one, (index, error) in zip(asked.partitions, errors, strict=True):
            if topic is not None and error is ErrorCode.NONE:
                offsets[TopicPartition(topic.name, index)] = CommittedOffset(
                    offset=one.committed_offset,
                    leader_epoch=one.committed_leader_epoch,
                    metadata=one.committed_metadata or "",
                    commit_ms=now_ms,
                    expire_ms=expire_ms,
                )
    return _response(checked, await _store(node, request, offsets))


async def _store(
    node: Node, request: Any, offsets: dict[TopicPartition, CommittedOffset]
) -> ErrorCode:
    if not offsets:
        return ErrorCode.NONE
    error = await node.groups.commit(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
    )
    if error is ErrorCode.GROUP_ID_NOT_FOUND and request.version < _GROUP_NOT_FOUND:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _find_topic(node: Node, version: int, asked: Any) -> TopicView | None:
    if version < _TOPIC_IDS:
        return node.view.by_name.get(asked.name)
    return None if asked.topic_id is None else node.view.by_id.get(kafka_uuid(asked.topic_id))


def _check(node: Node, request: Any, topic: TopicView | None, partition: Any) -> ErrorCode:
    if topic is None and request.version >= _TOPIC_IDS:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None or partition.partition_index not in topic.by_index:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    limit = node.config.group.offset_metadata_max_bytes
    is_too_large = len(partition.committed_metadata or "") > limit
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_large else ErrorCode.NONE


def _response(checked: list[tuple[Any, list[tuple[int, ErrorCode]]]], stored: ErrorCode) -> Any:
    return OffsetCommitResponse(
        topics=[
            _Topic(
                name=asked.name,
                topic_id=asked.topic_id,
                partitions=[
                    _Topic.OffsetCommitResponsePartition(
                        partition_index=index, error_code=error or stored
                    )
                    for index, error in errors
                ],
            )
            for asked, errors in checked
        ]
    )

"""OffsetFetch (9), versions 1 to 10."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import OffsetFetchRequest, OffsetFetchResponse

from tierlog.node.cluster_view import ClusterView
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import CommittedOffset, TopicPartition
from tierlog.node.node import Node
from tierlog.types import kafka_uuid, kafka_uuid_bytes

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 9
VERSIONS = (1, 10)
REQUEST = OffsetFetchRequest

_SEVERAL_GROUPS = 8
_TOPIC_IDS = 10
_NOTHING = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_ms=0)
# Answered when a transaction may still change the offset.
_UNSTABLE = CommittedOffset(offset=-1, leader_epoch=-1, metadata="", commit_ms=-1)

_Group = OffsetFetchResponse.OffsetFetchResponseGroup
_Offsets = Mapping[TopicPartition, CommittedOffset]


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the committed offsets of the partitions that the request names, or of all of them.

    A partition without a committed offset has offset -1. A client that requires stable offsets is
    told to wait for a transaction that is to commit others.
    """
    wants_stable = bool(request.require_stable)
    if request.version < _SEVERAL_GROUPS:
        make_topic = OffsetFetchResponse.OffsetFetchResponseTopic
        topics, error = await _fetch(
            node, request.group_id, request.topics, make_topic, wants_stable
        )
        return OffsetFetchResponse(topics=topics, error_code=error)
    make_topic = _Group.OffsetFetchResponseTopics
    uses_ids = request.version >= _TOPIC_IDS
    fetch = _fetch_by_id if uses_ids else _fetch
    groups = []
    for asked in request.groups:
        topics, error = await fetch(node, asked.group_id, asked.topics, make_topic, wants_stable)
        groups.append(_Group(group_id=asked.group_id, topics=topics, error_code=error))
    return OffsetFetchResponse(groups=groups)


async def _fetch(
    node: Node,
    group_id: str,
    topics: Iterable[Any] | None,
    make_topic: Any,
    wants_stable: bool,
) -> tuple[list[Any], ErrorCode]:
    """Return the answers for each topic by its name."""
    found: _Offsets | None
    if topics is None:
        found = await _read(node, group_id, None, wants_stable)
        if found is None:
            return [], ErrorCode.COORDINATOR_NOT_AVAILABLE
        return [
            _topic(make_topic, found, name, [at.partition for at in places])
            for name, places in groupby(found, key=lambda at: at.topic)
        ], ErrorCode.NONE
    asked = [(one.name, one.partition_indexes) for one in topics]
    found = await _offsets(node, group_id, asked, wants_stable)
    error = ErrorCode.NONE if found is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return [_topic(make_topic, found or {}, name, indexes, error) for name, indexes in asked], error


async def _fetch_by_id(
    node: Node,
    group_id: str,
    topics: Iterable[Any] | None,
    make_topic: Any,
    wants_stable: bool,
) -> tuple[list[Any], ErrorCode]:
    """Return the answers for each topic by its id; topics that are gone have none."""
    view = node.view
    if topics is None:
        made, error = await _fetch(node, group_id, None, make_topic, wants_stable)
        known = [one for one in made if one.name in view.by_name]
        for one in known:
            one.topic_id = UUID(bytes=kafka_uuid_bytes(view.by_name[one.name].topic_id))
        return known, error
    names = [(_name_of(view, one.topic_id), one) for one in topics]
    asked = [(name, one.partition_indexes) for name, one in names if name is not None]
    found = await _offsets(node, group_id, asked, wants_stable)
    error = ErrorCode.NONE if found is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE
    made = []
    for name, one in names:
        topic_error = ErrorCode.UNKNOWN_TOPIC_ID if name is None else error
        topic = _topic(make_topic, found or {}, name or "", one.partition_indexes, topic_error)
        topic.topic_id = one.topic_id
        made.append(topic)
    return made, error


def _name_of(view: ClusterView, topic_id: UUID | None) -> str | None:
    found = None if topic_id is None else view.by_id.get(kafka_uuid(topic_id))
    return None if found is None else found.name


async def _offsets(
    node: Node, group_id: str, asked: Iterable[tuple[str, list[int]]], wants_stable: bool
) -> _Offsets | None:
    places = [TopicPartition(name, index) for name, indexes in asked for index in indexes]
    return await _read(node, group_id, places, wants_stable)


async def _read(
    node: Node, group_id: str, places: list[TopicPartition] | None, wants_stable: bool
) -> _Offsets | None:
    """Return the committed offsets; None when they cannot be read."""
    pending = node.groups.pending_partitions(group_id) if wants_stable else set()
    found = await node.groups.offsets(group_id, places)
    if found is None or not pending:
        return found
    return found | {at: _UNSTABLE for at in (found if places is None else places) if at in pending}


def _topic(
    make_topic: Any,
    found: _Offsets,
    name: str,
    indexes: Iterable[int],
    error: ErrorCode = ErrorCode.NONE,
) -> Any:
    is_group = make_topic is _Group.OffsetFetchResponseTopics
    make_partition = (
        make_topic.OffsetFetchResponsePartitions
        if is_group
        else make_topic.OffsetFetchResponsePartition
    )
    partitions = []
    for index in indexes:
        one = found.get(TopicPartition(name, index), _NOTHING)
        partitions.append(
            make_partition(
                partition_index=index,
                committed_offset=one.offset,
                committed_leader_epoch=one.leader_epoch,
                metadata=one.metadata,
                error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT if one is _UNSTABLE else error,
            )
        )
    return make_topic(name=name, partitions=partitions)

"""Fetch (1), versions 4 to 18. No incremental sessions: every answer is a full one, with session 0.

The bytes of records are sent as they were read: the answer is a list of buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.consumer import FetchRequest as WireFetchRequest

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode, error_code_of
from tierlog.node.fetch_answer import FetchedPartition, FetchedTopic, encode_fetch
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import Node
from tierlog.node.wire import RawBody
from tierlog.reader.types import CONSUMER, FetchPartition, FetchRequest, IsolationLevel
from tierlog.types import TopicIdPartition

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 1
VERSIONS = (4, 18)
REQUEST = WireFetchRequest

_FIRST_WITH_IDS = 13
_FIRST_WITH_REPLICA_STATE = 15


@dataclass(slots=True)
class _Asked:
    """A partition of the request, and its place in the answer."""

    answer: FetchedPartition
    partition: TopicIdPartition
    offset: int
    max_bytes: int
    leader_epoch: int


async def handle(node: Node, request: Any, client: Client) -> RawBody:
    """Return the records of each partition."""
    version = request.version
    if request.session_id != 0:
        # A session of another server: the client begins anew.
        return encode_fetch(version, ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    topics, asked = _read_request(node, request)
    failed = await node.cluster.prepare([one.partition for one in asked])
    ready = [one for one in asked if not _is_failed(one, failed)]
    if ready or not topics:
        await _fetch(node, request, client, ready)
    return encode_fetch(version, ErrorCode.NONE, topics)


def _read_request(node: Node, request: Any) -> tuple[list[FetchedTopic], list[_Asked]]:
    """Return the topics of the answer, and the partitions in them that exist."""
    view, version = node.view, request.version
    is_replica = _replica_id(request) >= 0
    topics: list[FetchedTopic] = []
    asked: list[_Asked] = []
    for wanted in request.topics:
        topic_id = wanted.topic_id if version >= _FIRST_WITH_IDS else None
        topic = FetchedTopic(wanted.topic, topic_id)
        topics.append(topic)
        for one in wanted.partitions:
            answer = FetchedPartition(one.partition)
            topic.partitions.append(answer)
            found, answer.error = find_partition(view, wanted.topic, topic_id, one.partition)
            if version >= _FIRST_WITH_IDS and topic_id is None:
                answer.error = ErrorCode.UNKNOWN_TOPIC_ID
            elif is_replica:
                # A client is no broker, whatever it says.
                answer.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif found is not None:
                offset, max_bytes = one.fetch_offset, one.partition_max_bytes
                epoch = one.current_leader_epoch
                asked.append(_Asked(answer, found.stored_as, offset, max_bytes, epoch))
    return topics, asked


def _replica_id(request: Any) -> int:
    if request.version < _FIRST_WITH_REPLICA_STATE:
        return int(request.replica_id)
    return CONSUMER if request.replica_state is None else int(request.replica_state.replica_id)


def _is_failed(asked: _Asked, failed: Mapping[TopicIdPartition, Exception]) -> bool:
    error = failed.get(asked.partition)
    if error is not None:
        asked.answer.error = error_code_of(error)
    return error is not None


async def _fetch(node: Node, request: Any, client: Client, asked: list[_Asked]) -> None:
    """Fetch the partitions and fill in their answers."""
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    response = await node.fetcher.fetch(
        FetchRequest(
            partitions=tuple(
                FetchPartition(
                    partition=one.partition,
                    fetch_offset=one.offset,
                    max_bytes=one.max_bytes,
                    current_leader_epoch=one.leader_epoch,
                )
                for one in asked
            ),
            max_bytes=min(request.max_bytes, node.config.node.fetch_max_bytes),
            min_bytes=request.min_bytes,
            max_wait_ms=max(0, request.max_wait_ms),
            isolation_level=IsolationLevel(int(committed)),
            client_id=client.client_id,
        )
    )
    for one, data in zip(asked, response.partitions, strict=True):
        one.answer.fill(data)

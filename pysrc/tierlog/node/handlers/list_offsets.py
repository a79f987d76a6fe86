"""ListOffsets (2), versions 1 to 11: by time, and -1 latest to -6 earliest pending upload."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

from tierlog.fetch.offsets import OffsetAnswer
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import Node
from tierlog.reader.types import IsolationLevel
from tierlog.types import TopicIdPartition

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 2
VERSIONS = (1, 11)
REQUEST = ListOffsetsRequest

_FIRST_WITH_TIMEOUT = 10
# The first version that has the name; an older one means something else by the number.
_FIRST_VERSION_OF = {-3: 7, -4: 8, -5: 9, -6: 11}
_Topic = ListOffsetsResponse.ListOffsetsTopicResponse
_Partition = _Topic.ListOffsetsPartitionResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return an offset for each partition."""
    wanted = [(topic, one) for topic in request.topics for one in topic.partitions]
    answers = iter(
        await asyncio.gather(
            *(_look_up(node, request, client, topic.name, one) for topic, one in wanted)
        )
    )
    topics = [
        _Topic(name=topic.name, partitions=[next(answers) for _ in topic.partitions])
        for topic in request.topics
    ]
    return ListOffsetsResponse(throttle_time_ms=0, topics=topics)


async def _look_up(node: Node, request: Any, client: Client, topic: str, asked: Any) -> Any:
    found, error = find_partition(node.view, topic, None, asked.partition_index)
    first_version = _FIRST_VERSION_OF.get(asked.timestamp, 1)
    if request.version < first_version:
        error = ErrorCode.UNSUPPORTED_VERSION
    if found is None or error is not ErrorCode.NONE:
        return _answer(asked, error)
    partition = found.stored_as
    failed = await node.cluster.prepare([partition])
    if partition in failed:
        return _answer(asked, error_code_of(failed[partition]))
    answer = await _find(node, request, client, partition, asked.timestamp)
    return _answer(asked, int(answer.error), answer)


async def _find(
    node: Node, request: Any, client: Client, partition: TopicIdPartition, timestamp: int
) -> OffsetAnswer:
    timeout_ms = node.config.node.list_offsets_request_timeout_ms
    if request.version >= _FIRST_WITH_TIMEOUT and request.timeout_ms > 0:
        timeout_ms = request.timeout_ms
    committed = request.isolation_level == IsolationLevel.READ_COMMITTED
    return await node.fetcher.list_offset(
        partition,
        timestamp,
        isolation_level=IsolationLevel(int(committed)),
        client_id=client.client_id,
        timeout_ms=timeout_ms,
    )


def _answer(asked: Any, error: int, found: OffsetAnswer | None = None) -> Any:
    found = found or OffsetAnswer()
    return _Partition(
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=found.timestamp_ms,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )

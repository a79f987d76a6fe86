"""DeleteRecords (21), versions 0 to 2. An archive refuses it."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse

from tierlog.errors import TierlogError
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 21
VERSIONS = (0, 2)
REQUEST = DeleteRecordsRequest

_Topic = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = _Topic.DeleteRecordsPartitionResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Raise the log start offset of each partition."""
    topics = []
    for topic in request.topics:
        rows = []
        for asked in topic.partitions:
            code, offset = await _delete(node, topic.name, asked)
            index = asked.partition_index
            rows.append(_Partition(partition_index=index, low_watermark=offset, error_code=code))
        topics.append(_Topic(name=topic.name, partitions=rows))
    return DeleteRecordsResponse(throttle_time_ms=0, topics=topics)


async def _delete(node: Node, name: str, asked: Any) -> tuple[int, int]:
    found, error = find_partition(node.view, name, None, asked.partition_index)
    if found is None:
        return error, -1
    if node.local is None:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, -1
    if asked.offset < -1:
        return ErrorCode.OFFSET_OUT_OF_RANGE, -1
    try:
        partition, offset = found.stored_as, asked.offset
        start = await asyncio.to_thread(node.local.delete_records, partition, offset)
        return ErrorCode.NONE, start
    except KeyError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1
    except AppendRefusedError as error:
        return int(error.code), -1
    except (TierlogError, OSError) as error:
        return error_code_of(error), -1

"""Produce (0), versions 0 to 13. No transactions, and no messages of magic 0 and 1.

librdkafka fetches only from servers that have this API from version 0 on. Acks of 1 and of all are
the same, since there are no other replicas. An archive refuses every record.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tierlog.errors import TierlogError
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import LocalTopics, Node
from tierlog.types import TopicIdPartition

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 0
VERSIONS = (0, 13)
REQUEST = ProduceRequest

_FIRST_WITH_IDS = 13
_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Append the records of each partition; None, so no answer, when the client wants none."""
    wanted = [(topic, one) for topic in request.topic_data for one in topic.partition_data]
    answers = iter(
        await asyncio.gather(*(_append(node, request, topic, one) for topic, one in wanted))
    )
    topics = [
        _Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partition_responses=[next(answers) for _ in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    if request.acks == 0:
        return None
    return ProduceResponse(responses=topics, throttle_time_ms=0)


async def _append(node: Node, request: Any, topic: Any, asked: Any) -> Any:
    if node.local is None:
        return _refuse(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED, READ_ONLY)
    topic_id = topic.topic_id if request.version >= _FIRST_WITH_IDS else None
    found, error = find_partition(node.view, topic.name, topic_id, asked.index)
    if found is None:
        return _refuse(asked, error)
    if request.acks not in (-1, 0, 1):
        return _refuse(asked, ErrorCode.INVALID_REQUIRED_ACKS, "acks is -1, 0 or 1")
    if request.transactional_id is not None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refuse(asked, code, "this node has no transactions")
    return await asyncio.to_thread(_append_here, node.local, found.stored_as, asked)


def _append_here(local: LocalTopics, partition: TopicIdPartition, asked: Any) -> Any:
    try:
        appended = local.append(partition, bytes(asked.records or b""))
    except AppendRefusedError as error:
        return _refuse(asked, int(error.code), error.text)
    except KeyError:
        return _refuse(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except (TierlogError, OSError) as error:
        return _refuse(asked, error_code_of(error), str(error))
    return _Partition(
        index=asked.index,
        error_code=ErrorCode.NONE,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=appended.log_start_offset,
    )


def _refuse(asked: Any, code: int, text: str | None = None) -> Any:
    return _Partition(
        index=asked.index,
        error_code=code,
        base_offset=-1,
        log_append_time_ms=-1,
        log_start_offset=-1,
        record_errors=[],
        error_message=text,
    )

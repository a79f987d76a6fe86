"""DescribeProducers (61), version 0."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from tierlog.errors import TierlogError
from tierlog.log.index_files import ProducerSnapshot
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 61
VERSIONS = (0, 0)
REQUEST = DescribeProducersRequest

_Topic = DescribeProducersResponse.TopicResponse
_Partition = _Topic.PartitionResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the producers that wrote to each partition and have not expired."""
    topics = [
        _Topic(
            name=topic.name,
            partitions=[
                await _describe(node, topic.name, index) for index in topic.partition_indexes
            ],
        )
        for topic in request.topics
    ]
    return DescribeProducersResponse(throttle_time_ms=0, topics=topics)


async def _describe(node: Node, topic: str, index: int) -> Any:
    found, error = find_partition(node.view, topic, None, index)
    if found is None:
        return _refuse(index, error)
    if node.local is None:
        return _refuse(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED, READ_ONLY)
    try:
        producers = await asyncio.to_thread(node.local.describe_producers, found.stored_as)
    except KeyError:
        return _refuse(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    except AppendRefusedError as refused:
        return _refuse(index, int(refused.code), refused.text)
    except (TierlogError, OSError) as failed:
        return _refuse(index, error_code_of(failed), str(failed))
    return _Partition(
        partition_index=index,
        error_code=ErrorCode.NONE,
        error_message=None,
        active_producers=_rows(producers),
    )


def _rows(producers: ProducerSnapshot) -> list[Any]:
    rows = zip(
        producers.producer_id.tolist(),
        producers.producer_epoch.tolist(),
        producers.last_sequence.tolist(),
        producers.timestamp_ms.tolist(),
        producers.coordinator_epoch.tolist(),
        producers.current_txn_first_offset.tolist(),
        strict=True,
    )
    return [
        _Partition.ProducerState(
            producer_id=producer_id,
            producer_epoch=epoch,
            last_sequence=sequence,
            last_timestamp=newest_ms,
            coordinator_epoch=coordinator_epoch,
            current_txn_start_offset=first_offset,
        )
        for producer_id, epoch, sequence, newest_ms, coordinator_epoch, first_offset in rows
    ]


def _refuse(index: int, code: int, text: str | None = None) -> Any:
    return _Partition(
        partition_index=index, error_code=code, error_message=text, active_producers=[]
    )

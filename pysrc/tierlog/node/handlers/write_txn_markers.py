"""WriteTxnMarkers (27), versions 1 to 2: an administrator ends a transaction that hangs."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import LocalTopics, Node
from tierlog.node.transactions.types import Partition

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 27
VERSIONS = (1, 2)
REQUEST = WriteTxnMarkersRequest

_Marker = WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Marker.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Write each marker to its partitions."""
    return WriteTxnMarkersResponse(
        markers=[
            _Marker(
                producer_id=marker.producer_id,
                topics=[
                    _Topic(
                        name=topic.name,
                        partitions=[
                            _Partition(
                                partition_index=index,
                                error_code=await _write(node, marker, topic.name, index),
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


async def _write(node: Node, marker: Any, name: str, index: int) -> int:
    topic = node.view.by_name.get(name)
    if node.local is None or (topic is not None and topic.is_internal):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None or index not in topic.by_index:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return await asyncio.to_thread(_write_here, node.local, marker, Partition(name, index))


def _write_here(local: LocalTopics, marker: Any, partition: Partition) -> int:
    try:
        local.write_marker(
            partition,
            ProducerEpoch(marker.producer_id, marker.producer_epoch),
            is_commit=marker.transaction_result,
            epoch=marker.coordinator_epoch,
        )
    except AppendRefusedError as error:
        return int(error.code)
    except KeyError:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE

"""AddPartitionsToTxn (24), versions 0 to 3: those of producers. Later ones are for brokers."""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.txn_errors import refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.types import Partition, TransactionRefusedError

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 24
VERSIONS = (0, 3)
REQUEST = AddPartitionsToTxnRequest

_Topic = AddPartitionsToTxnResponse.AddPartitionsToTxnResult.AddPartitionsToTxnTopicResult
_Partition = _Topic.AddPartitionsToTxnPartitionResult


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Make all partitions part of the producer's transaction, or none of them."""
    asked = [
        Partition(topic.name, index)
        for topic in request.v3_and_below_topics
        for index in topic.partitions
    ]
    errors = {one: _check(node, one) for one in asked}
    if any(errors.values()):
        errors = {one: error or ErrorCode.OPERATION_NOT_ATTEMPTED for one, error in errors.items()}
    else:
        errors = dict.fromkeys(asked, await _add(node, request, asked))
    return AddPartitionsToTxnResponse(
        throttle_time_ms=0,
        results_by_topic_v3_and_below=[
            _Topic(
                name=topic.name,
                results_by_partition=[
                    _Partition(
                        partition_index=index,
                        partition_error_code=errors[Partition(topic.name, index)],
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ],
    )


def _check(node: Node, asked: Partition) -> ErrorCode:
    topic = node.view.by_name.get(asked.topic)
    if node.transactions is None or (topic is not None and topic.is_internal):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic is None or asked.number not in topic.by_index:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


async def _add(node: Node, request: Any, partitions: list[Partition]) -> ErrorCode:
    if node.transactions is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer = ProducerEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    try:
        await node.transactions.add_partitions(
            request.v3_and_below_transactional_id, producer, partitions
        )
    except TransactionRefusedError as error:
        return refusal_code(KEY, request.version, error)
    return ErrorCode.NONE

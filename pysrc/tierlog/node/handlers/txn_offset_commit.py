"""TxnOffsetCommit (28), versions 0 to 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.protocol.producer import TxnOffsetCommitRequest, TxnOffsetCommitResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.groups.offsets import CommittedOffset, TopicPartition
from tierlog.node.handlers.txn_errors import append_refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.service import offsets_partition
from tierlog.node.transactions.types import TransactionRefusedError

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 28
VERSIONS = (0, 5)
REQUEST = TxnOffsetCommitRequest

_FIRST_WITH_ABORTABLE = 4
_FIRST_THAT_ADDS = 5

_Topic = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Partition = _Topic.TxnOffsetCommitResponsePartition


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Store offsets that count once the producer's transaction is committed."""
    errors = {
        TopicPartition(topic.name, one.partition_index): _check(node, topic.name, one)
        for topic in request.topics
        for one in topic.partitions
    }
    now_ms = node.clock.now_ms()
    offsets = {
        at: CommittedOffset(
            offset=one.committed_offset,
            leader_epoch=one.committed_leader_epoch,
            metadata=one.committed_metadata or "",
            commit_ms=now_ms,
        )
        for topic in request.topics
        for one in topic.partitions
        if not errors[at := TopicPartition(topic.name, one.partition_index)]
    }
    stored = await _store(node, request, offsets) if offsets else ErrorCode.NONE
    return TxnOffsetCommitResponse(
        throttle_time_ms=0,
        topics=[
            _Topic(
                name=topic.name,
                partitions=[
                    _Partition(
                        partition_index=one.partition_index,
                        error_code=errors[TopicPartition(topic.name, one.partition_index)]
                        or stored,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _check(node: Node, topic: str, partition: Any) -> ErrorCode:
    if node.view.find(topic, partition.partition_index) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    limit = node.config.group.offset_metadata_max_bytes
    is_too_large = len(partition.committed_metadata or "") > limit
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if is_too_large else ErrorCode.NONE


async def _store(
    node: Node, request: Any, offsets: Mapping[TopicPartition, CommittedOffset]
) -> ErrorCode:
    if node.transactions is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)

    async def commit() -> ErrorCode:
        return await node.groups.commit_in_transaction(
            producer.producer_id,
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            offsets,
        )

    try:
        error = await node.transactions.append(
            request.transactional_id,
            producer,
            offsets_partition(request.group_id),
            commit,
            adds_partition=request.version >= _FIRST_THAT_ADDS,
        )
    except TransactionRefusedError as refused:
        knows = request.version >= _FIRST_WITH_ABORTABLE
        return append_refusal_code(refused, knows_abortable=knows)
    is_unknown = error is ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION if is_unknown else error

"""Produce (0), versions 0 to 13. No messages of magic 0 and 1.

librdkafka fetches only from servers that have this API from version 0 on. Acks of 1 and of all are
the same, since there are no other replicas. An archive refuses every record.

A transactional batch needs a transaction that its partition is part of. From version 12 on the
batch itself makes the partition part of it (KIP-890).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tierlog.errors import TierlogError
from tierlog.log.writer.batches import ProducerEpoch, transactional_producer
from tierlog.log.writer.partition import Appended
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.node.connection import Client
from tierlog.node.error_codes import READ_ONLY, ErrorCode, error_code_of
from tierlog.node.handlers.partitions import find_partition
from tierlog.node.handlers.txn_errors import append_refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.types import Partition, TransactionRefusedError
from tierlog.types import TopicIdPartition

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 0
VERSIONS = (0, 13)
REQUEST = ProduceRequest

_FIRST_WITH_IDS = 13
_FIRST_WITH_ABORTABLE = 11
_FIRST_THAT_ADDS = 12
# Producers send their batches again after this code.
_RETRIED = dict.fromkeys(
    (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ErrorCode.NOT_ENOUGH_REPLICAS,
)
# Refusals by what the records say: the answer has the log start offset, by which a producer knows
# that its earlier records were deleted.
_BY_CONTENT = frozenset(
    {
        Refusal.INVALID_TIMESTAMP,
        Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Refusal.INVALID_PRODUCER_EPOCH,
        Refusal.INVALID_TXN_STATE,
        Refusal.INVALID_RECORD,
    }
)
_Topic = ProduceResponse.TopicProduceResponse
_Partition = _Topic.PartitionProduceResponse


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Append the records of each partition; None, so no answer, when the client wants none."""
    wanted = [(topic, one) for topic in request.topic_data for one in topic.partition_data]
    appends = [_append(node, request, topic, one) for topic, one in wanted]
    # Tasks would take longer than the append of a small batch.
    answers = iter([await appends[0]] if len(appends) == 1 else await asyncio.gather(*appends))
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
    producer = transactional_producer(asked.records or b"")
    if producer is None:
        return await _append_to_log(node, found.stored_as, asked)
    return await _append_in_transaction(node, request, found.stored_as, asked, producer)


async def _append_in_transaction(
    node: Node, request: Any, at: TopicIdPartition, asked: Any, producer: ProducerEpoch
) -> Any:
    transactional_id = request.transactional_id
    if node.transactions is None or transactional_id is None:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refuse(asked, code, "a transactional batch needs a transactional id")

    async def append() -> Any:
        return await _append_to_log(node, at, asked, producer)

    try:
        return await node.transactions.append(
            transactional_id,
            producer,
            Partition(at.topic, at.partition),
            append,
            adds_partition=request.version >= _FIRST_THAT_ADDS,
        )
    except TransactionRefusedError as error:
        knows = request.version >= _FIRST_WITH_ABORTABLE
        code = append_refusal_code(error, knows_abortable=knows)
        return _refuse(asked, _RETRIED.get(code, code), error.text)


async def _append_to_log(
    node: Node, at: TopicIdPartition, asked: Any, transaction_of: ProducerEpoch | None = None
) -> Any:
    """Append here when that takes no time, else in a thread."""
    assert node.local is not None
    records = bytes(asked.records or b"")
    try:
        return _answer_append(node, node.local.append_at_once, at, asked, records, transaction_of)
    except BlockingIOError:
        append = node.local.append
        return await asyncio.to_thread(
            _answer_append, node, append, at, asked, records, transaction_of
        )


def _answer_append(
    node: Node,
    append: Callable[[TopicIdPartition, bytes, ProducerEpoch | None], Appended],
    partition: TopicIdPartition,
    asked: Any,
    records: bytes,
    transaction_of: ProducerEpoch | None,
) -> Any:
    try:
        appended = append(partition, records, transaction_of)
    except BlockingIOError:
        raise
    except AppendRefusedError as error:
        answer = _refuse(asked, int(error.code), error.text)
        if error.code in _BY_CONTENT and (view := node.cluster.view(partition)) is not None:
            answer.log_start_offset = view.log_start_offset
        return answer
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

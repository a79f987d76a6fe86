"""DescribeTransactions (65), version 0."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kafka.protocol.admin import DescribeTransactionsRequest, DescribeTransactionsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node
from tierlog.node.transactions.types import Transaction

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 65
VERSIONS = (0, 0)
REQUEST = DescribeTransactionsRequest

_State = DescribeTransactionsResponse.TransactionState


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the latest transaction of each transactional id."""
    rows = [_describe(node, name) for name in request.transactional_ids]
    return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=rows)


def _describe(node: Node, transactional_id: str) -> Any:
    found = None if node.transactions is None else node.transactions.describe(transactional_id)
    if found is None:
        is_named = bool(transactional_id)
        error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if is_named else ErrorCode.INVALID_REQUEST
        return _State(
            error_code=error,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout_ms=0,
            transaction_start_time_ms=0,
            producer_id=0,
            producer_epoch=0,
            topics=[],
        )
    return _State(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout_ms=found.timeout_ms,
        transaction_start_time_ms=found.started_ms,
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=_topics(found),
    )


def _topics(found: Transaction) -> list[Any]:
    by_topic = groupby(sorted(found.partitions), key=lambda one: one.topic)
    return [
        _State.TopicData(topic=topic, partitions=[one.number for one in some])
        for topic, some in by_topic
    ]

"""AddOffsetsToTxn (25), versions 0 to 4."""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.txn_errors import refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.service import offsets_partition
from tierlog.node.transactions.types import TransactionRefusedError

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 25
VERSIONS = (0, 4)
REQUEST = AddOffsetsToTxnRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Make the offsets of a group part of the producer's transaction."""
    return AddOffsetsToTxnResponse(throttle_time_ms=0, error_code=await _add(node, request))


async def _add(node: Node, request: Any) -> ErrorCode:
    if node.transactions is None:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    producer = ProducerEpoch(request.producer_id, request.producer_epoch)
    try:
        await node.transactions.add_partitions(
            request.transactional_id, producer, [offsets_partition(request.group_id)]
        )
    except TransactionRefusedError as error:
        return refusal_code(KEY, request.version, error)
    return ErrorCode.NONE

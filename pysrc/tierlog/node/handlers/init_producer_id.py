"""InitProducerId (22), versions 0 to 5. An archive refuses it."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.txn_errors import refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.types import TransactionRefusedError

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 22
VERSIONS = (0, 5)
REQUEST = InitProducerIdRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return a new producer id with epoch 0, or the next epoch of a transactional id."""
    if node.local is None or node.transactions is None:
        return _refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    expected = ProducerEpoch(request.producer_id, request.producer_epoch)
    if (expected.producer_id < 0) != (expected.epoch < 0):
        return _refuse(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        producer = ProducerEpoch(await asyncio.to_thread(node.local.next_producer_id), 0)
    else:
        try:
            producer = await node.transactions.init_producer(
                request.transactional_id,
                request.transaction_timeout_ms,
                None if expected.producer_id < 0 else expected,
            )
        except TransactionRefusedError as error:
            return _refuse(refusal_code(KEY, request.version, error))
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _refuse(code: ErrorCode) -> Any:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)

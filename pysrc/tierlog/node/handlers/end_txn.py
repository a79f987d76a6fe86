"""EndTxn (26), versions 0 to 5. The answer comes when the markers are written."""

from __future__ import annotations

from typing import Any

from kafka.protocol.producer import EndTxnRequest, EndTxnResponse

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.handlers.txn_errors import refusal_code
from tierlog.node.node import Node
from tierlog.node.transactions.rules import BUMPS_EPOCH
from tierlog.node.transactions.types import TransactionRefusedError

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 26
VERSIONS = (0, 5)
REQUEST = EndTxnRequest

_FIRST_WITH_NEW_EPOCH = 5


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Commit or abort a transaction, and return the producer's epoch from now on."""
    if node.transactions is None:
        return _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        producer = await node.transactions.end(
            request.transactional_id,
            ProducerEpoch(request.producer_id, request.producer_epoch),
            is_commit=request.committed,
            version=BUMPS_EPOCH if request.version >= _FIRST_WITH_NEW_EPOCH else 0,
        )
    except TransactionRefusedError as error:
        return _refuse(refusal_code(KEY, request.version, error))
    return EndTxnResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
    )


def _refuse(code: ErrorCode) -> Any:
    return EndTxnResponse(throttle_time_ms=0, error_code=code, producer_id=-1, producer_epoch=-1)

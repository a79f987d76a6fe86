"""InitProducerId (22), versions 0 to 5. Transactional ids are refused: no transactions yet."""

from __future__ import annotations

import asyncio
from typing import Any

from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 22
VERSIONS = (0, 5)
REQUEST = InitProducerIdRequest


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return a new producer id with epoch 0."""
    if node.local is None:
        return _refuse(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if request.transactional_id is not None:
        return _refuse(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    producer_id = await asyncio.to_thread(node.local.next_producer_id)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=producer_id, producer_epoch=0
    )


def _refuse(code: ErrorCode) -> Any:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)

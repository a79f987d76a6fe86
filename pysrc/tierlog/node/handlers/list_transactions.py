"""ListTransactions (66), versions 0 to 1. No filter by a pattern of ids, which came later."""

from __future__ import annotations

from typing import Any

from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse

from tierlog.node.connection import Client
from tierlog.node.error_codes import ErrorCode
from tierlog.node.node import Node
from tierlog.node.transactions.types import Transaction, TransactionState

__all__ = ["KEY", "REQUEST", "VERSIONS", "handle"]

KEY = 66
VERSIONS = (0, 1)
REQUEST = ListTransactionsRequest

_FIRST_WITH_DURATION = 1
# Kafka's names of states that a transaction here never rests in.
_PASSING = frozenset({"Dead", "PrepareEpochFence"})
_LABELS = frozenset(state.label for state in TransactionState) | _PASSING


async def handle(node: Node, request: Any, client: Client) -> Any:
    """Return the transactions with the wanted states and producers, of all without any."""
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    found = [] if node.transactions is None else node.transactions.list_transactions()
    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        unknown_state_filters=sorted(states - _LABELS),
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.label,
            )
            for one in found
            if (not states or one.state.label in states)
            and (not producers or one.producer_id in producers)
            and _has_run(one, request, node.clock.now_ms())
        ],
    )


def _has_run(found: Transaction, request: Any, now_ms: int) -> bool:
    if request.version < _FIRST_WITH_DURATION or request.duration_filter < 0:
        return True
    return bool(now_ms - found.started_ms > request.duration_filter)

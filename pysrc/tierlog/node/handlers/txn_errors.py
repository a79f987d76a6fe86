"""The error codes that versions of the APIs for transactions know."""

from __future__ import annotations

from tierlog.node.error_codes import ErrorCode
from tierlog.node.transactions.types import TransactionRefusedError

__all__ = ["append_refusal_code", "refusal_code"]

# The first version of each API that knows PRODUCER_FENCED; earlier ones say it by another code.
_KNOWS_FENCED = {22: 4, 24: 2, 25: 2, 26: 2}


def refusal_code(api_key: int, version: int, error: TransactionRefusedError) -> ErrorCode:
    """Return the code of a refused request in a version of its API."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < _KNOWS_FENCED[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


def append_refusal_code(error: TransactionRefusedError, *, knows_abortable: bool) -> ErrorCode:
    """Return the code of a refused append of records or offsets. ``knows_abortable``: the version
    of the API knows TRANSACTION_ABORTABLE."""
    if error.code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error.code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return error.code

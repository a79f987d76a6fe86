"""Makes Spark print errors without a stack."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["briefly"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def briefly(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Hide the stack of an error whose message is enough. Spark would print the whole stack before
    the message."""

    @wraps(method)
    def call(*given: _P.args, **named: _P.kwargs) -> _T:
        from tierlog.errors import TierlogError

        try:
            return method(*given, **named)
        except (TierlogError, OSError) as error:
            raise error.with_traceback(None) from None

    return call

"""Charges the bytes of `.log` objects to quotas when they are requested (KIP-956).

Each read names its payer. A request is charged before it is sent. No request is sent while the
payer's quota is used up. Bytes that were read ahead or kept are not charged again. A read may need
further requests, for the rest of a large batch or to read damaged bytes again. Such further
requests are charged but always sent. Otherwise a small quota could refuse the rest of a batch for
ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tierlog.quota import Transfer

__all__ = ["UNCHARGED", "FetchQuota", "Payer", "QuotaPayer"]


class Payer(Protocol):
    """Pays for the requests of a read. Any thread."""

    @property
    def is_limited(self) -> bool:
        """Whether the quota may refuse or delay a request."""
        ...

    @property
    def count(self) -> Callable[[int], object] | None:
        """Return a function that counts the bytes of a request that is sent even if the quota is
        used up. Return None when the payer counts no bytes."""
        ...

    def charge(self, size_bytes: int) -> bool:
        """Count a request of the reader. Return False when the request must not be sent. The call
        may wait for the quota."""
        ...

    def charge_ahead(self, size_bytes: int) -> bool:
        """Count a request of read-ahead. Return False when the request must not be sent. The call
        never waits. With 0 bytes, the call returns whether the quota has room."""
        ...


class _Uncharged:
    """Reads that no quota pays for."""

    is_limited = False
    count = None

    def charge(self, _size_bytes: int) -> bool:
        return True

    charge_ahead = charge


UNCHARGED = _Uncharged()


class FetchQuota(Protocol):
    """The part of a `QuotaManager` that a `QuotaPayer` uses."""

    @property
    def is_limited(self) -> bool:
        """Whether the quota may refuse or delay a request."""
        ...

    def record(self, size_bytes: int) -> None:
        """Count bytes."""
        ...

    def try_charge(self, size_bytes: int) -> int:
        """Count a request and return 0, or return the milliseconds to wait."""
        ...

    def transfer(self, size_bytes: int) -> AbstractContextManager[Transfer]:
        """Return a transfer of that size. The transfer waits until it may begin."""
        ...


class QuotaPayer:
    """A payer whose reads wait in line while its quota is used up."""

    def __init__(self, quota: FetchQuota) -> None:
        self._quota = quota
        self.count = quota.record

    @property
    def is_limited(self) -> bool:
        """See `Payer`."""
        return self._quota.is_limited

    def charge(self, size_bytes: int) -> bool:
        """Wait in line until the request may be sent. Raises ClosedError when the quota is closed,
        and QuotaWaitCancelledError when the wait is cancelled."""
        with self._quota.transfer(size_bytes) as transfer:
            transfer.before_piece(size_bytes)
        return True

    def charge_ahead(self, size_bytes: int) -> bool:
        """See `Payer`."""
        return self._quota.try_charge(size_bytes) == 0

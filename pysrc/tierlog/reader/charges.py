"""What the bytes of `.log` objects are charged to when they are asked of the store (KIP-956).

Each read names its payer. A request is charged before it goes: none goes while the payer's quota is
used up, and bytes that are here already, because they were read ahead or kept, cost nothing. The
further requests of a read that has begun are charged without asking: the rest of a large batch, or
damaged bytes once more. Otherwise a small quota could refuse the second half for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tierlog.quota import Transfer

__all__ = ["UNCHARGED", "FetchQuota", "Payer", "QuotaPayer"]


class Payer(Protocol):
    """Whose quota pays for a read. Any thread."""

    @property
    def is_limited(self) -> bool:
        """Whether a request has to ask before it goes."""
        ...

    @property
    def count(self) -> Callable[[int], object] | None:
        """Counts bytes of a request without asking; None when nothing is counted."""
        ...

    def charge(self, size_bytes: int) -> bool:
        """Count a request of the reader; False when it must not go. May wait until it may."""
        ...

    def charge_ahead(self, size_bytes: int) -> bool:
        """The same for what is read ahead; never waits. With 0 bytes: whether there is room."""
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
    """What a payer that waits asks of a `QuotaManager`."""

    @property
    def is_limited(self) -> bool:
        """Whether a request has to ask before it goes."""
        ...

    def record(self, size_bytes: int) -> None:
        """Count bytes."""
        ...

    def try_charge(self, size_bytes: int) -> int:
        """0 when a request was counted, else the milliseconds to wait."""
        ...

    def transfer(self, size_bytes: int) -> AbstractContextManager[Transfer]:
        """A read of that size; waits until it may begin."""
        ...


class QuotaPayer:
    """One quota, whose readers wait for their turn while it is used up."""

    def __init__(self, quota: FetchQuota) -> None:
        self._quota = quota
        self.count = quota.record

    @property
    def is_limited(self) -> bool:
        """See `Payer`."""
        return self._quota.is_limited

    def charge(self, size_bytes: int) -> bool:
        """Wait in line until the request may go. ClosedError when the quota is closed,
        QuotaWaitCancelledError when the wait is cancelled."""
        with self._quota.transfer(size_bytes) as transfer:
            transfer.before_piece(size_bytes)
        return True

    def charge_ahead(self, size_bytes: int) -> bool:
        """See `Payer`."""
        return self._quota.try_charge(size_bytes) == 0

"""Who may read how much from the tier: a limit for all, and below it limits by topic and by client
(KIP-956 warns of the one client that uses up the broker's quota).

A fetch is admitted when every limit that holds for it says so, and counts for each of them. In mode
``check`` it counts after the read, as KIP-956 says; in the others its bytes are reserved before, so
that readers who ask at the same moment do not all pass.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from tierlog.clock import Clock, SystemClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.quota import QuotaManager

if TYPE_CHECKING:
    from tierlog._hot import Reservation

__all__ = ["FetchAdmission", "FetchQuotas"]

# A sensor takes about 10 KiB; names come from clients.
MAX_NAMES = 1_000
_MAX_NAME = 255
# How many of the least recently seen names are looked at for one that has read nothing lately.
_LOOK_AT = 8


class FetchAdmission:
    """A read that was let through; `settle` counts what it read, once."""

    __slots__ = ("_clock", "_lock", "_parts", "_settled")

    def __init__(self, parts: list[tuple[QuotaManager, Reservation | None]], clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._lock = threading.Lock()
        self._settled = False

    def settle(self, size_bytes: int) -> None:
        """The read moved so many bytes; 0 when it failed or was somebody else's."""
        with self._lock:
            if self._settled:
                return
            self._settled = True
        for quota, reservation in self._parts:
            if reservation is not None:
                reservation.settle(size_bytes, self._clock.monotonic_ms())
                quota.wake()
            elif size_bytes:
                quota.record(size_bytes)


class FetchQuotas:
    """The quotas of remote reads, in force from the first of them. Any thread.

    ``config`` has the limit for all and, if any, those for each topic and each client id; all may
    be changed while reads go on. At most `MAX_NAMES` topics and as many clients are told apart at a
    time, the least recently seen ones are forgotten first when they have read nothing lately and
    owe nothing; who comes when all places are taken shares one place with the others of that kind,
    unless it has a limit of its own.
    """

    def __init__(self, config: QuotaConfig | None = None, clock: Clock | None = None) -> None:
        self._config = config or QuotaConfig()
        self._clock = clock or SystemClock()
        self.broker = QuotaManager.for_fetches(self._config, self._clock)
        self._topics = _Named(
            "fetch of topic", self._config.fetch_topic_max_bytes_per_second, self._make
        )
        self._clients = _Named(
            "fetch of client", self._config.fetch_client_max_bytes_per_second, self._make
        )

    def admit(self, topic: str, client_id: str, size_bytes: int) -> FetchAdmission | int:
        """Whether a read of about that size may begin: else in how many milliseconds it may.

        Never blocks. An admission has to be settled.
        """
        quotas = [self.broker]
        quotas += filter(None, (self._topics.get(topic), self._clients.get(client_id)))
        parts: list[tuple[QuotaManager, Reservation | None]] = []
        for quota in quotas:
            answer = _ask(quota, size_bytes)
            if isinstance(answer, int) and answer > 0:
                FetchAdmission(parts, self._clock).settle(0)
                return answer
            parts.append((quota, None if isinstance(answer, int) else answer))
        return FetchAdmission(parts, self._clock)

    def throttle_ms(self, topic: str, client_id: str) -> int:
        """How long reads of that topic by that client have to wait now; 0: not at all."""
        answer = self.admit(topic, client_id, 0)
        if isinstance(answer, int):
            return answer
        answer.settle(0)
        return 0

    def set_topic_limit(self, topic: str | None, bytes_per_second: int | None) -> None:
        """The limit of one topic, or with None the one of all that have none of their own."""
        self._topics.set_limit(topic, bytes_per_second)

    def set_client_limit(self, client_id: str | None, bytes_per_second: int | None) -> None:
        """The limit of one client id, or with None the one of all that have none of their own."""
        self._clients.set_limit(client_id, bytes_per_second)

    def _make(self, name: str, limit: int | None) -> QuotaManager:
        made = QuotaManager.for_fetches(self._config, self._clock)
        made.name = name
        made.set_limit(limit)
        return made


def _ask(quota: QuotaManager, size_bytes: int) -> Reservation | int:
    """0 or a reservation: a read may begin; else in how many milliseconds."""
    if quota.mode is QuotaMode.CHECK:
        return quota.throttle_ms()
    return quota.try_reserve(size_bytes)


def _is_idle(quota: QuotaManager) -> bool:
    """Whether nothing is lost when it is forgotten."""
    counted = quota.snapshot()
    if counted.window_bytes or counted.reserved_bytes:
        return False
    answer = _ask(quota, 0)
    return not isinstance(answer, int) or answer == 0


class _Named:
    """Quotas by name; a name without a limit has none."""

    def __init__(
        self, kind: str, limit: int | None, make: Callable[[str, int | None], QuotaManager]
    ) -> None:
        self._kind = kind
        self._default = limit
        self._make = make
        self._limits: dict[str, int | None] = {}
        self._quotas: OrderedDict[str, QuotaManager] = OrderedDict()
        self._others: QuotaManager | None = None
        self._lock = threading.Lock()

    def get(self, name: str) -> QuotaManager | None:
        """The quota of that name, None when it is not limited."""
        name = name[:_MAX_NAME]
        with self._lock:
            limit = self._limits.get(name, self._default)
            if limit is None:
                return None
            quota = self._quotas.get(name)
            if quota is not None:
                self._quotas.move_to_end(name)
                return quota
            full = len(self._quotas) >= MAX_NAMES and not self._forget_an_idle_one()
            if full and name not in self._limits:
                return self._shared()
            quota = self._quotas[name] = self._make(f"{self._kind} {name}", limit)
            return quota

    def set_limit(self, name: str | None, limit: int | None) -> None:
        with self._lock:
            if name is None:
                self._default = limit
                changed = [one for one in self._quotas if one not in self._limits]
                if self._others is not None:
                    self._others.set_limit(limit)
            else:
                name = name[:_MAX_NAME]
                self._limits[name] = limit
                changed = [name]
            for one in changed:
                if one in self._quotas:
                    self._quotas[one].set_limit(limit)

    def _forget_an_idle_one(self) -> bool:
        """A place for somebody else; what has read lately keeps its own, and what it has read."""
        for name in islice(self._quotas, _LOOK_AT):
            if _is_idle(self._quotas[name]):
                del self._quotas[name]
                return True
        return False

    def _shared(self) -> QuotaManager:
        if self._others is None:
            self._others = self._make(f"{self._kind}s that share a place", self._default)
        return self._others

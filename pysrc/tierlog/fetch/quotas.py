"""Limits reads from the tier: one limit for all reads, and limits by topic and by client.

KIP-956 warns that a single client can use up the broker's quota. A read may have several limits. A
request of the read is sent to the store only when all these limits have room, and then counts for
each of them. A request is checked and counted in one step, so if several requests come at the same
moment, only one of them exceeds a limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from tierlog.clock import Clock, SystemClock
from tierlog.config import QuotaConfig
from tierlog.quota import QuotaManager

if TYPE_CHECKING:
    from tierlog._hot import Reservation

__all__ = ["FetchPayer", "FetchQuotas"]

# Clients choose the names, and a sensor takes about 10 KiB.
MAX_NAMES = 1_000
_MAX_NAME = 255
# The number of least recently used names among which an idle name is searched.
_MAX_SEARCHED = 8


class FetchQuotas:
    """The quotas of remote reads. Any thread.

    ``config`` has the limit for all reads, the defaults for topics and client ids, and the limits
    of single topics and client ids. All limits may change during reads. At most `MAX_NAMES` topics
    and as many clients have a sensor of their own. When a new sensor is needed, the least recently
    used idle sensor that owes no bytes is removed. While all sensors are in use, new names share
    one sensor, unless they have a limit of their own.
    """

    def __init__(self, config: QuotaConfig | None = None, clock: Clock | None = None) -> None:
        self._config = settings = config or QuotaConfig()
        self._clock = clock or SystemClock()
        self._charging = threading.Lock()
        self.broker = QuotaManager.for_fetches(settings, self._clock)
        self._topics = _Named(
            "fetch of topic", settings.fetch_topic_max_bytes_per_second, self._make
        )
        self._clients = _Named(
            "fetch of client", settings.fetch_client_max_bytes_per_second, self._make
        )
        for topic, limit in settings.fetch_topic_max_bytes_per_second_overrides:
            self.set_topic_limit(topic, limit)
        for client_id, limit in settings.fetch_client_max_bytes_per_second_overrides:
            self.set_client_limit(client_id, limit)

    def payer(self, topic: str, client_id: str) -> FetchPayer:
        """Return the payer of reads of `topic` by `client_id`."""
        return FetchPayer(self, topic, client_id)

    def is_limited(self, topic: str, client_id: str) -> bool:
        """Whether reads of that topic by that client have a limit."""
        return (
            self.broker.limit is not None
            or self._topics.is_limited(topic)
            or self._clients.is_limited(client_id)
        )

    def limits_client(self, client_id: str) -> bool:
        """Whether that client has a limit: its own limit or the default limit."""
        return self._clients.is_limited(client_id)

    def try_charge(self, topic: str, client_id: str, size_bytes: int) -> int:
        """Count a request of that size for every limit and return 0. If a limit has no room, count
        nothing and return the milliseconds until it may have room. Never blocks."""
        quotas = self._quotas_of(topic, client_id)
        with self._charging:
            admitted: list[tuple[QuotaManager, Reservation | int]] = []
            wait_ms = 0
            for quota in quotas:
                answer = quota.admit_charge(size_bytes)
                if isinstance(answer, int) and answer > 0:
                    wait_ms, size_bytes = answer, 0
                    break
                admitted.append((quota, answer))
            for quota, answer in admitted:
                quota.book_charge(answer, size_bytes)
        return wait_ms

    def record(self, topic: str, client_id: str, size_bytes: int) -> None:
        """Count bytes of a request even if a limit is exceeded."""
        for quota in self._quotas_of(topic, client_id):
            quota.record(size_bytes)

    def throttle_ms(self, topic: str, client_id: str) -> int:
        """Return the milliseconds that reads of that topic by that client have to wait now; 0 if
        they need not wait."""
        if not self.is_limited(topic, client_id):
            return 0
        return self.try_charge(topic, client_id, 0)

    def set_topic_limit(self, topic: str | None, bytes_per_second: int | None) -> None:
        """Set the limit of one topic. If `topic` is None, set the default for topics."""
        self._topics.set_limit(topic, bytes_per_second)

    def set_client_limit(self, client_id: str | None, bytes_per_second: int | None) -> None:
        """Set the limit of one client id. If the client id is None, set the default for client
        ids."""
        self._clients.set_limit(client_id, bytes_per_second)

    def _quotas_of(self, topic: str, client_id: str) -> list[QuotaManager]:
        """Return the quotas that count reads of that topic by that client."""
        named = (self._topics.get(topic), self._clients.get(client_id))
        return [self.broker, *(quota for quota in named if quota is not None)]

    def _make(self, name: str, limit: int | None) -> QuotaManager:
        made = QuotaManager.for_fetches(self._config, self._clock)
        made.name = name
        made.set_limit(limit)
        return made


class FetchPayer:
    """Charges a read to the quotas of its topic and client; see `Payer`. It never waits."""

    __slots__ = ("_client_id", "_quotas", "_topic")

    def __init__(self, quotas: FetchQuotas, topic: str, client_id: str) -> None:
        self._quotas = quotas
        self._topic = topic
        self._client_id = client_id

    @property
    def is_limited(self) -> bool:
        """See `Payer`."""
        return self._quotas.is_limited(self._topic, self._client_id)

    def count(self, size_bytes: int) -> None:
        """See `Payer`."""
        self._quotas.record(self._topic, self._client_id, size_bytes)

    def charge(self, size_bytes: int) -> bool:
        """See `Payer`."""
        return self._quotas.try_charge(self._topic, self._client_id, size_bytes) == 0

    def charge_ahead(self, size_bytes: int) -> bool:
        """See `Payer`."""
        return self.charge(size_bytes)

    def throttle_ms(self) -> int:
        """Return the milliseconds that reads of this payer have to wait now."""
        return self._quotas.throttle_ms(self._topic, self._client_id)


def _is_idle(quota: QuotaManager) -> bool:
    """Whether a quota has nothing counted, reserved or owed."""
    counted = quota.snapshot()
    if counted.window_bytes or counted.reserved_bytes:
        return False
    answer = quota.admit_charge(0)
    if isinstance(answer, int):
        return answer == 0
    quota.book_charge(answer, 0)
    return True


class _Named:
    """The quotas of names that have a limit."""

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

    def is_limited(self, name: str) -> bool:
        """Whether that name has a limit."""
        return self._limits.get(name[:_MAX_NAME], self._default) is not None

    def get(self, name: str) -> QuotaManager | None:
        """Return the quota of that name; None if the name has no limit."""
        name = name[:_MAX_NAME]
        with self._lock:
            limit = self._limits.get(name, self._default)
            if limit is None:
                return None
            quota = self._quotas.get(name)
            if quota is not None:
                self._quotas.move_to_end(name)
                return quota
            full = len(self._quotas) >= MAX_NAMES and not self._forget_idle_name()
            if full and name not in self._limits:
                return self._share_quota()
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

    def _forget_idle_name(self) -> bool:
        """Forget one idle name. Return whether there was an idle name."""
        for name in islice(self._quotas, _MAX_SEARCHED):
            if _is_idle(self._quotas[name]):
                del self._quotas[name]
                return True
        return False

    def _share_quota(self) -> QuotaManager:
        if self._others is None:
            self._others = self._make(f"{self._kind}s that share a place", self._default)
        return self._others

"""A node for the tests of other projects: its tiering, its time and its store obey the test."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from tierlog.clock import SystemClock
from tierlog.config import Config
from tierlog.node.embedded import EmbeddedNode
from tierlog.remote.urls import open_store
from tierlog.testing.faults import FaultyStore

__all__ = ["NodeForTests", "ShiftedClock"]

# A task runs when the test says so, and a test may let all of its data expire.
_SETTINGS = {
    "remote.log.manager.task.interval.ms": str(2**31 - 1),
    "tierlog.retention.max.deleted.ratio": "1",
}
# A topic whose records are cold after `tier_now`.
_COLD_TOPIC = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "0",
}


class ShiftedClock(SystemClock):
    """The machine's clocks plus the time that `advance` has added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added_ms = 0

    def advance(self, duration: timedelta) -> None:
        """Advance both clocks; ValueError for a negative duration."""
        if duration < timedelta(0):
            raise ValueError(f"time does not go back: {duration}")
        with self._lock:
            self._added_ms += duration // timedelta(milliseconds=1)

    def now_ms(self) -> int:
        return super().now_ms() + self._added_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._added_ms


class NodeForTests:
    """A node in this process with a cold tier; both lie in `folder`.

    Nothing is tiered and nothing expires until the test says so: `tier_now`, `expire_now`.
    ``settings`` are those of a ``server.properties`` (docs/CONFIG.md). ``store`` fails on request,
    ``clock`` is the node's time, ``reports`` has the lines that the node said to its operator.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.clock = ShiftedClock()
        self.reports: list[str] = []
        self.store = FaultyStore(open_store((folder / "store").as_uri()))
        self._node = EmbeddedNode(
            str(folder / "node"),
            self.store,
            config=Config.from_properties(_SETTINGS | dict(settings or {})),
            clock=self.clock,
            report=self.reports.append,
        )

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients."""
        return self._node.bootstrap_servers

    @property
    def store_url(self) -> str:
        """URL of the cold tier, for readers that need no node; they see no faults."""
        return self.store.url

    def create_topic(
        self, name: str, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic whose records leave the local disk when they are tiered.

        ``settings`` are those of a topic and win. Clients may create topics as well."""
        cluster = self._node.cluster
        cluster.create_topic(name, partitions, _COLD_TOPIC | dict(settings or {}))

    def tier_now(self) -> None:
        """Roll all tiered partitions, copy all of it to the store, then apply retention.

        TierlogError with the cause when something was not copied."""
        self._node.tier_now()

    def expire_now(self) -> None:
        """Apply the retention of every topic in both tiers, by the node's clock."""
        self._node.expire_now()

    def close(self) -> None:
        """End the node; may be repeated."""
        self._node.close()

    def __enter__(self) -> NodeForTests:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

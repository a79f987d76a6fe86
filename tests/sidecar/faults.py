"""A sidecar under a manual clock whose store, broker and disks can fail, and its scrapes."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from tests.sidecar.two_brokers import make_brokers
from tierlog.broker import BrokerAnswer, BrokerUnavailableError
from tierlog.clock import ManualClock
from tierlog.config import Config
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.log_dir import open_log_dir
from tierlog.metrics import RemoteLogMetrics
from tierlog.metrics.collector import RemoteLogCollector
from tierlog.remote.segment.layout import CLAIMS_PREFIX, CLUSTER_KEY
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore, storage_error
from tierlog.sidecar import Sidecar

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["INTERVAL_MS", "Faulty", "Scrape"]

INTERVAL_MS = 30_000
LATER = (285, 410)
Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Each series by name and labels."""


class WatchedStore(ObjectStore):
    """A store below `root`; ``reach(point)`` may raise, or let others act, at each request."""

    def __init__(self, root: Path, reach: Callable[[str], None]) -> None:
        self._store = LocalStore(str(root), max_open_files=0)
        self._reach = reach

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_local(self) -> bool:
        return True

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        self._reach("put")
        self._store.put_bytes(key, data, overwrite=overwrite)
        self._reach("put.done")

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        self._reach("put")
        self._store.put_stream(key, chunks, size_bytes, overwrite=overwrite)
        self._reach("put.done")

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self._reach("claim")
        made = self._store.put_if_absent(key, data)
        self._reach("claim.done")
        return made

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        self._reach("get")
        return self._store.get_range(key, start_position, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        self._reach("head")
        return self._store.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._reach("list")
        return iter(list(self._store.list(prefix)))

    def delete(self, key: str) -> None:
        self._reach("delete")
        self._store.delete(key)
        self._reach("delete.done")

    def folders(self, prefix: str = "") -> Iterable[str]:
        self._reach("list")
        return self._store.folders(prefix)


class FaultyStore(WatchedStore):
    """A store whose listing may lack claims. It tells the probe's request from others."""

    hides_claims = False

    def head(self, key: str) -> ObjectInfo:
        if key == CLUSTER_KEY:
            self._reach("probe")
        return super().head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        hides = self.hides_claims and prefix.startswith(CLAIMS_PREFIX)
        return iter(()) if hides else super().list(prefix)


class FaultyBroker:
    """What a sidecar asks of its broker, which may be silent, or know no leader."""

    def __init__(self, cluster_id: str) -> None:
        self.is_silent = self.is_foreign = False
        self.leader_id: int | None = 1
        # The last epoch in the log.
        self.leader_epoch = 4
        self._cluster_id = cluster_id

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        if self.is_silent:
            raise BrokerUnavailableError("the broker is silent")
        if self.is_foreign:
            raise ConfigError("expected another cluster")
        answer = BrokerAnswer(
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            last_stable_offset=10**6,
            compacted=False,
            replica_count=2,
            retention_ms=-1,
            retention_bytes=-1,
        )
        return dict.fromkeys(partitions, answer)

    def topic_ids(self, names: Collection[str]) -> dict[str, str | None]:
        return {}

    def cluster_id(self) -> str:
        return self._cluster_id

    def dynamic_settings(self, broker_id: int) -> Mapping[str, str] | None:
        return None


class FaultySidecar(Sidecar):
    """A real sidecar over such a store and broker."""

    def __init__(self, store: FaultyStore, broker: FaultyBroker, **options: Any) -> None:
        self._faulty_broker = broker
        with patch("tierlog.sidecar.sidecar.open_store", lambda _: store):
            super().__init__(store_url=store.url, **options)

    def _broker_at(self, timeout_s: float) -> Any:
        return self._faulty_broker


class Faulty:
    """One partition with three rolled segments, of which the later two are hidden at first.

    ``reach`` is called with the name of each request of the store. ``scrapes`` are those after each
    pass, ``warnings`` those of all passes.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        self.log_dir, self.other_log_dir = make_brokers(folder)
        self.partition_dir = self.log_dir / "epochs-0"
        self.disk = folder / "disk-b"
        shutil.copytree(self.log_dir, self.disk, ignore=lambda *_: ["epochs-0"])
        self.hidden = folder / "hidden"
        self.hidden.mkdir()
        for base in LATER:
            for path in self.partition_dir.glob(f"{base:020d}.*"):
                path.rename(self.hidden / path.name)
        self.store_dir = folder / "store"
        self.store_dir.mkdir()
        self.clock = ManualClock()
        self.metrics = RemoteLogMetrics(self.clock)
        self.reach: Callable[[str], None] = lambda _: None
        self.store = FaultyStore(self.store_dir, lambda point: self.reach(point))
        logs = open_log_dir(self.log_dir)
        self.broker = FaultyBroker(str(logs.cluster_id))
        self.broker.leader_id = self.node_id = logs.node_id
        self.scrapes: list[Scrape] = []
        self.warnings: list[str] = []
        self.other_process: sqlite3.Connection | None = None
        self._collector: Collector = RemoteLogCollector(self.metrics)
        self.sidecar = FaultySidecar(
            self.store,
            self.broker,
            log_dirs=[str(self.log_dir), str(self.disk)],
            state_dir=str(folder / "state"),
            config=config,
            metrics=self.metrics,
            clock=self.clock,
        )

    def run_pass(self) -> None:
        """One interval later, one look and all tasks; then a scrape."""
        self.clock.advance(INTERVAL_MS)
        try:
            self.warnings += self.sidecar.run_once().warnings
        except ConfigError:
            assert self.broker.is_foreign
        self.scrape()

    def scrape(self) -> None:
        """Append what a scrape shows now."""
        registry = CollectorRegistry()
        registry.register(self._collector)
        self.scrapes.append(
            {
                (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
                for family in registry.collect()
                for sample in family.samples
            }
        )

    def add_segments(self) -> None:
        """The broker rolls two more segments."""
        for path in sorted(self.hidden.iterdir(), reverse=True):
            path.rename(self.partition_dir / path.name)

    def refuse(self, *points: str) -> None:
        """The store refuses these requests; none: it answers all."""

        def reach(point: str) -> None:
            if point in points:
                raise storage_error(f"{self.store.url}: {point} refused")

        self.reach = reach

    def objects(self, suffix: str) -> list[Path]:
        """The objects of segments in the store, by base offset."""
        found = self.store_dir.glob(f"epochs-*/0/*{suffix}")
        return sorted(found, key=lambda path: path.name)

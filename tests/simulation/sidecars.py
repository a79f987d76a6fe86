"""Sidecars of a simulated cluster: their broker may be silent, late or behind, their store may
fail, and at any request they may die, or sleep while everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.simulation.cluster import CLUSTER_ID, Cluster
from tests.simulation.store import URL, SimulatedStore
from tierlog.broker import BrokerAnswer, BrokerUnavailableError
from tierlog.clock import ManualClock
from tierlog.config import Config, RemoteIndexConfig
from tierlog.log.checkpoint import TopicPartition
from tierlog.metrics import RemoteLogMetrics
from tierlog.remote.metadata.manager import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.plugins import make_storage_manager
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.sidecar import Sidecar
from tierlog.tiering.manager import ManagerOptions
from tierlog.types import TopicIdPartition

__all__ = [
    "KilledError",
    "Process",
    "SharedMetadata",
    "SimulatedBroker",
    "SimulatedSidecar",
]


class KilledError(BaseException):
    """The process of a sidecar dies."""


class Process:
    """A sidecar's process: after its death it reaches nothing any more."""

    def __init__(self, number: int, at_request: Callable[[Process, str], None]) -> None:
        self.number = number
        self.is_alive = True
        self._at_request = at_request

    def reach(self, point: str) -> None:
        if self.is_alive:
            self._at_request(self, point)
        if not self.is_alive:
            raise KilledError


class SimulatedBroker:
    """What a sidecar asks of its broker. Each answer may be missing, late, empty, without a
    leader, or as it was some time ago."""

    def __init__(self, cluster: Cluster, moodiness: int) -> None:
        self._cluster = cluster
        self._moodiness = moodiness
        self._old: dict[TopicPartition, BrokerAnswer] = {}
        self._old_ids: dict[str, str] = {}
        self.process: Process | None = None
        self.is_honest = False

    def _mood(self) -> int:
        """0 is a true answer; 1 to 5 as in `ask`."""
        draw = self._cluster.draw
        if self.is_honest or draw(12) >= self._moodiness:
            return 0
        return 1 + draw(5)

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        draw, mood = self._cluster.draw, self._mood()
        if mood == 1:
            raise BrokerUnavailableError("the simulated broker is silent")
        if mood != 2:
            # Else the metadata cache is behind.
            self._old = self._present()
        answers = {one: self._old[one] for one in partitions if one in self._old}
        if mood == 3:
            answers = {one: answer for one, answer in answers.items() if draw(2)}
        if mood == 4:
            answers = {
                one: replace(answer, leader_id=None, last_stable_offset=None) if draw(2) else answer
                for one, answer in answers.items()
            }
        if mood == 5:
            # The answer is true when it is given, and late.
            self._reach("late answer")
        return answers

    def _reach(self, point: str) -> None:
        if self.process is not None:
            self.process.reach(point)

    def _present(self) -> dict[TopicPartition, BrokerAnswer]:
        return {
            TopicPartition(one.topic, one.number): BrokerAnswer(
                leader_id=one.leader if one.has_leader else None,
                leader_epoch=one.epoch,
                last_stable_offset=one.last_stable_offset(),
                compacted=False,
                topic_id=one.topic_id,
                replica_count=len(one.replicas),
                retention_ms=-1,
                retention_bytes=-1,
            )
            for one in self._cluster.partitions.values()
        }

    def topic_ids(self, names: Collection[str]) -> dict[str, str | None]:
        mood = self._mood()
        if mood == 1:
            raise BrokerUnavailableError("the simulated broker is silent")
        if mood != 2:
            self._old_ids = dict(self._cluster.topic_ids)
        named = {name: self._old_ids.get(name) for name in names}
        if mood == 3:
            named = {name: one for name, one in named.items() if self._cluster.draw(2)}
        return named

    def cluster_id(self) -> str:
        return CLUSTER_ID

    def dynamic_settings(self, broker_id: int) -> Mapping[str, str] | None:
        return None


class SharedMetadata(InMemoryRemoteLogMetadataManager):
    """Metadata that all sidecars share, as in the cluster's topic. ``reach`` is called before and
    after each event: it may fail before it is known, or only its answer may be lost."""

    def __init__(self, reach: Callable[[str], None]) -> None:
        super().__init__()
        self._reach = reach

    def close(self) -> None:
        """It outlives every sidecar."""

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        self._reach("event")
        super().add(metadata, leader_epoch=leader_epoch)
        self._reach("event.done")

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        self._reach("event")
        super().update(update, leader_epoch=leader_epoch)
        self._reach("event.done")

    def claim_leadership(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        self._reach("event")
        super().claim_leadership(partition, leader_epoch)
        self._reach("event.done")


class SimulatedSidecar(Sidecar):
    """A real sidecar over a simulated broker and store."""

    def __init__(
        self,
        log_dir: Path,
        store: SimulatedStore,
        broker: SimulatedBroker,
        *,
        state_dir: Path,
        config: Config,
        clock: ManualClock,
        random_bytes: Callable[[int], bytes],
        shared: SharedMetadata | None,
        repair: bool,
    ) -> None:
        self._simulated = broker
        self._random_bytes = random_bytes
        self._shared = shared
        self.store = store
        STORES[URL] = store
        super().__init__(
            [str(log_dir)],
            URL,
            state_dir=str(state_dir),
            config=config,
            clock=clock,
            repair=repair,
        )

    def _broker_at(self, timeout_s: float) -> Any:
        return self._simulated

    def _open_managers(
        self, state_dir: str, dry_run: bool
    ) -> tuple[RemoteStorageManager, RemoteLogMetadataManager]:
        if self._shared is None:
            return super()._open_managers(state_dir, dry_run)
        return make_storage_manager(self._config, self._store), self._shared

    def _manager_options(
        self, index_config: RemoteIndexConfig, metrics: RemoteLogMetrics | None
    ) -> ManagerOptions:
        options = super()._manager_options(index_config, metrics)
        return replace(options, random_bytes=self._random_bytes)


# The store that the URL of simulated stores opens at the moment.
STORES: dict[str, SimulatedStore] = {}


def open_simulated(scheme: str) -> Callable[..., SimulatedStore] | None:
    """What takes the place of `tierlog.remote.plugins.find_store_opener`."""
    return STORES.__getitem__ if scheme == "simulated" else None

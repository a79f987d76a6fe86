"""Sidecars of a simulated cluster: their broker may be silent or behind, their store may fail,
and at any request of the store they may die, or sleep while everything else goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.sidecar.configs import tier_config
from tests.simulation.cluster import CLUSTER_ID, Cluster
from tierlog.broker import BrokerAnswer, BrokerUnavailableError
from tierlog.clock import ManualClock
from tierlog.errors import RemoteStorageError
from tierlog.log.checkpoint import TopicPartition
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore
from tierlog.sidecar import Sidecar

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["KilledError", "SimulatedBroker", "SimulatedSidecar", "SimulatedStore"]


class KilledError(BaseException):
    """The process of a sidecar dies."""


class SimulatedStore(ObjectStore):
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


class SimulatedBroker:
    """What a sidecar asks of its broker. ``mood`` decides about each answer: it may be missing,
    empty, without a leader, or as it was some time ago."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self._cluster = cluster
        self._broker_id = broker_id
        self._old: dict[TopicPartition, BrokerAnswer] = {}
        self.is_honest = False

    def ask(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, BrokerAnswer]:
        draw = self._cluster.draw
        mood = 0 if self.is_honest else draw(12)
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
                one: _without_leader(answer) if draw(2) else answer
                for one, answer in answers.items()
            }
        return answers

    def _present(self) -> dict[TopicPartition, BrokerAnswer]:
        return {
            TopicPartition(one.topic, one.number): BrokerAnswer(
                leader_id=one.leader,
                leader_epoch=one.epoch,
                last_stable_offset=one.high_watermark,
                compacted=False,
                topic_id=one.topic_id,
                replica_count=len(one.replicas),
                retention_ms=-1,
                retention_bytes=-1,
            )
            for one in self._cluster.partitions.values()
        }

    def topic_ids(self, names: Collection[str]) -> dict[str, str | None]:
        return {}

    def cluster_id(self) -> str:
        return CLUSTER_ID

    def dynamic_settings(self, broker_id: int) -> Mapping[str, str] | None:
        return None


def _without_leader(answer: BrokerAnswer) -> BrokerAnswer:
    return BrokerAnswer(
        leader_id=None,
        leader_epoch=answer.leader_epoch,
        last_stable_offset=None,
        compacted=answer.compacted,
        topic_id=answer.topic_id,
    )


class SimulatedSidecar(Sidecar):
    """A real sidecar over a simulated broker and store."""

    def __init__(
        self,
        log_dir: Path,
        store: ObjectStore,
        broker: SimulatedBroker,
        *,
        state_dir: Path,
        clock: ManualClock,
    ) -> None:
        self._simulated = broker
        with patch("tierlog.sidecar.sidecar.open_store", lambda _: store):
            super().__init__(
                [str(log_dir)],
                store.url,
                state_dir=str(state_dir),
                config=tier_config(bootstrap_servers="simulated:1"),
                clock=clock,
            )

    def _broker_at(self, timeout_s: float) -> Any:
        return self._simulated


def simulated_error(what: str) -> RemoteStorageError:
    return RemoteStorageError(f"simulated: {what}")

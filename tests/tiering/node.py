"""A node: a remote log manager over golden segments, with the state of its leadership."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.tiering.hosts import GoldenLog
from tierlog.clock import ManualClock
from tierlog.config import RemoteLogConfig
from tierlog.errors import RemoteStorageError
from tierlog.remote.metadata.manager import (
    RemoteLogSegmentState,
)
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import Happened, ManagerListener, SegmentEvent
from tierlog.tiering.retention import HeldBack
from tierlog.tiering.task_pool import TaskFailure
from tierlog.types import TopicIdPartition

EPOCH = 4


INTERVAL_MS = 30_000


class Told(ManagerListener):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.events: list[SegmentEvent] = []
        self.sent_bytes = 0
        self.waits: list[int] = []
        self.fenced: list[tuple[TopicIdPartition, int]] = []
        self.held_back: list[HeldBack] = []
        self.failures: list[TaskFailure] = []
        self.index_failures: list[Exception] = []

    def on_segment(self, event: SegmentEvent) -> None:
        self.events.append(event)

    def on_sent(self, partition: TopicIdPartition, size_bytes: int) -> None:
        self.sent_bytes += size_bytes

    def on_quota_wait(self, partition: TopicIdPartition, wait_ms: int) -> None:
        self.waits.append(wait_ms)

    def on_fenced(self, partition: TopicIdPartition, leader_epoch: int) -> None:
        self.fenced.append((partition, leader_epoch))

    def on_held_back(self, partition: TopicIdPartition, held_back: Sequence[HeldBack]) -> None:
        self.held_back += held_back

    def on_index_failure(self, partition: TopicIdPartition, error: Exception) -> None:
        self.index_failures.append(error)

    def on_task_failure(self, failure: TaskFailure) -> None:
        self.failures.append(failure)

    def of(self, happened: Happened) -> list[int]:
        return [event.base_offset for event in self.events if event.happened is happened]


# Whole archives expire here; what holds that back has tests of its own.
EVERYTHING_MAY_GO = RemoteLogConfig(retention_max_deleted_ratio=1)


class FailingStore:
    """A store that refuses chosen calls; everything else is the real one's.

    It takes no drafts, so that every object passes through a call that can be refused.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.refuses: dict[str, Callable[[str], bool]] = {}
        self.calls: list[tuple[str, str]] = []

    def draft(self, _key: str, _size_bytes: int) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        real = getattr(self._store, name)
        if not callable(real):
            return real

        def call(key: str = "", *args: object, **options: object) -> object:
            self.calls.append((name, key))
            if name in self.refuses and self.refuses[name](key):
                raise RemoteStorageError(f"{name} {key}: refused")
            return real(key, *args, **options)

        return call


class Node:
    """A manager by hand over one store and one metadata manager."""

    def __init__(self, folder: Path, **options: object) -> None:
        (folder / "store").mkdir(exist_ok=True, parents=True)
        self.url = (folder / "store").as_uri()
        self.store = FailingStore(open_store(self.url))
        self.storage = ObjectStorageManager(self.store)  # type: ignore[arg-type]
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.clock = ManualClock()
        self.options: dict[str, object] = {"config": EVERYTHING_MAY_GO, **options}
        self.restart()

    def restart(self) -> None:
        """Another process: the manager forgets what it knew."""
        self.told = Told()
        self.manager = RemoteLogManager(
            self.storage,
            self.metadata,
            broker_id=1,
            clock=self.clock,
            options=ManagerOptions(listener=self.told, **self.options),  # type: ignore[arg-type]
        )

    def lead(self, log: GoldenLog, epoch: int = EPOCH) -> None:
        self.manager.become_leader(log.partition, epoch, log)

    def pass_time(self, duration_ms: int = INTERVAL_MS + 1_000) -> None:
        self.clock.advance(duration_ms)
        self.manager.run_until_idle()

    def objects(self) -> set[str]:
        return {info.key for info in self.store.list()}  # type: ignore[operator]

    def states(self, log: GoldenLog) -> list[RemoteLogSegmentState]:
        return [segment.state for segment in self.metadata.list(log.partition)]


def rolled(log: GoldenLog) -> list[int]:
    return [segment.base_offset for segment in log.log.rolled_segments]

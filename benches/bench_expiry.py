"""Measures a pass of expiration over archives with few and many segments and epochs (KIP-852).

The metadata is in the SQLite manager. The measured time is the CPU time of the whole process in the
fastest pass. The elapsed time would include waits for the disk, since a deletion makes commits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from tierlog.clock import ManualClock
from tierlog.config import RemoteLogConfig
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.eligibility import StableOffset, StableSource
from tierlog.log.log_dir import PartitionLog
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager

from .bench_manager import cpu_seconds
from .frame import Bench, Limit
from .metadata import OFFSETS, Store
from .node import StillLog

PASSES = 21
INTERVAL_MS = 31_000


def items(bench: Bench) -> Sequence[Limit]:
    few, many = (100, 1_000) if bench.corpora.quick else (1_000, 1_000_000)
    epochs = (1, 100) if bench.corpora.quick else (1, 1_000, 10_000)

    @cache
    def pass_ms(store: Store, goes: bool) -> float:
        with Archive.opened(bench, store) as archive:
            return min(archive.pass_ms(goes=goes) for _ in range(PASSES))

    def ratio() -> float:
        return pass_ms(one_epoch(many), False) / pass_ms(one_epoch(few), False)

    nothing, goes = "expiration, nothing to delete", "expiration, 1 goes"
    shape = f"{many:,} segments"
    found = [
        limit(nothing, shape, "ms", 1.0, lambda: pass_ms(one_epoch(many), False)),
        limit(nothing, f"{shape} : {few:,}", "times", 1.2, ratio),
        limit(goes, shape, "ms", 5.0, lambda: pass_ms(one_epoch(many), True)),
    ]
    for count in epochs:
        store = Store(partitions=1, segments=max(epochs), epoch_segments=max(epochs) // count)
        shape = f"{count:,} leader epochs in {store.segments:,} segments"
        measure = partial(pass_ms, store, False)
        found.append(limit(nothing, shape, "ms", 1.0 + count * 0.003, measure))
    return found


def limit(
    operation: str, shape: str, unit: str, at_most: float, measure: Callable[[], float]
) -> Limit:
    return Limit(operation=operation, shape=shape, unit=unit, at_most=at_most, measure=measure)


def one_epoch(segments: int) -> Store:
    return Store(partitions=1, segments=segments, epoch_segments=segments)


@dataclass
class ExpiringLog(StillLog):
    """A log that exists only in the tier."""

    def advance_log_start_offset(self, offset: int) -> None:
        self.shown = replace(self.shown, log_start_offset=offset)


@dataclass
class Archive:
    """A partition, its metadata and the manager that leads it."""

    manager: RemoteLogManager
    metadata: SqliteRemoteLogMetadataManager
    clock: ManualClock
    log: ExpiringLog
    store: Store

    @classmethod
    @contextmanager
    def opened(cls, bench: Bench, store: Store) -> Iterator[Archive]:
        bench.corpora.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(dir=bench.corpora.directory)))
            path = shutil.copy(store.path(bench.corpora), folder / "metadata.sqlite")
            metadata = SqliteRemoteLogMetadataManager(path)
            stack.callback(metadata.close)
            clock = ManualClock()
            manager = RemoteLogManager(
                ObjectStorageManager(open_store(f"memory:///{folder.name}")),
                metadata,
                broker_id=1,
                clock=clock,
                options=ManagerOptions(config=RemoteLogConfig(retention_max_deleted_ratio=1.0)),
            )
            stack.callback(manager.close)
            log = ExpiringLog(partition=store.partition(0), shown=_view(store))
            manager.become_leader(log.partition, store.last_epoch, log)
            archive = cls(manager, metadata, clock, log, store)
            archive.pass_ms(goes=False)
            yield archive

    def pass_ms(self, *, goes: bool) -> float:
        """Return the milliseconds of one pass. The pass deletes the oldest segment if ``goes``,
        otherwise no segment."""
        count = self.metadata.outline(self.log.partition).segment_count
        size_of = self.metadata.remote_log_size
        total = sum(
            size_of(self.log.partition, epoch) for epoch in range(self.store.last_epoch + 1)
        )
        oldest = self.store.segment(0, self.store.segments - count).segment_size_bytes
        topic = TopicSettings(retention_bytes=total - (oldest if goes else 0))
        self.log.shown = replace(self.log.shown, topic=topic)
        self.clock.advance(INTERVAL_MS)
        seconds = cpu_seconds(self.manager.expiration_pool.run_due)
        left = self.metadata.outline(self.log.partition).segment_count
        if left != count - int(goes):
            raise AssertionError(f"{count - left} segments went, {int(goes)} should have")
        return seconds * 1e3


def _view(store: Store) -> LogView:
    end, step = store.segments * OFFSETS, store.epoch_segments
    lineage = LeaderEpochs(
        tuple(
            EpochEntry(number // step, number * OFFSETS)
            for number in range(0, store.segments, step)
        )
    )
    partition = store.partition(0)
    log = PartitionLog(
        topic=partition.topic,
        partition=partition.partition,
        topic_id=partition.topic_id,
        directory="",
        segments=(),
        leader_epochs=lineage,
        log_start_offset=0,
        high_watermark=end,
    )
    stable = StableOffset(value=end, source=StableSource.BROKER)
    return LogView(log=log, stable=stable, log_start_offset=0, topic=TopicSettings())

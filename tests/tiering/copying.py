"""A tier for copies of one segment, and a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kafka_tools.golden import DATA_DIR
from tierlog.clock import ManualClock
from tierlog.errors import RemoteStorageError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import (
    SegmentCopier,
    prepare,
)


class Tier:
    """A store in a folder, metadata in memory, and a copier between."""

    def __init__(self, folder: Path, store: ObjectStore | None = None, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = store or open_store(folder.as_uri())
        self.storage = ObjectStorageManager(self.store)
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.copier = SegmentCopier(
            self.storage, self.metadata, clock=ManualClock(), broker_id=1, **settings
        )

    def copy(
        self,
        log: PartitionLog,
        segment: SegmentFiles,
        gate: Callable[[int], None] | None = None,
    ) -> RemoteLogSegmentMetadata:
        with segment.open() as handle:
            return self.copier.copy(prepare(log, segment, handle), handle, gate=gate).metadata

    def keys(self) -> list[str]:
        return sorted(info.key for info in self.store.list())

    def states(self) -> list[RemoteLogSegmentState]:
        return [
            metadata.state
            for partition in self.metadata.partitions()
            for metadata in self.metadata.list(partition)
        ]


def three_batches(folder: Path) -> tuple[PartitionLog, SegmentFiles, bytes]:
    """Three small golden batches (two plain, one zstd) as a segment and a log of their own."""
    log = open_log_dir(str(DATA_DIR / "clean" / "disk1")).partition("sizes-zstd", 0)
    source = log.segments[0]
    table = scan_segment(source.log_path)
    end = int(table.position[3])
    path = folder / "00000000000000000000.log"
    data = Path(source.log_path).read_bytes()[:end]
    path.write_bytes(data)
    segment = SegmentFiles(
        base_offset=source.base_offset,
        next_base_offset=int(table.base_offset[3]),
        log_path=str(path),
        size_bytes=end,
    )
    assert log.leader_epochs is not None
    own = PartitionLog(
        topic=log.topic,
        partition=log.partition,
        topic_id=log.topic_id,
        directory=str(folder),
        segments=(segment,),
        leader_epochs=LeaderEpochs(log.leader_epochs.entries),
        log_start_offset=0,
        high_watermark=segment.next_base_offset,
    )
    return own, segment, data


class FailingStore:
    """A real store whose n-th call of one kind fails, before or after it took effect.

    It takes no drafts, which would pass by the call that fails.
    """

    def __init__(self, inner: ObjectStore, verb: str, nth: int, *, after: bool) -> None:
        self._inner = inner
        self._verb = verb
        self._left = nth
        self._after = after

    def draft(self, _key: str, _size_bytes: int) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._inner, name)
        if name != self._verb:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise RemoteStorageError(f"{name} failed")
            answer = real(*args, **kwargs)
            if self._left == 0:
                raise RemoteStorageError(f"the answer of {name} got lost")
            return answer

        return call

"""Copies a segment like a remote log manager, as often as a bench needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path

from tierlog import scan_segment
from tierlog.clock import SystemClock
from tierlog.log.files import SegmentHandle
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import SegmentCopier, prepare

from .corpus import BASE_OFFSET, LEADER_EPOCH

META_PROPERTIES = "version=1\ncluster.id=dGllcmxvZy1iZW5jaGVzLTE\nnode.id=1\n"
PARTITION_METADATA = "version: 0\ntopic_id: qza3daxmQBmJiMVKA5kDaQ\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """A partition with one or more rolled segments, and a ``file://`` store for their copies. The
    store `opened` is opened only once. So the folders of the store exist after the first copy, as
    in a long-running manager."""

    log: PartitionLog
    store: Path
    opened: ObjectStore

    @classmethod
    def of(
        cls, segment: Path, folder: Path, store: Path | None = None, segments: int = 1
    ) -> Copying:
        """Link `segment`, which starts at offset 0, into a log directory in `folder`. The store is
        also in `folder` unless `store` is given. Further `segments` repeat its batches."""
        next_offset = int(scan_segment(segment, verify_crc=False).last_offset[-1]) + 1
        partition = folder / "disk" / "bench-0"
        partition.mkdir(parents=True)
        (folder / "disk" / "meta.properties").write_text(META_PROPERTIES)
        (partition / "partition.metadata").write_text(PARTITION_METADATA)
        (partition / "leader-epoch-checkpoint").write_text(f"0\n1\n{LEADER_EPOCH} 0\n")
        os.link(segment, partition / f"{0:020}.log")
        for start in range(next_offset, segments * next_offset, next_offset):
            _repeat(segment, partition / f"{start:020}.log", start)
        (partition / f"{segments * next_offset:020}.log").touch()
        (log,) = open_log_dir(folder / "disk").listing().partitions
        place = store or folder / "store"
        place.mkdir()
        return cls(log=log, store=place, opened=open_store(place.as_uri()))

    def run(self) -> Path:
        """Scan, rebuild, copy and verify. Return the stored `.log` object."""
        return self.store / log_key(self.copy_to(self.opened))

    def copy_to(self, store: ObjectStore) -> RemoteLogSegmentMetadata:
        """Copy the segment to a store. Return the metadata of the copy."""
        (metadata,) = self.copy_all_to(store)
        return metadata

    def copy_all_to(self, store: ObjectStore) -> list[RemoteLogSegmentMetadata]:
        """Copy each segment to a store."""
        copier = self._copier(store)
        return [self._copy(copier, segment) for segment in self.log.rolled_segments]

    def _copy(self, copier: SegmentCopier, segment: SegmentFiles) -> RemoteLogSegmentMetadata:
        segment_id = copier.new_id()
        with (
            SegmentHandle(segment.log_path) as handle,
            copier.draft(self.log, segment, segment_id) as draft,
        ):
            ready = prepare(self.log, segment, handle, draft=draft)
            return copier.copy(ready, handle, segment_id=segment_id, draft=draft).metadata

    def copy_paced(self, gate: Callable[[int], None]) -> RemoteLogSegmentMetadata:
        """Copy the segment to the store of this object in chunks that pass through `gate`."""
        copier, (segment,) = self._copier(self.opened), self.log.rolled_segments
        with SegmentHandle(segment.log_path) as handle:
            return copier.copy(prepare(self.log, segment, handle), handle, gate=gate).metadata

    def _copier(self, store: ObjectStore) -> SegmentCopier:
        return SegmentCopier(
            ObjectStorageManager(store),
            InMemoryRemoteLogMetadataManager(),
            clock=SystemClock(),
            broker_id=1,
        )

    def forget(self) -> None:
        """Remove the objects of the last run."""
        for info in list(self.opened.list()):
            self.opened.delete(info.key)


def _repeat(segment: Path, path: Path, start_offset: int) -> None:
    """Write the batches of `segment` again with offsets from `start_offset` on. No checksum covers
    their base offsets."""
    shutil.copyfile(segment, path)
    batches = scan_segment(segment, verify_crc=False)
    with path.open("r+b") as file, mmap(file.fileno(), 0) as data:
        found = zip(batches.position.tolist(), batches.base_offset.tolist(), strict=True)
        for position, base_offset in found:
            BASE_OFFSET.pack_into(data, position, base_offset + start_offset)

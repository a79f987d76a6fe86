"""Segments with real indexes in a store that counts what is asked of it, for the index cache."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.oracle.indexes import (
    AbortedTransaction,
    encode_offset_index,
    encode_time_index,
    encode_transaction_index,
)
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.index_cache.directory import MIN_MAPPED_BYTES, CachedFileName
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.layout import indexes_key, log_key
from tierlog.remote.segment.log_index import encode_remote_log_index
from tierlog.remote.urls import LocalStore
from tierlog.testing.segments import PARTITION, segment
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

Removals: TypeAlias = list[tuple[str, str]]
Troubles: TypeAlias = list[Exception]
OpenCache: TypeAlias = Callable[..., RemoteIndexCache]

# Seconds after which a test that waits for another thread is considered hanging.
PATIENCE = 30
# Index entries of a segment whose file is mapped, and of one whose file is read.
MAPPED_ENTRIES = MIN_MAPPED_BYTES // 8
FEW_ENTRIES = 20
OFFSETS_PER_ENTRY = 10
BYTES_PER_ENTRY = 4_096
FIRST_TIMESTAMP_MS = 1_000_000


class WatchedStore(LocalStore):
    """A store on files that keeps a list of its reads and lets a test stand in the way."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.reads: list[str] = []
        self.before_read: Callable[[str], object] = lambda _key: None

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        self.reads.append(key)
        self.before_read(key)
        return super().get_range(key, start_position, size_bytes)

    def reads_of(self, metadata: RemoteLogSegmentMetadata) -> int:
        return self.reads.count(indexes_key(metadata))

    def indexes_path(self, metadata: RemoteLogSegmentMetadata) -> Path:
        return self.root / indexes_key(metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """A segment in the store and what its indexes were made of."""

    metadata: RemoteLogSegmentMetadata
    data: bytes
    offsets: list[tuple[int, int]]
    times: list[tuple[int, int]]
    aborted: list[AbortedTransaction]

    @property
    def size_bytes(self) -> int:
        return len(self.data)


def indexed(
    name: str,
    start_offset: int = 0,
    *,
    entries: int = FEW_ENTRIES,
    partition: TopicIdPartition = PARTITION,
) -> Indexed:
    """A segment of `entries` index entries with one aborted transaction, not stored yet."""
    ends = [start_offset + OFFSETS_PER_ENTRY * (row + 1) - 1 for row in range(entries)]
    offsets = [(end, BYTES_PER_ENTRY * (row + 1)) for row, end in enumerate(ends)]
    times = [(FIRST_TIMESTAMP_MS + 100 * row, end) for row, end in enumerate(ends)]
    aborted = [AbortedTransaction(7, start_offset + 2, start_offset + 8, start_offset + 9)]
    metadata = segment(
        name,
        start_offset,
        ends[-1],
        partition=partition,
        size_bytes=BYTES_PER_ENTRY * (entries + 2),
    )
    rdi = f"{log_key(metadata)}:0".encode()
    sections = {
        IndexKind.OFFSET: encode_offset_index(offsets, start_offset),
        IndexKind.BATCH_CHECKSUM: bytes(4 * (len(offsets) + 1)),
        IndexKind.TIME: encode_time_index(times, start_offset),
        IndexKind.TRANSACTION: encode_transaction_index(aborted),
        IndexKind.PRODUCER_SNAPSHOT: b"",
        IndexKind.LEADER_EPOCH: f"0\n1\n0 {start_offset}\n".encode(),
        IndexKind.REMOTE_LOG: encode_remote_log_index(
            [start_offset],
            [ends[-1]],
            [times[0][0]],
            [times[-1][0]],
            [metadata.segment_size_bytes],
            [rdi],
        ),
    }
    data = encode_indexes(SegmentDescription(metadata=metadata), sections)
    return Indexed(metadata=metadata, data=data, offsets=offsets, times=times, aborted=aborted)


def stored(
    store: LocalStore,
    name: str,
    start_offset: int = 0,
    *,
    entries: int = FEW_ENTRIES,
    partition: TopicIdPartition = PARTITION,
) -> Indexed:
    one = indexed(name, start_offset, entries=entries, partition=partition)
    store.put_bytes(indexes_key(one.metadata), one.data)
    return one


def files_in(folder: Path) -> list[str]:
    """The cache's own files, without its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def file_of(folder: Path, metadata: RemoteLogSegmentMetadata) -> Path:
    """The one file of that segment that is in use."""
    (found,) = (
        folder / name
        for name in files_in(folder)
        if (parsed := CachedFileName.parse(name)) is not None
        and (parsed.segment_id, parsed.suffix) == (metadata.segment_id.id, "")
    )
    return found


def run_all(*jobs: Callable[[], object]) -> list[object]:
    """Every job on a thread of its own; what they returned or raised, in order."""
    with ThreadPoolExecutor(max_workers=len(jobs)) as threads:
        running = [threads.submit(job) for job in jobs]
        return [one.exception(PATIENCE) or one.result() for one in running]

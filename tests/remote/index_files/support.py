"""Remote index files, compared with their model after each change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tests.oracle.remote_index import Entry
from tests.remote.index_files.model import Model, Tiered, folder, tiered
from tierlog.errors import RemoteResourceNotFoundError
from tierlog.remote.index_files.family import RemoteIndexFiles, RemoteLogIndexEntry
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.testing.segments import PARTITION


def open_files(
    index_dir: Path, *, rotate_bytes: int = 1 << 20, rotate_ms: int = -1
) -> RemoteIndexFiles:
    return RemoteIndexFiles(index_dir, PARTITION, rotate_bytes=rotate_bytes, rotate_ms=rotate_ms)


def found(index_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder(index_dir).iterdir())}


def as_oracle(entry: RemoteLogIndexEntry | None) -> Entry | None:
    if entry is None:
        return None
    assert entry.rdi == f"{entry.log_key}:{entry.log_position}".encode()
    return Entry(
        first_offset=entry.first_offset,
        last_offset=entry.last_offset,
        first_timestamp_ms=entry.first_timestamp_ms,
        last_timestamp_ms=entry.last_timestamp_ms,
        data_length=entry.data_length,
        rdi=entry.rdi,
    )


def check(files: RemoteIndexFiles, model: Model, index_dir: Path) -> None:
    """The bytes on the disk, all entries, and look-ups at every border."""
    assert found(index_dir) == model.on_disk()
    assert files.last_offset == model.last_offset
    assert [as_oracle(entry) for entry in files.entries()] == model.entries
    for entry in model.entries:
        for offset in (entry.first_offset - 1, entry.first_offset, entry.last_offset):
            assert as_oracle(files.lookup_offset(offset)) == model.lookup_offset(offset), offset
        for time in (entry.last_timestamp_ms, entry.last_timestamp_ms + 1):
            assert as_oracle(files.lookup_timestamp(time)) == model.lookup_timestamp(time)
    assert files.lookup_offset((model.last_offset or 0) + 1) is None


def fetcher(
    *sources: Tiered, asked: list[str] | None = None
) -> Callable[[RemoteLogSegmentMetadata], bytes]:
    """The store: remoteLogIndex by segment."""
    known = {source.metadata.segment_id: source.data for source in sources}

    def fetch(metadata: RemoteLogSegmentMetadata) -> bytes:
        if asked is not None:
            asked.append(metadata.segment_id.id)
        try:
            return known[metadata.segment_id]
        except KeyError:
            raise RemoteResourceNotFoundError(f"{metadata.segment_id}") from None

    return fetch


def metadata_of(sources: Iterable[Tiered]) -> list[RemoteLogSegmentMetadata]:
    return [source.metadata for source in sources]


ROW = [tiered(start, start + 99) for start in range(0, 600, 100)]

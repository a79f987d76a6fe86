"""Checks single objects in the store, and rebuilds `.indexes` objects from the `.log` objects."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError
from tierlog.log.eligibility import gap_start_offset
from tierlog.log.files import SegmentHandle
from tierlog.log.segment import scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.producer_states import ProducerStates
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, read_indexes_header, read_sections
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    indexes_key,
    is_segment_key,
    log_key,
    parse_key,
    partition_prefix,
)
from tierlog.remote.store.object_store import ObjectStore, storage_error
from tierlog.tiering.copy import PART_BYTES, PreparedSegment, prepare
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import PartitionWork
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StoredObjects", "adopt_log_object", "restore_indexes", "seems_whole"]

_CHUNK_BYTES = 4 << 20


class StoredObjects:
    """The objects of one store. Calls raise RemoteStorageError when the store does not answer."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def list_partition(self, partition: TopicIdPartition) -> dict[str, int]:
        """Return the sizes of all objects of `partition`, by key."""
        prefix = partition_prefix(partition)
        return {info.key: info.size_bytes for info in self._store.list(prefix)}

    def require_marker(self) -> None:
        """Raise RemoteStorageError when the store has no cluster marker. It is then another store
        or not mounted, and objects that seem to be missing may exist."""
        try:
            self._store.head(CLUSTER_KEY)
        except RemoteResourceNotFoundError as error:
            raise storage_error(
                f"{self._store.url}: expected {CLUSTER_KEY}, found none: objects may be missing "
                "because this is not the store that was written to, or it is not mounted"
            ) from error

    def describe(self, key: str) -> SegmentDescription | None:
        """Return the description in an `.indexes` object; None when it is missing or damaged."""
        try:
            header, first = read_indexes_header(self._store, key)
            sections = read_sections(self._store, key, header, first, [IndexKind.METADATA])
            return header.description(sections[IndexKind.METADATA])
        except (CorruptDataError, RemoteResourceNotFoundError):
            return None

    def read(self, key: str, size_bytes: int) -> Iterator[Buffer]:
        """Yield the first `size_bytes` of an object in chunks."""
        for position in range(0, size_bytes, _CHUNK_BYTES):
            expected = min(_CHUNK_BYTES, size_bytes - position)
            data = self._store.get_range(key, position, expected)
            if memoryview(data).nbytes != expected:
                raise storage_error(
                    f"{self._store.url}: {key}: expected {expected} bytes from position "
                    f"{position}, got {memoryview(data).nbytes}"
                )
            yield data

    def replace_indexes(self, metadata: RemoteLogSegmentMetadata, indexes: Buffer) -> None:
        """Store the `.indexes` object of a segment; overwrite an existing one."""
        self._store.put_bytes(indexes_key(metadata), indexes, overwrite=True)

    def delete(self, key: str) -> None:
        """Remove one object; a missing object is no error."""
        self._store.delete(key)


def seems_whole(metadata: RemoteLogSegmentMetadata, listed: Mapping[str, int]) -> bool:
    """Return whether a listing has both objects of the segment, and the `.log` object has the right
    size."""
    log_bytes = listed.get(log_key(metadata))
    return log_bytes == metadata.segment_size_bytes and indexes_key(metadata) in listed


def restore_indexes(
    work: PartitionWork,
    objects: StoredObjects,
    view: LogView,
    segment: RemoteLogSegmentMetadata,
    listed: Iterable[str],
) -> None:
    """Rebuild the `.indexes` object of a finished segment. `listed` are the keys of the partition.

    Raises CorruptDataError or SegmentRefusedError when the `.log` object is damaged.
    """
    key = log_key(segment)
    present = objects.describe(indexes_key(segment))
    with _fetch_to_file(objects, key, segment.segment_size_bytes) as handle:
        prepared = _prepare_segment(work, view, handle, segment.start_offset, segment.end_offset)
        if segment.log_crc32c not in (None, prepared.log_crc32c):
            raise CorruptDataError(
                reason="wrong_checksum",
                path=key,
                position=0,
                expected=f"CRC-32C {segment.log_crc32c:#010x}",
                found=f"{prepared.log_crc32c:#010x}",
            )
        if present is not None and present.metadata.segment_id == segment.segment_id:
            gap_start = present.gap_start_offset
        else:
            gap_start = _gap_start_offset(work, view, prepared.segment, listed)
        indexes, _ = work.tier.copier.encode_indexes(prepared, handle, segment, gap_start)
        objects.replace_indexes(segment, indexes)


def adopt_log_object(
    work: PartitionWork,
    objects: StoredObjects,
    view: LogView,
    key: str,
    listed: Mapping[str, int],
) -> None:
    """Add a segment for a `.log` object that has no sound `.indexes` object and no metadata.
    `listed` has the sizes of the partition's objects, by key.

    Raises CorruptDataError, SegmentRefusedError or ValueError when the object does not fit this
    log.
    """
    parsed, tier, size_bytes = parse_key(key), work.tier, listed[key]
    with _fetch_to_file(objects, key, size_bytes) as handle:
        last_offset = _last_offset(handle, key)
        prepared = _prepare_segment(work, view, handle, parsed.base_offset, last_offset)
        if prepared.size_bytes != size_bytes:
            raise ValueError(
                f"{key}: {size_bytes - prepared.size_bytes} bytes after the last batch"
            )
        metadata = prepared.metadata(
            parsed.segment_id,
            broker_id=tier.copier.broker_id,
            event_timestamp_ms=tier.clock.now_ms(),
        )
        tier.metadata.add(metadata, leader_epoch=work.leader_epoch)
        gap_start = _gap_start_offset(work, view, prepared.segment, listed)
        indexes, _ = tier.copier.encode_indexes(prepared, handle, metadata, gap_start)
        objects.replace_indexes(metadata, indexes)
        finished = metadata.update_to(
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, event_timestamp_ms=tier.clock.now_ms()
        )
        tier.metadata.update(finished, leader_epoch=work.leader_epoch)


def _gap_start_offset(
    work: PartitionWork, view: LogView, files: SegmentFiles, listed: Iterable[str]
) -> int | None:
    """Return the first offset of the gap before `files` whose records were deleted before they were
    copied, as a copy does. None when the store has an object with offsets of the gap."""
    if view.log.lineage is None:
        return None
    copied = work.offsets_ever_copied(view.log.lineage)
    first = gap_start_offset(files, view.log, copied)
    if first is None:
        return None
    bases = (parse_key(key).base_offset for key in listed if is_segment_key(key))
    return None if any(first <= base < files.base_offset for base in bases) else first


def _prepare_segment(
    work: PartitionWork, view: LogView, handle: SegmentHandle, start_offset: int, end_offset: int
) -> PreparedSegment:
    files = SegmentFiles(
        base_offset=start_offset,
        next_base_offset=end_offset + 1,
        log_path=handle.path,
        size_bytes=handle.size_bytes,
    )
    return prepare(
        view.log,
        files,
        handle,
        producer_snapshot=_find_producers(work, view, start_offset),
        index_interval_bytes=work.tier.index_interval_bytes,
        # Compaction may have removed offsets before the copy.
        allow_gaps=True,
    )


def _find_producers(work: PartitionWork, view: LogView, offset: int) -> bytes | None:
    """Return the producer state at `offset`, from the local log or else from the previous
    segment."""
    for local in view.log.segments:
        if local.base_offset == offset:
            return ProducerStates(view.log).before(local)
    tier = work.tier
    for segment in tier.metadata.list(work.partition):
        if (
            segment.end_offset + 1 == offset
            and segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ):
            kind = IndexKind.PRODUCER_SNAPSHOT
            return bytes(tier.storage.fetch_indexes(segment, [kind])[kind])
    return None


@contextmanager
def _fetch_to_file(objects: StoredObjects, key: str, size_bytes: int) -> Iterator[SegmentHandle]:
    """Yield the object as a temporary file."""
    with tempfile.NamedTemporaryFile(prefix="tierlog-restore-", suffix=".log") as file:
        for piece in objects.read(key, size_bytes):
            file.write(piece)
        file.flush()
        with SegmentHandle(file.name) as handle:
            yield handle


def _last_offset(handle: SegmentHandle, key: str) -> int:
    last_offset = -1
    for table in scan_segment_in_parts(handle, PART_BYTES, verify_crc=False):
        if len(table):
            last_offset = int(table.last_offset[-1])
    if last_offset < 0:
        raise ValueError(f"{key}: no batches")
    return last_offset

"""Makes an `.indexes` object again from the `.log` object in the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from tierlog.errors import CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.segment import scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.remote.indexes import IndexKind
from tierlog.remote.layout import log_key, parse_key
from tierlog.remote.metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.tiering.copy import PART_BYTES, PreparedSegment, prepare
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import PartitionWork
from tierlog.tiering.producer_states import ProducerStates
from tierlog.tiering.stored_objects import StoredObjects

__all__ = ["adopt_log_object", "restore_indexes"]


def restore_indexes(
    work: PartitionWork,
    objects: StoredObjects,
    view: LogView,
    segment: RemoteLogSegmentMetadata,
) -> None:
    """Make the `.indexes` object of a finished segment again.

    CorruptDataError or SegmentRefusedError when the `.log` object is not what was copied.
    """
    key = log_key(segment)
    with _fetched(objects, key, segment.segment_size_bytes) as handle:
        prepared = _prepared(work, view, handle, segment.start_offset, segment.end_offset)
        if segment.log_crc32c not in (None, prepared.log_crc32c):
            raise CorruptDataError(
                reason="wrong_checksum",
                path=key,
                position=0,
                expected=f"CRC-32C {segment.log_crc32c:#010x}",
                found=f"{prepared.log_crc32c:#010x}",
            )
        indexes, _ = work.tier.copier.encode_indexes(prepared, handle, segment)
        objects.replace_indexes(segment, indexes)


def adopt_log_object(
    work: PartitionWork, objects: StoredObjects, view: LogView, key: str, size_bytes: int
) -> None:
    """Make a segment of a `.log` object that has no `.indexes` and that no metadata knows.

    CorruptDataError, SegmentRefusedError or ValueError when it cannot be one of this log.
    """
    parsed, tier = parse_key(key), work.tier
    with _fetched(objects, key, size_bytes) as handle:
        last_offset = _last_offset(handle, key)
        prepared = _prepared(work, view, handle, parsed.base_offset, last_offset)
        if prepared.size_bytes != size_bytes:
            raise ValueError(f"{key}: {size_bytes - prepared.size_bytes} bytes behind the batches")
        metadata = prepared.metadata(
            parsed.segment_id,
            broker_id=tier.copier.broker_id,
            event_timestamp_ms=tier.clock.now_ms(),
        )
        tier.metadata.add(metadata, leader_epoch=work.leader_epoch)
        indexes, _ = tier.copier.encode_indexes(prepared, handle, metadata)
        objects.replace_indexes(metadata, indexes)
        finished = metadata.update_to(
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED, event_timestamp_ms=tier.clock.now_ms()
        )
        tier.metadata.update(finished, leader_epoch=work.leader_epoch)


def _prepared(
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
        producer_snapshot=_producers_before(work, view, start_offset),
        index_interval_bytes=work.tier.index_interval_bytes,
        # What a cleaner left out was left out when the segment was copied.
        allow_gaps=True,
    )


def _producers_before(work: PartitionWork, view: LogView, offset: int) -> bytes | None:
    """The producer state at `offset`: of the broker's log, else of the segment that ends there."""
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
def _fetched(objects: StoredObjects, key: str, size_bytes: int) -> Iterator[SegmentHandle]:
    """The object in a temporary file."""
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

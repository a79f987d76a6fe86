"""Makes an `.indexes` object again from the `.log` object in the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from tierlog.errors import CorruptDataError
from tierlog.log.eligibility import gap_start_offset
from tierlog.log.files import SegmentHandle
from tierlog.log.segment import scan_segment_in_parts
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.producer_states import ProducerStates
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.layout import indexes_key, is_segment_key, log_key, parse_key
from tierlog.tiering.copy import PART_BYTES, PreparedSegment, prepare
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import PartitionWork
from tierlog.tiering.stored_objects import StoredObjects

__all__ = ["adopt_log_object", "restore_indexes"]


def restore_indexes(
    work: PartitionWork,
    objects: StoredObjects,
    view: LogView,
    segment: RemoteLogSegmentMetadata,
    listed: Iterable[str],
) -> None:
    """Make the `.indexes` object of a finished segment again; `listed` are the partition's keys.

    CorruptDataError or SegmentRefusedError when the `.log` object is not what was copied.
    """
    key = log_key(segment)
    told = objects.describe(indexes_key(segment))
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
        if told is not None and told.metadata.segment_id == segment.segment_id:
            gap_start = told.gap_start_offset
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
    """Make a segment of a `.log` object that has no sound `.indexes` and that no metadata knows.
    `listed` has the sizes of the partition's objects, by key.

    CorruptDataError, SegmentRefusedError or ValueError when it cannot be one of this log.
    """
    parsed, tier, size_bytes = parse_key(key), work.tier, listed[key]
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
    """As a copy finds it: offsets that were never copied and that the log does not have any more.
    None when the store has an object from among them, damaged or not."""
    if view.log.lineage is None:
        return None
    copied = work.offsets_ever_copied(view.log.lineage)
    first = gap_start_offset(files, view.log, copied)
    if first is None:
        return None
    bases = (parse_key(key).base_offset for key in listed if is_segment_key(key))
    return None if any(first <= base < files.base_offset for base in bases) else first


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

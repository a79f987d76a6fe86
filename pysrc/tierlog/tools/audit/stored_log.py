"""Reads a whole `.log` object once, a few MiB at a time, for its checksum and its batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tierlog._core import crc32c
from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.records import MAX_DECOMPRESSED_BYTES, check_records
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import StopReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StoredLog", "read_stored_log"]

_WINDOW_BYTES = 4 << 20
# Parallel threads decompress batches up to this size. Only one thread at a time decompresses a
# larger batch.
_SMALL_BYTES = 8 << 20
_LARGE_BATCH = threading.RLock()
_LOG_OVERHEAD_BYTES = 12
_COLUMNS = ("base_offset", "last_offset", "position", "max_timestamp_ms", "producer_id")
# The position of the checksum field in a batch: before message format 2, and since format 2.
_OLD_CHECKSUM_AT, _CHECKSUM_AT = 12, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog:
    """The columns that the checks need, for all batches of an object; see `BatchTable`."""

    crc32c: int
    stop_position: int
    base_offset: npt.NDArray[np.int64]
    last_offset: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    batch_checksum: npt.NDArray[np.int64]
    max_timestamp_ms: npt.NDArray[np.int64]
    producer_id: npt.NDArray[np.int64]
    record_count: npt.NDArray[np.int64]
    is_control: npt.NDArray[np.bool_]
    is_transactional: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.base_offset)


def read_stored_log(
    storage: RemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    *,
    window_bytes: int = _WINDOW_BYTES,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> StoredLog:
    """Read the object to its end and decode every record.

    Only one thread at a time holds a large batch. Raises CorruptDataError with the position of the
    first bad batch.
    """
    checksum = 0
    pieces: list[dict[str, npt.NDArray[np.generic]]] = []
    windows = _windows(storage, metadata, window_bytes, max_decompressed_bytes)
    for position, data, table in windows:
        checksum = crc32c(memoryview(data)[: table.stop_position], checksum)
        columns = {name: np.array(getattr(table, name), dtype=np.int64) for name in _COLUMNS}
        columns["position"] += position
        pieces.append(
            {
                **columns,
                "batch_checksum": _batch_checksums(data, table),
                "record_count": table.record_count.astype(np.int64),
                "is_control": table.is_control,
                "is_transactional": table.is_transactional,
            }
        )
    whole = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    return StoredLog(crc32c=checksum, stop_position=metadata.segment_size_bytes, **whole)


def _batch_checksums(data: Buffer, table: BatchTable) -> npt.NDArray[np.int64]:
    """Return the checksum field of each batch of the table. The table is a scan of `data`."""
    at = table.position + np.where(table.magic < 2, _OLD_CHECKSUM_AT, _CHECKSUM_AT)
    fields = np.frombuffer(memoryview(data), np.uint8)[at[:, None] + np.arange(4)]
    return np.ascontiguousarray(fields).view(">u4").reshape(-1).astype(np.int64)


def _windows(
    storage: RemoteStorageManager,
    metadata: RemoteLogSegmentMetadata,
    window_bytes: int,
    most_bytes: int,
) -> Iterator[tuple[int, Buffer, BatchTable]]:
    """Yield the position, the bytes and the batches of each window. A window grows until its first
    batch fits."""
    position, window = 0, window_bytes
    while position < metadata.segment_size_bytes:
        with _LARGE_BATCH if window > _SMALL_BYTES else nullcontext():
            data = storage.fetch_log_segment(metadata, position, position + window)
            try:
                table = _check(data, most_bytes)
                _require_sound_stop(table, data, metadata.segment_size_bytes - position)
            except CorruptDataError as error:
                raise error.located(log_key(metadata), shift=position) from None
            if len(table) == 0:
                window *= 2
                continue
            yield position, data, table
            position, window = position + table.stop_position, window_bytes


def _check(data: Buffer, most_bytes: int) -> BatchTable:
    small_bytes = min(most_bytes, _SMALL_BYTES)
    try:
        return check_records(data, max_decompressed_bytes=small_bytes)
    except CorruptDataError as error:
        if error.reason != "too_large" or small_bytes == most_bytes:
            raise
    with _LARGE_BATCH:
        return check_records(data, max_decompressed_bytes=most_bytes)


def _require_sound_stop(table: BatchTable, data: Buffer, left_bytes: int) -> None:
    """Raise CorruptDataError when the scan stopped at damage. A batch that the end of `data` cuts
    off is damage only if the segment ends there, too."""
    size_bytes = memoryview(data).nbytes
    # If the next base offset and length are cut off, the bytes left may all be zero.
    is_cut = table.stop_reason is StopReason.TORN_TAIL or (
        table.stop_reason is StopReason.ZERO_TAIL
        and size_bytes - table.stop_position < _LOG_OVERHEAD_BYTES
    )
    if table.stop_reason is not StopReason.END and (size_bytes == left_bytes or not is_cut):
        raise table.stop_error()

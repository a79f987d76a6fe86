"""A whole `.log` object read once, a few MiB at a time: its checksum and its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tierlog._core import crc32c
from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_records
from tierlog.remote.layout import log_key
from tierlog.remote.metadata import RemoteLogSegmentMetadata
from tierlog.remote.storage import RemoteStorageManager
from tierlog.types import StopReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["StoredLog", "read_stored_log"]

_WINDOW_BYTES = 4 << 20
_LOG_OVERHEAD_BYTES = 12
_COLUMNS = ("base_offset", "last_offset", "position", "max_timestamp_ms", "producer_id")
# Where the checksum field of a batch lies, before message format 2 and since.
_OLD_CHECKSUM_AT, _CHECKSUM_AT = 12, 17


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLog:
    """The columns of all batches that checks need; see `BatchTable`."""

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
) -> StoredLog:
    """Read the object to its end, decoding every record on the way.

    CorruptDataError names the first byte of the batch that is not what it should be.
    """
    checksum = 0
    pieces: list[dict[str, npt.NDArray[np.generic]]] = []
    for position, data, table in _windows(storage, metadata, window_bytes):
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
    """The checksum field of each batch of the table, which was scanned from `data`."""
    at = table.position + np.where(table.magic < 2, _OLD_CHECKSUM_AT, _CHECKSUM_AT)
    fields = np.frombuffer(memoryview(data), np.uint8)[at[:, None] + np.arange(4)]
    return np.ascontiguousarray(fields).view(">u4").reshape(-1).astype(np.int64)


def _windows(
    storage: RemoteStorageManager, metadata: RemoteLogSegmentMetadata, window_bytes: int
) -> Iterator[tuple[int, Buffer, BatchTable]]:
    """Position, bytes and batches, window after window; a batch too large for one widens it."""
    position, window = 0, window_bytes
    while position < metadata.segment_size_bytes:
        data = storage.fetch_log_segment(metadata, position, position + window)
        try:
            table = decode_records(data).batches
        except CorruptDataError as error:
            raise _moved(error, metadata, position) from None
        size_bytes = memoryview(data).nbytes
        at_end = position + size_bytes == metadata.segment_size_bytes
        # Base offset and length, cut short, may be nothing but zeros.
        cut = table.stop_reason is StopReason.TORN_TAIL or (
            table.stop_reason is StopReason.ZERO_TAIL
            and size_bytes - table.stop_position < _LOG_OVERHEAD_BYTES
        )
        if table.stop_reason is not StopReason.END and (at_end or not cut):
            found = CorruptDataError(
                reason=table.stop_reason.value,
                position=table.stop_position,
                expected=table.stop_expected,
                found=table.stop_found,
            )
            raise _moved(found, metadata, position)
        if len(table) == 0:
            window *= 2
            continue
        yield position, data, table
        position, window = position + table.stop_position, window_bytes


def _moved(
    error: CorruptDataError, metadata: RemoteLogSegmentMetadata, by: int
) -> CorruptDataError:
    return CorruptDataError(
        reason=error.reason,
        path=log_key(metadata),
        position=error.position + by,
        expected=error.expected,
        found=error.found,
    )

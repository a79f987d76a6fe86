"""The result of a segment scan as numpy columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tierlog import _core
from tierlog.errors import CorruptDataError
from tierlog.types import StopReason

__all__ = ["CODECS", "BatchTable", "Int8Column", "Int16Column", "Int32Column", "Int64Column"]

Int64Column = npt.NDArray[np.int64]
Int32Column = npt.NDArray[np.int32]
Int16Column = npt.NDArray[np.int16]
Int8Column = npt.NDArray[np.int8]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40


class BatchTable:
    """One row per record batch, in file order. The columns are read-only numpy arrays over the
    scanner's memory.

    The columns have length ``len(table)`` (Kafka's ``DefaultRecordBatch``; docs/FORMATS.md, section
    2):

    ========================  ======  =====================================================
    base_offset, last_offset  int64   first and last offset, inclusive, before compaction
    position                  int64   byte position of the batch in the source
    size_bytes                int32   bytes of the whole batch
    base_timestamp_ms         int64   first timestamp, or the delete horizon
    max_timestamp_ms          int64   largest timestamp, or the append time
    leader_epoch              int32   -1 unknown
    producer_id               int64   -1 none
    producer_epoch            int16   -1 none
    base_sequence             int32   -1 none
    attributes                int16   codec and flags, see the properties below
    record_count              int32   records present
    magic                     int8    0, 1 or 2
    ========================  ======  =====================================================

    ``stop_reason`` says why the scan ended, and ``stop_position`` is the first byte that was not
    accepted. ``stop_expected`` and ``stop_found`` describe the reason in words. ``range_crc32c`` is
    the CRC-32C of the whole range, if the caller asked for it and the scan reached the end; else
    None.
    """

    base_offset: Int64Column
    last_offset: Int64Column
    position: Int64Column
    size_bytes: Int32Column
    base_timestamp_ms: Int64Column
    max_timestamp_ms: Int64Column
    leader_epoch: Int32Column
    producer_id: Int64Column
    producer_epoch: Int16Column
    base_sequence: Int32Column
    attributes: Int16Column
    record_count: Int32Column
    magic: Int8Column

    __slots__ = (
        "_length",
        "_native",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "last_offset",
        "leader_epoch",
        "magic",
        "max_timestamp_ms",
        "position",
        "producer_epoch",
        "producer_id",
        "range_crc32c",
        "record_count",
        "size_bytes",
        "stop_expected",
        "stop_found",
        "stop_position",
        "stop_reason",
    )

    def __init__(self, native: _core.Batches) -> None:
        self._native = native
        self._length = len(native)
        self.stop_reason = StopReason(native.stop_reason)
        self.stop_position: int = native.stop_position
        self.stop_expected: str = native.stop_expected
        self.stop_found: str = native.stop_found
        self.range_crc32c: int | None = native.range_crc32c

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Wrap the columns on first use, because for a valid small segment the summary is
            enough."""
            if name not in type(self).__annotations__:
                raise AttributeError(f"BatchTable has no {name}")
            for each, column in self._native.columns():
                setattr(self, each, np.asarray(column))
            return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        offsets = f"{self.base_offset[0]}..{self.last_offset[-1]}" if self._length else "none"
        return (
            f"BatchTable({self._length} batches, offsets {offsets}, "
            f"stop {self.stop_reason.value} at byte {self.stop_position})"
        )

    @property
    def summary(self) -> _core.BatchSummary:
        """Totals of all batches, computed without the columns. The totals are ``records``,
        ``first_timestamp_ms`` (None if no batch has a timestamp), ``has_transactions``, ``codecs``
        (one bit for each codec in use, without control batches), ``end_position`` (0 when there are
        no batches) and ``run``. ``run`` holds the first and last offset and the first and last
        leader epoch. ``run`` is None unless all batches have magic 2, their offsets have no gaps
        and their epochs never decrease."""
        return self._native.summary()

    @property
    def native(self) -> _core.Batches:
        """The native table, for other functions of the native module."""
        return self._native

    def stop_error(self, path: str | None = None, hint: str | None = None) -> CorruptDataError:
        """Return the reason why the scan ended, as an error about damage in the file `path`."""
        return CorruptDataError(
            reason=self.stop_reason.value,
            path=path,
            position=self.stop_position,
            expected=self.stop_expected,
            found=self.stop_found,
            hint=hint,
        )

    @property
    def is_control(self) -> npt.NDArray[np.bool_]:
        """Whether each batch holds control records, such as transaction markers."""
        return self._flag(_CONTROL)

    @property
    def is_transactional(self) -> npt.NDArray[np.bool_]:
        """Whether each batch belongs to a transaction. Markers are included."""
        return self._flag(_TRANSACTIONAL)

    @property
    def is_log_append_time(self) -> npt.NDArray[np.bool_]:
        """Whether the broker set the timestamps of each batch."""
        return self._flag(_LOG_APPEND_TIME)

    @property
    def has_delete_horizon(self) -> npt.NDArray[np.bool_]:
        """Whether ``base_timestamp_ms`` of each batch is a delete horizon, which compaction has
        set."""
        return self._flag(_DELETE_HORIZON)

    @property
    def codec(self) -> list[str]:
        """The codec's name for each batch: none, gzip, snappy, lz4 or zstd."""
        return [CODECS[attributes & 7] for attributes in self.attributes.tolist()]

    def _flag(self, mask: int) -> npt.NDArray[np.bool_]:
        return (self.attributes & mask).astype(np.bool_)

"""Read a range of a segment: checked records and damage.

Only damaged batches are lost, because the read continues at the next valid batch. Each batch is
checked and must have the expected offsets, since an index may be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.columns import RecordColumns, TableRows
from tierlog.config import Config, LogConfig, QuotaConfig
from tierlog.errors import CorruptDataError
from tierlog.log.files import SegmentHandle
from tierlog.log.records import decode_records, read_rows
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.quota import QuotaManager
from tierlog.reader.committed import committed_rows
from tierlog.reader.damage import LostRecords, find_next_batch
from tierlog.reader.log_reader import rows_between
from tierlog.reader.positions import position_by_headers
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.log_index import RemoteLogIndexEntries
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.tables.log_dir import offset_index
from tierlog.tables.plan import Finding, Mark, ReadRange
from tierlog.tables.rows import MAX_ROWS, ROWS_BYTES, is_uncompressed
from tierlog.tables.store import log_index_entries
from tierlog.types import StopReason

__all__ = ["read_range"]

_WINDOW_BYTES = 2 << 20
_BUDGET_BYTES = 4 << 20
# Bytes per request to a store. The store's reader fetches ahead.
_FETCH_BYTES = 2 << 20
_MAX_OFFSET = 2**63 - 1


def read_range(
    one: ReadRange,
    storage: RemoteStorageManager | None,
    *,
    min_timestamp_ms: int | None = None,
    fail_on_corrupt: bool = False,
    rows_of: Collection[str] | None = None,
    config: Config | None = None,
) -> Iterator[RecordColumns | TableRows | Finding]:
    """Yield the committed records of a range in order, and its damage.

    Records older than `min_timestamp_ms` may be left out. With ``fail_on_corrupt``, damage raises
    CorruptDataError. If `rows_of` is not None, records may be yielded as `TableRows`, without
    headers; `rows_of` names the columns that these rows have: "key", "value" or both. Raises
    OSError or RemoteStorageError when the bytes cannot be read.
    """
    segment = _open_segment(
        one, storage, None if one.aborted else rows_of, config or Config(), fail_on_corrupt
    )
    start, end = segment.narrowed(one.start_offset, one.end_offset, min_timestamp_ms)
    place: Mark | None = Mark(start, -1)
    while place is not None and place.offset < end:
        offset = place.offset
        try:
            for piece, after in segment.pieces(place, end):
                if isinstance(piece, _Gap):
                    if fail_on_corrupt:
                        raise piece.error
                    yield Finding(
                        partition=one.partition,
                        error=piece.error,
                        start_offset=piece.start_offset,
                        end_offset=piece.end_offset,
                    )
                elif isinstance(piece, TableRows):
                    yield piece
                else:
                    rows = rows_between(piece, start, end)
                    yield from committed_rows(rows, one.aborted) if one.aborted else (rows,)
                offset = after
            return
        except CorruptDataError as error:
            if fail_on_corrupt:
                raise
            place = segment.beyond(error, offset)
            lost_end = end if place is None else min(place.offset, end)
            yield Finding(
                partition=one.partition, error=error, start_offset=offset, end_offset=lost_end
            )


class _Gap(NamedTuple):
    """Missing or damaged offsets between valid batches."""

    error: CorruptDataError
    start_offset: int
    end_offset: int


class _Segment(Protocol):
    """A segment that can be read from any of its offsets."""

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """Return the part of the offsets [start, end) that may have records of `min_timestamp_ms`
        or later."""
        ...

    def pieces(
        self, place: Mark, end: int
    ) -> Iterator[tuple[RecordColumns | TableRows | _Gap, int]]:
        """Yield checked batches and gaps from `place` up to offset `end`, each with the offset
        after it. If the position of `place` is -1, the segment finds the position of its offset.
        The last batches may go past `end`, and the first may begin before `place`. `TableRows` and
        gaps have only offsets from `place` up to `end`."""
        ...

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """Return where to continue after damage at `offset` or later; None at the end of the
        segment."""
        ...


def _open_segment(
    one: ReadRange,
    storage: RemoteStorageManager | None,
    rows_of: Collection[str] | None,
    config: Config,
    fail_on_corrupt: bool,
) -> _Segment:
    if isinstance(one.segment, SegmentFiles):
        return _LocalSegment(one.segment, rows_of, config.log, has_all=one.has_all)
    assert storage is not None
    return _RemoteSegment(one.segment, storage, config, fail_on_corrupt=fail_on_corrupt)


class _LocalSegment:
    """A segment of a log directory."""

    def __init__(
        self,
        files: SegmentFiles,
        rows_of: Collection[str] | None,
        config: LogConfig,
        *,
        has_all: bool,
    ) -> None:
        self._max_decompressed_bytes = config.batch_max_decompressed_bytes
        self._files = files
        self._has_all = has_all
        self._rows_of = rows_of
        self._limit = files.next_base_offset or _MAX_OFFSET
        self._window_bytes = _WINDOW_BYTES
        # Position up to which the batches were read.
        self._position = 0

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """Use the headers of the batches, because a broker's time index may be wrong although its
        log is valid."""
        if min_timestamp_ms is None:
            return start, end
        with self._files.open() as handle:
            table = scan_segment(handle, verify_crc=False)
        late = np.flatnonzero(
            (table.max_timestamp_ms >= min_timestamp_ms) & (table.last_offset >= start)
        )
        if table.stop_reason is not StopReason.END:
            # The timestamps of batches after the position at which the scan stopped are unknown.
            known_end = int(table.last_offset[-1]) + 1 if len(table) else start
            return (int(table.base_offset[late[0]]) if len(late) else known_end), end
        if not len(late):
            return end, end
        first, last = int(table.base_offset[late[0]]), int(table.last_offset[late[-1]])
        return max(start, first), min(end, last + 1)

    def pieces(
        self, place: Mark, end: int
    ) -> Iterator[tuple[RecordColumns | TableRows | _Gap, int]]:
        """See `_Segment`."""
        with self._files.open() as handle:
            position, records = self._first(handle, place)
            offset = self._files.base_offset if place.position < 0 else place.offset
            if records is not None:
                offset = int(records.batches.base_offset[0])
            is_usual = records is None and self._rows_of is not None
            while offset < end:
                self._position = start = position
                before = offset
                if is_usual:
                    rows = self._rows(handle, position, offset, (place.offset, end))
                    offset, position = rows.next_offset, rows.stop_position
                    is_usual = not rows.is_last
                    if _is_too_low(handle, position, offset):
                        # Either the batch at this position or the batch before has wrong offsets.
                        is_usual, offset, position = False, before, start
                    elif position > start:
                        yield rows, offset
                        if len(rows) < min(offset, end) - max(before, place.offset):
                            # Either there are control batches, which have no rows, or offsets are
                            # missing.
                            table = scan_segment(handle, start, position, verify_crc=False)
                            yield from self._gaps(table, before, (place.offset, end))
                    continue
                if records is None:
                    records = self._window(handle, position, offset)
                if records is None:
                    self._check_all_there(handle, max(offset, place.offset), end)
                    return
                offset = int(records.batches.last_offset[-1]) + 1
                position = records.batches.stop_position
                is_plain = is_uncompressed(records.batches)
                yield records, offset
                yield from self._gaps(records.batches, before, (place.offset, end))
                records = None
                is_usual = self._rows_of is not None and is_plain

    def _rows(
        self, handle: SegmentHandle, position: int, offset: int, wanted: tuple[int, int]
    ) -> TableRows:
        """Return the rows of the batches from `position` on, up to a batch that needs a full
        decoding. The batches must have offsets from `offset` on."""
        rows_of = self._rows_of or ()
        return read_rows(
            handle,
            position,
            size_bytes=ROWS_BYTES,
            max_rows=MAX_ROWS,
            offsets=wanted,
            batch_offsets=(offset, self._limit),
            keys="key" in rows_of,
            values="value" in rows_of,
        )

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """See `_Segment`. Returns the next valid batch."""
        with self._files.open() as handle:
            table = scan_segment(handle, self._position, error.position, verify_crc=False)
            start, size_bytes = table.stop_position, handle.size_bytes
            if start >= size_bytes:
                return None
            after = find_next_batch(handle, size_bytes, start, offset, self._files.next_base_offset)
        return None if after.position >= size_bytes else Mark(after.offset, after.position)

    def _first(self, handle: SegmentHandle, place: Mark) -> tuple[int, RecordColumns | None]:
        """Return the position where the read starts. If the position of `place` is known, the read
        starts there. Otherwise the read starts at the position from the offset index, and the
        batches that prove this position are returned, too. If the index is wrong, the headers are
        searched for the position."""
        base = self._files.base_offset
        if place.position >= 0:
            return place.position, None
        hint = 0 if place.offset <= base else self._indexed(place.offset)
        if hint:
            try:
                records = self._window(handle, hint, base)
            except CorruptDataError:
                records = None
            if records is not None and records.batches.base_offset[0] <= place.offset:
                return hint, records
            hint = position_by_headers(handle, place.offset)
        return hint, None

    def _indexed(self, offset: int) -> int:
        """Return the position that the offset index gives for a batch at or before `offset`; 0 when
        there is no index."""
        index = offset_index(self._files)
        return 0 if index is None else index.lookup(offset)[1]

    def _window(self, handle: SegmentHandle, position: int, offset: int) -> RecordColumns | None:
        """Return some batches from `position` on; None at the end. The batches must have offsets
        from `offset` on.

        Valid batches before damage are returned first; the next call raises the error.
        """
        window = self._window_bytes
        while position < handle.size_bytes:
            records, error = self._decoded(handle, position, position + window, offset)
            if len(records.batches):
                self._learn(records, records.batches.stop_position - position)
                return records
            if error is not None:
                raise error
            if position + window >= handle.size_bytes:
                self._check_end(records)
                return None
            # One batch is larger than the window.
            window *= 2
        return None

    def _learn(self, records: RecordColumns, read_bytes: int) -> None:
        """Read fewer bytes at a time if decoding a part of the window filled the memory budget."""
        if records.batches.stop_reason is StopReason.MEMORY_BUDGET:
            self._window_bytes = min(2 * read_bytes, _WINDOW_BYTES)
        else:
            self._window_bytes = min(2 * self._window_bytes, _WINDOW_BYTES)

    def _decoded(
        self, handle: SegmentHandle, start: int, end: int, offset: int
    ) -> tuple[RecordColumns, CorruptDataError | None]:
        error: CorruptDataError | None = None
        try:
            records = self._decode(handle, start, end)
        except CorruptDataError as found:
            error = found.located(self._files.log_path)
            records = self._decode(handle, start, error.position)
        misplaced = self._misplaced(records, offset) or self._leaping(handle, records, offset)
        if misplaced is not None:
            error, records = misplaced, self._decode(handle, start, misplaced.position)
        return records, error

    def _decode(self, handle: SegmentHandle, start: int, end: int) -> RecordColumns:
        return decode_records(
            handle,
            start,
            end,
            max_decompressed_bytes=self._max_decompressed_bytes,
            budget_bytes=_BUDGET_BYTES,
        )

    def _misplaced(self, records: RecordColumns, offset: int) -> CorruptDataError | None:
        """Return an error if a batch has unexpected offsets. No checksum covers a batch's base
        offset."""
        batches = records.batches
        wrong = np.flatnonzero(
            (batches.base_offset < offset) | (batches.last_offset >= self._limit)
        )
        if not len(wrong):
            return None
        row = int(wrong[0])
        return self._out_of_order(batches, row, f"from {offset} to {self._limit - 1}")

    def _leaping(
        self, handle: SegmentHandle, records: RecordColumns, offset: int
    ) -> CorruptDataError | None:
        """Return an error if the offsets of the last batch leap ahead, and the next batch could
        directly follow the batch before the last. In this case, the offset of the last batch must
        be wrong."""
        batches = records.batches
        if not len(batches):
            return None
        known = int(batches.last_offset[-2]) + 1 if len(batches) > 1 else offset
        next_base = _base_offset_at(handle, batches.stop_position)
        if next_base is None or not known < int(batches.base_offset[-1]):
            return None
        if not known <= next_base <= batches.last_offset[-1]:
            return None
        return self._out_of_order(batches, len(batches) - 1, f"from {known}, before {next_base}")

    def _out_of_order(self, batches: BatchTable, row: int, expected: str) -> CorruptDataError:
        return CorruptDataError(
            reason=StopReason.OFFSET_ORDER.value,
            path=self._files.log_path,
            position=int(batches.position[row]),
            expected=f"a batch with offsets {expected}",
            found=f"one with {batches.base_offset[row]} to {batches.last_offset[row]}",
        )

    def _gaps(
        self, batches: BatchTable, offset: int, wanted: tuple[int, int]
    ) -> Iterator[tuple[_Gap, int]]:
        """Yield the `wanted` offsets that are missing between `batches`, as `pieces` yields them.
        The first batch should begin with `offset`."""
        if not self._has_all or not len(batches):
            return
        after = int(batches.last_offset[-1]) + 1
        starts = np.concatenate(([offset], batches.last_offset[:-1] + 1))
        for row in np.flatnonzero(batches.base_offset > starts).tolist():
            base = int(batches.base_offset[row])
            start, end = max(int(starts[row]), wanted[0]), min(base, wanted[1])
            if start < end:
                position, found = int(batches.position[row]), f"a batch that begins with {base}"
                yield _Gap(self._missing(start, end, position, found), start, end), after

    def _check_end(self, records: RecordColumns) -> None:
        """Raise CorruptDataError if the segment ends inside a batch. The active segment is checked,
        too, because the plan of the read found whole batches beyond this position."""
        reason = records.batches.stop_reason
        if reason is not StopReason.END:
            raise CorruptDataError(
                reason=reason.value,
                path=self._files.log_path,
                position=records.batches.stop_position,
                expected="a whole batch",
                found=f"a segment that ends there ({reason.value})",
            )

    def _check_all_there(self, handle: SegmentHandle, offset: int, end: int) -> None:
        """Raise CorruptDataError if the segment ends before `end`. Such a segment was cut between
        two batches, or the next segment is missing."""
        if not self._files.is_active:
            end = self._limit
            index = None if self._has_all else offset_index(self._files)
            # Compaction may remove the last offsets and their index entries.
            if not self._has_all and (index is None or index.position[-1] < handle.size_bytes):
                return
        if offset < end:
            raise self._missing(offset, end, handle.size_bytes, "the end of the segment")

    def _missing(self, start: int, end: int, position: int, found: str) -> CorruptDataError:
        return CorruptDataError(
            reason="missing_offsets",
            path=self._files.log_path,
            position=position,
            expected=f"offsets {start} to {end - 1}",
            found=found,
        )


def _base_offset_at(handle: SegmentHandle, position: int) -> int | None:
    """Return the base offset of the batch at `position`; None at the end of the log."""
    return _core.batch_start(handle.read_at(position, 8))[0]


def _is_too_low(handle: SegmentHandle, position: int, offset: int) -> bool:
    """Return whether a batch with an offset below `offset` starts at `position`."""
    base_offset = _base_offset_at(handle, position)
    return base_offset is not None and base_offset < offset


@lru_cache(maxsize=8)
def _quota_of(settings: QuotaConfig) -> QuotaManager:
    """Return the fetch quota of this process. All reads with the same settings share this quota."""
    return QuotaManager.for_fetches(settings)


class _RemoteSegment:
    """A segment of a store."""

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        storage: RemoteStorageManager,
        config: Config,
        *,
        fail_on_corrupt: bool,
    ) -> None:
        self._lost: list[LostRecords] = []
        known = InMemoryRemoteLogMetadataManager(ready=False)
        known.load([metadata])
        known.mark_ready()
        self._metadata = metadata
        self._storage = storage
        self._reader = StoreReader(
            storage,
            known,
            fetch_bytes=_FETCH_BYTES,
            fetch_quota=_quota_of(config.quota),
            on_corrupt="fail" if fail_on_corrupt else self._lost.append,
            config=config,
        )

    def narrowed(self, start: int, end: int, min_timestamp_ms: int | None) -> tuple[int, int]:
        """Use the remoteLogIndex. An entry of the remoteLogIndex has the largest timestamp of its
        batches."""
        if min_timestamp_ms is None:
            return start, end
        entries = self._entries()
        if entries is None:
            return start, end
        late = np.flatnonzero(
            (entries.last_timestamp_ms >= min_timestamp_ms) & (entries.last_offset >= start)
        )
        if not len(late):
            return end, end
        first, last = int(entries.first_offset[late[0]]), int(entries.last_offset[late[-1]])
        return max(start, first), min(end, last + 1)

    def pieces(self, place: Mark, end: int) -> Iterator[tuple[RecordColumns | _Gap, int]]:
        """See `_Segment`."""
        partition, start = self._metadata.topic_id_partition, place.offset
        for piece in self._reader.read(partition.topic_id, partition.partition, start, end):
            yield from self._take_lost(start, end)
            yield piece, int(piece.offset[-1]) + 1
        yield from self._take_lost(start, end)

    def _take_lost(self, start: int, end: int) -> Iterator[tuple[_Gap, int]]:
        while self._lost:
            one = self._lost.pop(0)
            after = end if one.last_offset is None else one.last_offset + 1
            yield _Gap(one.error, max(one.first_offset, start), min(after, end)), after

    def beyond(self, error: CorruptDataError, offset: int) -> Mark | None:
        """See `_Segment`. Returns None: the store reader itself skips damage, so after an error
        nothing more can be read."""
        return None

    def _entries(self) -> RemoteLogIndexEntries | None:
        return log_index_entries(self._storage, self._metadata)

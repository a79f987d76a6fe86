"""Finds the positions of offsets and timestamps with the index that is available.

A position in a remote segment comes from the first available source in this list:

1. the segment's own indexes, if the index cache has them; the offset index is the most exact; 2.
the partition's remote index files, if this node has them; an entry covers about 256 KiB; 3. the
segment's indexes from the store, in one request; 4. a walk over batch headers, if the indexes are
damaged or gone although the segment exists. A walk begins at byte 0, or at the nearest batch that
an earlier walk has found.

A position in a local segment comes from its offset index, or from a walk over all headers.

An index is only a hint: every batch that is read is checked.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierlog import _core
from tierlog.batches import BatchTable, Int64Column
from tierlog.clock import Clock
from tierlog.errors import (
    ClosedError,
    CorruptDataError,
    RemoteResourceNotFoundError,
)
from tierlog.log.files import FileIdentity, SegmentHandle, open_regular
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.kept_indexes import Indexes, KeptIndexes
from tierlog.reader.places import Place
from tierlog.remote.index_cache.entry import RemoteIndexEntry
from tierlog.remote.index_files.file import RemoteLogIndexEntry
from tierlog.remote.index_files.lookups import RemoteIndexLookups
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.layout import indexes_key
from tierlog.remote.segment.log_index import RemoteLogIndexEntries
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

if TYPE_CHECKING:
    from tierlog._core import SegmentIndex

__all__ = [
    "NO_LIMIT",
    "SPARSE_BYTES",
    "IndexFilesOf",
    "IndexLookups",
    "LocalPositions",
    "Positions",
    "Start",
    "late_rows",
    "position_by_headers",
    "position_in",
    "range_in",
]

# Returns the remote index files of a partition; None if this node has no such files.
IndexFilesOf = Callable[[TopicIdPartition], "RemoteIndexLookups | None"]

# Above every offset.
NO_LIMIT = 2**63

# Two entries of an offset index are usually 4 KiB or one larger batch apart. An offset index with
# wider distances is not more exact than the remoteLogIndex.
SPARSE_BYTES = 64 << 10
# The number of segments whose entries are remembered, and the number of remembered walks.
_MAX_SEGMENTS = 256
# After this time, damaged indexes are read again, because they may have been repaired.
_RETRY_MS = 60_000
_MAX_LOCAL_INDEX_BYTES = 64 << 20
# An entry of a local offset index: relative offset, position.
_OFFSET_ENTRY = struct.Struct(">ii")


@dataclass(slots=True)
class Start:
    """Byte position from which to scan for an offset.

    The batch that holds the offset begins between `position` and `latest`, and ends at or before
    byte `covers`. If no index says so, the start and `covers` are ``guessed``.

    The other fields describe the batch at `position` and are compared with the batch that is read
    there. Either the batch ends with `last_offset`. Or the batch begins with `highest_offset` and
    its first record has `first_timestamp_ms`. Or, if there is no timestamp, the batch begins
    between `lowest_offset` and `highest_offset`.
    """

    position: int
    latest: int
    covers: int
    highest_offset: int
    _: KW_ONLY
    first_timestamp_ms: int | None = None
    last_offset: int | None = None
    lowest_offset: int = 0
    guessed: bool = False
    # The number of requests to the store that the look-up made.
    requests: int = 0


class _Runs:
    """The ranges of a segment, which come from the entries of the segment's remoteLogIndex. The
    ranges were checked to be inside the segment's object.

    The ranges are copies, so that the index cache can release its file.
    """

    __slots__ = ("ends", "first_offsets", "first_timestamps_ms", "last_offsets", "starts")

    def __init__(
        self,
        entries: RemoteLogIndexEntries,
        place: Place,
        path: str,
        storage: RemoteStorageManager,
    ) -> None:
        lengths = entries.data_length.astype(np.int64)
        ends = np.cumsum(lengths)
        starts = ends - lengths
        expected = [b"%s:%d" % (place.log_key.encode(), start) for start in starts.tolist()]
        if list(entries.rdi) != expected:
            starts = _starts(entries, place, path, storage)
            ends = starts + lengths
        if len(ends) and (
            int(ends.max()) > place.segment.segment_size_bytes or bool((np.diff(starts) <= 0).any())
        ):
            raise CorruptDataError(
                reason="bad_rdi",
                path=path,
                position=0,
                expected=f"runs in order within {place.segment.segment_size_bytes} bytes",
                found=f"one that ends at {int(ends.max())}",
            )
        self.starts: list[int] = starts.tolist()
        self.ends: list[int] = ends.tolist()
        self.first_offsets: list[int] = entries.first_offset.tolist()
        self.last_offsets: list[int] = entries.last_offset.tolist()
        self.first_timestamps_ms: list[int] = entries.first_timestamp_ms.tolist()

    def row_reaching(self, offset: int) -> int | None:
        row = bisect_left(self.last_offsets, offset)
        return row if row < len(self.last_offsets) else None


def _starts(
    entries: RemoteLogIndexEntries, place: Place, path: str, storage: RemoteStorageManager
) -> Int64Column:
    """Return the positions that the remote data ids point at."""
    found = []
    for row, data_id in enumerate(entries.rdi):
        try:
            found.append(storage.resolve_data_id(data_id, place.segment))
        except CorruptDataError as error:
            raise CorruptDataError(
                reason="bad_rdi",
                path=path,
                position=int(entries.position[row]),
                expected=error.expected,
                found=error.found,
            ) from None
    return np.array(found, np.int64)


class _Walked:
    """Batch boundaries that walks over headers have found in a segment."""

    __slots__ = ("last_offsets", "positions", "until_ms")

    def __init__(self, until_ms: int) -> None:
        self.until_ms = until_ms
        # All batches before positions[i] end at last_offsets[i] or earlier.
        self.last_offsets: list[int] = []
        self.positions: list[int] = []

    def note(self, last_offset: int, position: int) -> None:
        index = bisect_left(self.positions, position)
        if index == len(self.positions) or self.positions[index] != position:
            self.positions.insert(index, position)
            self.last_offsets.insert(index, last_offset)

    def start_for(self, offset: int) -> tuple[int, int]:
        """Return the position from which to scan for `offset`, and the lowest offset that the batch
        there can have."""
        index = bisect_left(self.last_offsets, offset)
        return (self.positions[index - 1], self.last_offsets[index - 1] + 1) if index else (0, 0)


class IndexLookups:
    """Looks up offsets and timestamps in the indexes of remote segments. Any thread.

    A look-up uses the partition's remote index files, if this node has them, then the index cache,
    then the store.
    """

    def __init__(
        self, storage: RemoteStorageManager, indexes: Indexes, index_files: IndexFilesOf | None
    ) -> None:
        self._storage = storage
        self._indexes = indexes
        self._files = index_files

    def has_offset(self, segment: RemoteLogSegmentMetadata, offset: int) -> bool:
        """Return whether the remote index files have an entry of that segment for `offset`."""
        try:
            return self.find_entry(segment, offset) is not None
        except (CorruptDataError, OSError):
            return False

    def find_entry(
        self, segment: RemoteLogSegmentMetadata, offset: int
    ) -> tuple[RemoteLogIndexEntry, int] | None:
        """Return the entry of the remote index files that holds `offset`, and the entry's position
        in `segment`. Return None when this node has no such files, or the entry belongs to another
        segment. Raises CorruptDataError or OSError."""
        files = self._open_files(segment)
        try:
            entry = None if files is None else files.lookup_offset(offset)
        except ClosedError:
            return None
        position = self._position_of(entry, segment)
        return None if entry is None or position is None else (entry, position)

    def older_until(
        self, segment: RemoteLogSegmentMetadata, first_offset: int, timestamp_ms: int
    ) -> int:
        """Return an offset up to which all records from `first_offset` on are older than
        `timestamp_ms`. If no index tells this, return `first_offset`. Raises RemoteStorageError
        when the store fails."""
        offset = self._older_by_files(segment, first_offset, timestamp_ms)
        if offset is not None:
            return offset
        try:
            # An entry with `timestamp_ms` itself names the last record of a batch. An earlier
            # record of the batch may have the same timestamp.
            offset = self._indexes.get(segment).lookup_timestamp(timestamp_ms - 1)[1]
        except (CorruptDataError, RemoteResourceNotFoundError):
            # The read that follows reports the error.
            return first_offset
        return max(first_offset, offset)

    def _older_by_files(
        self, segment: RemoteLogSegmentMetadata, first_offset: int, timestamp_ms: int
    ) -> int | None:
        files = self._open_files(segment)
        if files is None:
            return None
        try:
            start, found = files.lookup_offset(first_offset), files.lookup_timestamp(timestamp_ms)
        except (CorruptDataError, OSError, ClosedError):
            return None
        # If there is an entry of this segment on both sides, no entry in between is missing.
        if found is None or None in [self._position_of(one, segment) for one in (start, found)]:
            return None
        return max(first_offset, found.first_offset)

    def _open_files(self, segment: RemoteLogSegmentMetadata) -> RemoteIndexLookups | None:
        return None if self._files is None else self._files(segment.topic_id_partition)

    def _position_of(
        self, entry: RemoteLogIndexEntry | None, segment: RemoteLogSegmentMetadata
    ) -> int | None:
        """Return the position in `segment` at which an entry points; None if the entry belongs to
        another segment."""
        if entry is None:
            return None
        try:
            return self._storage.resolve_data_id(entry.rdi, segment)
        except CorruptDataError:
            return None


class Positions:
    """Looks up positions in remote segments. Any thread.

    `alarm` receives an error for indexes that are damaged, or are gone although their segment
    exists. Reads then continue without these indexes, but are slower.
    """

    def __init__(
        self,
        storage: RemoteStorageManager,
        *,
        index_cache: Indexes | None,
        index_files: IndexFilesOf | None,
        is_current: Callable[[Place], bool],
        alarm: Callable[[Exception], object],
        clock: Clock,
    ) -> None:
        self._indexes = KeptIndexes(storage) if index_cache is None else index_cache
        self.lookups = IndexLookups(storage, self._indexes, index_files)
        self._storage = storage
        self._files = index_files
        self._is_current = is_current
        self._alarm = alarm
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: OrderedDict[RemoteLogSegmentId, _Runs] = OrderedDict()
        # Return the indexes of a segment that are kept under a key.
        self.find_entry = self._indexes.find
        # Segments whose indexes are not used for some time, because they are damaged or gone.
        self.walked: OrderedDict[RemoteLogSegmentId, _Walked] = OrderedDict()

    # -- looking up

    def find(self, place: Place, offset: int) -> Start | None:
        """Return the position from which to scan for `offset`. Return None when, according to the
        index, all batches end below `offset`.

        Raises RemoteStorageError when the store fails during the request of the indexes.
        """
        segment_id = place.segment.segment_id
        if self.walked and (walked := self._without_index(segment_id)) is not None:
            return self._walk(place, walked, offset)
        warm = segment_id in self._indexes
        if not warm and self._files is not None:
            start = self._from_files(place, offset)
            if start is not None:
                return start
        try:
            entry = self._indexes.get(place.segment)
            start = self._from_entry(entry, place, offset)
        except (CorruptDataError, RemoteResourceNotFoundError) as error:
            start = self._walk(place, self._give_up(place, error), offset)
        if start is not None and not warm:
            start.requests = 1
        return start

    def index_of(self, place: Place) -> SegmentIndex | None:
        """Return the segment's own index if the index is in memory and not distrusted, else
        None."""
        if self.walked and self._without_index(place.segment.segment_id) is not None:
            return None
        entry = self._indexes.find(place.index_key)
        if entry is None:
            return None
        if entry.checked_for is place.segment and entry.index is not None:
            return entry.index
        if not entry.verified:
            return None
        try:
            entry.check_segment(place.segment)
            return entry.segment_index
        except CorruptDataError:
            return None

    def fetch_index(self, place: Place) -> SegmentIndex | None:
        """Request the segment's own index. Return None when the index is missing or damaged, or
        when `find` does not need the index. Raises RemoteStorageError when the store fails."""
        segment_id = place.segment.segment_id
        if self._files is not None or segment_id in self.walked or segment_id in self._indexes:
            return None
        try:
            return self._indexes.get(place.segment).segment_index
        except (CorruptDataError, RemoteResourceNotFoundError) as error:
            self._give_up(place, error)
            return None

    def run_before(self, place: Place, offset: int) -> int:
        """Return the position at which the index entry of `offset` begins, from an index that is in
        memory or on disk. Return 0 if there is no such index."""
        span = self._span(place, offset)
        return 0 if span is None else span[0]

    def run_limit(self, place: Place, position: int, offset: int) -> int:
        """Return an upper limit for the end of a batch that begins at `position` and holds `offset`
        or a later offset."""
        span = self._span(place, offset)
        size_bytes = place.segment.segment_size_bytes
        return span[1] if span is not None and span[0] <= position < span[1] else size_bytes

    def is_loaded(self, place: Place) -> bool:
        """Whether `run_end` needs no request."""
        segment_id = place.segment.segment_id
        return segment_id in self._runs or segment_id in self._indexes

    def load(self, place: Place) -> bool:
        """Load the entries of a segment, with a request if necessary. Return False when the entries
        are damaged or gone."""
        try:
            self._runs_of(place, self._indexes.get(place.segment))
        except (CorruptDataError, RemoteResourceNotFoundError):
            return False
        return True

    def run_end(self, place: Place, position: int, size_bytes: int) -> tuple[int, int] | None:
        """Return the end and the last offset of the last entry that ends within `size_bytes` after
        `position`. If there is no such entry, return the end and the last offset of the first entry
        after `position`. Return None when no entry begins after `position`, or when no index is
        available."""
        runs = self._known_runs(place)
        if runs is None or not runs.ends:
            return None
        last = runs.row_reaching(place.last_offset)
        last = len(runs.ends) - 1 if last is None else last
        first = bisect_right(runs.ends, position)
        if first > last:
            return None
        row = bisect_right(runs.ends, position + size_bytes) - 1
        row = min(max(row, first), last)
        return runs.ends[row], runs.last_offsets[row]

    # -- forgetting, and walking

    def forget(self, place: Place) -> None:
        """Forget the indexes of a segment because they may be wrong. A later look-up may request
        the indexes from the store again."""
        segment_id = place.segment.segment_id
        with self._lock:
            self._runs.pop(segment_id, None)
        self._indexes.remove(segment_id)

    def distrust(self, place: Place, error: CorruptDataError) -> None:
        """Stop using indexes whose positions are wrong although their checksums are right."""
        self._give_up(place, error)

    def note(self, place: Place, last_offset: int, position: int) -> None:
        """Remember that a batch begins at `position`, and that all earlier batches of the segment
        end at `last_offset` or earlier."""
        walked = self.walked.get(place.segment.segment_id)
        if walked is not None:
            with self._lock:
                walked.note(last_offset, position)

    def keep_walk(self, place: Place) -> None:
        """Keep the positions that a walk has found while the walk waits for its quota."""
        walked = self.walked.get(place.segment.segment_id)
        if walked is not None:
            walked.until_ms = self._clock.monotonic_ms() + _RETRY_MS

    def clear(self) -> None:
        """Forget the remembered index entries and walks of all segments. The index cache belongs to
        the caller and is not changed."""
        if isinstance(self._indexes, KeptIndexes):
            self._indexes.clear()
        with self._lock:
            self._runs.clear()
            self.walked.clear()

    # -- inside

    def _from_entry(self, entry: RemoteIndexEntry, place: Place, offset: int) -> Start | None:
        size_bytes = place.segment.segment_size_bytes
        last_offset: int | None
        last_offset, position, latest, covers = entry.segment_index.span(offset, SPARSE_BYTES)
        if not position <= latest <= covers <= size_bytes:
            raise CorruptDataError(
                reason="bad_position",
                path=indexes_key(place.segment),
                position=0,
                expected=f"positions in the {size_bytes} bytes of {place.log_key}",
                found=f"{position}, {latest} and {covers}",
            )
        if position == 0:
            # The remoteLogIndex has an entry for the first batch, but the offset index does not.
            runs = self._runs_of(place, entry)
            if runs.starts and runs.starts[0] == 0:
                return self._run_start(runs, 0, latest, covers)
            last_offset = None
        if latest - position <= SPARSE_BYTES:
            return Start(position, latest, covers, NO_LIMIT, last_offset=last_offset)
        runs = self._runs_of(place, entry)
        row = runs.row_reaching(offset)
        if row is None:
            return None if len(runs.starts) else Start(0, 0, size_bytes, NO_LIMIT, guessed=True)
        start, end = runs.starts[row], runs.ends[row]
        latest, covers = min(latest, end), min(covers, end)
        if position > start:
            return Start(position, latest, covers, NO_LIMIT, last_offset=last_offset)
        return self._run_start(runs, row, max(latest, start), max(covers, start))

    def _run_start(self, runs: _Runs, row: int, latest: int, covers: int) -> Start:
        return Start(
            runs.starts[row],
            latest,
            covers,
            runs.first_offsets[row],
            first_timestamp_ms=runs.first_timestamps_ms[row],
        )

    def _from_files(self, place: Place, offset: int) -> Start | None:
        try:
            found = self.lookups.find_entry(place.segment, offset)
        except (CorruptDataError, OSError) as error:
            self._report(error)
            return None
        if found is None:
            return None
        entry, position = found
        end = position + entry.data_length
        if end > place.segment.segment_size_bytes:
            return None
        return Start(
            position,
            end,
            end,
            entry.first_offset,
            first_timestamp_ms=entry.first_timestamp_ms,
        )

    def _runs_of(self, place: Place, entry: RemoteIndexEntry) -> _Runs:
        segment_id = place.segment.segment_id
        runs = self._runs.get(segment_id)
        if runs is None:
            path = indexes_key(place.segment)
            runs = _Runs(entry.remote_log_index, place, path, self._storage)
            with self._lock:
                self._runs[segment_id] = runs
                while len(self._runs) > _MAX_SEGMENTS:
                    self._runs.popitem(last=False)
        return runs

    def _known_runs(self, place: Place) -> _Runs | None:
        """Return the entries of a segment if its indexes are kept, else None."""
        segment_id = place.segment.segment_id
        runs = self._runs.get(segment_id)
        if runs is None and segment_id in self._indexes and self.load(place):
            runs = self._runs.get(segment_id)
        return runs

    def _span(self, place: Place, offset: int) -> tuple[int, int] | None:
        """Return the range of bytes that the index entry of `offset` covers: the first byte, and
        the byte after the last."""
        runs = self._known_runs(place)
        if runs is not None:
            row = runs.row_reaching(offset)
            return None if row is None else (runs.starts[row], runs.ends[row])
        start = None if self._files is None else self._from_files(place, offset)
        return None if start is None else (start.position, start.covers)

    def _give_up(self, place: Place, error: Exception) -> _Walked:
        """Stop using the segment's indexes for some time and report `error`. Raise `error` instead
        when the segment was changed or is being deleted."""
        if not self._is_current(place):
            raise error
        walked = _Walked(self._clock.monotonic_ms() + _RETRY_MS)
        with self._lock:
            self.walked[place.segment.segment_id] = walked
            while len(self.walked) > _MAX_SEGMENTS:
                self.walked.popitem(last=False)
        self._report(error)
        return walked

    def _without_index(self, segment_id: RemoteLogSegmentId) -> _Walked | None:
        walked = self.walked.get(segment_id)
        if walked is None or walked.until_ms > self._clock.monotonic_ms():
            return walked
        with self._lock:
            self.walked.pop(segment_id, None)
        return None

    def _walk(self, place: Place, walked: _Walked, offset: int) -> Start:
        position, lowest_offset = walked.start_for(offset)
        return Start(
            position, position, position, NO_LIMIT, lowest_offset=lowest_offset, guessed=True
        )

    def _report(self, error: Exception) -> None:
        # The frames of a kept error must not keep the bytes that were being read in memory.
        error.__context__ = None
        self._alarm(error.with_traceback(None))


def range_in(entries: RemoteLogIndexEntries, offset: int) -> tuple[int, int, int, int] | None:
    """Return first byte, end, first offset and last offset of the entry that holds `offset` or the
    next higher offset. None if there is no such entry. The entries are adjacent and begin at byte
    0."""
    row = entries.lookup_offset(offset)
    if row is None:
        return None
    start = int(entries.data_length[:row].sum())
    end = start + int(entries.data_length[row])
    return start, end, int(entries.first_offset[row]), int(entries.last_offset[row])


# -- local segments


def position_in(table: BatchTable, offset: int) -> int:
    """Return the position of the first batch of a scan that ends at `offset` or later. If there is
    no such batch, return the position at which the scan stopped."""
    row = int(table.last_offset.searchsorted(offset))
    return int(table.position[row]) if row < len(table) else table.stop_position


def position_by_headers(handle: SegmentHandle, offset: int) -> int:
    """Return the result of `position_in` for a walk over all headers of a segment that has no sound
    index."""
    return position_in(scan_segment(handle, verify_crc=False), offset)


def late_rows(table: BatchTable, timestamp_ms: int, start_offset: int) -> list[int]:
    """Return the rows of the batches that may hold a record of `timestamp_ms` or later at
    `start_offset` or above."""
    is_late = (table.max_timestamp_ms >= timestamp_ms) & (table.last_offset >= start_offset)
    return np.flatnonzero(is_late).tolist()


class LocalPositions:
    """Looks up positions in the offset indexes of local segments. Any thread.

    The entries of `max_indexes` files are kept while the files stay the same.
    """

    def __init__(self, max_indexes: int) -> None:
        self._max_indexes = max_indexes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, tuple[FileIdentity, bytes]] = OrderedDict()

    def find(self, segment: SegmentFiles, offset: int) -> int:
        """Return the position of a batch at or before `offset`; 0 if there is no sound index."""
        path = segment.offset_index_path
        if path is None:
            return 0
        if segment.is_active:
            return _find_in_growing_index(path, offset - segment.base_offset)
        data = self._entries(path, segment.base_offset)
        return _core.lookup_offset_index(data, segment.base_offset, offset)[1]

    def _entries(self, path: str, base_offset: int) -> bytes:
        try:
            identity = FileIdentity.of(os.stat(path, follow_symlinks=False))
            with self._lock:
                known = self._known.get(path)
                if known is not None and known[0] == identity:
                    self._known.move_to_end(path)
                    return known[1]
            data = _sound_entries(path, base_offset)
        except OSError:
            return b""
        with self._lock:
            self._known[path] = identity, data
            while len(self._known) > self._max_indexes:
                self._known.popitem(last=False)
        return data


def _sound_entries(path: str, base_offset: int) -> bytes:
    """Return the entries of an index file; no entries when the file is damaged."""
    descriptor = open_regular(path)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > _MAX_LOCAL_INDEX_BYTES:
            return b""
        data = os.pread(descriptor, size_bytes, 0)
        _offset, _position, length = _core.parse_offset_index(data, base_offset)
    except CorruptDataError:
        return b""
    finally:
        os.close(descriptor)
    return data[:length]


def _find_in_growing_index(path: str, relative_offset: int) -> int:
    """Return the position in the last entry at or below an offset; 0 if there is no such entry.

    The index of an active segment ends in zeros and grows while it is read. So a binary search
    reads one entry at a time from the file.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return 0
    position = 0
    try:
        low, high = 0, os.fstat(descriptor).st_size // _OFFSET_ENTRY.size
        while low < high:
            middle = (low + high) // 2
            data = os.pread(descriptor, _OFFSET_ENTRY.size, middle * _OFFSET_ENTRY.size)
            is_empty = len(data) < _OFFSET_ENTRY.size or (middle > 0 and not any(data))
            entry_offset, entry_position = (0, 0) if is_empty else _OFFSET_ENTRY.unpack(data)
            if is_empty or entry_offset > relative_offset:
                high = middle
            else:
                position, low = max(0, entry_position), middle + 1
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return position

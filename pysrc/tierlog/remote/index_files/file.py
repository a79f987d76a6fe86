"""One file of a partition's remote log index, and the two indexes of this file: format, growth and
look-ups.

    <base>.remoteLogIndex     contiguous entries, then 8 bytes: position of the last entry, i64
    <base>.remoteOffsetIndex  for each entry: last offset - base, i32; position of the entry, i32
    <base>.remoteTimeIndex    for each entry whose last timestamp is above -1 and all before it:
                              that timestamp, i64; last offset - base, i32

The log is authoritative. Every byte of the log is verified when the files are opened, and every
entry that a look-up returns is verified again. The indexes only say where a look-up starts. A
look-up detects a wrong index. The trailer is written for other readers; tierlog never uses it.

`RemoteIndexFile` is an immutable summary of such a file. The pure function `grow` computes the
summary after an append and the bytes to write. `scan` calls `grow` for an existing file, so both
give the same indexes, byte for byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tierlog import _core
from tierlog.batches import Int64Column
from tierlog.errors import CorruptDataError
from tierlog.remote.segment.layout import (
    LOG_SUFFIX,
    is_foreign_data_id,
    parse_rdi,
    partition_prefix,
    split_data_id,
)
from tierlog.remote.segment.log_index import (
    RdiColumn,
    RemoteLogIndexEntries,
    decode_remote_log_index,
)
from tierlog.remote.store.object_store import open_regular_file
from tierlog.types import TopicIdPartition

__all__ = [
    "MAX_FILE_BYTES",
    "MAX_RELATIVE_OFFSET",
    "OFFSET_SLOT_BYTES",
    "TIME_SLOT_BYTES",
    "TRAILER",
    "Growth",
    "IndexPaths",
    "LastEntry",
    "RemoteIndexFile",
    "RemoteLogIndexEntry",
    "Scan",
    "check_entries",
    "entry_of",
    "find_offset",
    "find_timestamp",
    "grow",
    "read_entries",
    "scan",
    "starts_new_file",
]

TRAILER = struct.Struct(">q")
MAX_RELATIVE_OFFSET = 2**31 - 1
# The offset index has 31 bits for a position.
MAX_FILE_BYTES = 2**31 - 1
_FIRST_CHUNK_BYTES = 4 << 10
_CHUNK_BYTES = 4 << 20
# Limit of the format.
_MAX_ENTRY_BYTES = 2**15 - 1
_FIXED_BYTES = 46
# <base offset, 20 digits>-<segment id, 22 characters>.log
_KEY_NAME_BYTES = 20 + 1 + 22 + len(LOG_SUFFIX)
OFFSET_SLOT_BYTES = 8
TIME_SLOT_BYTES = 12
_BLOCK_SLOTS = 1024
_NO_TIMESTAMP = -1
_HINT = "the file is rebuilt from the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogIndexEntry:
    """A verified entry: the remote position of offsets `first_offset` to `last_offset` (inclusive).

    The object ``log_key`` has ``data_length`` bytes of whole batches from ``log_position`` on. The
    last batch may end after `last_offset` if later records were truncated.
    """

    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    data_length: int
    rdi: bytes
    log_key: str
    log_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LastEntry:
    """The last entry of a file: the key of its `.log` object, the start and end (exclusive) of its
    bytes in that object, and its offsets."""

    key: str
    start_position: int
    end_position: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexFile:
    """A verified file with at least one entry. ``size_bytes`` excludes the trailer;
    ``max_timestamp_ms`` is -1 when no entry has a timestamp."""

    base_offset: int
    last_offset: int
    size_bytes: int
    entry_count: int
    time_count: int
    last_position: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    last_entry: LastEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPaths:
    """Paths of the files of a base offset. ``""`` means to search without that index."""

    log: str
    offset: str = ""
    time: str = ""


# -- growing


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A file after an append, and the bytes to append to each of its three files."""

    after: RemoteIndexFile
    log: memoryview
    offset: bytes
    time: bytes

    @property
    def trailer(self) -> bytes:
        return TRAILER.pack(self.after.last_position)


def starts_new_file(
    file: RemoteIndexFile,
    key: str,
    start_offset: int,
    size_bytes: int,
    last_timestamp_ms: int,
    *,
    rotate_bytes: int,
    rotate_ms: int,
) -> bool:
    """Return whether `size_bytes` of entries of the segment `key` start a new file.

    The answer depends only on the segments, so all nodes make the same files, even after a file was
    lost. Therefore rotation by time uses the timestamps of the records, as retention does. All
    entries of a segment go to the file where the segment began. A segment that leaves out offsets
    starts a new file, so gaps are always between files.
    """
    if file.last_entry.key == key:
        return False
    if start_offset > file.last_offset + 1 or file.size_bytes + size_bytes > rotate_bytes:
        return True
    if rotate_ms < 0 or min(file.first_timestamp_ms, last_timestamp_ms) < 0:
        return False
    return last_timestamp_ms - file.first_timestamp_ms >= rotate_ms


def grow(
    before: RemoteIndexFile | None,
    base_offset: int,
    entries: RemoteLogIndexEntries,
    start: int,
    stop: int,
    last_entry: LastEntry,
) -> Growth:
    """Append the rows from `start` up to `stop` (exclusive; at least one row) to the file `before`,
    or to a new file for None."""
    rows = slice(start, stop)
    ends = int(entries.position[stop]) if stop < len(entries) else entries.valid_length
    begins = int(entries.position[start])
    size_bytes, highest_ms = (before.size_bytes, before.max_timestamp_ms) if before else (0, -1)
    last_offset, timestamp_ms = entries.last_offset[rows], entries.last_timestamp_ms[rows]
    position = entries.position[rows] + (size_bytes - begins)
    highest = np.maximum.accumulate(np.append(np.int64(highest_ms), timestamp_ms))
    passes = np.flatnonzero(timestamp_ms > highest[:-1])
    first_ms = before.first_timestamp_ms if before else int(timestamp_ms[0])
    after = RemoteIndexFile(
        base_offset=base_offset,
        last_offset=int(last_offset[-1]),
        size_bytes=size_bytes + ends - begins,
        entry_count=(before.entry_count if before else 0) + stop - start,
        time_count=(before.time_count if before else 0) + len(passes),
        last_position=int(position[-1]),
        first_timestamp_ms=first_ms,
        max_timestamp_ms=int(highest[-1]),
        last_entry=last_entry,
    )
    return Growth(
        after=after,
        log=entries.rdi.data[begins:ends],
        offset=_core.encode_offset_index(np.ascontiguousarray(last_offset), position, base_offset),
        time=_core.encode_time_index(timestamp_ms[passes], last_offset[passes], base_offset),
    )


# -- checking


def check_entries(
    entries: RemoteLogIndexEntries,
    partition: TopicIdPartition,
    *,
    before: LastEntry | None = None,
    only_key: str | None = None,
    path: str | None = None,
    at: int = 0,
) -> LastEntry | None:
    """Check `entries` and return the last entry. `before` is the entry before `entries`, which is
    returned when `entries` is empty.

    Raises CorruptDataError unless every rdi points below the partition's own prefix (and into the
    object `only_key`, if given). Also raises CorruptDataError unless the entries of each `.log`
    object are contiguous and have different offsets. After a truncated entry, the complete entry of
    the same batches may follow. `at` is the byte position of the first entry in the file `path`.
    """
    if not len(entries):
        return before
    try:
        key, start, continues = _log_positions(entries, partition, before, only_key)
    except CorruptDataError as error:
        raise error.located(path, _HINT, shift=at) from None
    end = start + entries.data_length
    first, last = entries.first_offset, entries.last_offset
    if before is not None:
        numbers = (before.start_position, before.end_position, before.first_offset)
        row_before = np.array([*numbers, before.last_offset], dtype=np.int64)
    else:
        row_before = np.full(4, -1, dtype=np.int64)
    columns = zip(row_before, (start, end, first, last), strict=True)
    start_before, end_before, first_before, last_before = (
        np.append(number, column[:-1]) for number, column in columns
    )
    follows = (start == end_before) & (first > last_before)
    is_again = (start == start_before) & (first == first_before)
    wrong = continues & ~follows & ~is_again
    if wrong.any():
        row = int(wrong.argmax())
        raise CorruptDataError(
            reason="bad_rdi",
            path=path,
            position=int(entries.position[row]) + at,
            expected=f"position {end_before[row]} and an offset above {last_before[row]}",
            found=f"{entries.rdi[row][-80:]!r}, from offset {first[row]}",
            hint=_HINT,
        )
    return LastEntry(
        key=key,
        start_position=int(start[-1]),
        end_position=int(end[-1]),
        first_offset=int(first[-1]),
        last_offset=int(last[-1]),
    )


def _log_positions(
    entries: RemoteLogIndexEntries,
    partition: TopicIdPartition,
    before: LastEntry | None,
    only_key: str | None,
) -> tuple[str, Int64Column, npt.NDArray[np.bool_]]:
    """Return the key of the last row's `.log` object, the position of each row in its object, and
    for each row whether the row before has the same object. Keys of one partition have the same
    length, so rows are compared in bulk, and only a new key is parsed."""
    rdi = entries.rdi
    key = before.key if before else ""
    key_bytes = len(partition_prefix(partition)) + _KEY_NAME_BYTES
    positions = np.empty(len(entries), dtype=np.int64)
    continues = np.zeros(len(entries), dtype=np.bool_)
    edges = [0, *(np.flatnonzero(np.diff(rdi.length)) + 1).tolist(), len(entries)]
    for start, stop in pairwise(edges):
        length = int(rdi.length[start])
        keys, digits = _split_rdis(rdi, start, stop, min(key_bytes + 1, length))
        # numpy ignores zero bytes at the end of a key. The first key of each group is parsed, so it
        # has no zero bytes.
        continues[start + 1 : stop] = keys[1:] == keys[:-1]
        for row in (np.flatnonzero(~continues[start:stop]) + start).tolist():
            if is_foreign_data_id(rdi[row]):
                return _foreign_positions(entries, partition, before, only_key)
            found, _ = _parse_position(entries, row, partition)
            if only_key is not None and found != only_key:
                raise _bad_rdi(entries, row, f"{only_key}:<byte position>", found)
            continues[row] = found == key
            key = found
        number = digits.astype(np.int64) - ord("0")
        powers = 10 ** np.arange(number.shape[1] - 1, -1, -1, dtype=np.int64)
        is_number = ((number >= 0) & (number <= 9)).all(axis=1)
        positions[start:stop] = np.where(is_number, number @ powers, -1)
    return key, positions, continues


def _foreign_positions(
    entries: RemoteLogIndexEntries,
    partition: TopicIdPartition,
    before: LastEntry | None,
    only_key: str | None,
) -> tuple[str, Int64Column, npt.NDArray[np.bool_]]:
    """Return the result of `_log_positions` for entries with data ids of other storage managers.
    Such positions are opaque and need not be contiguous."""
    key = before.key if before else ""
    positions = np.empty(len(entries), dtype=np.int64)
    continues = np.zeros(len(entries), dtype=np.bool_)
    data_ids = list(entries.rdi)
    if only_key is not None and not all(map(is_foreign_data_id, data_ids)):
        # All ids of a segment must be of one kind.
        row = next(row for row, one in enumerate(data_ids) if is_foreign_data_id(one))
        raise _bad_rdi(entries, row, f"{only_key}:<byte position>", repr(data_ids[row][:80]))
    for row, data_id in enumerate(data_ids):
        if is_foreign_data_id(data_id):
            key, positions[row] = split_data_id(data_id, partition)
            continue
        found, position = _parse_position(entries, row, partition)
        continues[row], positions[row] = found == key, position
        key = found
    return key, positions, continues


def _split_rdis(
    rdi: RdiColumn, start: int, stop: int, key_bytes: int
) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.uint8]]:
    """Return two views of rdis of equal length: their first `key_bytes` bytes, and the remaining
    bytes one by one."""
    length = int(rdi.length[start])
    at, step = int(rdi.start[start]), length + _FIXED_BYTES
    keys: npt.NDArray[np.bytes_] = np.ndarray(
        (stop - start,), f"S{key_bytes}", rdi.data, at, (step,)
    )
    digits: npt.NDArray[np.uint8] = np.ndarray(
        (stop - start, length - key_bytes), np.uint8, rdi.data, at + key_bytes, (step, 1)
    )
    return keys, digits


def _parse_position(
    entries: RemoteLogIndexEntries, row: int, partition: TopicIdPartition
) -> tuple[str, int]:
    """Return the key of the `.log` object to which a row points, and the position in this
    object."""
    try:
        log_key, log_position = parse_rdi(entries.rdi[row], partition)
        if log_position <= MAX_FILE_BYTES:
            return str(log_key), log_position
        expected, found = "a position in a segment", str(log_position)
    except CorruptDataError as error:
        expected, found = error.expected, error.found
    raise _bad_rdi(entries, row, expected, found)


def _bad_rdi(
    entries: RemoteLogIndexEntries, row: int, expected: str, found: str
) -> CorruptDataError:
    position = int(entries.position[row])
    return CorruptDataError(reason="bad_rdi", position=position, expected=expected, found=found)


def entry_of(
    entries: RemoteLogIndexEntries, row: int, partition: TopicIdPartition
) -> RemoteLogIndexEntry:
    """Return the entry of one row. Raises CorruptDataError when its rdi is not in the partition."""
    rdi = entries.rdi[row]
    log_key, log_position = split_data_id(rdi, partition)
    return RemoteLogIndexEntry(
        first_offset=int(entries.first_offset[row]),
        last_offset=int(entries.last_offset[row]),
        first_timestamp_ms=int(entries.first_timestamp_ms[row]),
        last_timestamp_ms=int(entries.last_timestamp_ms[row]),
        data_length=int(entries.data_length[row]),
        rdi=rdi,
        log_key=log_key,
        log_position=log_position,
    )


# -- reading


def read_entries(
    descriptor: int,
    path: str,
    position: int,
    end_position: int,
    *,
    chunk_bytes: int | None = None,
) -> Iterator[tuple[int, RemoteLogIndexEntries]]:
    """Yield (position of the first entry, verified entries) for consecutive chunks of a file.

    The first chunk has `chunk_bytes` (4 MiB by default); the next ones grow up to 4 MiB. Raises
    CorruptDataError at the first byte before `end_position` that does not belong to a valid entry.
    """
    before = -1
    chunk_bytes = chunk_bytes or _CHUNK_BYTES
    while position < end_position:
        data = os.pread(descriptor, min(chunk_bytes, end_position - position), position)
        try:
            entries = decode_remote_log_index(data, recover=True)
        except CorruptDataError as error:
            raise error.located(path, _HINT, shift=position) from None
        if not len(entries):
            if chunk_bytes > _MAX_ENTRY_BYTES or position + len(data) >= end_position:
                torn = entries.torn or _truncated_error(end_position - position)
                raise torn.located(path, _HINT, shift=position)
            chunk_bytes = _MAX_ENTRY_BYTES + 1
            continue
        if entries.last_offset[0] <= before:
            raise CorruptDataError(
                reason="offset_order",
                path=path,
                position=position,
                expected=f"lastOffset > {before}",
                found=str(entries.last_offset[0]),
                hint=_HINT,
            )
        before = int(entries.last_offset[-1])
        yield position, entries
        position += entries.valid_length
        chunk_bytes = min(4 * chunk_bytes, _CHUNK_BYTES)


def _truncated_error(size_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        reason="truncated", position=0, expected=f"{size_bytes} bytes", found="end of file"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Result of scanning a file: a summary of its valid entries, and the indexes that these entries
    should have.

    ``file`` is None when there is no valid entry. ``torn`` is the error for the bytes after the
    last valid entry; None if these bytes are the trailer, or if there are none.
    """

    file: RemoteIndexFile | None
    offset_index: bytes
    time_index: bytes
    has_trailer: bool
    torn: CorruptDataError | None


def scan(path: str, base_offset: int, partition: TopicIdPartition) -> Scan:
    """Verify a log file. The result's ``torn`` reports an incomplete append at the end.

    Raises CorruptDataError for any other damage; then no entry of the file can be trusted.
    """
    descriptor = open_regular_file(path)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > MAX_FILE_BYTES:
            raise CorruptDataError(
                reason="bad_length",
                path=path,
                position=MAX_FILE_BYTES,
                expected="end of file",
                found=f"{size_bytes} bytes",
                hint=_HINT,
            )
        return _scan_entries(descriptor, path, base_offset, size_bytes, partition)
    finally:
        os.close(descriptor)


def _scan_entries(
    descriptor: int, path: str, base_offset: int, size_bytes: int, partition: TopicIdPartition
) -> Scan:
    file: RemoteIndexFile | None = None
    last_entry: LastEntry | None = None
    offset_index, time_index = [], []
    torn: CorruptDataError | None = None
    has_trailer = False
    try:
        for position, entries in read_entries(descriptor, path, 0, size_bytes):
            last_entry = check_entries(
                entries, partition, before=last_entry, path=path, at=position
            )
            assert last_entry is not None
            _check_base(entries, base_offset, path, is_first=file is None)
            growth = grow(file, base_offset, entries, 0, len(entries), last_entry)
            file = growth.after
            offset_index.append(growth.offset)
            time_index.append(growth.time)
    except CorruptDataError as error:
        if file is None or not _is_trailer(descriptor, file, size_bytes):
            if not _is_torn(descriptor, error.position, size_bytes):
                raise
            torn = error
        else:
            has_trailer = True
    return Scan(
        file=file,
        offset_index=b"".join(offset_index),
        time_index=b"".join(time_index),
        has_trailer=has_trailer,
        torn=torn,
    )


def _check_base(
    entries: RemoteLogIndexEntries, base_offset: int, path: str, *, is_first: bool
) -> None:
    """Check that the first entry contains the base offset, and that all entries end at most 2^31 -
    1 above it."""
    first, last = int(entries.first_offset[0]), int(entries.last_offset[-1])
    holds = not is_first or first <= base_offset <= int(entries.last_offset[0])
    if not holds or last - base_offset > MAX_RELATIVE_OFFSET:
        raise CorruptDataError(
            reason="wrong_base",
            path=path,
            position=0,
            expected=f"offsets from {base_offset} to at most {MAX_RELATIVE_OFFSET} past it",
            found=f"{first} to {last}",
            hint=_HINT,
        )


def _is_trailer(descriptor: int, file: RemoteIndexFile, size_bytes: int) -> bool:
    if size_bytes - file.size_bytes != TRAILER.size:
        return False
    return os.pread(descriptor, TRAILER.size, file.size_bytes) == TRAILER.pack(file.last_position)


def _is_torn(descriptor: int, position: int, size_bytes: int) -> bool:
    """Return whether the bytes from `position` on may come from an interrupted append."""
    rest = size_bytes - position
    if rest <= _MAX_ENTRY_BYTES + TRAILER.size:
        try:
            entries = decode_remote_log_index(os.pread(descriptor, rest, position), recover=True)
        except CorruptDataError:
            return False
        return not len(entries)
    while position < size_bytes:
        data = os.pread(descriptor, _CHUNK_BYTES, position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True


# -- look-ups

_Find = Callable[[RemoteLogIndexEntries], int | None]


def find_offset(
    paths: IndexPaths, file: RemoteIndexFile, partition: TopicIdPartition, target_offset: int
) -> tuple[RemoteLogIndexEntry, bool]:
    """Return the first entry with last offset >= `target_offset`, and whether this entry answers
    the look-up. The file must have such an entry.

    An entry is no answer when it starts above the target and the previous entry belongs to another
    segment, because the file does not know the offsets in between. Raises CorruptDataError when the
    index or an entry that was read is damaged. A search without an index path is slow.
    """
    position, found_slot = 0, None
    if paths.offset:
        found_slot, position = _look_up_slot(
            paths.offset,
            OFFSET_SLOT_BYTES,
            file.entry_count,
            lambda slots: _core.lookup_offset_index(slots, file.base_offset, target_offset - 1),
        )
    found = _walk(paths.log, file, position, lambda entries: entries.lookup_offset(target_offset))
    _check_slot(paths.offset, position, found.start_last_offset, found_slot)
    entry = entry_of(found.entries, found.row, partition)
    if entry.first_offset <= target_offset:
        return entry, True
    before = found.before
    return entry, before is not None and split_data_id(before, partition)[0] == entry.log_key


def find_timestamp(
    paths: IndexPaths, file: RemoteIndexFile, partition: TopicIdPartition, target_ms: int
) -> RemoteLogIndexEntry:
    """Return the first entry with last timestamp >= `target_ms`. The file must have such an entry.

    Raises CorruptDataError as `find_offset` does.
    """
    position, found_slot = 0, (_NO_TIMESTAMP, 0)
    if paths.time:
        found_slot = _look_up_slot(
            paths.time,
            TIME_SLOT_BYTES,
            file.time_count,
            lambda slots: _core.lookup_time_index(slots, file.base_offset, target_ms - 1),
        )
    timestamp_ms, offset = found_slot
    if timestamp_ms != _NO_TIMESTAMP:
        at, position = _look_up_slot(
            paths.offset,
            OFFSET_SLOT_BYTES,
            file.entry_count,
            lambda slots: _core.lookup_offset_index(slots, file.base_offset, offset),
        )
        _check_slot(paths.time, 1, at, offset)
    found = _walk(paths.log, file, position, lambda entries: entries.lookup_timestamp(target_ms))
    if timestamp_ms != _NO_TIMESTAMP:
        _check_slot(paths.time, 1, found.start_last_offset, offset)
        _check_slot(paths.time, 1, found.start_last_timestamp_ms, timestamp_ms)
    return entry_of(found.entries, found.row, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WalkResult:
    """The row that was found, the rdi before it, and the last offset and last timestamp of the
    first entry read."""

    entries: RemoteLogIndexEntries
    row: int
    before: bytes | None
    start_last_offset: int
    start_last_timestamp_ms: int


def _walk(path: str, file: RemoteIndexFile, position: int, find: _Find) -> _WalkResult:
    """Read entries from `position` on, up to the first entry that `find` accepts."""
    descriptor = open_regular_file(path)
    # A damaged index may name any position.
    position = position if 0 <= position < file.size_bytes else file.size_bytes
    try:
        before: bytes | None = None
        start: tuple[int, int] | None = None
        chunks = read_entries(
            descriptor, path, position, file.size_bytes, chunk_bytes=_FIRST_CHUNK_BYTES
        )
        for _, entries in chunks:
            if start is None:
                start = int(entries.last_offset[0]), int(entries.last_timestamp_ms[0])
            row = find(entries)
            if row is not None:
                return _WalkResult(
                    entries=entries,
                    row=row,
                    before=entries.rdi[row - 1] if row else before,
                    start_last_offset=start[0],
                    start_last_timestamp_ms=start[1],
                )
            before = entries.rdi[len(entries) - 1]
    finally:
        os.close(descriptor)
    raise CorruptDataError(
        reason="stale_index",
        path=path,
        position=position,
        expected="an entry that reaches the target",
        found="none up to the end",
        hint=_HINT,
    )


def _look_up_slot(
    path: str, slot_bytes: int, count: int, lookup: Callable[[bytes], tuple[int, int]]
) -> tuple[int, int]:
    """Return the result of `lookup` on an index file. A binary search finds the one block that is
    read."""
    descriptor = open_regular_file(path)
    try:
        nothing = lookup(b"")
        low, high = 0, count
        while high - low > _BLOCK_SLOTS:
            middle = (low + high) // 2
            slot = os.pread(descriptor, slot_bytes, middle * slot_bytes)
            if lookup(slot) != nothing:
                low = middle
            else:
                high = middle
        return lookup(os.pread(descriptor, (high - low) * slot_bytes, low * slot_bytes))
    finally:
        os.close(descriptor)


def _check_slot(path: str, position: int, found: int, expected: int | None) -> None:
    """Check that the entry to which an index pointed has the expected value. Position 0 needs no
    check, because a look-up that starts at 0 needs no index."""
    if position and found != expected:
        raise CorruptDataError(
            reason="stale_index",
            path=path,
            position=0,
            expected=f"an index that agrees with its entries, which have {found}",
            found=str(expected),
            hint=_HINT,
        )

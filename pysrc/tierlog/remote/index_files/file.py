"""One file of a partition's remote log index with its two indexes: what it holds, how it grows, how
it is read.

    <base>.remoteLogIndex     entries back to back, then 8 bytes: the position of the last one, i64
    <base>.remoteOffsetIndex  of each entry: last offset - base, i32; position of the entry, i32
    <base>.remoteTimeIndex    of each entry whose last timestamp passes all before it (and -1):
                              that timestamp, i64; last offset - base, i32

The log is the truth: every byte of it is verified when it is opened, and what a look-up returns is
verified again. The indexes only say where to begin: a look-up through a wrong one finds that out.
The trailer is written for others and never needed.

`RemoteIndexFile` is what is known of such a file; it never changes. What an append makes of it, and
the bytes that go to the disk for that, is `grown`, a pure function; `scan` runs the same one over a
file that was found, so both agree to the byte.
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
    "LastRun",
    "RemoteIndexFile",
    "RemoteLogIndexEntry",
    "Scan",
    "check_entries",
    "entry_of",
    "find_offset",
    "find_timestamp",
    "grown",
    "is_followed",
    "read_entries",
    "scan",
]

TRAILER = struct.Struct(">q")
MAX_RELATIVE_OFFSET = 2**31 - 1
# A position has 31 bits.
MAX_FILE_BYTES = 2**31 - 1
_FIRST_WINDOW_BYTES = 4 << 10
_WINDOW_BYTES = 4 << 20
# No entry is longer.
_MAX_ENTRY_BYTES = 2**15 - 1
_FIXED_BYTES = 46
# <base offset, 20 digits>-<segment id, 22 characters>.log
_KEY_NAME_BYTES = 20 + 1 + 22 + len(LOG_SUFFIX)
OFFSET_SLOT_BYTES = 8
TIME_SLOT_BYTES = 12
_BLOCK_SLOTS = 1024
_NO_TIMESTAMP = -1
_HINT = "its file is made again from the store"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteLogIndexEntry:
    """A verified entry: where offsets `first_offset` to `last_offset` (inclusive) lie remotely.

    ``data_length`` bytes from ``log_position`` on of the object ``log_key``, whole batches. The
    last one may end past `last_offset`: what follows was cut off the log.
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
class LastRun:
    """The last entry: the `.log` object's key, its run's first byte and the one after the last, its
    offsets."""

    key: str
    start_position: int
    end_position: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexFile:
    """A verified file with at least one entry. ``size_bytes`` counts entries, not the trailer;
    ``max_timestamp_ms`` is -1 when no entry has one."""

    base_offset: int
    last_offset: int
    size_bytes: int
    entry_count: int
    time_count: int
    last_position: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    last_run: LastRun


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPaths:
    """Where the files of a base offset are; the indexes ``""`` to do without them."""

    log: str
    offset: str = ""
    time: str = ""


# -- growing


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """A file after an append, and the bytes that follow those already in each of the three."""

    after: RemoteIndexFile
    log: memoryview
    offset: bytes
    time: bytes

    @property
    def trailer(self) -> bytes:
        return TRAILER.pack(self.after.last_position)


def is_followed(
    file: RemoteIndexFile,
    key: str,
    start_offset: int,
    size_bytes: int,
    last_timestamp_ms: int,
    *,
    rotate_bytes: int,
    rotate_ms: int,
) -> bool:
    """Whether entries of the segment `key`, `size_bytes` of them, go into a new file.

    It depends on nothing but the segments, so the same ones give the same files on every node and
    after every loss. Time is therefore the records' own, as for retention. A segment that was begun
    is finished in its file; one that leaves offsets out begins a new one, so that whatever is
    missing is missing between two files.
    """
    if file.last_run.key == key:
        return False
    if start_offset > file.last_offset + 1 or file.size_bytes + size_bytes > rotate_bytes:
        return True
    if rotate_ms < 0 or min(file.first_timestamp_ms, last_timestamp_ms) < 0:
        return False
    return last_timestamp_ms - file.first_timestamp_ms >= rotate_ms


def grown(
    before: RemoteIndexFile | None,
    base_offset: int,
    entries: RemoteLogIndexEntries,
    start: int,
    stop: int,
    last_run: LastRun,
) -> Growth:
    """Rows `start` to `stop` (exclusive, at least one) appended to a file, None for a new one."""
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
        last_run=last_run,
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
    before: LastRun | None = None,
    only_key: str | None = None,
    path: str | None = None,
    at: int = 0,
) -> LastRun | None:
    """The last one of them; `before`, the one before the first, when there are none.

    CorruptDataError unless every rdi points below the partition's own prefix (and into the object
    `only_key`, if given) and the runs of each `.log` object follow each other in it without a gap
    or a common offset; only an entry that was cut may be followed by itself as it was before. `at`
    is the byte position of the first entry in the file `path`.
    """
    if not len(entries):
        return before
    try:
        key, start, continues = _log_positions(entries, partition, before, only_key)
    except CorruptDataError as error:
        raise _moved(error, path, at) from None
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
    return LastRun(
        key=key,
        start_position=int(start[-1]),
        end_position=int(end[-1]),
        first_offset=int(first[-1]),
        last_offset=int(last[-1]),
    )


def _log_positions(
    entries: RemoteLogIndexEntries,
    partition: TopicIdPartition,
    before: LastRun | None,
    only_key: str | None,
) -> tuple[str, Int64Column, npt.NDArray[np.bool_]]:
    """Key of the last row's `.log` object, each row's position in its own, and whether that is the
    object of the row before. Keys of one partition have one length, so rows are compared in bulk;
    a key that is new is parsed."""
    rdi = entries.rdi
    key = before.key if before else ""
    key_bytes = len(partition_prefix(partition)) + _KEY_NAME_BYTES
    positions = np.empty(len(entries), dtype=np.int64)
    continues = np.zeros(len(entries), dtype=np.bool_)
    edges = [0, *(np.flatnonzero(np.diff(rdi.length)) + 1).tolist(), len(entries)]
    for start, stop in pairwise(edges):
        length = int(rdi.length[start])
        keys, digits = _columns(rdi, start, stop, min(key_bytes + 1, length))
        # numpy overlooks zeros at the end; the first key of a run is parsed below and has none.
        continues[start + 1 : stop] = keys[1:] == keys[:-1]
        for row in (np.flatnonzero(~continues[start:stop]) + start).tolist():
            if is_foreign_data_id(rdi[row]):
                return _foreign_positions(entries, partition, before, only_key)
            found, _ = _log_place(entries, row, partition)
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
    before: LastRun | None,
    only_key: str | None,
) -> tuple[str, Int64Column, npt.NDArray[np.bool_]]:
    """The same where ids of other storage managers are among them, one by one. What their positions
    mean is not known, so that they need not follow each other."""
    key = before.key if before else ""
    positions = np.empty(len(entries), dtype=np.int64)
    continues = np.zeros(len(entries), dtype=np.bool_)
    data_ids = list(entries.rdi)
    if only_key is not None and not all(map(is_foreign_data_id, data_ids)):
        # One segment has ids of one kind.
        row = next(row for row, one in enumerate(data_ids) if is_foreign_data_id(one))
        raise _bad_rdi(entries, row, f"{only_key}:<byte position>", repr(data_ids[row][:80]))
    for row, data_id in enumerate(data_ids):
        if is_foreign_data_id(data_id):
            key, positions[row] = split_data_id(data_id, partition)
            continue
        found, position = _log_place(entries, row, partition)
        continues[row], positions[row] = found == key, position
        key = found
    return key, positions, continues


def _columns(
    rdi: RdiColumn, start: int, stop: int, key_bytes: int
) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.uint8]]:
    """Rdis of one length, where they lie: their first `key_bytes`, and the rest byte by byte."""
    length = int(rdi.length[start])
    at, step = int(rdi.start[start]), length + _FIXED_BYTES
    keys: npt.NDArray[np.bytes_] = np.ndarray(
        (stop - start,), f"S{key_bytes}", rdi.data, at, (step,)
    )
    digits: npt.NDArray[np.uint8] = np.ndarray(
        (stop - start, length - key_bytes), np.uint8, rdi.data, at + key_bytes, (step, 1)
    )
    return keys, digits


def _log_place(
    entries: RemoteLogIndexEntries, row: int, partition: TopicIdPartition
) -> tuple[str, int]:
    """Key of the `.log` object that a row points into, and the position there."""
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
    """One row, its rdi checked. CorruptDataError when that points elsewhere."""
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
    window_bytes: int | None = None,
) -> Iterator[tuple[int, RemoteLogIndexEntries]]:
    """(position of its first entry, verified entries), piece by piece, all from one position on.

    Pieces begin with `window_bytes`, 4 MiB by default, and grow up to that. CorruptDataError at the
    first byte up to `end_position` that is not part of a good entry.
    """
    before = -1
    window_bytes = window_bytes or _WINDOW_BYTES
    while position < end_position:
        data = os.pread(descriptor, min(window_bytes, end_position - position), position)
        try:
            entries = decode_remote_log_index(data, recover=True)
        except CorruptDataError as error:
            raise _moved(error, path, position) from None
        if not len(entries):
            if window_bytes > _MAX_ENTRY_BYTES or position + len(data) >= end_position:
                raise _moved(entries.torn or _nothing(end_position - position), path, position)
            window_bytes = _MAX_ENTRY_BYTES + 1
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
        window_bytes = min(4 * window_bytes, _WINDOW_BYTES)


def _nothing(size_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        reason="truncated", position=0, expected=f"{size_bytes} bytes", found="end of file"
    )


def _moved(error: CorruptDataError, path: str | None, by_bytes: int) -> CorruptDataError:
    return CorruptDataError(
        reason=error.reason,
        path=path,
        position=error.position + by_bytes,
        expected=error.expected,
        found=error.found,
        hint=_HINT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A file as it was found: its good entries, and the indexes they should have.

    ``file`` is None without a single good entry. ``torn`` says why the bytes after the last good
    entry are none, None if they are the trailer or nothing.
    """

    file: RemoteIndexFile | None
    offset_index: bytes
    time_index: bytes
    has_trailer: bool
    torn: CorruptDataError | None


def scan(path: str, base_offset: int, partition: TopicIdPartition) -> Scan:
    """Verifies a whole log file; an append that was cut off at its very end is told apart.

    CorruptDataError for any other damage: then nothing in the file is to be trusted.
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
        return _scan(descriptor, path, base_offset, size_bytes, partition)
    finally:
        os.close(descriptor)


def _scan(
    descriptor: int, path: str, base_offset: int, size_bytes: int, partition: TopicIdPartition
) -> Scan:
    file: RemoteIndexFile | None = None
    last_run: LastRun | None = None
    offset_index, time_index = [], []
    torn: CorruptDataError | None = None
    has_trailer = False
    try:
        for position, entries in read_entries(descriptor, path, 0, size_bytes):
            last_run = check_entries(entries, partition, before=last_run, path=path, at=position)
            assert last_run is not None
            _check_base(entries, base_offset, path, is_first=file is None)
            growth = grown(file, base_offset, entries, 0, len(entries), last_run)
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
    """The name fits the entries: all end at or above it, within 31 bits, the first one holds it."""
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
    """Whether what starts there can be an append that was cut off, as for one entry alone."""
    rest = size_bytes - position
    if rest <= _MAX_ENTRY_BYTES + TRAILER.size:
        try:
            entries = decode_remote_log_index(os.pread(descriptor, rest, position), recover=True)
        except CorruptDataError:
            return False
        return not len(entries)
    while position < size_bytes:
        data = os.pread(descriptor, _WINDOW_BYTES, position)
        if not data or data.count(0) != len(data):
            return False
        position += len(data)
    return True


# -- look-ups

_Find = Callable[[RemoteLogIndexEntries], int | None]


def find_offset(
    paths: IndexPaths, file: RemoteIndexFile, partition: TopicIdPartition, target_offset: int
) -> tuple[RemoteLogIndexEntry, bool]:
    """The first entry whose last offset reaches `target_offset`, which one of the file does.

    And whether it is the answer for that offset: not when it begins later and the one before is of
    another segment, for then this file does not say what lies between. CorruptDataError when the
    index or an entry on the way is damaged. ``paths`` without indexes is slow.
    """
    position, floor = 0, None
    if paths.offset:
        floor, position = _floor(
            paths.offset,
            OFFSET_SLOT_BYTES,
            file.entry_count,
            lambda slots: _core.lookup_offset_index(slots, file.base_offset, target_offset - 1),
        )
    found = _walk(paths.log, file, position, lambda entries: entries.lookup_offset(target_offset))
    _check_floor(paths.offset, position, found.start_last_offset, floor)
    entry = entry_of(found.entries, found.row, partition)
    if entry.first_offset <= target_offset:
        return entry, True
    before = found.before
    return entry, before is not None and split_data_id(before, partition)[0] == entry.log_key


def find_timestamp(
    paths: IndexPaths, file: RemoteIndexFile, partition: TopicIdPartition, target_ms: int
) -> RemoteLogIndexEntry:
    """The first entry whose last timestamp reaches `target_ms`, which one of the file does.

    CorruptDataError as in `find_offset`.
    """
    position, floor = 0, (_NO_TIMESTAMP, 0)
    if paths.time:
        floor = _floor(
            paths.time,
            TIME_SLOT_BYTES,
            file.time_count,
            lambda slots: _core.lookup_time_index(slots, file.base_offset, target_ms - 1),
        )
    timestamp_ms, offset = floor
    if timestamp_ms != _NO_TIMESTAMP:
        at, position = _floor(
            paths.offset,
            OFFSET_SLOT_BYTES,
            file.entry_count,
            lambda slots: _core.lookup_offset_index(slots, file.base_offset, offset),
        )
        _check_floor(paths.time, 1, at, offset)
    found = _walk(paths.log, file, position, lambda entries: entries.lookup_timestamp(target_ms))
    if timestamp_ms != _NO_TIMESTAMP:
        _check_floor(paths.time, 1, found.start_last_offset, offset)
        _check_floor(paths.time, 1, found.start_last_timestamp_ms, timestamp_ms)
    return entry_of(found.entries, found.row, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """A row, the rdi before it, and what the entry said that the walk began with."""

    entries: RemoteLogIndexEntries
    row: int
    before: bytes | None
    start_last_offset: int
    start_last_timestamp_ms: int


def _walk(path: str, file: RemoteIndexFile, position: int, find: _Find) -> _Walked:
    """From an entry's position on to the first entry that `find` finds."""
    descriptor = open_regular_file(path)
    # A damaged index may say anything.
    position = position if 0 <= position < file.size_bytes else file.size_bytes
    try:
        before: bytes | None = None
        start: tuple[int, int] | None = None
        pieces = read_entries(
            descriptor, path, position, file.size_bytes, window_bytes=_FIRST_WINDOW_BYTES
        )
        for _, entries in pieces:
            if start is None:
                start = int(entries.last_offset[0]), int(entries.last_timestamp_ms[0])
            row = find(entries)
            if row is not None:
                return _Walked(
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
        expected="an entry that reaches what was looked for",
        found="none up to the end",
        hint=_HINT,
    )


def _floor(
    path: str, slot_bytes: int, count: int, lookup: Callable[[bytes], tuple[int, int]]
) -> tuple[int, int]:
    """What `lookup` finds in the whole index file, of which only a block is read."""
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


def _check_floor(path: str, position: int, found: int, expected: int | None) -> None:
    """The entry that an index pointed at is the one it meant; the first one needs no index."""
    if position and found != expected:
        raise CorruptDataError(
            reason="stale_index",
            path=path,
            position=0,
            expected=f"an index of the entries, which say {found}",
            found=str(expected),
            hint=_HINT,
        )

"""Recover, extend and truncate the sequence of a partition's remote index files. Not thread-safe.

`FileSequence` summarizes the files at one moment, in offset order. A gap before or between files is
a range of offsets without entries. Either the log lacks these offsets, or the file was lost or
damaged, or the offsets are below the log start offset. The last gap is the range of future offsets.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierlog.errors import CorruptDataError
from tierlog.remote.file_io import sync_file, write_all
from tierlog.remote.index_files.directory import (
    RemoteIndexDir,
    RemoteIndexKind,
)
from tierlog.remote.index_files.file import (
    MAX_RELATIVE_OFFSET,
    OFFSET_SLOT_BYTES,
    TIME_SLOT_BYTES,
    TRAILER,
    Growth,
    LastEntry,
    RemoteIndexFile,
    Scan,
    check_entries,
    grow,
    read_entries,
    scan,
    starts_new_file,
)
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import MAX_INDEXES_BYTES
from tierlog.remote.segment.layout import is_foreign_data_id, log_key
from tierlog.remote.segment.log_index import (
    RemoteLogIndexEntries,
    decode_remote_log_index,
    encode_remote_log_index,
)
from tierlog.remote.store.object_store import open_regular_file
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FileSequence", "SegmentEntries", "SequenceWriter", "segment_entries"]

_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSequence:
    """The files in offset order. Each of the ``gaps`` is a pair (last offset before, first offset
    after), both exclusive. The last gap has no end."""

    files: tuple[RemoteIndexFile, ...] = ()
    last_offsets: tuple[int, ...] = ()
    gaps: tuple[tuple[int, int], ...] = ((-1, _MAX_INT64),)

    @classmethod
    def of(cls, files: Iterable[RemoteIndexFile]) -> FileSequence:
        files = tuple(files)
        lasts = tuple(file.last_offset for file in files)
        bases = (file.base_offset for file in files)
        gaps = zip((-1, *lasts), (*bases, _MAX_INT64), strict=True)
        return cls(
            files=files,
            last_offsets=lasts,
            gaps=tuple((low, high) for low, high in gaps if high - low > 1),
        )

    @property
    def last_offset(self) -> int:
        """The last offset of all files; -1 when there are no files."""
        return self.last_offsets[-1] if self.last_offsets else -1

    def gaps_in(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the gaps that overlap the offsets `start_offset` to `end_offset`."""
        if len(self.gaps) == 1 and end_offset <= self.gaps[0][0]:
            return []
        return [gap for gap in self.gaps if gap[0] < end_offset and start_offset < gap[1]]

    def file_ending_at(self, last_offset: int) -> RemoteIndexFile | None:
        """Return the file that ends with `last_offset`, else None."""
        index = bisect_left(self.last_offsets, last_offset)
        if index < len(self.files) and self.files[index].last_offset == last_offset:
            return self.files[index]
        return None

    def with_file(self, file: RemoteIndexFile) -> FileSequence:
        """Return the sequence with `file` added. `file` replaces a file with the same base
        offset."""
        others = [other for other in self.files if other.base_offset != file.base_offset]
        return FileSequence.of(sorted([*others, file], key=lambda one: one.base_offset))


# -- the entries of a segment


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntries:
    """The verified entries of one segment that are part of the log."""

    key: str
    start_offset: int
    entries: RemoteLogIndexEntries
    log_position: int

    def last_entry(self, stop: int) -> LastEntry:
        """Return the last entry of the rows before `stop`."""
        length = int(self.entries.data_length[:stop].sum(dtype=np.int64))
        end_position = self.log_position + length
        return LastEntry(
            key=self.key,
            start_position=end_position - int(self.entries.data_length[stop - 1]),
            end_position=end_position,
            first_offset=int(self.entries.first_offset[stop - 1]),
            last_offset=int(self.entries.last_offset[stop - 1]),
        )


def segment_entries(segment: RemoteLogSegmentMetadata, data: Buffer) -> SegmentEntries:
    """Verify `data`, the remoteLogIndex section of the segment, and leave out entries at or above
    the segment's truncation offset.

    An entry that spans the truncation offset keeps its byte range, but its last offset becomes the
    truncation offset - 1. Raises CorruptDataError when a byte is wrong or an entry does not belong
    to the segment.
    """
    path = f"remoteLogIndex of {segment.segment_id}"
    size_bytes = memoryview(data).nbytes
    if size_bytes > MAX_INDEXES_BYTES:
        expected = f"at most {MAX_INDEXES_BYTES} bytes"
        raise _wrong_segment(path, MAX_INDEXES_BYTES, expected, f"{size_bytes} bytes")
    entries = decode_remote_log_index(data, path=path)
    if entries.has_trailer:
        raise _wrong_segment(path, entries.valid_length, "end of entries", "a trailer")
    key = log_key(segment)
    last_entry = check_entries(entries, segment.topic_id_partition, path=path, only_key=key)
    log_position = 0
    if last_entry is not None and is_foreign_data_id(
        last_entry.key.encode(errors="surrogateescape")
    ):
        key = last_entry.key
        entries = _truncate_entries(entries, segment.served_end_offset)
    elif last_entry is not None:
        log_position = last_entry.end_position - int(entries.data_length.sum(dtype=np.int64))
        _check_range(segment, entries, last_entry, path)
        entries = _truncate_entries(entries, segment.served_end_offset)
    return SegmentEntries(
        key=key, start_offset=segment.start_offset, entries=entries, log_position=log_position
    )


def _check_range(
    segment: RemoteLogSegmentMetadata,
    entries: RemoteLogIndexEntries,
    last_entry: LastEntry,
    path: str,
) -> None:
    first, last = int(entries.first_offset[0]), last_entry.last_offset
    size_bytes = segment.segment_size_bytes
    if first < segment.start_offset or last > segment.end_offset:
        expected = f"offsets in {segment.start_offset} to {segment.end_offset}"
        raise _wrong_segment(path, 0, expected, f"{first} to {last}")
    if last_entry.end_position > size_bytes:
        expected = f"entries within {size_bytes} bytes"
        raise _wrong_segment(path, 0, expected, f"one up to {last_entry.end_position}")
    if (entries.last_offset - entries.first_offset > MAX_RELATIVE_OFFSET).any():
        raise _wrong_segment(path, 0, "entries of at most 2^31 offsets", "a longer one")


def _wrong_segment(path: str, position: int, expected: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        reason="wrong_segment", path=path, position=position, expected=expected, found=found
    )


def _truncate_entries(entries: RemoteLogIndexEntries, end_offset: int) -> RemoteLogIndexEntries:
    """Return the entries up to `end_offset`."""
    row = entries.lookup_offset(end_offset + 1)
    if row is None:
        return entries
    kept = bytes(entries.rdi.data[: int(entries.position[row])])
    return decode_remote_log_index(kept + _shorten_entry(entries, row, end_offset))


def _shorten_entry(entries: RemoteLogIndexEntries, row: int, end_offset: int) -> bytes:
    """Encode the entry with the last offset `end_offset`; return ``b""`` if the entry starts after
    it."""
    first = int(entries.first_offset[row])
    if first > end_offset:
        return b""
    return encode_remote_log_index(
        [first],
        [end_offset],
        entries.first_timestamp_ms[row : row + 1],
        entries.last_timestamp_ms[row : row + 1],
        entries.data_length[row : row + 1],
        [entries.rdi[row]],
    )


# -- the files


class SequenceWriter:
    """Writes the files in one folder. `sequence` changes only after the files on disk have changed,
    so all its files are complete.

    With ``sync=False`` the caller must call `sync` to make the files durable. After an OSError the
    state of the disk is unknown, so the caller must call `recover` next.
    """

    def __init__(
        self,
        directory: RemoteIndexDir,
        partition: TopicIdPartition,
        *,
        rotate_bytes: int,
        rotate_ms: int,
        sync: bool = True,
    ) -> None:
        self.directory = directory
        self.sequence = FileSequence()
        self._partition = partition
        self._rotate_bytes = rotate_bytes
        self._rotate_ms = rotate_ms
        self._sync = sync
        # Files whose bytes may be only in the page cache, because a sync failed. Reading these
        # files does not prove that their bytes are durable.
        self._unsynced: set[int] = set()

    # -- recovering

    def recover(self) -> list[CorruptDataError]:
        """Repair the files in the folder, so that all are valid; return the findings."""
        self.sequence = FileSequence()
        listing = self.directory.recover()
        findings = [
            _finding("not_a_file", path, "a regular file", "another file type, which was set aside")
            for path in listing.set_aside
        ]
        files: list[RemoteIndexFile] = []
        for base_offset, kinds in sorted(listing.kinds.items()):
            if RemoteIndexKind.LOG not in kinds:
                path = self.directory.file_path(base_offset, min(kinds))
                findings.append(_finding("missing_log", path, "a remoteLogIndex beside it", "none"))
                self.directory.remove(base_offset)
                continue
            before = files[-1].last_offset if files else -1
            file = self._recover_file(base_offset, before, findings)
            if file is not None:
                files.append(file)
        if findings:
            self.directory.sync()
        self._unsynced.clear()
        self.sequence = FileSequence.of(files)
        return findings

    def _recover_file(
        self, base_offset: int, before: int, findings: list[CorruptDataError]
    ) -> RemoteIndexFile | None:
        """Make a file valid and durable; return None when the file had to be removed. `before` is
        the last offset of the previous file."""
        path = self.directory.file_path(base_offset, RemoteIndexKind.LOG)
        try:
            found = scan(path, base_offset, self._partition)
            if found.file is not None and base_offset <= before:
                raise _finding("offset_order", path, f"a base above {before}", str(base_offset))
        except CorruptDataError as error:
            findings.append(error)
            self.directory.remove(base_offset)
            return None
        if found.torn is not None:
            findings.append(found.torn)
        if found.file is None:
            self.directory.remove(base_offset)
            return None
        self._repair_log(found.file, found)
        for kind, data in (
            (RemoteIndexKind.OFFSET, found.offset_index),
            (RemoteIndexKind.TIME, found.time_index),
        ):
            path = self.directory.file_path(base_offset, kind)
            if not _has_content(path, data):
                findings.append(_finding("stale_index", path, "the index of its log", "another"))
                self.directory.replace(base_offset, kind, data)
        return found.file

    def _repair_log(self, file: RemoteIndexFile, found: Scan) -> None:
        is_rewritten = file.base_offset in self._unsynced
        if is_rewritten:
            self.directory.rewrite(file.base_offset, file.size_bytes)
        elif found.has_trailer:
            # The process may have died between writing and syncing the trailer.
            sync_file(self.directory.file_path(file.base_offset, RemoteIndexKind.LOG))
            return
        with self.directory.opened(file.base_offset, RemoteIndexKind.LOG, create=False) as log:
            if found.torn is not None:
                os.ftruncate(log, file.size_bytes)
            write_all(log, TRAILER.pack(file.last_position), file.size_bytes)
            os.fsync(log)

    # -- growing

    def insert(self, segment: SegmentEntries, gaps: Iterable[tuple[int, int]]) -> int:
        """Add the entries of `segment` that end in one of `gaps`; return the number of added
        entries."""
        added = 0
        for low, high in gaps:
            last_offset = segment.entries.last_offset
            start = int(np.searchsorted(last_offset, low, "right"))
            stop = int(np.searchsorted(last_offset, high, "left"))
            self._append_rows(segment, start, stop, low)
            added += max(stop - start, 0)
        return added

    def _append_rows(self, segment: SegmentEntries, start: int, stop: int, low: int) -> None:
        """Append the rows from `start` up to `stop` (exclusive) to the file that ends at offset
        `low`, or to new files."""
        entries = segment.entries
        before = self.sequence.file_ending_at(low)
        while start < stop:
            if before is not None and self._starts_new_file(before, segment, start, stop):
                before = None
            if before is None:
                # Base offsets must ascend even when segments overlap.
                base_offset = max(int(entries.first_offset[start]), low + 1)
            else:
                base_offset = before.base_offset
            most = base_offset + MAX_RELATIVE_OFFSET
            fitting = min(int(np.searchsorted(entries.last_offset, most, "right")), stop)
            if fitting > start:
                growth = grow(
                    before, base_offset, entries, start, fitting, segment.last_entry(fitting)
                )
                self._write_growth(before, growth)
                self.sequence = self.sequence.with_file(growth.after)
                low, start = growth.after.last_offset, fitting
            before = None

    def _starts_new_file(
        self, file: RemoteIndexFile, segment: SegmentEntries, start: int, stop: int
    ) -> bool:
        entries = segment.entries
        ends = int(entries.position[stop]) if stop < len(entries) else entries.valid_length
        return starts_new_file(
            file,
            segment.key,
            segment.start_offset,
            ends - int(entries.position[start]),
            int(entries.last_timestamp_ms[start:stop].max()),
            rotate_bytes=self._rotate_bytes,
            rotate_ms=self._rotate_ms,
        )

    def _write_growth(self, before: RemoteIndexFile | None, growth: Growth) -> None:
        base_offset, create = growth.after.base_offset, before is None
        size_bytes = before.size_bytes if before else 0
        offset_bytes = OFFSET_SLOT_BYTES * before.entry_count if before else 0
        time_bytes = TIME_SLOT_BYTES * before.time_count if before else 0
        if create:
            self.directory.create()
        self._unsynced.add(base_offset)
        with self.directory.opened(base_offset, RemoteIndexKind.LOG, create=create) as log:
            write_all(log, growth.log, size_bytes)
            with self.directory.opened(base_offset, RemoteIndexKind.OFFSET, create=create) as index:
                write_all(index, growth.offset, offset_bytes)
            with self.directory.opened(base_offset, RemoteIndexKind.TIME, create=create) as index:
                write_all(index, growth.time, time_bytes)
            write_all(log, growth.trailer, growth.after.size_bytes)
            if self._sync:
                os.fsync(log)
        if self._sync:
            if create:
                self.directory.sync()
            self._unsynced.discard(base_offset)

    def sync(self) -> None:
        """Make all files and their names durable."""
        for file in self.sequence.files:
            sync_file(self.directory.file_path(file.base_offset, RemoteIndexKind.LOG))
        self.directory.sync()
        self._unsynced.clear()

    # -- shrinking

    def drop_below(self, offset: int) -> int:
        """Remove the files that end below `offset`, in offset order; return their number."""
        files = self.sequence.files
        count = bisect_left(self.sequence.last_offsets, offset)
        if count:
            self.sequence = FileSequence.of(files[count:])
            for file in files[:count]:
                self.directory.remove(file.base_offset)
            self.directory.sync()
        return count

    def truncate_to(self, offset: int) -> int:
        """Remove the entries at or above `offset`; return the number of removed entries.

        An entry that spans `offset` keeps its byte range, but its last offset becomes `offset` - 1.
        """
        files = self.sequence.files
        first = bisect_left(self.sequence.last_offsets, offset)
        removed_from = (
            first if first < len(files) and files[first].base_offset >= offset else first + 1
        )
        removed_count = 0
        for file in reversed(files[removed_from:]):
            self.directory.remove(file.base_offset)
            removed_count += file.entry_count
        if first < len(files):
            self.directory.sync()
        kept = [*files[:first]]
        for file in files[first:removed_from]:
            before = kept[-1].last_offset if kept else -1
            self._truncate_file(file, offset)
            cut = self._recover_file(file.base_offset, before, [])
            removed_count += file.entry_count - (cut.entry_count if cut else 0)
            kept += [cut] if cut else []
        self.sequence = FileSequence.of(kept)
        return removed_count

    def _truncate_file(self, file: RemoteIndexFile, offset: int) -> None:
        path = self.directory.file_path(file.base_offset, RemoteIndexKind.LOG)
        self._unsynced.add(file.base_offset)
        with self.directory.opened(file.base_offset, RemoteIndexKind.LOG, create=False) as log:
            before = file.base_offset - 1
            for position, entries in read_entries(log, path, 0, file.size_bytes):
                row = entries.lookup_offset(offset)
                if row is None:
                    before = int(entries.last_offset[-1])
                    continue
                before = int(entries.last_offset[row - 1]) if row else before
                cut = _shorten_entry(entries, row, offset - 1) if offset - 1 > before else b""
                start = position + int(entries.position[row])
                os.ftruncate(log, start)
                write_all(log, cut, start)
                os.fsync(log)
                break
        self._unsynced.discard(file.base_offset)


def _finding(reason: str, path: str, expected: str, found: str) -> CorruptDataError:
    return CorruptDataError(reason=reason, path=path, position=0, expected=expected, found=found)


def _has_content(path: str, data: bytes) -> bool:
    """Return whether the file exists and contains exactly `data`."""
    try:
        descriptor = open_regular_file(path)
    except FileNotFoundError:
        return False
    try:
        if os.fstat(descriptor).st_size != len(data):
            return False
        return os.pread(descriptor, len(data), 0) == data
    finally:
        os.close(descriptor)

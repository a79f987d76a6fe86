"""The remote log index of one partition, on its leader or a follower (docs/FORMATS.md, section
9.2).

    files = RemoteIndexFiles(index_dir, partition, rotate_bytes=16 << 20, rotate_ms=-1)
    files.append(segment, entries)                  after a copy: the entries of its `.indexes`
    files.catch_up(segments, fetch)                 add missing entries from the store
    entry = files.lookup_offset(4711)               object and position of that offset
    files.drop_below(log_start_offset)              remove files below the log start offset

Each entry covers about 256 KiB of log. Entries are in offset order across a sequence of files.
`directory` describes the names of the files, and `file` their content. The same segments in the
same order give the same files, byte for byte, so all files can be rebuilt from the store. Opening
verifies every byte, removes an incomplete append after a crash, rebuilds indexes from their log,
and removes files with a damaged log. A removed or lost file leaves a gap, which the next `catch_up`
fills. `findings` lists what recovery found and repaired.

An append writes the entries, both indexes and the trailer. Before `append` returns, it syncs the
log, and the name of a new log. The indexes are not synced, because opening rebuilds them.

The caller decides which segments belong to the log. Only one process may use a folder.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tierlog.errors import CorruptDataError
from tierlog.remote.index_files.directory import RemoteIndexDir
from tierlog.remote.index_files.file import (
    RemoteLogIndexEntry,
)
from tierlog.remote.index_files.lookups import RemoteIndexLookups
from tierlog.remote.index_files.sequence import (
    FileSequence,
    SegmentEntries,
    SequenceWriter,
    segment_entries,
)
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.layout import log_key
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["RemoteIndexFiles", "RemoteLogIndexEntry"]

Fetch = Callable[[RemoteLogSegmentMetadata], "Buffer"]
_T = TypeVar("_T")
_MAX_FINDINGS = 1_000


class RemoteIndexFiles(RemoteIndexLookups):
    """The remote index files of one partition. Thread-safe. Writers exclude each other; readers do
    not wait.

    ``directory`` is the folder of all partitions' index files. Opening repairs existing files and
    creates none. ``rotate_ms`` -1 disables rotation by time. Methods raise OSError when the disk
    fails; the next write then starts with a recovery. After `close` or `delete`, methods raise
    ClosedError.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        partition: TopicIdPartition,
        *,
        rotate_bytes: int,
        rotate_ms: int,
    ) -> None:
        super().__init__(partition, RemoteIndexDir.of(directory, partition))
        self._rotate_bytes = rotate_bytes
        self._rotate_ms = rotate_ms
        self._writer = self._make_writer(self._directory, sync=True)
        self._findings: list[CorruptDataError] = []
        self._log_start_offset = 0
        # The segments that have no entries for a gap, as (segment id, gap). These segments are not
        # fetched again.
        self._fruitless: set[tuple[str, int, int]] = set()
        self._suspect = True
        self._damaged = False
        # Writers hold the first lock. A writer also holds the second lock while it changes or
        # removes bytes that readers may read. A reader that retries after such a change holds the
        # second lock.
        self._lock = threading.RLock()
        self._disk_lock = threading.RLock()
        with self._lock:
            self._recover_if_suspect()

    def __repr__(self) -> str:
        return f"RemoteIndexFiles({self.partition}, {len(self._sequence.files)} files)"

    def _make_writer(self, directory: RemoteIndexDir, *, sync: bool) -> SequenceWriter:
        return SequenceWriter(
            directory,
            self.partition,
            rotate_bytes=self._rotate_bytes,
            rotate_ms=self._rotate_ms,
            sync=sync,
        )

    # -- queries

    @property
    def findings(self) -> tuple[CorruptDataError, ...]:
        """Damage that recovery has repaired since the files were opened; the latest finding is
        last."""
        return tuple(self._findings)

    def _search(self, search: Callable[[FileSequence, bool], _T]) -> _T:
        """Return the result of `search`. After an error, repeat the search while no writer can
        change bytes."""
        self._check_open()
        try:
            return search(self._sequence, True)
        except (CorruptDataError, OSError):
            with self._disk_lock:
                return self._search_again(search)

    def _search_again(self, search: Callable[[FileSequence, bool], _T]) -> _T:
        """Repeat a look-up. If only an index is damaged, search without it; a damaged log is an
        error. The next write repairs a damaged index or log."""
        try:
            return search(self._sequence, True)
        except (CorruptDataError, FileNotFoundError):
            self._damaged = True
        try:
            return search(self._sequence, False)
        except FileNotFoundError as error:
            raise CorruptDataError(
                reason="missing_log",
                path=str(error.filename),
                position=0,
                expected="the file that existed before",
                found="none",
                hint="catch_up restores it from the store",
            ) from None

    # -- adding

    def append(self, segment: RemoteLogSegmentMetadata, entries: Buffer) -> int:
        """Add the entries of a segment from its `.indexes` object; return the number added.

        Entries that end at or below `last_offset` are skipped, and so are entries at or above the
        segment's `truncation_offset`. The entries are durable when this method returns. Raises
        CorruptDataError, and adds nothing, unless all bytes are valid and all entries belong to the
        segment.
        """
        checked = self._verify_entries(segment, entries)
        with self._lock:
            self._recover_if_suspect()
            return self._insert(checked, self._sequence.gaps[-1:])

    def catch_up(self, segments: Iterable[RemoteLogSegmentMetadata], fetch: Fetch) -> int:
        """Add the missing entries of `segments` in offset order; return the number added.

        `fetch` returns the remoteLogIndex section of a segment's `.indexes` object; it is called
        only for segments with missing entries. The call first removes entries that were truncated
        meanwhile, and then fills the gaps of lost or damaged files. If `fetch` raises, the entries
        that were added before are kept.
        """
        ordered = sorted(map(self._check_partition, segments), key=_offset_order)
        with self._lock:
            self._recover_if_suspect()
            for segment in ordered:
                if segment.truncation_offset is not None:
                    self._truncate_segment(segment, segment.truncation_offset)
        added = 0
        for segment in ordered:
            self._check_open()
            if not self._find_gaps(segment):
                continue
            checked = self._verify_entries(segment, fetch(segment))
            with self._lock:
                self._recover_if_suspect()
                added += self._insert(checked, self._find_gaps(segment))
                self._mark_fruitless(segment)
        return added

    def rebuild(self, segments: Iterable[RemoteLogSegmentMetadata], fetch: Fetch) -> int:
        """Rebuild all files from `segments`; return the number of entries.

        The new files replace the old files at once, when all new files are durable. Until then, and
        after any error, the old files are kept. Other writers wait.
        """
        ordered = sorted(map(self._check_partition, segments), key=_offset_order)
        with self._lock:
            self._recover_if_suspect()
            staged = self._make_writer(self._directory.stage(), sync=False)
            try:
                for segment in ordered:
                    self._check_open()
                    checked = self._verify_entries(segment, fetch(segment))
                    staged.insert(checked, staged.sequence.gaps_in(0, segment.end_offset))
                staged.sync()
            except BaseException:
                self._directory.unstage()
                raise
            with self._changing_bytes():
                self._directory.commit()
                self._writer.sequence = staged.sequence
            return sum(file.entry_count for file in self._sequence.files)

    def _check_partition(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        if segment.topic_id_partition != self.partition:
            raise ValueError(f"{segment.segment_id} does not belong to {self.partition}")
        return segment

    def _verify_entries(self, segment: RemoteLogSegmentMetadata, data: Buffer) -> SegmentEntries:
        return segment_entries(self._check_partition(segment), data)

    def _find_gaps(self, segment: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
        """Return the gaps that entries of the segment might fill."""
        end_offset = segment.served_end_offset
        if end_offset < max(segment.start_offset, self._log_start_offset):
            return []
        gaps = self._sequence.gaps_in(segment.start_offset, end_offset)
        return [gap for gap in gaps if (segment.segment_id.id, *gap) not in self._fruitless]

    def _mark_fruitless(self, segment: RemoteLogSegmentMetadata) -> None:
        """Record that the segment has no entries for its remaining gaps."""
        left = self._sequence.gaps_in(segment.start_offset, segment.served_end_offset)
        self._fruitless.update((segment.segment_id.id, *gap) for gap in left)

    def _insert(self, checked: SegmentEntries, gaps: Iterable[tuple[int, int]]) -> int:
        with self._changing():
            return self._writer.insert(checked, gaps)

    # -- removing

    def drop_below(self, log_start_offset: int) -> int:
        """Remove files that end below the log start offset; return their number. Later calls of
        `catch_up` add no segments that end below this offset."""
        with self._lock:
            self._recover_if_suspect()
            self._log_start_offset = max(self._log_start_offset, log_start_offset)
            if not self._sequence.files or self._sequence.files[0].last_offset >= log_start_offset:
                return 0
            with self._changing_bytes():
                return self._writer.drop_below(log_start_offset)

    def truncate_to(self, offset: int) -> int:
        """Remove entries at or above `offset`, where the log was truncated; return the number of
        removed entries.

        An entry that spans `offset` is kept, but its last offset becomes `offset` - 1; its byte
        range still contains the truncated records. The change is durable when this method returns.
        """
        with self._lock:
            self._recover_if_suspect()
            if self._sequence.last_offset < offset:
                return 0
            with self._changing_bytes():
                return self._writer.truncate_to(offset)

    def _truncate_segment(self, segment: RemoteLogSegmentMetadata, offset: int) -> None:
        """Truncate the files at `offset` if they have entries of the segment at or above it."""
        reached, key = max(offset, segment.start_offset), log_key(segment)

        def search(sequence: FileSequence, _with_index: bool) -> bool:
            # Read all later entries, because entries of overlapping segments may be between those
            # of this segment.
            rest = FileSequence.of(sequence.files[bisect_left(sequence.last_offsets, reached) :])
            found = self._entries(rest)
            return any(
                one.last_offset >= reached
                and (
                    one.log_key == key
                    # Data ids of other storage managers are opaque; compare offsets instead.
                    or ("://" in one.log_key and one.first_offset <= segment.end_offset)
                )
                for one in found
            )

        try:
            has_truncated = self._search(search)
        except CorruptDataError:
            # Recovery removes the damaged file; a later catch_up restores its valid entries.
            self._recover_if_suspect()
            has_truncated = self._search(search)
        if has_truncated:
            self.truncate_to(offset)

    def delete(self) -> None:
        """Close the object and remove its files. The folder is removed if it is then empty. After a
        failure, open and delete again to remove the remaining files."""
        self._closed = True
        with self._lock, self._disk_lock:
            self._sequence = FileSequence()
            self._directory.remove_all()

    def close(self) -> None:
        """Stop all reads and writes. The call may be repeated."""
        self._closed = True
        with self._lock:
            self._sequence = FileSequence()

    # -- consistency

    def _recover_if_suspect(self) -> None:
        """Recover the files if they were just opened, or if a failure occurred."""
        self._check_open()
        if self._suspect or self._damaged:
            self._damaged = False
            with self._changing_bytes():
                self._findings += self._writer.recover()
                del self._findings[:-_MAX_FINDINGS]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """If the body succeeds, publish the new state; else mark the files for recovery."""
        self._suspect = True
        yield
        self._sequence = self._writer.sequence
        self._suspect = False

    @contextmanager
    def _changing_bytes(self) -> Iterator[None]:
        """Like `_changing`, but for changes of existing bytes. Readers that retry wait until the
        body ends."""
        with self._disk_lock, self._changing():
            self._fruitless.clear()
            yield


def _offset_order(segment: RemoteLogSegmentMetadata) -> tuple[int, int, str]:
    return segment.start_offset, segment.end_offset, segment.segment_id.id

"""The remote log index of one partition on a node that owns or follows it (formats section 9.2).

    files = RemoteIndexFiles(index_dir, partition, rotate_bytes=16 << 20, rotate_ms=-1)
    files.append(segment, entries)                  after a copy: the entries of its `.indexes`
    files.catch_up(segments, fetch)                 what is missing, from the store
    entry = files.lookup_offset(4711)               where that offset lies in the store
    files.drop_below(log_start_offset)              whole files that nobody reads any more

One entry per run of some 256 KiB of log, in offset order across a row of files (`directory`
has their names, `file` what is in each). The same segments in the same order make the
same files, byte for byte, so all of it can be made again from the store and nothing is ever
guessed: opening verifies every byte, cuts an append that a crash cut short, makes indexes again
from their log and drops a file whose log is damaged. What is dropped or lost is a gap in the row,
which the next `catch_up` fills. `findings` says what was found.

An append writes the entries, then the two indexes, then the trailer, and syncs the log (and its
name, when it is new) before it returns. The indexes are not synced: opening makes them again.

Not here: which segments there are, and which of them belong to the log. One process per folder.
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
from tierlog.remote.index_files.row import Row, RowWriter, SegmentEntries, segment_entries
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
    """One partition's files. Any thread; those that write wait for each other, readers do not.

    ``directory`` is the folder of all partitions' index files. Opening recovers what is there and
    makes nothing. ``rotate_ms`` -1 is never. OSError when the disk fails: whatever then writes next
    begins by recovering again. ClosedError after `close` and `delete`.
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
        self._writer = self._writer_in(self._directory, sync=True)
        self._findings: list[CorruptDataError] = []
        self._log_start_offset = 0
        # What gave nothing for a gap: (segment id, gap). It need not be fetched again.
        self._fruitless: set[tuple[str, int, int]] = set()
        self._suspect = True
        self._damaged = False
        # Writers hold the first one; the second one is held while bytes that readers may be looking
        # at change or go, and by readers that have met such a change.
        self._lock = threading.RLock()
        self._disk_lock = threading.RLock()
        with self._lock:
            self._settle()

    def __repr__(self) -> str:
        return f"RemoteIndexFiles({self.partition}, {len(self._row.files)} files)"

    def _writer_in(self, directory: RemoteIndexDir, *, sync: bool) -> RowWriter:
        return RowWriter(
            directory,
            self.partition,
            rotate_bytes=self._rotate_bytes,
            rotate_ms=self._rotate_ms,
            sync=sync,
        )

    # -- what is there

    @property
    def findings(self) -> tuple[CorruptDataError, ...]:
        """What recovering has found and put right since this was opened, the last one last."""
        return tuple(self._findings)

    def _look(self, look: Callable[[Row, bool], _T]) -> _T:
        """What `look` finds; when the files change under it, once more while they do not."""
        self._check_open()
        try:
            return look(self._row, True)
        except (CorruptDataError, OSError):
            with self._disk_lock:
                return self._look_again(look)

    def _look_again(self, look: Callable[[Row, bool], _T]) -> _T:
        """An index that is wrong costs time, a log that is wrong is an error; the next one that
        writes puts both right."""
        try:
            return look(self._row, True)
        except (CorruptDataError, FileNotFoundError):
            self._damaged = True
        try:
            return look(self._row, False)
        except FileNotFoundError as error:
            raise CorruptDataError(
                reason="missing_log",
                path=str(error.filename),
                position=0,
                expected="the file that was here before",
                found="none",
                hint="catch_up makes it again from the store",
            ) from None

    # -- adding

    def append(self, segment: RemoteLogSegmentMetadata, entries: Buffer) -> int:
        """Adds the entries of a segment, as its `.indexes` object has them; how many are new.

        Left out is what ends at or below `last_offset`, and what was cut off the log (the
        segment's `truncation_offset`). Durable when this returns. CorruptDataError, and nothing
        added, unless every byte is right and every entry is one of that segment's.
        """
        checked = self._checked(segment, entries)
        with self._lock:
            self._settle()
            return self._insert(checked, self._row.gaps[-1:])

    def catch_up(self, segments: Iterable[RemoteLogSegmentMetadata], fetch: Fetch) -> int:
        """Adds what is missing of these segments, in offset order; how many entries those are.

        `fetch` gets the remoteLogIndex section of a segment's `.indexes` object and is called for
        no other. Gaps that a lost or damaged file has left are filled; what was cut off the log
        meanwhile goes first. What is done stays done when `fetch` raises.
        """
        wanted = sorted(map(self._own, segments), key=_order)
        with self._lock:
            self._settle()
            for segment in wanted:
                if segment.truncation_offset is not None:
                    self._truncate_with(segment, segment.truncation_offset)
        added = 0
        for segment in wanted:
            self._check_open()
            if not self._missing(segment):
                continue
            checked = self._checked(segment, fetch(segment))
            with self._lock:
                self._settle()
                added += self._insert(checked, self._missing(segment))
                self._note_fruitless(segment)
        return added

    def rebuild(self, segments: Iterable[RemoteLogSegmentMetadata], fetch: Fetch) -> int:
        """Makes all files anew from these segments; how many entries they have.

        They take the place of the old ones at once, when all are durable: until then, and when
        anything fails, the old ones stay. Others that write wait.
        """
        wanted = sorted(map(self._own, segments), key=_order)
        with self._lock:
            self._settle()
            staged = self._writer_in(self._directory.stage(), sync=False)
            try:
                for segment in wanted:
                    self._check_open()
                    checked = self._checked(segment, fetch(segment))
                    staged.insert(checked, staged.row.gaps_in(0, segment.end_offset))
                staged.sync()
            except BaseException:
                self._directory.unstage()
                raise
            with self._changing_bytes():
                self._directory.commit()
                self._writer.row = staged.row
            return sum(file.entry_count for file in self._row.files)

    def _own(self, segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        if segment.topic_id_partition != self.partition:
            raise ValueError(f"{segment.segment_id} is not of {self.partition}")
        return segment

    def _checked(self, segment: RemoteLogSegmentMetadata, data: Buffer) -> SegmentEntries:
        return segment_entries(self._own(segment), data)

    def _missing(self, segment: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
        """The gaps that entries of the segment may be missing in."""
        end_offset = segment.served_end_offset
        if end_offset < max(segment.start_offset, self._log_start_offset):
            return []
        gaps = self._row.gaps_in(segment.start_offset, end_offset)
        return [gap for gap in gaps if (segment.segment_id.id, *gap) not in self._fruitless]

    def _note_fruitless(self, segment: RemoteLogSegmentMetadata) -> None:
        """Nothing more of it is to come for the gaps that are left."""
        left = self._row.gaps_in(segment.start_offset, segment.served_end_offset)
        self._fruitless.update((segment.segment_id.id, *gap) for gap in left)

    def _insert(self, checked: SegmentEntries, gaps: Iterable[tuple[int, int]]) -> int:
        with self._changing():
            return self._writer.insert(checked, gaps)

    # -- removing

    def drop_below(self, log_start_offset: int) -> int:
        """Whole files that end below the log start offset go; how many. Segments that end below
        it are not added again."""
        with self._lock:
            self._settle()
            self._log_start_offset = max(self._log_start_offset, log_start_offset)
            if not self._row.files or self._row.files[0].last_offset >= log_start_offset:
                return 0
            with self._changing_bytes():
                return self._writer.drop_below(log_start_offset)

    def truncate_to(self, offset: int) -> int:
        """What was written from `offset` on is no longer part of the log; how many entries went.

        The entry that goes on past it stays, with the last offset before it: the run of bytes
        that it points at still holds what was cut off. Durable when this returns.
        """
        with self._lock:
            self._settle()
            if self._row.last_offset < offset:
                return 0
            with self._changing_bytes():
                return self._writer.truncate_to(offset)

    def _truncate_with(self, segment: RemoteLogSegmentMetadata, offset: int) -> None:
        """Truncates when entries of the segment are here that its metadata has cut off."""
        reached, key = max(offset, segment.start_offset), log_key(segment)

        def look(row: Row, _with_index: bool) -> bool:
            # All entries from there on: other segments' may lie between, where both overlap.
            rest = Row.of(row.files[bisect_left(row.last_offsets, reached) :])
            found = self._entries(rest)
            return any(
                one.last_offset >= reached
                and (
                    one.log_key == key
                    # What the id of another storage manager means, only its offsets tell.
                    or ("://" in one.log_key and one.first_offset <= segment.end_offset)
                )
                for one in found
            )

        try:
            cut_off = self._look(look)
        except CorruptDataError:
            # The file goes, and comes again without what was cut off.
            self._settle()
            cut_off = self._look(look)
        if cut_off:
            self.truncate_to(offset)

    def delete(self) -> None:
        """Removes the files, and the folder when nothing else is in it. Closed afterwards; what a
        failure has left is removed by opening and deleting again."""
        self._closed = True
        with self._lock, self._disk_lock:
            self._row = Row()
            self._directory.clear()

    def close(self) -> None:
        """Nothing is written or read from here on; may be repeated."""
        self._closed = True
        with self._lock:
            self._row = Row()

    # -- keeping order

    def _settle(self) -> None:
        """After a failure, and at the beginning: makes sure of what is on the disk."""
        self._check_open()
        if self._suspect or self._damaged:
            self._damaged = False
            with self._changing_bytes():
                self._findings += self._writer.recover()
                del self._findings[:-_MAX_FINDINGS]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Whatever fails in it leaves files that nobody is sure of."""
        self._suspect = True
        yield
        self._row = self._writer.row
        self._suspect = False

    @contextmanager
    def _changing_bytes(self) -> Iterator[None]:
        """The same where bytes change that readers may be looking at."""
        with self._disk_lock, self._changing():
            self._fruitless.clear()
            yield


def _order(segment: RemoteLogSegmentMetadata) -> tuple[int, int, str]:
    return segment.start_offset, segment.end_offset, segment.segment_id.id

"""Look up offsets and timestamps in the remote index files of one partition; read-only.

    view = RemoteIndexView(index_dir, partition)
    entry = view.lookup_offset(4711)

`RemoteIndexFiles` searches the files that it writes itself. A `RemoteIndexView` searches files that
another object writes, in this process or in another process.
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TypeVar

from tierlog.errors import ClosedError, CorruptDataError
from tierlog.remote.index_files.directory import RemoteIndexDir, RemoteIndexKind
from tierlog.remote.index_files.file import (
    IndexPaths,
    RemoteIndexFile,
    RemoteLogIndexEntry,
    entry_of,
    find_offset,
    find_timestamp,
    read_entries,
    scan,
)
from tierlog.remote.index_files.sequence import FileSequence
from tierlog.remote.store.object_store import open_regular_file
from tierlog.types import TopicIdPartition

__all__ = ["RemoteIndexLookups", "RemoteIndexView", "index_views"]

_T = TypeVar("_T")
_LOG_NAME = re.compile(rf"([0-9]{{20}})\.{RemoteIndexKind.LOG}", re.ASCII)
_MAX_VIEWS = 4096


class RemoteIndexLookups(ABC):
    """Finds entries in the files that a subclass keeps in `_sequence`."""

    def __init__(self, partition: TopicIdPartition, directory: RemoteIndexDir) -> None:
        self.partition = partition
        self._directory = directory
        self._sequence = FileSequence()
        self._closed = False

    @property
    def last_offset(self) -> int | None:
        """The last Kafka offset of all entries; None when there are no entries."""
        sequence = self._sequence
        return sequence.last_offset if sequence.files else None

    @property
    def path(self) -> str:
        """Path of the partition's folder."""
        return self._directory.path

    def lookup_offset(self, offset: int) -> RemoteLogIndexEntry | None:
        """Return the entry with `offset`, or the next one of the same segment.

        Return None when `offset` is above the last offset or in a gap of the files; the segment's
        own indexes may then contain it. Raises CorruptDataError when the files are damaged. The
        next call that writes removes damaged files.
        """

        def search(sequence: FileSequence, with_index: bool) -> RemoteLogIndexEntry | None:
            index = bisect_left(sequence.last_offsets, offset)
            if index == len(sequence.files) or offset < sequence.files[index].base_offset:
                return None
            file = sequence.files[index]
            paths = self._paths(file, with_index)
            entry, is_answer = find_offset(paths, file, self.partition, offset)
            return entry if is_answer else None

        return self._search(search)

    def lookup_timestamp(self, timestamp_ms: int) -> RemoteLogIndexEntry | None:
        """Return the first entry whose last timestamp is at least `timestamp_ms`, else None.

        If the files have a gap, an earlier record may be in the gap. Raises CorruptDataError as
        `lookup_offset` does.
        """

        def search(sequence: FileSequence, with_index: bool) -> RemoteLogIndexEntry | None:
            if timestamp_ms < 0:
                return next(
                    (
                        one
                        for one in self._entries(sequence)
                        if one.last_timestamp_ms >= timestamp_ms
                    ),
                    None,
                )
            for file in sequence.files:
                if file.max_timestamp_ms >= timestamp_ms:
                    paths = self._paths(file, with_index)
                    return find_timestamp(paths, file, self.partition, timestamp_ms)
            return None

        return self._search(search)

    def entries(self) -> Iterator[RemoteLogIndexEntry]:
        """Yield every entry in offset order, after verifying it. Changes after the call are not
        visible."""
        self._check_open()
        return self._entries(self._sequence)

    def _entries(self, sequence: FileSequence) -> Iterator[RemoteLogIndexEntry]:
        for file in sequence.files:
            path = self._paths(file, with_index=False).log
            try:
                descriptor = open_regular_file(path)
            except FileNotFoundError:
                if file not in self._sequence.files:
                    continue
                raise
            try:
                for _, entries in read_entries(descriptor, path, 0, file.size_bytes):
                    for number in range(len(entries)):
                        yield entry_of(entries, number, self.partition)
            finally:
                os.close(descriptor)

    def _paths(self, file: RemoteIndexFile, with_index: bool) -> IndexPaths:
        log, offset, time = (
            self._directory.file_path(file.base_offset, kind) for kind in RemoteIndexKind
        )
        return IndexPaths(log=log, offset=offset, time=time) if with_index else IndexPaths(log=log)

    @abstractmethod
    def _search(self, search: Callable[[FileSequence, bool], _T]) -> _T:
        """Return the result of `search`. The second argument of `search` says whether it may use
        the files' indexes."""

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self._directory.path}: the remote index files were closed")


class RemoteIndexView(RemoteIndexLookups):
    """Index files that another object writes. Each look-up uses the present state of the files.
    Thread-safe.

    A file is verified when it is new or has changed. A damaged file, or a file with an unfinished
    append, is treated as a gap, so that the reader uses the segment's own indexes.
    """

    def __init__(self, directory: str | os.PathLike[str], partition: TopicIdPartition) -> None:
        super().__init__(partition, RemoteIndexDir.of(directory, partition))
        self._lock = threading.Lock()
        # Size, inode and mtime of each file, and its verified content (None: damaged).
        self._seen: dict[int, tuple[tuple[int, ...], RemoteIndexFile | None]] = {}

    def __repr__(self) -> str:
        return f"RemoteIndexView({self.partition}, {len(self._sequence.files)} files)"

    def _search(self, search: Callable[[FileSequence, bool], _T]) -> _T:
        self._check_open()
        self._refresh()
        try:
            return search(self._sequence, True)
        except (CorruptDataError, OSError):
            # The files changed during the look-up, or an index does not match its log.
            self._refresh()
            return search(self._sequence, False)

    def _refresh(self) -> None:
        """Read the files that changed since the last look-up."""
        found = self._list_logs()
        if found.keys() == self._seen.keys() and all(
            self._seen[base][0] == state for base, state in found.items()
        ):
            return
        with self._lock:
            seen = self._seen
            self._seen = {
                base: seen[base]
                if base in seen and seen[base][0] == state
                else (state, self._scan_file(base))
                for base, state in found.items()
            }
            files, last = [], -1
            for base in sorted(self._seen):
                file = self._seen[base][1]
                if file is not None and base > last:
                    files.append(file)
                    last = file.last_offset
            self._sequence = FileSequence.of(files)

    def _list_logs(self) -> dict[int, tuple[int, ...]]:
        found: dict[int, tuple[int, ...]] = {}
        try:
            with os.scandir(self._directory.path) as entries:
                for entry in entries:
                    name = _LOG_NAME.fullmatch(entry.name)
                    if name is not None and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        state = (status.st_size, status.st_ino, status.st_mtime_ns)
                        found[int(name[1])] = state
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return found

    def _scan_file(self, base_offset: int) -> RemoteIndexFile | None:
        path = self._directory.file_path(base_offset, RemoteIndexKind.LOG)
        try:
            return scan(path, base_offset, self.partition).file
        except (CorruptDataError, OSError):
            return None


def index_views(
    directory: str | os.PathLike[str] | None,
) -> Callable[[TopicIdPartition], RemoteIndexView] | None:
    """Return a function that returns the view of a partition in `directory`; None when `directory`
    is None."""
    if directory is None:
        return None
    views: dict[TopicIdPartition, RemoteIndexView] = {}

    def view_of(partition: TopicIdPartition) -> RemoteIndexView:
        view = views.get(partition)
        if view is None:
            if len(views) >= _MAX_VIEWS:
                views.clear()
            view = views[partition] = RemoteIndexView(directory, partition)
        return view

    return view_of

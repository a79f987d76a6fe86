"""The folder of the index cache. The folder has one file per segment, a copy of the segment's
`.indexes` object.

    <start offset>_<segment uuid>.<generation>.indexes            in use
    <start offset>_<segment uuid>.<generation>.indexes.tmp        being written
    <start offset>_<segment uuid>.<generation>.indexes.deleted    retired, perhaps still read
    .lock                                                         held by the process that uses it

Offset and generation are decimal without leading zeros. A generation is used only once. So a file
that is loaded again gets another path, and a late removal of the old file never removes the new
file. Files with other names, and entries that are not regular files, are not touched.

Files are not fsynced. If a crash leaves a file incomplete, its checksums reveal that.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tierlog.errors import ClosedError, ConfigError, CorruptDataError
from tierlog.remote.file_io import write_all
from tierlog.remote.index_cache.file_map import map_descriptor
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import FIRST_READ_BYTES, IndexesHeader, IndexKind
from tierlog.remote.store.object_store import open_regular_file
from tierlog.types import RemoteLogSegmentId, check_kafka_uuid

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CachedFileName", "FoundFile", "IndexCacheDir", "IndexFile", "forks"]

LOCK_NAME = ".lock"
TEMPORARY_SUFFIX = ".tmp"
DELETED_SUFFIX = ".deleted"
# Smaller files are read instead of mapped, because a mapping takes at least one page of 4 KiB, and
# a process can have at most 65,530 mappings.
MIN_MAPPED_BYTES = 64 << 10
_SUFFIX = ".indexes"
_MAX_INT64 = 2**63 - 1
_MAX_GENERATION = 2**62
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Forks:
    """Number of forks since the first process, and the locks that a child must release."""

    def __init__(self) -> None:
        self.count = 0
        self.locked: weakref.WeakSet[IndexCacheDir] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.count += 1
        for directory in list(self.locked):
            directory.release_after_fork()


forks = _Forks()


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFileName:
    """A parsed file name of the index cache; `suffix` is ``""``, ``.tmp`` or ``.deleted``."""

    start_offset: int
    segment_id: str
    generation: int
    suffix: str = ""

    def __str__(self) -> str:
        stem = f"{self.start_offset}_{self.segment_id}.{self.generation}"
        return f"{stem}{_SUFFIX}{self.suffix}"

    @classmethod
    def parse(cls, name: str) -> CachedFileName | None:
        """Return the parsed file name, or None for a name that this module does not write."""
        suffix = next((one for one in (TEMPORARY_SUFFIX, DELETED_SUFFIX) if name.endswith(one)), "")
        stem = name.removesuffix(suffix)
        if not stem.endswith(_SUFFIX):
            return None
        # The id may itself contain an underscore, but never a dot.
        start_offset, _, rest = stem.removesuffix(_SUFFIX).partition("_")
        segment_id, _, generation = rest.partition(".")
        limits = ((start_offset, _MAX_INT64), (generation, _MAX_GENERATION))
        if not all(_NUMBER.fullmatch(text) and int(text) <= limit for text, limit in limits):
            return None
        try:
            check_kafka_uuid(segment_id)
        except ValueError:
            return None
        return cls(
            start_offset=int(start_offset),
            segment_id=segment_id,
            generation=int(generation),
            suffix=suffix,
        )


class IndexFile:
    """One complete file of the cache. The cache, readers and mapped pages refer to it.

    The file is deleted when the last reference is dropped. The file is kept if the cache was closed
    before, if the interpreter exits, and in a forked child.
    """

    __slots__ = ("__weakref__", "_directory", "_forks", "_lock", "_path", "_retired", "size_bytes")

    def __init__(self, directory: IndexCacheDir, path: str, size_bytes: int) -> None:
        self._directory = directory
        self._path = path
        self._retired = False
        self._forks = forks.count
        self._lock = threading.Lock()
        self.size_bytes = size_bytes

    @property
    def path(self) -> str:
        """The present path of the file."""
        return self._path

    def read(self) -> Buffer:
        """Return the file's bytes: mapped pages of a large file, or a copy of a small file.

        Raises CorruptDataError when the file's size has changed, and OSError when the file cannot
        be read.
        """
        with self._lock:
            descriptor = open_regular_file(self._path)
        try:
            found = os.fstat(descriptor).st_size
            if found != self.size_bytes:
                raise CorruptDataError(
                    reason="bad_length",
                    path=self._path,
                    position=min(found, self.size_bytes),
                    expected=f"{self.size_bytes} bytes",
                    found=f"{found}",
                )
            if found >= MIN_MAPPED_BYTES:
                return map_descriptor(descriptor, found, self)
            return os.pread(descriptor, found, 0)
        finally:
            os.close(descriptor)

    def retire(self) -> None:
        """Rename the file to mark it as removed; readers may continue. Raises OSError when the
        rename fails.

        If this process ends before the readers release the file, the next start recognizes it by
        its new name and deletes it.
        """
        with self._lock:
            if self._retired or self._directory.closed:
                return
            self._retired = True
            with suppress(FileNotFoundError):
                os.rename(self._path, self._path + DELETED_SUFFIX)
                self._path += DELETED_SUFFIX

    def __del__(self) -> None:
        keep = self._directory.closed and not self._retired
        if keep or self._forks != forks.count or sys.is_finalizing():
            return
        # If the removal fails, the next start deletes the file.
        with suppress(OSError):
            os.unlink(self._path)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A complete file of an earlier process; its sections are not verified yet."""

    file: IndexFile
    metadata: RemoteLogSegmentMetadata


class IndexCacheDir:
    """The files in the folder `path`. `open` locks the folder; `adopt` finds existing files.

    If the folder cannot be used now (disk full, no permission, folder removed), the next `write`
    tries again. Methods raise ConfigError when another process uses the folder, and
    NotADirectoryError or FileExistsError when the path cannot become a folder.
    """

    def __init__(self, path: str | os.PathLike[str], *, first_generation: int) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self.closed = False
        self._generation = max(0, first_generation)
        self._descriptor: int | None = None
        self._lock = threading.Lock()

    def open(self) -> None:
        """Create and lock the folder. Raises OSError when this fails now but may succeed later."""
        os.makedirs(self.path, exist_ok=True)
        lock_path = os.path.join(self.path, LOCK_NAME)
        # The lock file is opened for reading only, so that existing files on a read-only disk can
        # be used.
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(lock_path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(
                f"{self.path}: another index cache uses this folder (lock on {lock_path}); give "
                "every process its own"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        forks.locked.add(self)

    def close(self) -> None:
        """Release the folder and keep its files. The call may be repeated."""
        with self._lock:
            self.closed = True
            if self._descriptor is not None:
                # A child between fork and exec may still share the descriptor.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
                self._drop_lock()

    def release_after_fork(self) -> None:
        """Release the folder in a forked child, because folder and lock belong to the parent."""
        # The child's copy of the descriptor would keep the lock after the parent has ended. The old
        # thread lock is replaced, because a thread that does not exist in the child may hold it.
        self._lock = threading.Lock()
        self.closed = True
        self._drop_lock()

    def _drop_lock(self) -> None:
        """Close the lock's descriptor. A process that shares the lock still holds it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    # -- files of an earlier process

    def adopt(self, on_damage: Callable[[Exception], object]) -> list[FoundFile]:
        """Return the newest complete file of each segment, the oldest file first.

        Incomplete, retired, superseded and damaged files are deleted. `on_damage` is called with
        the error of each damaged file. Raises OSError when the folder cannot be read.
        """
        newest: dict[RemoteLogSegmentId, tuple[int, FoundFile]] = {}
        for name, written_ns in self._list_files():
            path = os.path.join(self.path, str(name))
            if name.suffix:
                _remove_quietly(path)
                continue
            try:
                found = self._read_file(path, name)
            except (CorruptDataError, OSError) as error:
                _remove_quietly(path)
                on_damage(error)
                continue
            if found.metadata.segment_id in newest:
                _remove_quietly(path)
            else:
                newest[found.metadata.segment_id] = (written_ns, found)
        return [found for _, found in sorted(newest.values(), key=lambda pair: pair[0])]

    def _list_files(self) -> Iterator[tuple[CachedFileName, int]]:
        """Yield the cache's regular files with their write time (ns), highest generation first."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = CachedFileName.parse(entry.name)
                if name is None:
                    continue
                self._generation = max(self._generation, name.generation)
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((name, status.st_mtime_ns))
        return iter(sorted(found, key=lambda pair: pair[0].generation, reverse=True))

    def _read_file(self, path: str, name: CachedFileName) -> FoundFile:
        """Read a file's header and description. Raises CorruptDataError when size, header,
        description and file name do not agree."""
        descriptor = open_regular_file(path)
        try:
            size_bytes = os.fstat(descriptor).st_size
            first = os.pread(descriptor, FIRST_READ_BYTES, 0)
            header = IndexesHeader.parse(first, path=path, object_size_bytes=size_bytes)
            section = header.section(IndexKind.METADATA)
            text = os.pread(descriptor, section.size_bytes, section.position)
        finally:
            os.close(descriptor)
        metadata = header.description(text).metadata
        if (metadata.start_offset, metadata.segment_id.id) != (name.start_offset, name.segment_id):
            raise CorruptDataError(
                reason="wrong_segment",
                path=path,
                position=section.position,
                expected=f"a description of segment {name.segment_id} from {name.start_offset}",
                found=f"one of {metadata.segment_id} from {metadata.start_offset}",
            )
        return FoundFile(file=IndexFile(self, path, size_bytes), metadata=metadata)

    # -- new files

    def write(self, metadata: RemoteLogSegmentMetadata, data: Buffer) -> IndexFile:
        """Write a new file. Raises OSError when the disk rejects it, and ClosedError after
        `close`."""
        name = self._next_name(metadata)
        path = os.path.join(self.path, str(name))
        temporary = path + TEMPORARY_SUFFIX
        try:
            descriptor = os.open(temporary, _CREATE_FLAGS, 0o644)
        except FileNotFoundError:
            # The folder was moved away, so release its lock.
            self._release_lock()
            raise
        try:
            try:
                write_all(descriptor, data)
            finally:
                # Some file systems report a full disk only when the file is closed.
                os.close(descriptor)
            return self._publish(temporary, path, memoryview(data).nbytes)
        except BaseException:
            _remove_quietly(temporary)
            raise

    def _next_name(self, metadata: RemoteLogSegmentMetadata) -> CachedFileName:
        with self._lock:
            self._check_open()
            if self._descriptor is not None and not os.fstat(self._descriptor).st_nlink:
                # The folder was removed; another cache may have created it again.
                self._drop_lock()
            if self._descriptor is None:
                self.open()
            self._generation += 1
            return CachedFileName(
                start_offset=metadata.start_offset,
                segment_id=metadata.segment_id.id,
                generation=self._generation,
            )

    def _publish(self, temporary: str, path: str, size_bytes: int) -> IndexFile:
        with self._lock:
            # After a close the folder may belong to another cache.
            self._check_open()
            os.rename(temporary, path)
            return IndexFile(self, path, size_bytes)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"{self.path}: the index cache was closed")

    def _release_lock(self) -> None:
        with self._lock:
            self._drop_lock()


def _remove_quietly(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)

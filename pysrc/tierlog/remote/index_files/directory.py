"""List, change and replace the remote index files in a partition's folder, durably.

    <index dir>/<topic>-<topicId>/<partition>/
        <base, 20 digits>.remoteLogIndex  .remoteOffsetIndex  .remoteTimeIndex
        <name>.tmp                 a file being written
        rebuilt.tmp/               an unfinished rebuild: removed
        rebuilt/                   a finished rebuild: the old files are being removed
        rebuilt.moving/            the old files are removed; the new files are being moved up
        <name>.set-aside-<n>       an entry with one of these names that is not a regular file

A rebuild replaces (swaps) all files by renames and removals that may be repeated. After a crash at
any step and a call of `recover`, the folder has either all old files or all new files. Files with
other names are not touched.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tierlog.remote.file_io import make_durable_folder, sync_folder, write_all
from tierlog.remote.segment.layout import partition_prefix
from tierlog.remote.store.object_store import file_chunks
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Listing", "RemoteIndexDir", "RemoteIndexKind"]

_MAX_INT64 = 2**63 - 1
_TEMPORARY = ".tmp"
_STAGED = "rebuilt.tmp"
_COMMITTED = "rebuilt"
_MOVING = "rebuilt.moving"
_CREATE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class RemoteIndexKind(StrEnum):
    """The suffixes of the files of one base offset. The remoteLogIndex is authoritative; the other
    two files are derived from it."""

    LOG = "remoteLogIndex"
    OFFSET = "remoteOffsetIndex"
    TIME = "remoteTimeIndex"


_NAME = re.compile(rf"([0-9]{{20}})\.({'|'.join(RemoteIndexKind)})", re.ASCII)


@dataclass(slots=True, kw_only=True)
class Listing:
    """The regular files of a folder, grouped by base offset, and the entries that were set
    aside."""

    kinds: dict[int, set[RemoteIndexKind]] = field(default_factory=dict)
    set_aside: list[str] = field(default_factory=list)


class RemoteIndexDir:
    """The folder of one partition. Not thread-safe."""

    def __init__(self, path: str, root: str | None = None) -> None:
        self.path = path
        self._root = path if root is None else root
        self._exists = False

    @classmethod
    def of(cls, index_dir: str | os.PathLike[str], partition: TopicIdPartition) -> RemoteIndexDir:
        """Return the folder of `partition` without creating it."""
        root = os.path.realpath(os.fspath(index_dir))
        return cls(os.path.join(root, partition_prefix(partition).rstrip("/")), root)

    def file_path(self, base_offset: int, kind: RemoteIndexKind) -> str:
        return os.path.join(self.path, f"{base_offset:020d}.{kind}")

    # -- folders

    def create(self) -> None:
        """Create the folder and its parents durably. Raises OSError when a folder's name belongs to
        a link or a file."""
        if self._exists:
            return
        make_durable_folder(self._root)
        folder = self._root
        for part in os.path.relpath(self.path, self._root).split(os.sep):
            folder = os.path.join(folder, part)
            with suppress(FileExistsError):
                os.mkdir(folder)
            sync_folder(folder, follow_links=False)
            sync_folder(os.path.dirname(folder), follow_links=False)
        self._exists = True

    def sync(self) -> None:
        """Make the names in the folder durable."""
        sync_folder(self.path, follow_links=False)

    def remove_all(self) -> None:
        """Remove all index files, and the partition's and topic's folders when they are empty."""
        if _is_there(self.path):
            for _, base_offset, _ in self._list_files(self.recover()):
                self.remove(base_offset)
            self.sync()
        self._exists = False
        folder = self.path
        while folder != self._root:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError:
                return
            else:
                sync_folder(os.path.dirname(folder), follow_links=False)
            folder = os.path.dirname(folder)

    # -- listing

    def recover(self) -> Listing:
        """Finish or roll back an interrupted swap; return the listing of the folder."""
        listing = Listing()
        self._exists = False
        if not _is_there(self.path):
            return listing
        sync_folder(os.path.dirname(self.path), follow_links=False)
        sync_folder(self.path, follow_links=False)
        self._list_files(listing)
        self._finish_swap(listing)
        for name, base_offset, kind in self._list_files(listing):
            if name.endswith(_TEMPORARY):
                os.unlink(os.path.join(self.path, name))
            else:
                listing.kinds.setdefault(base_offset, set()).add(kind)
        return listing

    def _list_files(self, listing: Listing) -> list[tuple[str, int, RemoteIndexKind]]:
        """Return the regular files with valid names; set aside other entries with such names."""
        with os.scandir(self.path) as found:
            entries = sorted((entry.name, entry.is_file(follow_symlinks=False)) for entry in found)
        files = []
        for name, is_file in entries:
            match = _NAME.fullmatch(name.removesuffix(_TEMPORARY))
            if match is None or int(match[1]) > _MAX_INT64:
                continue
            if is_file:
                files.append((name, int(match[1]), RemoteIndexKind(match[2])))
            else:
                listing.set_aside.append(self._set_aside(name))
        return files

    def _set_aside(self, name: str) -> str:
        """Rename an entry of any type; return its new path."""
        number = 0
        while True:
            path = os.path.join(self.path, f"{name}.set-aside-{number}")
            if not os.path.lexists(path):
                os.rename(os.path.join(self.path, name), path)
                return path
            number += 1

    # -- files

    @contextmanager
    def opened(self, base_offset: int, kind: RemoteIndexKind, *, create: bool) -> Iterator[int]:
        """Yield a descriptor for writing. With `create` the file is new and must not exist."""
        flags = _CREATE_FLAGS if create else os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.file_path(base_offset, kind), flags, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def replace(self, base_offset: int, kind: RemoteIndexKind, data: Buffer) -> None:
        """Replace the content of a file by `data` with one rename. The file is not synced."""
        path = self.file_path(base_offset, kind)
        with suppress(FileNotFoundError):
            os.unlink(path + _TEMPORARY)
        descriptor = os.open(path + _TEMPORARY, _CREATE_FLAGS, 0o644)
        try:
            write_all(descriptor, data, 0)
        finally:
            os.close(descriptor)
        os.rename(path + _TEMPORARY, path)

    def rewrite(self, base_offset: int, size_bytes: int) -> None:
        """Copy the first `size_bytes` of a log to a new file, which replaces the log durably."""
        path = self.file_path(base_offset, RemoteIndexKind.LOG)
        with suppress(FileNotFoundError):
            os.unlink(path + _TEMPORARY)
        with self.opened(base_offset, RemoteIndexKind.LOG, create=False) as source:
            target = os.open(path + _TEMPORARY, _CREATE_FLAGS, 0o644)
            try:
                position = 0
                for chunk in file_chunks(source, size_bytes):
                    write_all(target, chunk, position)
                    position += len(chunk)
                os.fsync(target)
            finally:
                os.close(target)
        os.rename(path + _TEMPORARY, path)
        self.sync()

    def remove(self, base_offset: int) -> None:
        """Remove all files of a base offset. The log is removed first, because the other files
        depend on it."""
        for kind in RemoteIndexKind:
            with suppress(FileNotFoundError):
                os.unlink(self.file_path(base_offset, kind))

    # -- the swap

    def stage(self) -> RemoteIndexDir:
        """Create an empty folder for a new set of files."""
        self.create()
        self._remove_set(_STAGED)
        if os.path.lexists(os.path.join(self.path, _STAGED)):
            self._set_aside(_STAGED)
        staged = RemoteIndexDir(os.path.join(self.path, _STAGED))
        os.mkdir(staged.path)
        staged._exists = True
        return staged

    def unstage(self) -> None:
        """Remove the staged folder."""
        self._remove_set(_STAGED)

    def commit(self) -> None:
        """Replace all files by the staged files, which must be synced."""
        os.rename(os.path.join(self.path, _STAGED), os.path.join(self.path, _COMMITTED))
        self.sync()
        self._finish_swap(Listing())

    def _finish_swap(self, listing: Listing) -> None:
        for name in (_STAGED, _COMMITTED, _MOVING):
            path = os.path.join(self.path, name)
            if os.path.lexists(path) and not stat.S_ISDIR(os.lstat(path).st_mode):
                listing.set_aside.append(self._set_aside(name))
        self._remove_set(_STAGED)
        if os.path.lexists(os.path.join(self.path, _COMMITTED)):
            for _, base_offset, _ in self._list_files(listing):
                self.remove(base_offset)
            self.sync()
            os.rename(os.path.join(self.path, _COMMITTED), os.path.join(self.path, _MOVING))
        moving = os.path.join(self.path, _MOVING)
        if os.path.lexists(moving):
            for name in sorted(os.listdir(moving)):
                if _NAME.fullmatch(name):
                    os.rename(os.path.join(moving, name), os.path.join(self.path, name))
            self.sync()
            self._remove_set(_MOVING)
            if os.path.lexists(moving):
                listing.set_aside.append(self._set_aside(_MOVING))
            self.sync()

    def _remove_set(self, name: str) -> None:
        """Remove the index files in a folder of the swap. The folder itself is removed if it has no
        other files."""
        path = os.path.join(self.path, name)
        if not os.path.lexists(path):
            return
        for found in os.listdir(path):
            if _NAME.fullmatch(found.removesuffix(_TEMPORARY)):
                with suppress(OSError):
                    os.unlink(os.path.join(path, found))
        with suppress(OSError):
            os.rmdir(path)


def _is_there(path: str) -> bool:
    """Return whether the name exists. Raises OSError when the disk does not answer. Otherwise
    existing index files would count as missing, and would never be removed."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True

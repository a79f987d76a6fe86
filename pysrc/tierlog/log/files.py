"""Opens files of a running broker safely and without disturbing it.

A broker renames, truncates and removes its files while tierlog reads them, and an attacker could
put a FIFO, a device or a symlink in their place. So files are opened for reading only and without
blocking; a symlink in the last two parts of the path is not followed; anything but a regular file
is refused; and a handle can tell later whether its file still has that name. Files are not mapped:
a map of a file that another process truncates ends in SIGBUS.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import TracebackType
from typing import NamedTuple

import numpy as np

from tierlog.errors import ClosedError, CorruptDataError

__all__ = [
    "FileChange",
    "FileIdentity",
    "FileKind",
    "SegmentHandle",
    "StrPath",
    "file_kind",
    "open_directory",
    "open_regular",
    "printable",
    "read_small",
]

StrPath = str | os.PathLike[str]

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_BYTES = 1 << 20
# Asks the kernel to read only what is in memory. Other systems than Linux do not have it.
_CACHED_ONLY: int | None = getattr(os, "RWF_NOWAIT", None)


class FileKind(StrEnum):
    """The kind of a directory entry; only ``REGULAR`` files are read."""

    REGULAR = "a regular file"
    DIRECTORY = "a directory"
    SYMLINK = "a symlink"
    FIFO = "a FIFO"
    SOCKET = "a socket"
    CHARACTER_DEVICE = "a character device"
    BLOCK_DEVICE = "a block device"
    OTHER = "neither file nor directory"


_KINDS = {
    stat.S_IFREG: FileKind.REGULAR,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.SYMLINK,
    stat.S_IFIFO: FileKind.FIFO,
    stat.S_IFSOCK: FileKind.SOCKET,
    stat.S_IFCHR: FileKind.CHARACTER_DEVICE,
    stat.S_IFBLK: FileKind.BLOCK_DEVICE,
}


def file_kind(mode: int) -> FileKind:
    """The kind of file that an ``st_mode`` describes."""
    return _KINDS.get(stat.S_IFMT(mode), FileKind.OTHER)


def printable(text: str) -> str:
    """Return a name for messages: undecodable bytes and control characters are escaped."""
    if text.isprintable():
        return text
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        # No file has such a name, but JSON may.
        encoded = text.encode("utf-8", "backslashreplace")
    decoded = encoded.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in decoded)


@contextmanager
def open_directory(path: StrPath, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor of a directory that is not a symlink; OSError (ELOOP, ENOTDIR) otherwise."""
    fd = os.open(path, _DIRECTORY_FLAGS, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(path: StrPath) -> int:
    """A read-only descriptor of a regular file; the caller closes it.

    OSError: ENOENT when it is gone, ELOOP for a symlink (the file or its directory), EINVAL for
    anything else that is not a regular file, naming what it is.
    """
    text = os.fspath(path)
    directory, name = os.path.split(text)
    with open_directory(directory or ".") as dir_fd:
        # Check the kind before the file is opened: opening some devices has effects.
        _require_regular(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode, text)
        fd = os.open(name, _FILE_FLAGS, dir_fd=dir_fd)
    try:
        _require_regular(os.fstat(fd).st_mode, text)
    except OSError:
        os.close(fd)
        raise
    return fd


def _require_regular(mode: int, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    kind = file_kind(mode)
    if kind is FileKind.SYMLINK:
        raise OSError(errno.ELOOP, "expected a regular file, found a symlink", path)
    raise OSError(errno.EINVAL, f"expected a regular file, found {kind.value}", path)


def read_small(path: StrPath, limit_bytes: int) -> bytes:
    """Return the content of a small file; CorruptDataError when it is larger than
    ``limit_bytes``."""
    fd = open_regular(path)
    try:
        parts: list[bytes] = []
        left = limit_bytes + 1
        while left > 0 and (part := os.read(fd, min(left, _READ_BYTES))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(fd)
    if left <= 0:
        raise CorruptDataError(
            reason="too_large",
            path=printable(os.fspath(path)),
            position=limit_bytes,
            expected=f"a file of at most {limit_bytes} bytes",
            found="a larger one",
        )
    return b"".join(parts)


class FileIdentity(NamedTuple):
    """Identity and state of a file: equal values mean the same unchanged content."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        """The identity in a stat result."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class FileChange(StrEnum):
    """What happened to a file since it was opened."""

    UNCHANGED = "unchanged"
    GONE = "gone: deleted, or renamed to .deleted"
    REPLACED = "replaced by another file of the same name"
    TRUNCATED = "truncated"
    GROWN = "grown"
    MODIFIED = "modified in place"


class SegmentHandle:
    """An open file of a segment, with its identity taken at the moment it was opened.

        with SegmentHandle(segment.log_path) as handle:
            ...                                   # scan and copy
            if handle.recheck() is not FileChange.UNCHANGED:
                ...                               # do not use what was read

    Opening raises OSError as ``open_regular`` does. A rename does not disturb an open handle: its
    bytes stay readable until it is closed.
    """

    __slots__ = ("_fd", "identity", "path")

    def __init__(self, path: StrPath) -> None:
        self.path = os.fspath(path)
        self._fd = open_regular(self.path)
        try:
            self.identity = FileIdentity.of(os.fstat(self._fd))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> SegmentHandle:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def size_bytes(self) -> int:
        """The size when it was opened."""
        return self.identity.size_bytes

    def fileno(self) -> int:
        """The descriptor; ClosedError after close."""
        if self._fd < 0:
            raise ClosedError(f"{printable(self.path)}: this handle is closed")
        return self._fd

    def read_at(self, position: int, size_bytes: int) -> bytes:
        """Up to ``size_bytes`` from ``position``; fewer only at the end of the file."""
        parts: list[bytes] = []
        fd = self.fileno()
        while size_bytes > 0 and (part := os.pread(fd, size_bytes, position)):
            parts.append(part)
            position += len(part)
            size_bytes -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_cached_at(self, position: int, size_bytes: int) -> memoryview:
        """As `read_at`, but never wait for the disk: BlockingIOError when some of the bytes are not
        in the page cache, or when the system cannot tell."""
        # NumPy does not fill new memory with zeros.
        data = np.empty(size_bytes, np.uint8).data
        if _CACHED_ONLY is None:
            raise BlockingIOError(errno.EAGAIN, "this system cannot read only what is cached")
        try:
            count = os.preadv(self.fileno(), [data], position, _CACHED_ONLY) if size_bytes else 0
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            raise BlockingIOError(errno.EAGAIN, "this file system cannot tell", self.path) from None
        if count < size_bytes and position + count < os.fstat(self.fileno()).st_size:
            raise BlockingIOError(errno.EAGAIN, "not in the page cache", self.path)
        return data[:count].toreadonly()

    def recheck(self) -> FileChange:
        """Compare the open file with its state at the opening, then with the file at the path.

        After ``GONE`` and ``REPLACED``, bytes from this handle are still valid; bytes read by path
        are not.
        """
        now = FileIdentity.of(os.fstat(self.fileno()))
        if now.size_bytes != self.identity.size_bytes:
            shrunk = now.size_bytes < self.identity.size_bytes
            return FileChange.TRUNCATED if shrunk else FileChange.GROWN
        if now.modified_ns != self.identity.modified_ns:
            return FileChange.MODIFIED
        try:
            there = FileIdentity.of(os.stat(self.path, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return FileChange.GONE
        same = (there.device, there.inode) == (now.device, now.inode)
        return FileChange.UNCHANGED if same else FileChange.REPLACED

    def close(self) -> None:
        """Close the descriptor; a second call does nothing."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

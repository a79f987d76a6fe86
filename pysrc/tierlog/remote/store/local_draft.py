"""Objects of a `file://` store that are written while their bytes are read elsewhere.

A draft is a file without a name (``O_TMPFILE``). It is invisible, and the kernel removes it when
the process ends. `put` makes it durable and then gives it its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from types import TracebackType

from tierlog.errors import ClosedError, RemoteStorageError
from tierlog.remote.store.object_store import already_exists, storage_error

__all__ = ["LocalDraft", "link_nameless", "open_nameless"]

_FLAGS = os.O_WRONLY | os.O_CLOEXEC
# Errors of `open` when the kernel or the file system has no files without a name.
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})

# Errors when security rules of the system forbid naming such a file. A full disk or a
# removed folder fails in other ways.
_FORBIDDEN = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.EXDEV,
        errno.EOPNOTSUPP,
        errno.ENOSYS,
        errno.EINVAL,
        errno.ELOOP,
    }
)


def open_nameless(folder: int, *, names_known: bool = False) -> int | None:
    """Open a new file without a name in an open folder; None where the system cannot name it.
    ``names_known`` says that another one was opened just now, so the check can be skipped."""
    flags = getattr(os, "O_TMPFILE", None)
    if flags is None:
        return None
    try:
        descriptor = os.open(".", flags | _FLAGS, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            return None
        raise
    if not names_known and not os.path.exists(_descriptor_path(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def link_nameless(descriptor: int, name: str, folder: int) -> bool:
    """Give the file its `name` in `folder`; False when another file has that name."""
    try:
        # The kernel's own link leads to the open file; `dst_dir_fd` makes Python follow it.
        os.link(_descriptor_path(descriptor), name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def _descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


class LocalDraft:
    """Draft of the object `key` in the store at ``url``; see `Draft`. A context manager.

    It closes the open `folder` and `descriptor`. ``failed`` makes the store's error of an OSError;
    ``unnamed`` is called when the system refuses to give the file a name.
    """

    def __init__(
        self,
        url: str,
        key: str,
        folder: int,
        descriptor: int,
        failed: Callable[[str, OSError], RemoteStorageError],
        unnamed: Callable[[], None] = lambda: None,
    ) -> None:
        self.key = key
        self._url = url
        self._folder = folder
        self._descriptor = descriptor
        self._failed = failed
        self._unnamed = unnamed
        self._holds: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"LocalDraft({self.name!r})"

    def __enter__(self) -> LocalDraft:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """File name in an OSError of this file."""
        return f"{self._url}/{self.key}"

    @property
    def holds(self) -> tuple[int, int] | None:
        """Size and CRC-32C of the written bytes; None until `wrote` was called."""
        return self._holds

    def fileno(self) -> int:
        """Return the descriptor to write through; ClosedError after close."""
        if self._descriptor < 0:
            raise ClosedError(f"{self.name}: this draft is closed")
        return self._descriptor

    def wrote(self, size_bytes: int, crc32c: int) -> None:
        """Record that all bytes are written, with their size and CRC-32C."""
        self._holds = (size_bytes, crc32c)

    def failed(self, error: OSError) -> RemoteStorageError:
        """Return the store's error for a failed write."""
        return self._failed(self.key, error)

    def put(self) -> None:
        """Make the object visible and durable, or raise RemoteStorageError; never replaces one."""
        descriptor = self.fileno()
        if self._holds is None:
            raise ValueError(f"{self.name}: expected a call of wrote before put, found none")
        size_bytes, _ = self._holds
        try:
            os.fsync(descriptor)
            found = os.fstat(descriptor).st_size
            if found != size_bytes:
                raise storage_error(f"{self.name}: {size_bytes} bytes written, {found} arrived")
            self._publish(descriptor)
        except OSError as error:
            raise self._failed(self.key, error) from error

    def _publish(self, descriptor: int) -> None:
        name = self.key.rpartition("/")[2]
        try:
            linked = link_nameless(descriptor, name, self._folder)
        except OSError as error:
            if error.errno in _FORBIDDEN:
                self._unnamed()
            raise
        if not linked:
            raise already_exists(self._url, self.key)
        os.fsync(self._folder)

    def close(self) -> None:
        """Discard the draft unless it was put; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                os.close(descriptor)
            finally:
                os.close(self._folder)

"""Objects of a `file://` store that are written while their bytes are read elsewhere.

A draft is a file without a name (``O_TMPFILE``): nobody can see it, and whatever ends the process
ends it too. It gets its name when it is durable.
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
# What the call says where the kernel or the file system knows no files without a name.
_UNKNOWN = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})

# What the system's rules say when they keep such a file from getting a name; a full disk or a
# folder that somebody removed is another matter.
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
    """A new file in an open folder, without a name; None where it could not be had or named.
    ``names_known``: another one was had just now, so that it can be named."""
    flags = getattr(os, "O_TMPFILE", None)
    if flags is None:
        return None
    try:
        descriptor = os.open(".", flags | _FLAGS, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _UNKNOWN:
            return None
        raise
    if not names_known and not os.path.exists(_link_to(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def link_nameless(descriptor: int, name: str, folder: int) -> bool:
    """Gives such a file its name in `folder`; False when that is taken, and stays."""
    try:
        # The link is the kernel's own, to the open file; with a folder given it is followed.
        os.link(_link_to(descriptor), name, dst_dir_fd=folder, follow_symlinks=True)
    except FileExistsError:
        return False
    return True


def _link_to(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


class LocalDraft:
    """The object `key` of a store, not there yet; a context manager that leaves nothing behind
    unless it was `put`. ``url`` is the store's.

    Takes the open `folder` and `descriptor` over. ``failed`` puts an error into the store's words;
    ``unnamed`` is called when the system would not give the file a name.
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
        """What an OSError that came from this file carries."""
        return f"{self._url}/{self.key}"

    @property
    def holds(self) -> tuple[int, int] | None:
        """Size and CRC-32C of what was written, once `wrote` has told."""
        return self._holds

    def fileno(self) -> int:
        """The descriptor to write through; ClosedError after close."""
        if self._descriptor < 0:
            raise ClosedError(f"{self.name}: this draft is closed")
        return self._descriptor

    def wrote(self, size_bytes: int, crc32c: int) -> None:
        """All of it is written: so many bytes with that CRC-32C."""
        self._holds = (size_bytes, crc32c)

    def failed(self, error: OSError) -> RemoteStorageError:
        """A failed write, in the words of the store."""
        return self._failed(self.key, error)

    def put(self) -> None:
        """The whole object is there, durably, or RemoteStorageError; never replaces one."""
        descriptor = self.fileno()
        if self._holds is None:
            raise ValueError(f"{self.name}: nothing was written yet")
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
        """What was not put is gone; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            os.close(self._folder)

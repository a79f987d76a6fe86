"""Complete writes and durable names of local files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["WRITE_BYTES", "make_durable_folder", "sync_file", "sync_folder", "write_all"]

# The page cache serves a file best when it was written in chunks of at least this size. With much
# larger chunks the kernel looks for pages of that size, which can take four times as long.
WRITE_BYTES = 256 << 10
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_all(descriptor: int, data: Buffer, position: int | None = None) -> int:
    """Write all of `data` at a byte position (None: the present one); return its size in bytes."""
    view = memoryview(data).cast("B")
    written = 0
    while written < len(view):
        chunk = view[written : written + WRITE_BYTES]
        if position is None:
            written += os.write(descriptor, chunk)
        else:
            written += os.pwrite(descriptor, chunk, position + written)
    return written


def sync_file(path: str) -> None:
    """Make the bytes of a file durable."""
    _sync(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)


def sync_folder(path: str, *, follow_links: bool = True) -> None:
    """Make the names in a folder durable; OSError for a link unless `follow_links`."""
    _sync(path, _FOLDER_FLAGS if follow_links else _FOLDER_FLAGS | os.O_NOFOLLOW)


def make_durable_folder(path: str) -> None:
    """Create a folder and its missing parents, each durable before the next. The name of an
    existing folder is made durable, too: the process that created it may have died before that."""
    missing = [path]
    while not os.path.isdir(os.path.dirname(missing[-1])):
        missing.append(os.path.dirname(missing[-1]))
    for folder in reversed(missing):
        is_new = True
        try:
            os.mkdir(folder)
        except FileExistsError:
            is_new = False
        try:
            sync_folder(os.path.dirname(folder))
        except PermissionError:
            # The parent belongs to another user, and only that user can have made the folder.
            if is_new:
                raise


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

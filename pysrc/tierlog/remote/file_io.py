"""Write local files completely, and make their bytes and names durable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["WRITE_BYTES", "make_durable_folder", "sync_file", "sync_folder", "write_all"]

# Reads from the page cache are fastest when the file was written in chunks of at least this size.
# For much larger chunks, the kernel looks for pages of the chunk's size, and the write can take
# four times as long.
WRITE_BYTES = 256 << 10
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def write_all(descriptor: int, data: Buffer, position: int | None = None) -> int:
    """Write all of `data` at byte `position`, or at the descriptor's own position for None. Return
    the size of `data` in bytes."""
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
    """Make the names in a folder durable; raise OSError for a link unless `follow_links`."""
    _sync(path, _FOLDER_FLAGS if follow_links else _FOLDER_FLAGS | os.O_NOFOLLOW)


def make_durable_folder(path: str) -> None:
    """Create a folder and its missing parents. Each folder is durable before the next one is
    created. The name of an existing folder is made durable, too, because the process that created
    the folder may have died before making the name durable."""
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

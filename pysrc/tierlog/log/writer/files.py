"""Durable writes of small files and of directory entries."""

from __future__ import annotations

import os

__all__ = ["create_file", "sync_directory", "write_all", "write_durably"]

_CREATE = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def create_file(path: str, *, exclusive: bool = False) -> int:
    """Open a file for reading and writing, and create it when it is missing; the caller closes the
    descriptor."""
    return os.open(path, _CREATE | (os.O_EXCL if exclusive else 0), 0o644)


def write_all(fd: int, data: bytes, position: int) -> None:
    """Write all of `data` at a byte position. OSError leaves an unknown part written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def write_durably(path: str, data: bytes) -> None:
    """Replace a file in one step, as Kafka writes its checkpoints: a temporary file, synced, then
    renamed, and the directory synced."""
    temporary = f"{path}.tmp"
    fd = os.open(temporary, _CREATE | os.O_TRUNC, 0o644)
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Make the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

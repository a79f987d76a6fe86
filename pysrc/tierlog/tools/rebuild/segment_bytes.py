"""The bytes of a segment as an open file, wherever they lie.

What lies in a store is fetched into a hidden file of our own: all of it or only a range, at the
positions that the bytes have in the object.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tierlog.log.files import SegmentHandle
from tierlog.remote.urls import open_store

if TYPE_CHECKING:
    from tierlog.remote.store.object_store import ObjectStore

__all__ = ["FetchedRange", "FileBytes", "ObjectBytes", "SegmentBytes", "bytes_of"]

_REQUEST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBytes:
    """A segment that is a file here."""

    path: str

    @contextmanager
    def opened(self) -> Iterator[SegmentHandle]:
        """The file; OSError as `SegmentHandle` raises it."""
        with SegmentHandle(self.path) as handle:
            yield handle


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectBytes:
    """A segment that is the object `key`, of that size, in the store at `url`.

    ``beyond_bytes``: how far beyond a range the end of its last batch is looked for, before more
    is asked for.
    """

    url: str
    key: str
    size_bytes: int
    beyond_bytes: int = 2 << 20

    @contextmanager
    def opened(self) -> Iterator[SegmentHandle]:
        """A copy of the whole, gone afterwards. OSError, RemoteStorageError."""
        with self.fetched(0, self.size_bytes) as fetched:
            yield fetched.handle

    @contextmanager
    def fetched(self, start: int, until: int) -> Iterator[FetchedRange]:
        """At least the bytes [`start`, `until`) and what a batch is likely to have beyond them.
        OSError, RemoteStorageError."""
        folder = tempfile.mkdtemp(prefix="tierlog-rebuild-")
        try:
            path = os.path.join(folder, os.path.basename(self.key))
            end = min(until + self.beyond_bytes, self.size_bytes)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                store = open_store(self.url)
                _fetch(store, self.key, descriptor, start, end)
                with SegmentHandle(path) as handle:
                    yield FetchedRange(
                        handle=handle,
                        source=self,
                        store=store,
                        descriptor=descriptor,
                        end=end,
                        step_bytes=self.beyond_bytes,
                    )
            finally:
                os.close(descriptor)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class FetchedRange:
    """A file that holds a range of an object; it ends where that does."""

    handle: SegmentHandle
    source: ObjectBytes
    store: ObjectStore
    descriptor: int
    end: int
    step_bytes: int

    def more(self) -> bool:
        """Fetches some more, each time more than before; False when the object has no more."""
        self.step_bytes *= 4
        end = min(self.end + self.step_bytes, self.source.size_bytes)
        if end <= self.end:
            return False
        _fetch(self.store, self.source.key, self.descriptor, self.end, end)
        self.end = end
        return True


SegmentBytes = FileBytes | ObjectBytes


def bytes_of(url: str, key: str, size_bytes: int) -> SegmentBytes:
    """An object of the store at `url`, read where it lies if that is here."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return FileBytes(path=os.path.join(unquote(parts.path), key))
    return ObjectBytes(url=url, key=key, size_bytes=size_bytes)


def _fetch(store: ObjectStore, key: str, descriptor: int, start: int, end: int) -> None:
    position = start
    while position < end:
        piece = memoryview(store.get_range(key, position, min(_REQUEST_BYTES, end - position)))
        view = piece.cast("B")
        while view:
            written = os.pwrite(descriptor, view, position)
            view, position = view[written:], position + written

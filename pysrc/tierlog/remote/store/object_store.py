"""The object store seam: what tierlog asks of a store, and the rules every store keeps.

A key is relative to the store's URL. Keys are never reused, so no store caches what an object
was; a put makes the whole object visible at once or nothing of it.

What a store is not: a file system. There is no rename, no append, and a listing may lag.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from tierlog.errors import RemoteResourceNotFoundError, RemoteStorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog._core import ReadFile
    from tierlog._hot import OpenFiles

__all__ = [
    "LARGE_READ_BYTES",
    "MAX_COMPONENT_BYTES",
    "MAX_KEY_BYTES",
    "Draft",
    "ObjectInfo",
    "ObjectStore",
    "already_exists",
    "check_key",
    "check_prefix",
    "check_range",
    "counted",
    "file_chunks",
    "holds_exactly",
    "not_found",
    "open_regular_file",
    "storage_error",
]

MAX_KEY_BYTES = 1024
MAX_COMPONENT_BYTES = 255
# Half-written objects of a file store carry such a name; no key may look like one.
TEMPORARY_PREFIX = ".tierlog-"
TEMPORARY_SUFFIX = ".tmp"
_CHUNK_BYTES = 1 << 20
_FOLDER_OBJECTS = 1_000
# From here on what is read comes in memory that goes from one read to the next (`_core.read_slab`),
# not in the allocator's: of what glibc takes back from so large a read, its arenas keep a lot.
LARGE_READ_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object as a store reports it. ``etag`` changes when the bytes do; None if unknown.

    In a listing ``size_bytes`` is -1 for an object that is made only when it is read.
    """

    key: str
    size_bytes: int
    etag: str | None
    last_modified_ms: int


class ObjectStore(Protocol):
    """A flat set of immutable objects under one URL.

    Every call may raise RemoteStorageError (``retriable`` says whether to try again); a key
    that no store could hold is a ValueError.

    A store of another package subclasses it and is found by the scheme of its URLs: an entry point
    of the group ``tierlog.object_stores``, named as the scheme, is called with the URL. What is not
    abstract here has a default that suits every store. `tierlog.testing.StoreConformance` tests it.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the store is, without credentials."""
        ...

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether this machine itself has the objects; else a server sends them, and can do so
        while the reader is at what he has got."""
        ...

    @abstractmethod
    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        """Store `data` durably. Without `overwrite`, other bytes already there are an error.

        The same bytes already there are none: an earlier try may have lost only its answer.
        """
        ...

    @abstractmethod
    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        """Store exactly `size_bytes` from `chunks` durably, with bounded memory.

        A chunk must not change once handed over. Whatever the iterator raises comes out
        unchanged, and then nothing of the object is visible: an iterator that checks the bytes
        it hands out decides about the object. After any other failure all of it is there or
        nothing.
        """
        ...

    @abstractmethod
    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Store `data` unless the key exists; of several callers exactly one gets True."""
        ...

    @abstractmethod
    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        """Bytes from `start_position` on, at most `size_bytes`; fewer only at the end.

        A start at or past the end is a RemoteStorageError, a missing object a
        RemoteResourceNotFoundError.
        """
        ...

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Size and etag; RemoteResourceNotFoundError when there is no such object."""
        ...

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Every object below the folder `prefix` (all for ``""``), page by page, in any order."""
        ...

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; one that is not there counts as removed."""
        ...

    def folders(self) -> Iterable[str]:
        """The names of the folders at the top, in any order: what a person may have meant.

        This default takes them from the first objects of a listing, so it may miss some.
        """
        first = islice(self.list(), _FOLDER_OBJECTS)
        return {info.key.partition("/")[0] for info in first if "/" in info.key}

    def draft(self, key: str, size_bytes: int) -> Draft | None:
        """Return a draft of the object `key` of about that size; None when the store takes none.

        A store that stands before another one may only hand its drafts on when it does nothing to
        what is written.
        """
        return None

    @property
    def open_files(self) -> OpenFiles | None:
        """The files that `open_file` keeps open; None when objects are no files here."""
        return None

    def open_file(self, key: str) -> ReadFile | None:
        """Return the file that is the object, for a read that begins now; None as above."""
        return None


class Draft(Protocol):
    """An object on its way, which somebody writes through its descriptor while reading the bytes.

    Nobody can see it, and nothing of it is left behind, also by a crash, unless it is put.
    """

    @property
    def key(self) -> str:
        """What it will be."""
        ...

    @property
    def name(self) -> str:
        """What an OSError that came from writing it carries."""
        ...

    @property
    def holds(self) -> tuple[int, int] | None:
        """Size and CRC-32C of what was written; None until that is known."""
        ...

    def fileno(self) -> int:
        """The descriptor to write through."""
        ...

    def wrote(self, size_bytes: int, crc32c: int) -> None:
        """All of it is written."""
        ...

    def failed(self, error: OSError) -> RemoteStorageError:
        """A failed write, in the words of the store."""
        ...

    def put(self) -> None:
        """Makes it the object, durably, as `ObjectStore.put_stream` does without `overwrite`."""
        ...

    def close(self) -> None:
        """Drops what was not put."""
        ...


def storage_error(message: str, *, retriable: bool = True) -> RemoteStorageError:
    """A RemoteStorageError that says whether trying again makes sense."""
    error = RemoteStorageError(message)
    error.retriable = retriable
    return error


def not_found(url: str, key: str, detail: str = "") -> RemoteResourceNotFoundError:
    """The error for an object that is not there."""
    return RemoteResourceNotFoundError(
        f"{url}: no object {key}" + (f" ({detail})" if detail else "")
    )


def already_exists(url: str, key: str) -> RemoteStorageError:
    """The error of a put that would have replaced an object."""
    return storage_error(
        f"{url}: object {key} exists already; keys are never reused", retriable=False
    )


def check_key(key: str) -> str:
    """`key` itself when every store can hold it, else ValueError.

    Refused: empty, absolute or ``..`` paths, empty or ``.`` components, control characters, text
    that is not in Unicode normal form C, components above 255 and keys above 1,024 bytes, and
    the names a file store gives to half-written objects.
    """
    try:
        encoded = key.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"object key is not valid Unicode: {key[:80]!r}") from None
    if not encoded or len(encoded) > MAX_KEY_BYTES:
        raise ValueError(
            f"object key must have 1 to {MAX_KEY_BYTES} bytes, not {len(encoded)}: {key[:80]!r}"
        )
    if not key.isprintable() or "\\" in key:
        raise ValueError(f"object key has an unprintable character or a backslash: {key[:80]!r}")
    if not unicodedata.is_normalized("NFC", key):
        raise ValueError(f"object key is not in Unicode normal form C: {key[:80]!r}")
    for component in key.split("/"):
        _check_component(component, key)
    return key


def _check_component(component: str, key: str) -> None:
    if component in ("", ".", ".."):
        raise ValueError(f"object key has a component {component!r}: {key[:80]!r}")
    if len(component.encode("utf-8")) > MAX_COMPONENT_BYTES:
        raise ValueError(
            f"object key has a component above {MAX_COMPONENT_BYTES} bytes: {key[:80]!r}"
        )
    if component.startswith(TEMPORARY_PREFIX) and component.endswith(TEMPORARY_SUFFIX):
        raise ValueError(f"object key looks like a half-written object: {key[:80]!r}")


def check_prefix(prefix: str) -> str:
    """A folder to list, without its trailing slash; ``""`` is everything. ValueError as keys."""
    folder = prefix.removesuffix("/")
    return check_key(folder) if folder else _refuse_slash(prefix)


def _refuse_slash(prefix: str) -> str:
    if prefix:
        raise ValueError(f"prefix is absolute: {prefix!r}")
    return ""


def holds_exactly(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Whether there is such an object and it has just these bytes."""
    expected = memoryview(data)
    try:
        if store.head(key).size_bytes != expected.nbytes:
            return False
        return not expected.nbytes or bytes(store.get_range(key, 0, expected.nbytes)) == expected
    except RemoteResourceNotFoundError:
        return False


def check_range(start_position: int, size_bytes: int) -> None:
    """ValueError unless the range holds at least one byte."""
    if start_position < 0 or size_bytes <= 0:
        raise ValueError(f"no such range: {size_bytes} bytes from position {start_position}")


def counted(chunks: Iterable[Buffer], size_bytes: int, key: str) -> Iterator[Buffer]:
    """The chunks, and ValueError unless they add up to `size_bytes`."""
    total = 0
    for chunk in chunks:
        total += memoryview(chunk).nbytes
        if total > size_bytes:
            raise ValueError(f"{key}: more than the announced {size_bytes} bytes")
        yield chunk
    if total != size_bytes:
        raise ValueError(f"{key}: {total} bytes instead of the announced {size_bytes}")


def open_regular_file(path: str | os.PathLike[str]) -> int:
    """Read-only descriptor of a regular file; OSError for symbolic links, pipes and the like."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{os.fspath(path)}: not a regular file")
    return descriptor


def file_chunks(
    descriptor: int, size_bytes: int, *, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """The first `size_bytes` of an open file in order, a fresh buffer each time.

    Ends early when the file does; the descriptor's own position is neither used nor moved.
    """
    position = 0
    while position < size_bytes:
        chunk = os.pread(descriptor, min(chunk_bytes, size_bytes - position), position)
        if not chunk:
            return
        position += len(chunk)
        yield chunk

"""The `ObjectStore` protocol: the calls that tierlog makes to a store, and the rules of these
calls.

A key is relative to the store's URL. Keys are never reused, so stores need no cache invalidation. A
put makes either the whole object visible at once, or nothing.

A store is not a file system: it has no rename and no append, and its listings may lag behind.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tierlog.errors import RemoteResourceNotFoundError, RemoteStorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog._core import ReadFile

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
    "past_end",
    "storage_error",
]

MAX_KEY_BYTES = 1024
MAX_COMPONENT_BYTES = 255
# File stores give half-written objects names with this prefix and suffix. No key may have such a
# name.
TEMPORARY_PREFIX = ".tierlog-"
TEMPORARY_SUFFIX = ".tmp"
_CHUNK_BYTES = 1 << 20
# Reads of at least this size use a buffer pool (`_core.read_pooled`) instead of the allocator.
# After such large reads, glibc's arenas keep much of the freed memory.
LARGE_READ_BYTES = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """What a store reports about one object. ``etag`` changes when the bytes change; None when
    unknown.

    In a listing, ``size_bytes`` is -1 for an object that the store creates only when a caller reads
    it.
    """

    key: str
    size_bytes: int
    etag: str | None
    last_modified_ms: int


class ObjectStore(Protocol):
    """A flat set of immutable objects under one URL.

    Every call may raise RemoteStorageError, whose ``retriable`` says whether the caller should try
    again. A key that no store can hold raises ValueError.

    A store of another package subclasses this class. To open a URL, tierlog calls the entry point
    named like the URL's scheme in the group ``tierlog.object_stores``, with the URL. A method that
    is not abstract has a default that works for every store. `tierlog.testing.StoreConformance`
    tests a store.
    """

    @property
    @abstractmethod
    def url(self) -> str:
        """URL of the store, without credentials."""
        ...

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """Whether this machine holds the objects. A remote store can send the next bytes while the
        reader processes the previous bytes."""
        ...

    @abstractmethod
    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        """Store `data` durably. Without `overwrite`, an existing object with other bytes is an
        error.

        An existing object with the same bytes is no error, because an earlier attempt may have lost
        only its answer.
        """
        ...

    @abstractmethod
    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        """Store exactly `size_bytes` from `chunks` durably, with bounded memory.

        The caller must not change a chunk after the iterator has yielded it. Exceptions of the
        iterator propagate unchanged, and then nothing of the object is visible. So an iterator can
        check the bytes that it yields, and reject the object. After any other failure the object is
        whole or absent.
        """
        ...

    @abstractmethod
    def put_if_absent(self, key: str, data: Buffer) -> bool:
        """Store `data` unless the key exists; exactly one of several callers gets True."""
        ...

    @abstractmethod
    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        """Return `size_bytes` from `start_position` on, or fewer at the end of the object.

        Raises RemoteStorageError when the start is at or past the end, and
        RemoteResourceNotFoundError when the object is missing.
        """
        ...

    @abstractmethod
    def head(self, key: str) -> ObjectInfo:
        """Return size and etag; raise RemoteResourceNotFoundError when the object does not
        exist."""
        ...

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield every object below the folder `prefix` (all for ``""``) in pages, in any order."""
        ...

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove the object; removing a missing object succeeds."""
        ...

    def folders(self, prefix: str = "") -> Iterable[str]:
        """Return the names of the folders right below the folder `prefix`, in any order.

        This default implementation lists all objects below `prefix`. Most stores can list folders
        directly.
        """
        beneath = f"{folder}/" if (folder := check_prefix(prefix)) else ""
        keys = (info.key[len(beneath) :] for info in self.list(prefix))
        return {key.partition("/")[0] for key in keys if "/" in key}

    def draft(self, key: str, size_bytes: int) -> Draft | None:
        """Return a draft of the object `key` of about `size_bytes`; None when the store does not
        support drafts.

        A wrapper around another store may return drafts of the other store only if the wrapper
        stores bytes unchanged.
        """
        return None

    def open_file(self, key: str) -> ReadFile | None:
        """Return the object's open file for one read; None when objects are not local files."""
        return None


class Draft(Protocol):
    """An object that the caller writes through a descriptor while it reads the bytes elsewhere.

    The draft is invisible until `put`. The draft disappears if it is closed, or the process ends,
    without a `put`.
    """

    @property
    def key(self) -> str:
        """Key of the object that `put` makes."""
        ...

    @property
    def name(self) -> str:
        """File name in an OSError that a failed write raises."""
        ...

    @property
    def holds(self) -> tuple[int, int] | None:
        """Size and CRC-32C of the written bytes; None until `wrote` was called."""
        ...

    def fileno(self) -> int:
        """Return the descriptor to which the caller writes."""
        ...

    def wrote(self, size_bytes: int, crc32c: int) -> None:
        """Record that all bytes are written, with their size and CRC-32C."""
        ...

    def failed(self, error: OSError) -> RemoteStorageError:
        """Return the store's error for a failed write."""
        ...

    def put(self) -> None:
        """Store the draft durably as the object `key`, as `ObjectStore.put_stream` does without
        `overwrite`."""
        ...

    def close(self) -> None:
        """Discard the draft unless it was put."""
        ...


def storage_error(message: str, *, retriable: bool = True) -> RemoteStorageError:
    """Return a RemoteStorageError. `retriable` says whether the caller should try again."""
    error = RemoteStorageError(message)
    error.retriable = retriable
    return error


def not_found(url: str, key: str, detail: str = "") -> RemoteResourceNotFoundError:
    """Return the error for an object that does not exist."""
    return RemoteResourceNotFoundError(
        f"{url}: no object {key}" + (f" ({detail})" if detail else "")
    )


def past_end(url: str, key: str, position: int, size_bytes: int) -> RemoteStorageError:
    """Return the error for a read that starts at or past the end of an object."""
    return storage_error(
        f"{url}: read of {key} from position {position}, but it has {size_bytes} bytes",
        retriable=False,
    )


def already_exists(url: str, key: str) -> RemoteStorageError:
    """Return the error for a put that would have replaced an object."""
    return storage_error(
        f"{url}: object {key} exists already; keys are never reused", retriable=False
    )


def check_key(key: str) -> str:
    """Return `key` if every store can hold it, else raise ValueError.

    A key must not be an empty or absolute path. A key must not have the components ``""``, ``.`` or
    ``..``, unprintable characters or a backslash, components above 255 bytes, or the name that a
    file store gives to a half-written object. A key must be in Unicode normal form C and have at
    most 1,024 bytes.
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
    """Return the folder `prefix` without its trailing slash. ``""`` stands for the whole store."""
    folder = prefix.removesuffix("/")
    return check_key(folder) if folder else _refuse_slash(prefix)


def _refuse_slash(prefix: str) -> str:
    if prefix:
        raise ValueError(f"prefix is absolute: {prefix!r}")
    return ""


def holds_exactly(store: ObjectStore, key: str, data: Buffer) -> bool:
    """Return whether the object exists and consists of exactly these bytes."""
    expected = memoryview(data)
    try:
        if store.head(key).size_bytes != expected.nbytes:
            return False
        return not expected.nbytes or bytes(store.get_range(key, 0, expected.nbytes)) == expected
    except RemoteResourceNotFoundError:
        return False


def check_range(start_position: int, size_bytes: int) -> None:
    """Raise ValueError unless the range holds at least one byte."""
    if start_position < 0 or size_bytes <= 0:
        raise ValueError(
            f"a range needs a position of at least 0 and 1 byte or more, not {size_bytes} bytes "
            f"from position {start_position}"
        )


def counted(chunks: Iterable[Buffer], size_bytes: int, key: str) -> Iterator[Buffer]:
    """Yield the chunks; raise ValueError unless their sizes add up to `size_bytes`."""
    total = 0
    for chunk in chunks:
        total += memoryview(chunk).nbytes
        if total > size_bytes:
            raise ValueError(f"{key}: got more than the announced {size_bytes} bytes")
        yield chunk
    if total != size_bytes:
        raise ValueError(f"{key}: got {total} bytes instead of the announced {size_bytes}")


def open_regular_file(path: str | os.PathLike[str]) -> int:
    """Open a regular file read-only; raise OSError for a symbolic link, a pipe or any other file
    type."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{os.fspath(path)}: not a regular file")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def file_chunks(
    descriptor: int, size_bytes: int, *, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """Yield the first `size_bytes` of an open file in order, each chunk in a new buffer.

    If the file is shorter, fewer bytes are yielded. The descriptor's own position is neither used
    nor moved.
    """
    position = 0
    while position < size_bytes:
        chunk = os.pread(descriptor, min(chunk_bytes, size_bytes - position), position)
        if not chunk:
            return
        position += len(chunk)
        yield chunk

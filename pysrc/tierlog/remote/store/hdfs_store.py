"""The `hdfs://` store, which keeps one file per object beneath a folder. The store uses hdfs-native
(the extra ``hdfs``).

A put writes a hidden file in the object's own folder (``.tierlog-<random>.tmp``), closes it and
renames it. When a file is closed, every DataNode of the pipeline has acknowledged the bytes. The
bytes are on the DataNodes' disks only if the cluster sets ``dfs.datanode.synconclose``. A rename in
HDFS is atomic and refuses a name that exists. So only one of several writers succeeds, and a reader
sees the whole object or nothing. When the answer to a rename is lost, the store checks where the
file is and deletes the hidden file, so that a delayed rename fails. A crash can leave a hidden
file. Listings skip hidden files, and the next store that writes into that folder removes hidden
files older than a day.

No wait for HDFS is longer than ``timeout_s``, whatever the NameNode does. Idempotent calls are
retried a few times when a retry may succeed.

Names that HDFS reserves (a colon, ``.snapshot``, ``.reserved``) are percent-encoded. The keys of
segments and markers contain no such names, so they are unchanged. Empty folders are not removed.

A store may be pickled. The copy opens its own connections from the URL, the given options and the
Hadoop settings of its machine. A process that was forked after its parent had used HDFS may not use
the store.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tierlog.clock import Clock, SystemClock
from tierlog.errors import ConfigError, RemoteResourceNotFoundError
from tierlog.remote.store.hdfs_client import (
    CallFailedError,
    Failure,
    HdfsClient,
    HdfsConnection,
    HdfsOptions,
)
from tierlog.remote.store.object_store import (
    TEMPORARY_PREFIX,
    TEMPORARY_SUFFIX,
    ObjectInfo,
    ObjectStore,
    already_exists,
    check_key,
    check_prefix,
    check_range,
    counted,
    holds_exactly,
    not_found,
    past_end,
    storage_error,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["HdfsStore", "open_hdfs_store"]

# hdfs-native copies its input. With chunks of this size, the cost of using a worker thread is
# small.
_CHUNK_BYTES = 1 << 20
_LIST_PAGE = 1_000
_ATTEMPTS = 6
_FIRST_PAUSE_MS = 100
_LEFTOVER_MS = 24 * 3_600_000
# Longest time that a failed put waits for the removal of its hidden file.
_REMOVE_S = 2.0
_RESERVED = (".snapshot", ".reserved")
_ENCODED = re.compile("[%:]")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """An object that is being written: its open hidden file, and the client that opened this
    file."""

    client: HdfsClient
    file: Any
    temporary: str


class HdfsStore(ObjectStore):
    """Keeps objects as files of an HDFS cluster. `open_store` creates it."""

    def __init__(
        self,
        url: str,
        options: HdfsOptions | None = None,
        *,
        clock: Clock | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """`url` is ``hdfs://host:port/folder``, or names a name service of the Hadoop settings
        instead of host and port."""
        self._options = options or HdfsOptions()
        self._clock = clock or SystemClock()
        self._random_bytes = random_bytes
        cluster, self._root = _split(url)
        self._url = cluster + quote(self._root)
        self._connection = HdfsConnection(cluster, self._options)
        self._cleaned_folders: set[str] = set()

    def __repr__(self) -> str:
        return f"HdfsStore({self._url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return HdfsStore, (self._url, self._options)

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return False

    # -- reading

    def get_range(self, key: str, start_position: int, size_bytes: int) -> bytes:
        check_range(start_position, size_bytes)
        path = self._path(key)

        def read(client: Any) -> tuple[int, bytes]:
            reader = client.read(path)
            length: int = reader.file_length()
            read_bytes = min(size_bytes, length - start_position)
            return length, reader.read_range(start_position, read_bytes) if read_bytes > 0 else b""

        with self._storage_errors(key):
            length, data = self._call_with_retries(read)
        if start_position >= length:
            raise past_end(self._url, key, start_position, length)
        if len(data) != min(size_bytes, length - start_position):
            raise storage_error(
                f"{self._url}: {key}: asked for {size_bytes} bytes from position "
                f"{start_position} of {length}, HDFS sent {len(data)}"
            )
        return data

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._storage_errors(key):
            status = self._call_with_retries(lambda client: client.get_file_info(path))
        if status.isdir:
            raise not_found(self._url, key, "the name belongs to a folder")
        return _object_info(key, status)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        folders = [folder]
        while folders:
            base = folders.pop()
            for status in self._entries(base):
                key = _decode_key(base, status.path.rpartition("/")[2])
                if key is None:
                    continue
                if status.isdir:
                    folders.append(key)
                else:
                    yield _object_info(key, status)

    def folders(self, prefix: str = "") -> Iterable[str]:
        keys = (
            _decode_key("", status.path.rpartition("/")[2])
            for status in self._entries(check_prefix(prefix))
            if status.isdir
        )
        return [key for key in keys if key is not None]

    def _entries(self, folder: str) -> Iterator[Any]:
        """Yield the direct entries of `folder`, page by page. Yield nothing if the folder is
        missing."""
        path = f"{self._root}/{_encode_key(folder)}".rstrip("/") or "/"
        seen: set[str] = set()
        listing: Any = None

        def page(client: Any) -> list[Any]:
            nonlocal listing
            entries, listing = listing or client.list_status(path, False), None
            found = []
            for status in entries:
                # After a failure the listing starts again and repeats earlier entries.
                if status.path == path or status.path in seen:
                    continue
                found.append(status)
                if len(found) == _LIST_PAGE:
                    listing = entries
                    break
            return found

        while True:
            try:
                with self._storage_errors(f"list {folder}".rstrip()):
                    found = self._call_with_retries(page)
            except RemoteResourceNotFoundError:
                return
            seen.update(status.path for status in found)
            yield from found
            if listing is None:
                return

    # -- writing

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        if not self._put_bytes(key, data, overwrite=overwrite) and not holds_exactly(
            self, key, data
        ):
            raise already_exists(self._url, key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._put_bytes(key, data, overwrite=False)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        path = self._path(key)
        pieces = _join_chunks(counted(chunks, size_bytes, key))
        first = next(pieces, b"")
        with self._storage_errors(key, put=True):
            writing = self._retry(lambda: self._begin_file(path, first))
            stored = self._write_and_publish(path, writing, pieces, size_bytes, overwrite=overwrite)
        if not stored:
            raise already_exists(self._url, key)

    def _put_bytes(self, key: str, data: Buffer, *, overwrite: bool) -> bool:
        path = self._path(key)
        view = memoryview(data).cast("B")

        def put() -> bool:
            pieces = _join_chunks([view])
            writing = self._begin_file(path, next(pieces, b""))
            return self._write_and_publish(path, writing, pieces, len(view), overwrite=overwrite)

        with self._storage_errors(key, put=True):
            return self._retry(put)

    def _begin_file(self, path: str, first: bytes) -> _Writing:
        """Create a hidden file beside `path` and write the first chunk.

        The first write connects to the DataNodes. If a DataNode is down, the write fails here, and
        a retry creates a new file, which may get other DataNodes.
        """
        folder = path.rpartition("/")[0]
        name = f"{TEMPORARY_PREFIX}{self._random_bytes(16).hex()}{TEMPORARY_SUFFIX}"
        temporary = f"{folder}/{name}"

        def begin(client: Any) -> Any:
            file = client.create(temporary, self._connection.write_options())
            if first:
                file.write(first)
            return file

        client = self._connection.client()
        with self._removed_on_failure(temporary):
            file = self._connection.call(
                begin, client=client, after_timeout=lambda native: native.delete(temporary, False)
            )
        self._remove_leftovers(folder)
        return _Writing(client=client, file=file, temporary=temporary)

    def _write_and_publish(
        self,
        path: str,
        writing: _Writing,
        pieces: Iterable[bytes],
        size_bytes: int,
        *,
        overwrite: bool,
    ) -> bool:
        """Write the remaining bytes and publish the object. Return False if the name exists and
        must not be replaced.

        Exceptions of the iterator `pieces` propagate unchanged.
        """
        with self._removed_on_failure(writing.temporary):
            for piece in pieces:
                self._write_piece(writing, piece)
            self._close_checked(writing, size_bytes)
        return self._publish(writing.temporary, path, size_bytes, overwrite=overwrite)

    def _write_piece(self, writing: _Writing, piece: bytes) -> None:
        self._connection.call(lambda _: writing.file.write(piece), client=writing.client)

    def _close_checked(self, writing: _Writing, size_bytes: int) -> None:
        """Close the file and check its size, because HDFS would also rename a file that is still
        open."""

        def close(client: Any) -> int:
            writing.file.close()
            length: int = client.get_file_info(writing.temporary).length
            return length

        length = self._connection.call(close, client=writing.client)
        if length != size_bytes:
            raise CallFailedError(
                Failure.REFUSED, f"{length} bytes arrived instead of {size_bytes}", retriable=True
            )

    def _publish(self, temporary: str, path: str, size_bytes: int, *, overwrite: bool) -> bool:
        half_s = self._options.timeout_s / 2
        try:
            with self._removed_on_failure(temporary, unless=(Failure.LOST, Failure.SILENT)):
                self._connection.call(
                    lambda client: client.rename(temporary, path, overwrite),
                    timeout_s=half_s,
                )
        except CallFailedError as error:
            if error.failure is Failure.EXISTS:
                return False
            if error.failure in (Failure.ABSENT, Failure.REFUSED):
                raise
            self._settle_rename(temporary, path, size_bytes, error)
        return True

    def _settle_rename(
        self, temporary: str, path: str, size_bytes: int, lost: CallFailedError
    ) -> None:
        """Find out whether a rename without an answer took effect. If not, prevent the rename from
        taking effect later.

        Raises CallFailedError when the rename did not take effect, or when the outcome cannot be
        found out.
        """
        half_s = self._options.timeout_s / 2
        unknown = CallFailedError(
            Failure.SILENT,
            f"unknown whether the object is stored ({lost.text}); repeat the put to find out",
            retriable=True,
        )
        try:
            if self._find_status(temporary, half_s) is None:
                stored = self._find_status(path, half_s)
                if stored is not None and stored.length == size_bytes:
                    return
                raise unknown
            removed = self._connection.call(
                lambda client: client.delete(temporary, False), timeout_s=half_s
            )
        except CallFailedError:
            raise unknown from None
        if removed:
            raise CallFailedError(Failure.REFUSED, f"not stored ({lost.text})", retriable=True)

    def _find_status(self, path: str, within_s: float) -> Any:
        try:
            return self._call_with_retries(
                lambda client: client.get_file_info(path), within_s=within_s
            )
        except CallFailedError as error:
            if error.failure is Failure.ABSENT:
                return None
            raise

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._storage_errors(key):
            self._call_with_retries(lambda client: client.delete(path, False))

    # -- hidden files

    @contextmanager
    def _removed_on_failure(
        self, temporary: str, *, unless: tuple[Failure, ...] = ()
    ) -> Iterator[None]:
        """Remove the hidden file when the body fails, except for the failures in `unless`."""
        try:
            yield
        except BaseException as error:
            failure = error.failure if isinstance(error, CallFailedError) else None
            if failure not in unless:
                self._remove_hidden_file(temporary, silent=failure is Failure.SILENT)
            raise

    def _remove_hidden_file(self, temporary: str, *, silent: bool) -> None:
        """Try to delete a hidden file. If the NameNode was `silent`, the file is deleted in the
        background."""
        if silent:
            self._connection.attempt(lambda client: client.delete(temporary, False))
            return
        with suppress(CallFailedError):
            self._connection.call(
                lambda client: client.delete(temporary, False),
                timeout_s=min(_REMOVE_S, self._options.timeout_s),
            )

    def _remove_leftovers(self, folder: str) -> None:
        """Remove old hidden files of crashed writers in the background, once per folder."""
        if folder in self._cleaned_folders:
            return
        self._cleaned_folders.add(folder)

        def sweep(client: Any) -> None:
            # Measure ages by the NameNode's clock: a put has just changed this folder, so its
            # modification time is the present time.
            changed_ms = client.get_file_info(folder or "/").modification_time
            oldest_ms = changed_ms - _LEFTOVER_MS
            for seen, status in enumerate(client.list_status(folder or "/", False)):
                name = status.path.rpartition("/")[2]
                # HDFS sorts entries by name, so hidden files come before segments.
                if seen > _LIST_PAGE or (
                    name.isascii() and name[: len(TEMPORARY_PREFIX)] > TEMPORARY_PREFIX
                ):
                    return
                hidden = name.startswith(TEMPORARY_PREFIX) and name.endswith(TEMPORARY_SUFFIX)
                if hidden and not status.isdir and status.modification_time < oldest_ms:
                    client.delete(status.path, False)

        if not self._connection.attempt(sweep):
            self._cleaned_folders.discard(folder)

    # -- calls and errors

    def _path(self, key: str) -> str:
        return f"{self._root}/{_encode_key(check_key(key))}"

    def _call_with_retries(
        self, step: Callable[[Any], _Result], *, within_s: float | None = None
    ) -> _Result:
        """Return the result of an idempotent call. All attempts of the call share one deadline."""
        total_s = self._options.timeout_s if within_s is None else within_s
        ends_ms = self._clock.monotonic_ms() + int(total_s * 1000)

        def attempt() -> _Result:
            left_ms = max(1, ends_ms - self._clock.monotonic_ms())
            return self._connection.call(step, timeout_s=left_ms / 1000)

        return self._retry(attempt, ends_ms=ends_ms)

    def _retry(self, attempt: Callable[[], _Result], *, ends_ms: int | None = None) -> _Result:
        """Repeat `attempt` a few times while its error is retriable, but not after a timeout."""
        if ends_ms is None:
            ends_ms = self._clock.monotonic_ms() + int(self._options.timeout_s * 1000)
        for number in count(1):
            try:
                return attempt()
            except CallFailedError as error:
                pause_ms = self._pause_ms(number)
                enough = number == _ATTEMPTS or self._clock.monotonic_ms() + pause_ms >= ends_ms
                if enough or not error.retriable or error.failure is Failure.SILENT:
                    raise
            self._clock.sleep(pause_ms)
        raise AssertionError("unreachable")

    def _pause_ms(self, number: int) -> int:
        """Return the pause before the next attempt. The pause doubles each time, and is reduced by
        a random part of up to half."""
        longest_ms = _FIRST_PAUSE_MS << (number - 1)
        return longest_ms - longest_ms * self._random_bytes(1)[0] // 512

    @contextmanager
    def _storage_errors(self, what: str, *, put: bool = False) -> Iterator[None]:
        """Convert failed calls into storage errors; `what` is the key or the call.

        If a `put` finds a file missing, it is the put's own hidden file, and a retry writes it
        again.
        """
        try:
            yield
        except CallFailedError as error:
            absent = error.failure is Failure.ABSENT
            if absent and not put:
                raise not_found(self._url, what, error.text) from None
            raise storage_error(
                f"{self._url}: {what}: {error.text}", retriable=absent or error.retriable
            ) from None


def open_hdfs_store(url: str, options: Mapping[str, Any]) -> HdfsStore:
    """Open a store on HDFS; `options` are the fields of `HdfsOptions`.

    Raises ConfigError for an invalid option or URL, and when hdfs-native is not installed.
    """
    known = [field.name for field in dataclasses.fields(HdfsOptions)]
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ConfigError(f"{url}: unknown options {unknown}; expected some of {known}")
    parsed = HdfsOptions(**options)
    if not isinstance(parsed.timeout_s, int | float) or not 0 < parsed.timeout_s < float("inf"):
        raise ConfigError(f"{url}: timeout_s must be a number of seconds above 0")
    return HdfsStore(url, parsed)


def _split(url: str) -> tuple[str, str]:
    """Return the cluster's URL and the store's folder without a trailing slash."""
    parts = urlsplit(url)
    folder = unquote(parts.path).strip("/")
    try:
        check_prefix(folder)
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from None
    if ":" in folder or any(name in _RESERVED for name in folder.split("/")):
        raise ConfigError(
            f"{url}: an HDFS folder cannot contain a colon or be named {' or '.join(_RESERVED)}"
        )
    return f"hdfs://{parts.netloc}", f"/{folder}" if folder else ""


def _encode_key(key: str) -> str:
    """Return the file path for a key. Names that HDFS reserves are percent-encoded."""
    return "/".join(_encode_component(component) for component in key.split("/"))


def _encode_component(component: str) -> str:
    if component in _RESERVED:
        return "%2E" + component[1:]
    return _ENCODED.sub(lambda found: f"%{ord(found[0]):02X}", component)


def _decode_key(folder: str, name: str) -> str | None:
    """Return the key of the entry `name` in `folder`; None if no key has this name.

    The folder may hold files of other programs, and half-written files.
    """
    try:
        component = unquote(name, errors="strict")
        key = check_key(f"{folder}/{component}" if folder else component)
    except ValueError:
        return None
    return key if _encode_component(component) == name else None


def _join_chunks(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """Yield the same bytes in chunks of `_CHUNK_BYTES`; the last chunk may be shorter."""
    held: list[memoryview] = []
    size_bytes = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while size_bytes + len(view) >= _CHUNK_BYTES:
            rest = _CHUNK_BYTES - size_bytes
            yield b"".join(chain(held, [view[:rest]]))
            view, held, size_bytes = view[rest:], [], 0
        if len(view):
            held.append(view)
            size_bytes += len(view)
    if held:
        yield b"".join(held)


def _object_info(key: str, status: Any) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=status.length,
        etag=f"{status.modification_time:x}-{status.length:x}",
        last_modified_ms=status.modification_time,
    )

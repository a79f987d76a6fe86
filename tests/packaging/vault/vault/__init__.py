"""A third-party package: an object store, a storage manager and a metadata manager."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import tierlog
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.store.object_store import (
    check_key,
    check_prefix,
    check_range,
    counted,
    holds_exactly,
)


def open_vault(url: str) -> VaultStore:
    """Open ``vault://<name>/folder``; what the entry point of the scheme is."""
    return VaultStore(urlsplit(url).path, url)


class VaultStore(tierlog.ObjectStore):
    """Objects in one file each: the key in hexadecimal digits, in folders of 200 digits."""

    def __init__(self, folder: str, url: str = "vault://test") -> None:
        self._folder, self._url = folder, url
        os.makedirs(folder, exist_ok=True)

    def __repr__(self) -> str:
        return f"VaultStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        return True

    def put_bytes(self, key: str, data: Any, *, overwrite: bool = False) -> None:
        if overwrite:
            self._write(key, bytes(data), "wb")
        elif not self.put_if_absent(key, data) and not holds_exactly(self, key, data):
            raise _exists(key)

    def put_stream(
        self, key: str, chunks: Iterable[Any], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        path = self._path(key)
        data = b"".join(bytes(one) for one in counted(chunks, size_bytes, key))
        if os.path.exists(path) and not overwrite:
            raise _exists(key)
        self._write(key, data, "wb")

    def put_if_absent(self, key: str, data: Any) -> bool:
        try:
            self._write(key, bytes(data), "xb")
        except FileExistsError:
            return False
        return True

    def get_range(self, key: str, start_position: int, size_bytes: int) -> bytes:
        check_range(start_position, size_bytes)
        self.head(key)
        with open(self._path(key), "rb") as file:
            file.seek(start_position)
            data = file.read(size_bytes)
        if not data:
            raise RemoteStorageError(f"{self._url}: {key}: nothing from {start_position} on")
        return data

    def head(self, key: str) -> tierlog.ObjectInfo:
        try:
            status = os.stat(self._path(key))
        except FileNotFoundError:
            raise RemoteResourceNotFoundError(f"{self._url}: no object {key}") from None
        return tierlog.ObjectInfo(
            key=key,
            size_bytes=status.st_size,
            etag=f"{status.st_ino}-{status.st_mtime_ns}",
            last_modified_ms=status.st_mtime_ns // 1_000_000,
        )

    def list(self, prefix: str = "") -> Iterator[tierlog.ObjectInfo]:
        folder = check_prefix(prefix)
        for key in sorted(self._keys()):
            if not folder or key.startswith(f"{folder}/"):
                yield self.head(key)

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._path(key))
        except FileNotFoundError:
            return

    def _keys(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._folder):
            digits = os.path.relpath(folder, self._folder).replace("/", "").replace(".", "")
            for name in names:
                yield bytes.fromhex(digits + name.removesuffix(".object")).decode()

    def _path(self, key: str) -> str:
        digits = check_key(key).encode().hex()
        parts = [digits[at : at + 200] for at in range(0, len(digits), 200)]
        return os.path.join(self._folder, *parts) + ".object"

    def _write(self, key: str, data: bytes, mode: str) -> None:
        os.makedirs(os.path.dirname(self._path(key)), exist_ok=True)
        with open(self._path(key), mode) as file:
            file.write(data)


def _exists(key: str) -> RemoteStorageError:
    error = RemoteStorageError(f"object {key} exists already")
    error.retriable = False
    return error


class VaultStorage(tierlog.RemoteStorageManager):
    """Each segment in a numbered drawer, which only the custom metadata names."""

    def configure(self, settings: Mapping[str, str]) -> None:
        self._folder = settings["drawers"]
        self._padding = int(settings.get("padding", "0"))
        os.makedirs(self._folder, exist_ok=True)
        with open(os.path.join(self._folder, "configured"), "w") as file:
            json.dump(dict(settings), file)

    @property
    def url(self) -> str:
        return f"hdfs://vault{self._folder}"

    def copy_log_segment_data(
        self,
        metadata: tierlog.RemoteLogSegmentMetadata,
        log: Any,
        indexes: Any,
        *,
        before_chunk: Callable[[int], None] | None = None,
    ) -> bytes | None:
        with open(log, "rb", closefd=not isinstance(log, int)) as file:
            data = os.pread(file.fileno(), 1 << 30, 0)
        for piece in (data, indexes):
            if before_chunk is not None:
                before_chunk(len(piece))
        found = tierlog._core.crc32c(data)
        if (len(data), found) != (metadata.segment_size_bytes, metadata.log_crc32c):
            raise CorruptDataError(
                reason="changed", position=0, expected=str(metadata.log_crc32c), found=str(found)
            )
        drawer = str(len(os.listdir(self._folder)))
        os.mkdir(os.path.join(self._folder, drawer))
        for name, content in (("log", data), ("indexes", bytes(indexes))):
            with open(os.path.join(self._folder, drawer, name), "wb") as target:
                target.write(content)
        return drawer.encode().ljust(self._padding, b" ")

    def delete_log_segment_data(self, metadata: tierlog.RemoteLogSegmentMetadata) -> None:
        for name in ("log", "indexes") if metadata.custom_metadata else ():
            try:
                os.unlink(self._path(metadata, name))
            except FileNotFoundError:
                continue

    def fetch_log_segment(
        self,
        metadata: tierlog.RemoteLogSegmentMetadata,
        start_position: int,
        end_position: int | None = None,
    ) -> bytes:
        data = self._read(metadata, "log")
        return data[start_position : len(data) if end_position is None else end_position]

    def fetch_index_object(self, metadata: tierlog.RemoteLogSegmentMetadata) -> bytes:
        return self._read(metadata, "indexes")

    def encode_data_id(self, metadata: tierlog.RemoteLogSegmentMetadata, position: int) -> bytes:
        return f"hdfs://vault/{metadata.segment_id.id}:{position}".encode()

    def resolve_data_id(self, data_id: bytes, metadata: tierlog.RemoteLogSegmentMetadata) -> int:
        name, _, position = bytes(data_id).rpartition(b":")
        if name != f"hdfs://vault/{metadata.segment_id.id}".encode() or not position.isdigit():
            raise CorruptDataError(
                reason="bad_rdi", position=0, expected="an id of the segment", found=repr(data_id)
            )
        return int(position)

    def _path(self, metadata: tierlog.RemoteLogSegmentMetadata, name: str) -> str:
        assert metadata.custom_metadata is not None
        return os.path.join(self._folder, metadata.custom_metadata.decode().strip(), name)

    def _read(self, metadata: tierlog.RemoteLogSegmentMetadata, name: str) -> bytes:
        try:
            with open(self._path(metadata, name), "rb") as file:
                return file.read()
        except FileNotFoundError as error:
            raise RemoteResourceNotFoundError(str(error)) from None


class VaultMetadata(SqliteRemoteLogMetadataManager):
    """Segments in a database of its own; only its place is of interest here."""

    def __init__(self) -> None:
        return

    def configure(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings["database"])

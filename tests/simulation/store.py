"""A store in memory that several simulated processes share, and what fails between them and it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tierlog.errors import RemoteStorageError
from tierlog.remote.store.object_store import (
    ObjectInfo,
    ObjectStore,
    already_exists,
    counted,
    not_found,
    past_end,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Objects", "SimulatedStore", "simulated_error"]

URL = "simulated:///store"


class Objects(dict[str, bytes]):
    """The objects of the store by key."""


def _nothing(_: str) -> None:
    pass


class SimulatedStore(ObjectStore):
    """One process's way to the store; ``reach(point)`` may raise, or let others act, at each
    request. It looks like a local store, so that every request comes from the caller's thread."""

    def __init__(self, objects: Objects, reach: Callable[[str], None] = _nothing) -> None:
        self._objects = objects
        self._reach = reach

    @property
    def url(self) -> str:
        return URL

    @property
    def is_local(self) -> bool:
        return True

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        self._reach("put")
        data = bytes(data)
        if not overwrite and self._objects.get(key, data) != data:
            raise already_exists(URL, key)
        self._objects[key] = data
        self._reach("put.done")

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        self.put_bytes(
            key, b"".join(map(bytes, counted(chunks, size_bytes, key))), overwrite=overwrite
        )

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self._reach("claim")
        made = key not in self._objects
        if made:
            self._objects[key] = bytes(data)
        self._reach("claim.done")
        return made

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        self._reach("get")
        data = self._objects.get(key)
        if data is None:
            raise not_found(URL, key)
        if start_position >= len(data):
            raise past_end(URL, key, start_position, len(data))
        return data[start_position : start_position + size_bytes]

    def head(self, key: str) -> ObjectInfo:
        self._reach("head")
        data = self._objects.get(key)
        if data is None:
            raise not_found(URL, key)
        return _info(key, data)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._reach("list")
        folder = prefix.removesuffix("/") + "/" if prefix else ""
        return iter(
            [_info(key, data) for key, data in self._objects.items() if key.startswith(folder)]
        )

    def delete(self, key: str) -> None:
        self._reach("delete")
        self._objects.pop(key, None)
        self._reach("delete.done")


def _info(key: str, data: bytes) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=len(data), etag=None, last_modified_ms=0)


def simulated_error(what: str) -> RemoteStorageError:
    error = RemoteStorageError(f"simulated: {what}")
    error.retriable = True
    return error

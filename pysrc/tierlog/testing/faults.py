"""A store that fails on request, for tests of what a bad day does to a client."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

from tierlog.clock import Clock, SystemClock
from tierlog.errors import RemoteResourceNotFoundError, RemoteStorageError
from tierlog.remote.store.object_store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["FaultyStore", "StoreFault"]

_SLOW_MS = 1_000


class StoreFault(StrEnum):
    """What happens to the requests of a store while a fault lasts."""

    SLOW = "slow"
    UNAVAILABLE = "503"
    TRUNCATED = "truncated"
    STALE = "stale"
    FLIPPED = "flipped"


class FaultyStore(ObjectStore):
    """The objects of `store`, whose requests fail while a `fault` lasts. Thread-safe.

    | Fault | Strikes | What happens |
    |---|---|---|
    | slow | every request | it waits first, a second unless `delay_ms` says otherwise |
    | 503 | every request | RemoteStorageError; nothing is stored or deleted |
    | truncated | reads | the second half of the bytes is missing |
    | stale | reads, listings | objects that were stored since the fault began are not there |
    | flipped | reads | one bit in the middle of the bytes is wrong |
    """

    def __init__(self, store: ObjectStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._fault: StoreFault | None = None
        self._delay_ms = 0
        self._fresh: set[str] = set()
        self._struck = 0

    @contextmanager
    def fault(self, fault: StoreFault | str, *, delay_ms: int = _SLOW_MS) -> Iterator[None]:
        """Let requests fail while inside. ValueError for an unknown fault, or inside another."""
        wanted = StoreFault(fault)
        with self._lock:
            if self._fault is not None:
                raise ValueError(f"the fault {self._fault} lasts: end it before {wanted} begins")
            self._fault, self._delay_ms, self._struck = wanted, delay_ms, 0
        try:
            yield
        finally:
            with self._lock:
                self._fault = None
                self._fresh.clear()

    @property
    def struck(self) -> int:
        """The number of requests that the last fault struck."""
        return self._struck

    def _strike(self, *faults: StoreFault) -> StoreFault | None:
        """Return the fault of this request, if it is one of these; count it."""
        with self._lock:
            if self._fault not in faults:
                return None
            self._struck += 1
            return self._fault

    def _request(self, key: str) -> None:
        """Let a request wait or fail before it is sent."""
        match self._strike(StoreFault.SLOW, StoreFault.UNAVAILABLE):
            case StoreFault.SLOW:
                self._clock.sleep(self._delay_ms)
            case StoreFault.UNAVAILABLE:
                raise RemoteStorageError(f"{self.url}/{key}: 503 Service Unavailable (a test's)")

    def _look(self, key: str) -> None:
        """Let a request for an object fail before it is sent."""
        self._request(key)
        if key in self._fresh:
            self._strike(StoreFault.STALE)
            raise RemoteResourceNotFoundError(f"{self.url}/{key}: not there yet (a test's)")

    def _stored(self, key: str) -> None:
        with self._lock:
            if self._fault is StoreFault.STALE:
                self._fresh.add(key)

    # -- the store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def is_local(self) -> bool:
        return self._store.is_local

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        self._request(key)
        self._store.put_bytes(key, data, overwrite=overwrite)
        self._stored(key)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        self._request(key)
        self._store.put_stream(key, chunks, size_bytes, overwrite=overwrite)
        self._stored(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        self._request(key)
        is_new = self._store.put_if_absent(key, data)
        if is_new:
            self._stored(key)
        return is_new

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        self._look(key)
        data = self._store.get_range(key, start_position, size_bytes)
        match self._strike(StoreFault.TRUNCATED, StoreFault.FLIPPED):
            case StoreFault.TRUNCATED:
                return bytes(data)[: memoryview(data).nbytes // 2]
            case StoreFault.FLIPPED:
                flipped = bytearray(data)
                flipped[len(flipped) // 2] ^= 1
                return bytes(flipped)
        return data

    def head(self, key: str) -> ObjectInfo:
        self._look(key)
        return self._store.head(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._request(prefix)
        for info in self._store.list(prefix):
            if info.key in self._fresh:
                self._strike(StoreFault.STALE)
            else:
                yield info

    def delete(self, key: str) -> None:
        self._request(key)
        self._store.delete(key)

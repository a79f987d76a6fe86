"""A server in a thread of this process, and a client that sends what it likes."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import (
    AsyncIterator,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.fetch.setup import open_fetcher
from tierlog.node.apis import supported_versions
from tierlog.node.archive.metadata import ArchiveMetadata
from tierlog.node.cluster_view import ClusterView, LogDirView, PartitionView, TopicView
from tierlog.node.groups.offsets import GROUPS_FILE
from tierlog.node.groups.service import GroupService
from tierlog.node.local_setup import serve_node
from tierlog.node.node import Node
from tierlog.node.server import Server, open_listener
from tierlog.node.setup import serve_archive
from tierlog.reader.sources import source_of
from tierlog.reader.types import FetchView
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.types import TopicIdPartition

__all__ = [
    "PATIENCE_S",
    "TOPIC_ID",
    "FixedCluster",
    "RawClient",
    "Running",
    "running",
    "running_local",
    "serving",
]

PATIENCE_S = 60.0
TOPIC_ID = "b8vZG0M3QgqX5fTzq2W1nA"


class FixedCluster:
    """A cluster with the topic ``orders`` of three partitions."""

    def __init__(self) -> None:
        partitions = tuple(
            PartitionView(
                index=index,
                stored_as=TopicIdPartition(topic="orders", topic_id=TOPIC_ID, partition=index),
            )
            for index in range(3)
        )
        topic = TopicView(name="orders", topic_id=TOPIC_ID, partitions=partitions)
        self._view = ClusterView.of("a-cluster", 1, [topic])

    def cluster_view(self) -> ClusterView:
        return self._view

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return None

    def touch_topics(self, stored_ids: Iterable[str]) -> None:
        return

    async def list_log_dirs(
        self, wanted: Collection[tuple[str, int]] | None
    ) -> Sequence[LogDirView]:
        return []

    async def prepare(
        self, partitions: Iterable[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, Exception]:
        return {}


@dataclass
class Running:
    """A server that runs; ``said`` has the lines that it reported."""

    server: Server
    loop: asyncio.AbstractEventLoop
    said: list[str] = field(default_factory=list)

    @property
    def node(self) -> Node:
        return self.server.node

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    @property
    def bootstrap(self) -> str:
        host, port = self.address
        return f"{host}:{port}"

    def call(self, function: Any) -> Any:
        """Return what `function` returns in the event loop."""

        async def made() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(made(), self.loop).result(PATIENCE_S)


@contextmanager
def running(*, config: Config | None = None, clock: Clock | None = None) -> Iterator[Running]:
    """Run the server of a fixed cluster without any record."""
    config, clock, cluster = config or Config(), clock or SystemClock(), FixedCluster()
    storage = ObjectStorageManager(open_store("memory:///nothing"))
    fetcher = open_fetcher(cluster, storage, ArchiveMetadata(), config=config, clock=clock)
    said: list[str] = []

    @asynccontextmanager
    async def serve() -> AsyncIterator[Server]:
        node = Node(
            cluster=cluster,
            fetcher=fetcher,
            groups=GroupService(path, config.group, clock, warn=said.append),
            config=config,
            clock=clock,
            versions=supported_versions(),
        )
        server = Server(node, open_listener("127.0.0.1", 0), said.append)
        server.start()
        yield server
        await server.close()

    with TemporaryDirectory() as state_dir, fetcher:
        path = os.path.join(state_dir, GROUPS_FILE)
        with _in_thread(serve(), said) as server:
            yield server


@contextmanager
def serving(
    *sources: str, config: Config | None = None, clock: Clock | None = None
) -> Iterator[Running]:
    """Run the archive server of stores and log directories."""
    said: list[str] = []
    listener = open_listener("127.0.0.1", 0)
    served = serve_archive(
        [source_of(one) for one in sources],
        listener,
        config=config,
        clock=clock,
        report=said.append,
    )
    with _in_thread(served, said) as server:
        yield server


@contextmanager
def running_local(
    data_dir: str, *, config: Config | None = None, clock: Clock | None = None
) -> Iterator[Running]:
    """Run a node with topics of its own."""
    said: list[str] = []
    listener = open_listener("127.0.0.1", 0)
    served = serve_node(data_dir, listener, config=config, clock=clock, report=said.append)
    with _in_thread(served, said) as server:
        yield server


@contextmanager
def _in_thread(served: AbstractAsyncContextManager[Server], said: list[str]) -> Iterator[Running]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()

    def call(made: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(made, loop).result(PATIENCE_S)

    async def enter() -> Server:
        return await served.__aenter__()

    async def leave() -> None:
        await served.__aexit__(None, None, None)

    try:
        server = call(enter())
        try:
            yield Running(server, loop, said)
        finally:
            call(leave())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class RawClient:
    """A socket that sends any bytes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, data: bytes) -> None:
        self.send(struct.pack(">i", len(data)) + data)

    def request(self, message: Any, version: int, correlation_id: int = 1) -> None:
        """Send a request of kafka-python."""
        message.API_VERSION = version
        message.with_header(correlation_id=correlation_id, client_id="raw")
        self.send(bytes(message.encode(version=version, header=True, framed=True)))

    def read_frame(self) -> bytes | None:
        """Return the next answer without its size; None when the server has disconnected."""
        head = self._read(4)
        return None if head is None else self._read(struct.unpack(">i", head)[0])

    def is_disconnected(self) -> bool:
        """Wait for the server's next byte; whether there is none."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, size_bytes: int) -> bytes | None:
        data = b""
        while len(data) < size_bytes:
            try:
                more = self.socket.recv(size_bytes - len(data))
            except ConnectionError:
                return None
            if not more:
                return None
            data += more
        return data

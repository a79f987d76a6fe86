"""A proxy in front of a NameNode that loses answers, keeps requests back or cuts connections.

    with NameNodeProxy(cluster.port) as proxy:
        store = open_store(f"hdfs://127.0.0.1:{proxy.port}/folder", timeout_s=2)
        proxy.inject("rename2", Fault.LOSE_ANSWER)

A planned fault strikes one request of that method (of Hadoop's ClientProtocol). Data does not pass
here: clients learn the DataNodes' own addresses.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import TracebackType

from tests.kafka_tools.support import LOOPBACK

# "hrpc", version, service class, authentication: what a connection begins with.
_PREAMBLE_BYTES = 7


class Fault(Enum):
    """What happens to a request."""

    LOSE_ANSWER = "it is carried out, and then the connection says nothing any more"
    CUT_AFTER = "it is carried out, and the connection breaks before the answer"
    CUT_BEFORE = "the connection breaks instead"
    KEEP_BACK = "it arrives only when released"


class NameNodeProxy:
    """Listens on loopback and passes everything on, but for what is planned."""

    def __init__(self, namenode_port: int) -> None:
        self._namenode_port = namenode_port
        self._lock = threading.Lock()
        self._plans: list[tuple[str, Fault, int]] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._released = threading.Event()
        self.delivered = threading.Event()
        self.struck: list[str] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> NameNodeProxy:
        self._run(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._released.set()
        with self._lock:
            ends = [self._listener, *self._sockets]
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()

    def inject(self, method: str, fault: Fault, *, skip: int = 0) -> None:
        """Plans a fault for a request of `method`, after `skip` others."""
        with self._lock:
            self._plans.append((method, fault, skip))

    def release(self) -> None:
        """What was kept back arrives now; `delivered` is set when it has been answered."""
        self._released.set()

    def _strike(self, request: bytes) -> Fault | None:
        with self._lock:
            for number, (method, fault, skip) in enumerate(self._plans):
                if method.encode() not in request:
                    continue
                if skip:
                    self._plans[number] = (method, fault, skip - 1)
                    continue
                del self._plans[number]
                self.struck.append(method)
                return fault
        return None

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                namenode = socket.create_connection((LOOPBACK, self._namenode_port))
                for end in (client, namenode):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets += [client, namenode]
                connection = _Connection(self, client, namenode)
                self._run(connection.requests)
                self._run(connection.answers)


class _Connection:
    def __init__(
        self, proxy: NameNodeProxy, client: socket.socket, namenode: socket.socket
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._namenode = namenode
        self._fault: Fault | None = None

    def requests(self) -> None:
        with suppress(OSError, EOFError):
            self._namenode.sendall(_exactly(self._client, _PREAMBLE_BYTES))
            while True:
                size = _exactly(self._client, 4)
                request = _exactly(self._client, int.from_bytes(size, "big"))
                fault = self._proxy._strike(request)
                if fault is Fault.CUT_BEFORE:
                    break
                if fault is Fault.KEEP_BACK:
                    self._proxy._released.wait()
                self._fault = fault or self._fault
                self._namenode.sendall(size + request)
        self._end()

    def answers(self) -> None:
        with suppress(OSError):
            while data := self._namenode.recv(1 << 16):
                if self._fault is Fault.KEEP_BACK:
                    self._proxy.delivered.set()
                if self._fault is Fault.CUT_AFTER:
                    break
                if self._fault is not Fault.LOSE_ANSWER:
                    self._client.sendall(data)
        if self._fault is not Fault.LOSE_ANSWER:
            self._end()

    def _end(self) -> None:
        for end in (self._client, self._namenode):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = end.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)

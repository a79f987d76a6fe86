"""Listens, accepts clients, and ends their connections when they wait for too long."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tierlog.errors import ConfigError
from tierlog.node.apis import APIS
from tierlog.node.byte_budget import ByteBudget
from tierlog.node.connection import Client, Connection, Limits
from tierlog.node.decoder import BadRequestError
from tierlog.node.handlers.api_versions import refuse_version
from tierlog.node.node import Node
from tierlog.node.wire import (
    API_VERSIONS_KEY,
    DecodedRequest,
    decode_request,
    encode_answer,
    read_head,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Server", "open_listener"]

_BACKLOG = 512
_SWEEP_S = 0.5
# After this many the process may have no descriptors left; accepting goes on when some are free.
_ACCEPT_PAUSE_S = 0.5


def open_listener(host: str, port: int, *, allow_remote_clients: bool = False) -> socket.socket:
    """Return a socket that listens at ``host:port`` (0: any free port).

    ConfigError for an address that other machines can reach, unless that is allowed: there is no
    authentication, so every client that reaches it can read every topic.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not (found.is_loopback or allow_remote_clients):
            raise ConfigError(
                f"{host}:{port}: other machines can reach this address, and every client may read "
                "every topic without a password; give --allow-remote-clients if that is meant"
            )
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise _cannot_listen(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: Exception) -> ConfigError:
    return ConfigError(f"cannot listen at {host}:{port}: {error}; choose another address")


class Server:
    """Serves a `Node` at one listening socket, in the event loop that calls `start`.

    ``report`` receives one line for each client that broke the protocol, at most one per second
    and address.
    """

    def __init__(
        self, node: Node, listener: socket.socket, report: Callable[[str], object] = print
    ) -> None:
        self.node = node
        self._listener = listener
        self._report = report
        settings = node.config.node
        self._limits = Limits(
            max_request_bytes=settings.request_max_bytes,
            idle_ms=settings.connections_max_idle_ms,
            stall_ms=settings.connection_stall_ms,
        )
        self.requests = ByteBudget(settings.queued_max_request_bytes)
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._by_host: Counter[str] = Counter()
        self._reported_ms: dict[str, int] = {}
        self._own: list[asyncio.Task[None]] = []

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens at."""
        name = self._listener.getsockname()
        return str(name[0]), int(name[1])

    @property
    def topic_count(self) -> int:
        """The number of topics that are served."""
        return len(self.node.view.topics)

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    def phases(self) -> list[str]:
        """Return what each connection waits for."""
        return [connection.phase.name for connection in self._connections.values()]

    def start(self) -> None:
        """Accept clients from now on."""
        self.node.groups.start()
        self._own = [
            asyncio.create_task(self._accept(), name="tierlog-accept"),
            asyncio.create_task(self._sweep(), name="tierlog-sweep"),
        ]

    async def close(self) -> None:
        """Stop listening and end all connections; may be repeated."""
        tasks = [*self._own, *self._connections]
        self._own = []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()
        if self.node.transactions is not None:
            await self.node.transactions.close()
        await self.node.groups.close()

    # -- clients

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(self._listener)
            except OSError as error:
                self._say("the listener", f"cannot accept a client: {error}")
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            host, port = str(address[0]), int(address[1])
            if len(self._connections) >= self.node.config.node.max_connections:
                self._refuse(
                    sock, host, f"{self.node.config.node.max_connections} clients are connected"
                )
            elif self._by_host[host] >= self.node.config.node.max_connections_per_ip:
                self._refuse(
                    sock,
                    host,
                    f"{self.node.config.node.max_connections_per_ip} clients of this address",
                )
            else:
                self._serve(sock, host, port)

    def _refuse(self, sock: socket.socket, host: str, why: str) -> None:
        sock.close()
        self._say(host, f"refused: {why} already")

    def _serve(self, sock: socket.socket, host: str, port: int) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        service = _ClientService(self.node, sock, host, port)
        connection = Connection(
            sock, service, self._limits, self.requests, self.node.clock.monotonic_ms
        )
        task = asyncio.create_task(self._run(connection, sock, host), name=f"tierlog-{host}:{port}")
        self._connections[task] = connection
        self._by_host[host] += 1
        task.add_done_callback(self._forget_task)

    async def _run(self, connection: Connection, sock: socket.socket, host: str) -> None:
        try:
            await connection.run()
        except BadRequestError as error:
            self._say(host, f"closed: {error}")
        except Exception as error:  # noqa: BLE001 - one client must not end the others
            self._say(host, f"closed: {error!r}")
        finally:
            sock.close()
            self._by_host[host] -= 1
            if not self._by_host[host]:
                del self._by_host[host]

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)

    def _say(self, host: str, text: str) -> None:
        now_ms = self.node.clock.monotonic_ms()
        last_ms = self._reported_ms.get(host)
        if last_ms is None or now_ms - last_ms >= 1000:
            if len(self._reported_ms) >= self.node.config.node.max_connections:
                self._reported_ms.clear()
            self._reported_ms[host] = now_ms
            self._report(f"{host}: {text}")

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.end_overdue_clients()

    def end_overdue_clients(self) -> int:
        """End the connections that waited for their clients for too long; return how many."""
        now_ms = self.node.clock.monotonic_ms()
        overdue = [task for task, one in self._connections.items() if one.is_overdue(now_ms)]
        for task in overdue:
            task.cancel()
        return len(overdue)


class _ClientService:
    """Decodes and answers the requests of one client; see `connection.Service`."""

    def __init__(self, node: Node, sock: socket.socket, host: str, port: int) -> None:
        self._node = node
        here = sock.getsockname()
        self._client = Client("", host, port, str(here[0]), int(here[1]))

    def decode(self, frame: memoryview) -> DecodedRequest:
        head = read_head(frame)
        handler = APIS.get(head.api_key)
        low, high = (0, -1) if handler is None else handler.VERSIONS
        if handler is not None and low <= head.api_version <= high:
            return decode_request(frame, head, handler.REQUEST)
        if head.api_key == API_VERSIONS_KEY:
            return DecodedRequest(head, None, 0)
        raise BadRequestError(
            f"API {head.api_key} version {head.api_version}, which is not served"
            + ("" if handler is None else f": expected version {low} to {high}")
        )

    async def answer(self, request: DecodedRequest) -> Sequence[Buffer] | None:
        head = request.head
        if request.body is None:
            return encode_answer(head, 0, refuse_version(self._node))
        client = self._client
        if client.client_id != head.client_id:
            client = self._client = Client(
                head.client_id, client.host, client.port, client.node_host, client.node_port
            )
        answer = await APIS[head.api_key].handle(self._node, request.body, client)
        return None if answer is None else encode_answer(head, head.api_version, answer)

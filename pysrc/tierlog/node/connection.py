"""One client: frames in, answers out, in their order.

Requests are answered one after the other. Further ones wait in the socket, so a client that sends
faster than it is answered is slowed down by TCP. Nothing is reserved for a length before it was
compared with the limit.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from tierlog.node.byte_budget import ByteBudget
from tierlog.node.decoder import MAX_ELEMENTS, BadRequestError
from tierlog.node.wire import ELEMENT_MEMORY_BYTES, DecodedRequest, frame_size

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Client", "Connection", "Limits", "Service"]

_SIZE_BYTES = 4
_READ_BYTES = 64 << 10
# A smaller frame needs no permit: the number of connections bounds them all.
_SMALL_FRAME_BYTES = 16 << 10
# The fewest bytes of an array element that is worth counting.
_ELEMENT_BYTES = 3
_MAX_PARTS = 512


@dataclass(frozen=True, slots=True)
class Client:
    """A client as handlers see it. ``host`` and ``port`` are its own address, ``node_host`` and
    ``node_port`` the address at which it reached this node."""

    client_id: str
    host: str
    port: int
    node_host: str
    node_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of each connection.

    ``stall_ms``: how long an unfinished frame may stay unfinished, and a client may take nothing of
    an answer. ``idle_ms``: how long a client may send nothing between requests.
    """

    max_request_bytes: int
    idle_ms: int
    stall_ms: int


class Phase(Enum):
    """What a connection waits for."""

    REQUEST = "request"
    REST_OF_REQUEST = "rest of a request"
    ANSWER = "answer"
    CLIENT_TAKES_ANSWER = "client takes the answer"


class Service(Protocol):
    """Decodes and answers the requests of one client."""

    def decode(self, frame: memoryview) -> DecodedRequest:
        """Return the request; BadRequestError for anything else."""
        ...

    def answer(self, request: DecodedRequest) -> Coroutine[Any, Any, Sequence[Buffer] | None]:
        """Return the frame of the answer, None for no answer."""
        ...


class Connection:
    """Reads frames of one socket, has a `Service` answer each, and sends the answers."""

    def __init__(
        self,
        sock: socket.socket,
        service: Service,
        limits: Limits,
        requests: ByteBudget,
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._sock = sock
        self._service = service
        self._limits = limits
        self._requests = requests
        self._monotonic_ms = monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._more: asyncio.Future[None] | None = None
        self._answering: asyncio.Task[Any] | None = None
        self._is_reading = self._is_gone = False
        self.phase = Phase.REQUEST
        # Since when the connection waits in this phase without any progress.
        self.since_ms = monotonic_ms()

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the connection waited longer for its client than it may."""
        waited_ms = now_ms - self.since_ms
        if self.phase is Phase.ANSWER:
            return False
        limit_ms = self._limits.stall_ms
        return waited_ms > (self._limits.idle_ms if self.phase is Phase.REQUEST else limit_ms)

    async def run(self) -> None:
        """Serve the client until it disconnects; BadRequestError when it breaks the protocol."""
        self._read_on()
        try:
            while await self._receive(_SIZE_BYTES, Phase.REQUEST):
                size_bytes = frame_size(self._received)
                if not 0 < size_bytes <= self._limits.max_request_bytes:
                    raise BadRequestError(
                        f"a frame of {size_bytes} bytes: expected 1 to "
                        f"{self._limits.max_request_bytes}"
                    )
                if not await self._serve_frame(size_bytes):
                    return
        finally:
            self._stop_reading()

    async def _serve_frame(self, size_bytes: int) -> bool:
        """Receive and answer one request; False when the client is gone."""
        self._wait_for(Phase.REST_OF_REQUEST)
        permit_bytes = await self._requests.acquire(self._memory_bytes(size_bytes))
        try:
            if not await self._receive(_SIZE_BYTES + size_bytes, Phase.REST_OF_REQUEST):
                return False
            self._wait_for(Phase.ANSWER)
            request = self._service.decode(self._take_frame(size_bytes))
            if request.memory_bytes < permit_bytes:
                self._requests.release(permit_bytes - request.memory_bytes)
                permit_bytes = request.memory_bytes
            parts = await self._answer_watched(request)
        finally:
            self._requests.release(permit_bytes)
        return not self._is_gone and (parts is None or await self._send(parts))

    def _memory_bytes(self, size_bytes: int) -> int:
        """Return the most that a request of that size may take, 0 for a small one."""
        if size_bytes <= _SMALL_FRAME_BYTES:
            return 0
        elements_bytes = size_bytes // _ELEMENT_BYTES * ELEMENT_MEMORY_BYTES
        return size_bytes + min(elements_bytes, MAX_ELEMENTS * ELEMENT_MEMORY_BYTES)

    def _take_frame(self, size_bytes: int) -> memoryview:
        end = _SIZE_BYTES + size_bytes
        received = self._received
        if len(received) == end:
            self._received = bytearray()
        else:
            self._received = received[end:]
        return memoryview(received)[_SIZE_BYTES:end]

    # -- receiving

    def _wait_for(self, phase: Phase) -> None:
        self.phase, self.since_ms = phase, self._monotonic_ms()

    async def _receive(self, size_bytes: int, phase: Phase) -> bool:
        """Have at least `size_bytes` received; False when the client disconnects before."""
        while len(self._received) < size_bytes:
            if self._is_gone:
                return False
            if self._received:
                phase = Phase.REST_OF_REQUEST
            if self.phase is not phase:
                self._wait_for(phase)
            self._more = self._loop.create_future()
            self._read_on()
            await self._more
        return True

    def _read_on(self) -> None:
        if not self._is_reading and not self._is_gone:
            self._is_reading = True
            self._loop.add_reader(self._sock, self._on_readable)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._sock)

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._received += data
        else:
            self._is_gone = True
            if self._answering is not None:
                # The answer has no reader any more.
                self._answering.cancel()
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
        elif not data or len(self._received) >= _READ_BYTES:
            # The next requests wait in the socket.
            self._stop_reading()
        if self._is_gone:
            self._stop_reading()

    # -- answering

    async def _answer_watched(self, request: DecodedRequest) -> Sequence[Buffer] | None:
        """Return the answer; cancel it when the client disconnects meanwhile."""
        self._answering = asyncio.current_task()
        try:
            return await self._service.answer(request)
        except asyncio.CancelledError:
            if self._is_gone:
                return None
            raise
        finally:
            self._answering = None

    async def _send(self, parts: Sequence[Buffer]) -> bool:
        """Send the buffers as they are; False when the client is gone."""
        left = deque(view for part in parts if (view := memoryview(part).cast("B")).nbytes)
        self._wait_for(Phase.CLIENT_TAKES_ANSWER)
        while left:
            try:
                sent = self._sock.sendmsg(list(itertools.islice(left, _MAX_PARTS)))
            except (BlockingIOError, InterruptedError):
                await self._wait_until_writable()
                continue
            except OSError:
                return False
            self.since_ms = self._monotonic_ms()
            while sent:
                first = left[0]
                if sent < first.nbytes:
                    left[0] = first[sent:]
                    break
                sent -= first.nbytes
                left.popleft()
        self._wait_for(Phase.REQUEST)
        return True

    async def _wait_until_writable(self) -> None:
        writable = self._loop.create_future()
        self._loop.add_writer(self._sock, _set_once, writable)
        try:
            await writable
        finally:
            self._loop.remove_writer(self._sock)


def _set_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

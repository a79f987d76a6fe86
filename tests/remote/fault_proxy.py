"""A proxy in front of an S3 server that does what networks and stores do on a bad day.

    with FaultProxy(server) as proxy:
        store = open_store("s3://bucket/p", **proxy.options())
        proxy.inject(Call.PUT_PART, Fault.RESET_AFTER, number=2)

A planned fault strikes the requests of one kind from the `number`-th on, `times` of them. The
proxy keeps a record of what it passed on: the truth from the far side.

The end of an upload arrives after the parts that were sent before it. Of one that overtakes a part
S3 says that it may have to be repeated, which takes more than a client has who was told that the
upload failed; that is a limit of uploads in parts (docs/RELIABILITY.md), and no fault to find.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kafka_tools.support import LOOPBACK
from tests.remote.s3_server import S3Server

# Long enough that a client with a deadline gives up first.
STALL_S = 60.0
# No healthy request takes so long on a busy machine.
HEALTHY_MS = 20_000
ERROR_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>InternalError</Code>'
    b"<Message>We encountered an internal error. Please try again.</Message></Error>"
)
_HOP_HEADERS = {"connection", "transfer-encoding", "keep-alive", "content-length", "date", "server"}


class Call(StrEnum):
    """What a client asks of S3, as far as tierlog does."""

    PUT_OBJECT = "put_object"
    CREATE_UPLOAD = "create_upload"
    PUT_PART = "put_part"
    COMPLETE_UPLOAD = "complete_upload"
    ABORT_UPLOAD = "abort_upload"
    GET_OBJECT = "get_object"
    HEAD_OBJECT = "head_object"
    LIST_OBJECTS = "list_objects"
    DELETE_OBJECT = "delete_object"


class Fault(StrEnum):
    """What happens to a request instead."""

    DELAY = "delay"
    STALL = "stall"
    RESET_BEFORE = "reset_before"
    RESET_AFTER = "reset_after"
    FORBIDDEN = "403"
    MISSING = "404"
    CONFLICT = "409"
    TOO_MANY = "429"
    INTERNAL_ERROR = "500"
    UNAVAILABLE = "503"
    ERROR_BODY = "200_with_error_body"
    RANGE_IGNORED = "range_ignored"
    SHORT_BODY = "short_body"
    FLIPPED_BYTE = "flipped_byte"
    OTHER_BODY = "other_body"
    EMPTY_LISTING = "empty_listing"
    DROPPED = "dropped"


_STATUS = {
    Fault.FORBIDDEN: 403,
    Fault.MISSING: 404,
    Fault.CONFLICT: 409,
    Fault.TOO_MANY: 429,
    Fault.INTERNAL_ERROR: 500,
    Fault.UNAVAILABLE: 503,
}
_NEVER_ARRIVES = {
    Fault.STALL,
    Fault.RESET_BEFORE,
    Fault.ERROR_BODY,
    Fault.DROPPED,
    *_STATUS,
}


@dataclass
class Plan:
    """One fault to come: after `skip` more requests of its kind, `times` of them."""

    call: Call
    fault: Fault
    skip: int
    times: int


@dataclass(frozen=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class FaultProxy:
    """Listens on loopback and passes everything on to `server`, but for what is planned."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._plans: list[Plan] = []
        self._parts_on_their_way: Counter[str] = Counter()
        self._arrived = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._last_body = b""
        self.passed: list[Call] = []
        self.struck: list[tuple[Call, Fault]] = []
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._listener = ThreadingHTTPServer((LOOPBACK, 0), Handler)
        self._listener.daemon_threads = True
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    def options(self, deadline_ms: int = HEALTHY_MS) -> dict[str, Any]:
        """As `S3Server.options`, but through the proxy, with a deadline and quick repeats."""
        return self._server.options() | {
            "endpoint": f"http://{LOOPBACK}:{self._listener.server_port}",
            "client_options": {"allow_http": True, "timeout": f"{deadline_ms}ms"},
            "retry_config": {
                "max_retries": 2,
                "backoff": {
                    "init_backoff": timedelta(milliseconds=5),
                    "max_backoff": timedelta(milliseconds=20),
                    "base": 2.0,
                },
            },
        }

    def inject(self, call: Call, fault: Fault, *, number: int = 1, times: int = 1) -> None:
        """Plans a fault for the `number`-th request of that kind from now on, and those after."""
        with self._lock:
            self._plans.append(Plan(call, fault, number - 1, times))

    def heal(self) -> None:
        """Forgets every plan."""
        with self._lock:
            self._plans.clear()

    def strike(self, call: Call) -> Fault | None:
        """The fault for this request, if any."""
        with self._lock:
            for plan in self._plans:
                if plan.call is not call:
                    continue
                if plan.skip:
                    plan.skip -= 1
                elif plan.times:
                    plan.times -= 1
                    self.struck.append((call, plan.fault))
                    return plan.fault
            return None

    def wait(self, seconds: float) -> None:
        """Lets time pass, unless the proxy is about to close."""
        self._closing.wait(seconds)

    @contextmanager
    def in_order(self, call: Call, path: str) -> Iterator[None]:
        """While a request is on its way to the server: the end of an upload waits for its parts."""
        (upload,) = parse_qs(urlsplit(path).query).get("uploadId", [""])
        with self._lock:
            if call is Call.PUT_PART:
                self._parts_on_their_way[upload] += 1
            elif call is Call.ABORT_UPLOAD:
                self._arrived.wait_for(lambda: not self._parts_on_their_way[upload], STALL_S)
        try:
            yield
        finally:
            with self._lock:
                if call is Call.PUT_PART:
                    self._parts_on_their_way[upload] -= 1
                    self._arrived.notify_all()

    def forward(self, call: Call, request: _Handler, body: bytes) -> Answer:
        """The server's own answer."""
        headers = {name: value for name, value in request.headers.items() if name != "Connection"}
        connection = HTTPConnection(LOOPBACK, self._server.port, timeout=30)
        try:
            connection.request(request.command, request.path, body=body, headers=headers)
            response = connection.getresponse()
            answer = Answer(response.status, tuple(response.getheaders()), response.read())
        finally:
            connection.close()
        with self._lock:
            self.passed.append(call)
        return answer

    def exchange_body(self, body: bytes) -> bytes:
        """The body of the answer before this one."""
        with self._lock:
            before, self._last_body = self._last_body, body
        return before


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""

    def serve(self) -> None:
        call = call_of(self.command, self.path)
        fault = self.owner.strike(call)
        if fault in _NEVER_ARRIVES:
            self.read()
            self.answer(call, fault, b"")
            return
        with self.owner.in_order(call, self.path):
            body = self.read()
            if body is not None:
                self.answer(call, fault, body)

    def read(self) -> bytes | None:
        """The whole body; None from a sender who has gone meanwhile."""
        size_bytes = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size_bytes)
        self.close_connection = self.close_connection or len(body) < size_bytes
        return body if len(body) == size_bytes else None

    def answer(self, call: Call, fault: Fault | None, body: bytes) -> None:
        match fault:
            case None:
                self.send(self.owner.forward(call, self, body))
            case Fault.DELAY:
                self.owner.wait(0.1)
                self.send(self.owner.forward(call, self, body))
            case Fault.STALL:
                self.owner.wait(STALL_S)
                self.close_connection = True
            case Fault.RESET_BEFORE:
                self.reset()
            case Fault.RESET_AFTER:
                self.owner.forward(call, self, body)
                self.reset()
            case Fault.ERROR_BODY:
                self.send(Answer(200, (("Content-Type", "application/xml"),), ERROR_BODY))
            case Fault.DROPPED:
                self.send(Answer(204, (), b""))
            case Fault.EMPTY_LISTING:
                self.send(emptied(self.owner.forward(call, self, body)))
            case _ if fault in _STATUS:
                self.send(
                    Answer(_STATUS[fault], (("Content-Type", "application/xml"),), ERROR_BODY)
                )
            case _:
                self.send_spoilt(fault, call, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

    def send_spoilt(self, fault: Fault, call: Call, body: bytes) -> None:
        """An answer whose body is not what the server said."""
        if fault is Fault.RANGE_IGNORED:
            del self.headers["Range"]
        answer = self.owner.forward(call, self, body)
        if fault is Fault.RANGE_IGNORED:
            self.send(answer)
        elif fault is Fault.SHORT_BODY:
            self.send(answer, keep_bytes=len(answer.body) // 2)
        elif fault is Fault.FLIPPED_BYTE:
            spoilt = bytearray(answer.body)
            spoilt[len(spoilt) // 2] ^= 0x20
            self.send(replace(answer, body=bytes(spoilt)))
        else:
            other = self.owner.exchange_body(answer.body) or bytes(len(answer.body))
            self.send(
                replace(answer, body=other[: len(answer.body)].ljust(len(answer.body), b"\0"))
            )

    def send(self, answer: Answer, keep_bytes: int | None = None) -> None:
        self.send_response_only(answer.status)
        length = None
        for name, value in answer.headers:
            if name.lower() == "content-length":
                length = value
            if name.lower() not in _HOP_HEADERS:
                self.send_header(name, value)
        # The length of a HEAD is that of the body it does not have.
        self.send_header(
            "Content-Length",
            length if self.command == "HEAD" and length else str(len(answer.body)),
        )
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(answer.body if keep_bytes is None else answer.body[:keep_bytes])
        if keep_bytes is not None:
            self.close_connection = True

    def reset(self) -> None:
        """Ends the connection without a word."""
        self.close_connection = True


def call_of(method: str, path: str) -> Call:
    """What a request asks for."""
    query: Mapping[str, list[str]] = parse_qs(urlsplit(path).query, keep_blank_values=True)
    if method == "PUT":
        return Call.PUT_PART if "partNumber" in query else Call.PUT_OBJECT
    if method == "POST" and "delete" in query:
        return Call.DELETE_OBJECT
    if method == "POST":
        return Call.CREATE_UPLOAD if "uploads" in query else Call.COMPLETE_UPLOAD
    if method == "DELETE":
        return Call.ABORT_UPLOAD if "uploadId" in query else Call.DELETE_OBJECT
    if method == "HEAD":
        return Call.HEAD_OBJECT
    return Call.LIST_OBJECTS if "list-type" in query else Call.GET_OBJECT


def emptied(answer: Answer) -> Answer:
    """A listing without its objects, as one that lags behind."""
    head, _, _ = answer.body.partition(b"<Contents>")
    tail = b"" if head == answer.body else b"</ListBucketResult>"
    return replace(answer, body=head + tail)

"""An HTTP server on loopback with one answer for every request: what a store says in its own words,
for answers that no server of the tests gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.kafka_tools.support import LOOPBACK
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store


class _Answering(BaseHTTPRequestHandler):
    server: CannedServer

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.server.body)

    do_GET = do_HEAD = do_PUT = answer  # noqa: N815 - the names that http.server looks for

    def log_message(self, *_: object) -> None:
        pass


class CannedServer(ThreadingHTTPServer):
    """Answers with `status` and `body`."""

    status = 200
    body = b""

    def say(self, status: int, code: str, message: str = "") -> None:
        """Answer with an error of S3 from now on."""
        text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self.status, self.body = status, text.encode()

    def open(self, **options: Any) -> ObjectStore:
        """The server as an S3 store."""
        return open_store(
            "s3://bucket/kafka",
            endpoint=f"http://{LOOPBACK}:{self.server_port}",
            access_key_id="AKID",
            secret_access_key="hush-hush",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
            **options,
        )


@contextmanager
def canned_server() -> Iterator[CannedServer]:
    """A started server; it is stopped at the end."""
    with CannedServer((LOOPBACK, 0), _Answering) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()

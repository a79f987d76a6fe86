"""Scrapes over HTTP: ``GET /metrics``. Needs the extra ``metrics``.

By default the server listens on loopback, because metrics contain topic names and the server
answers every client. On loopback the Host header of a request must be an address, ``localhost`` or
the name at which the server was told to listen.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
from http.server import ThreadingHTTPServer
from socketserver import TCPServer
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlsplit

from tierlog.errors import ConfigError
from tierlog.metrics.recorder import RemoteLogMetrics

__all__ = ["MetricsServer", "start_metrics_server"]

LOOPBACK = "127.0.0.1"
# After this time without progress, the connection of a client is closed.
CLIENT_TIMEOUT_S = 10.0
_LANDING = b'<html><body><p>tierlog: <a href="/metrics">metrics</a></p></body></html>\n'


class MetricsServer:
    """A running endpoint; made by `start_metrics_server`. It listens at ``host`` and ``port``."""

    def __init__(self, http: _HttpServer) -> None:
        self._http = http
        self.host = http.bound_host
        self.port = int(http.server_address[1])
        self._thread = threading.Thread(
            target=http.serve_forever, kwargs={"poll_interval": 0.1}, name="tierlog-metrics"
        )
        self._thread.daemon = True
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL that Prometheus scrapes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    def close(self) -> None:
        """Stop listening, close all connections and end every thread. The call may be repeated."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.let_go()
        self._http.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def start_metrics_server(
    metrics: RemoteLogMetrics, host: str = LOOPBACK, port: int = 0
) -> MetricsServer:
    """Answer scrapes of `metrics` at ``host:port`` (0: any free port) until `MetricsServer.close`.

    Scrapes also show the ``process_*`` series of this process (CPU, memory, open files). Raises
    ConfigError if prometheus_client is not installed or the address cannot be used.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector
        from prometheus_client.exposition import MetricsHandler

        from tierlog.metrics.collector import RemoteLogCollector
    except ImportError as error:
        raise ConfigError(
            "showing metrics needs the extra 'metrics': pip install 'tierlog[metrics]'"
        ) from error

    shown = CollectorRegistry()
    shown.register(RemoteLogCollector(metrics))
    ProcessCollector(registry=shown)

    class Handler(MetricsHandler):
        registry = shown
        timeout = CLIENT_TIMEOUT_S

        def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
            path = self.path.partition("?")[0]
            bound = cast("_HttpServer", self.server).bound_host
            if not is_expected_host(self.headers.get("Host"), host, bound):
                self.send_error(421, "the Host header names another server")
            elif path == "/metrics":
                super().do_GET()
            elif path == "/healthz":
                self.send_response(200)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(b"ok\n")
            elif path == "/":
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(_LANDING)
            else:
                self.send_error(404, "metrics are at /metrics")

    return MetricsServer(_listen(host, port, Handler))


def is_expected_host(header: str | None, name: str, bound: str) -> bool:
    """Return whether a Host header names this server, which was told to listen at `name` and is
    bound to the address `bound`.

    A web page in a browser on this machine may map its own name to a loopback address (DNS
    rebinding). Its requests then have that name in their Host header. If the server is bound to
    another address, it is open to the network, and every name is accepted. A client that sends no
    Host header is not a browser.
    """
    if header is None or not ipaddress.ip_address(bound.partition("%")[0]).is_loopback:
        return True
    try:
        found = urlsplit(f"//{header.strip()}").hostname or ""
    except ValueError:
        return False
    if found in {"localhost", name.lower()}:
        return True
    try:
        ipaddress.ip_address(found)
    except ValueError:
        return False
    return True


def _listen(host: str, port: int, handler: Any) -> _HttpServer:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return _HttpServer(infos[0][0], (host, port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot show metrics at {host}:{port}: {error}; choose another host or port"
        ) from error


class _HttpServer(ThreadingHTTPServer):
    """Remembers its connections, so that it can end them and the threads that serve them."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, family: int, address: tuple[str, int], handler: Any) -> None:
        self.address_family = family
        self._clients: set[socket.socket] = set()
        self._clients_lock = threading.Lock()
        super().__init__(address, handler)

    @property
    def bound_host(self) -> str:
        """The address at which the server listens."""
        return str(self.server_address[0])

    def server_bind(self) -> None:
        # Not HTTPServer's method, because that would ask a name server for the host name.
        TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._clients_lock:
            self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._clients_lock:
            self._clients.discard(request)
        super().shutdown_request(request)

    def let_go(self) -> None:
        """Close all connections."""
        with self._clients_lock:
            clients = list(self._clients)
        for client in clients:
            try:
                client.shutdown(socket.SHUT_RDWR)
            except OSError:
                # The connection has just been closed.
                continue

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

"""A node in a thread of this process, for demonstrations and tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import closing
from types import TracebackType

from tierlog.clock import Clock
from tierlog.config import Config
from tierlog.node.local.cluster import LocalCluster
from tierlog.node.local_setup import serve_node
from tierlog.node.server import Server, open_listener
from tierlog.remote.store.object_store import ObjectStore

__all__ = ["EmbeddedNode"]

_HOST = "127.0.0.1"
_TIMEOUT_MS = 600_000


class EmbeddedNode:
    """A running node on a free port of loopback; its topics lie in `data_dir`.

        with EmbeddedNode(data_dir, "file:///tmp/cold") as node:
            Producer({"bootstrap.servers": node.bootstrap_servers})

    ``report`` receives lines for the operator. Errors are those of `serve_node`.
    """

    def __init__(
        self,
        data_dir: str,
        store: ObjectStore | str | None = None,
        *,
        config: Config | None = None,
        clock: Clock | None = None,
        report: Callable[[str], object] = print,
    ) -> None:
        self._ready: Future[tuple[Server, asyncio.Event]] = Future()
        self._loop = asyncio.new_event_loop()
        serving = self._serve(data_dir, store, config, clock, report)
        self._thread = threading.Thread(
            target=self._run, args=(serving,), name="tierlog-embedded", daemon=True
        )
        self._thread.start()
        try:
            self._server, self._stop = self._ready.result()
        except BaseException:
            self._thread.join()
            raise

    def _run(self, serving: Coroutine[None, None, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serving)

    async def _serve(
        self,
        data_dir: str,
        store: ObjectStore | str | None,
        config: Config | None,
        clock: Clock | None,
        report: Callable[[str], object],
    ) -> None:
        stop = asyncio.Event()
        try:
            with closing(open_listener(_HOST, 0)) as listener:
                async with serve_node(
                    data_dir, listener, store=store, config=config, clock=clock, report=report
                ) as server:
                    self._ready.set_result((server, stop))
                    await stop.wait()
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients."""
        host, port = self._server.address
        return f"{host}:{port}"

    @property
    def cluster(self) -> LocalCluster:
        """The topics of the node."""
        cluster = self._server.node.cluster
        assert isinstance(cluster, LocalCluster)
        return cluster

    @property
    def sent_bytes(self) -> int:
        """Bytes that were sent to the store since the start."""
        manager = self.cluster.tier.manager
        return 0 if manager is None else manager.copy_quota.snapshot().total_bytes

    def tier_now(self, timeout_ms: int = _TIMEOUT_MS) -> None:
        """See `LocalCluster.tier_now`."""
        self.cluster.tier_now(timeout_ms)

    def expire_now(self, timeout_ms: int = _TIMEOUT_MS) -> None:
        """See `LocalCluster.expire_now`."""
        self.cluster.expire_now(timeout_ms)

    def close(self) -> None:
        """End the node in good order; may be repeated."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> EmbeddedNode:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

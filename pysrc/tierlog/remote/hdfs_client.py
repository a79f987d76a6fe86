"""hdfs-native under a deadline: one event loop thread, one client per cluster at a time.

hdfs-native waits for a silent NameNode for ever. Its coroutines may be cancelled at any moment, its
blocking calls may not, so the coroutines it is: they run on a thread of ours, and whoever waits for
one waits so long and no longer. A client whose answer did not come is put aside, since it would go
on asking the dead connection; the next call opens a new one.

A client may not end as others do. Its end waits for its threads while it holds the interpreter, and
one of them may just be on its way into the interpreter with an answer: neither would ever go on. So
clients are shared and kept; one that was put aside ends a minute after its last user let go of it.

What a cancelled call had sent may still be carried out later. `HdfsStore` is built so that this
does no harm.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from tierlog.clock import SystemClock
from tierlog.errors import ConfigError

__all__ = ["CallFailedError", "Failure", "HdfsConnection", "HdfsOptions"]

_MAX_TEXT = 300
# A thread that does not even say that time is up: a grace period beyond the deadline itself.
_GRACE_S = 2.0
# Until then a client's threads have brought their answers, and even looked up a name.
_QUIET_MS = 60_000
_MAX_SOCKET_TIMEOUT_MS = 60_000

_FAILED = re.compile(r"(\w+)(?:\((.*))?", re.DOTALL)
_REMOTE = re.compile(r'"([\w.$]+)", "(.*)', re.DOTALL)
# Where a message goes on with a stack trace, a list of machines or the next line.
_TAIL = re.compile(r'\\n|\n|: \[|"\)*$')

# By the class that the NameNode or hdfs-native names; everything else may pass.
_NOT_PASSING = frozenset(
    {
        "AccessControlException",
        "AuthorizationException",
        "GSSAPIError",
        "GSSException",
        "HadoopIllegalArgumentException",
        "InvalidArgument",
        "InvalidPath",
        "InvalidPathException",
        "InvalidToken",
        "MaxDirectoryItemsExceededException",
        "NoSASLMechanism",
        "ParentNotDirectoryException",
        "PathComponentTooLongException",
        "PathIsNotEmptyDirectoryException",
        "SASLError",
        "SaslException",
        "SnapshotAccessControlException",
        "UnresolvedPathException",
        "UnsupportedErasureCodingPolicy",
        "UrlParseError",
    }
)
_NOT_A_FILE = "must both be directories"
_UNDECIDED = frozenset({"InternalError", "InvalidRPCResponse"})
_monotonic_ms = SystemClock().monotonic_ms
_Result = TypeVar("_Result")


class Failure(Enum):
    """How a call ended that brought no answer."""

    ABSENT = "there is no such file"
    EXISTS = "there is such a file"
    REFUSED = "the answer was no; nothing has changed"
    LOST = "the connection broke; what was asked for may have happened"
    SILENT = "no answer in time; what was asked for may still happen"


class CallFailedError(Exception):
    """A call of hdfs-native failed; never leaves the store."""

    def __init__(self, failure: Failure, text: str, *, passing: bool = False) -> None:
        super().__init__(text)
        self.failure = failure
        self.text = text
        self.passing = passing


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsOptions:
    """What `open_store` takes for `hdfs://`. Only the first one is ours.

    ``timeout_s`` bounds each wait for HDFS. ``config`` are Hadoop's settings over those of the
    files in ``config_dir`` (or where ``HADOOP_CONF_DIR`` and ``HADOOP_HOME`` point to).
    ``replication`` and ``block_size_bytes`` of new files are the cluster's unless given.
    """

    timeout_s: float = 30.0
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    config_dir: str | None = None
    kerberos_principal: str | None = None
    kerberos_keytab: str | None = None
    kerberos_cache: str | None = None
    replication: int | None = None
    block_size_bytes: int | None = None

    def settings(self, *, single: bool) -> dict[str, str]:
        """`config` over what our deadline asks for; `single` if there is just one NameNode.

        hdfs-native pauses after it has tried every NameNode, which it cannot on our thread; so it
        tries each one once, and the pause is ours.
        """
        socket_timeout_ms = min(_MAX_SOCKET_TIMEOUT_MS, max(1, int(self.timeout_s * 1000) // 3))
        return {
            "dfs.client.failover.max.attempts": "0" if single else "2",
            "dfs.client.socket-timeout": str(socket_timeout_ms),
            **self.config,
        }

    def client_fields(self) -> tuple[object, ...]:
        """What two clients of one cluster may differ in."""
        return (
            tuple(sorted(self.settings(single=False).items())),
            self.config_dir,
            self.kerberos_principal,
            self.kerberos_keytab,
            self.kerberos_cache,
        )


class _ForkGuard:
    """Remembers that this process inherited a used hdfs-native, whose threads are gone."""

    def __init__(self) -> None:
        self.used = False
        self.broken = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self.broken = self.broken or self.used

    def enter(self, url: str) -> None:
        if self.broken:
            raise ConfigError(
                f"{url}: this process was forked from one that had used HDFS, and would share its "
                "connections; start workers with the spawn or forkserver method"
            )
        self.used = True


class _Client:
    """A client of hdfs-native for as long as somebody can use it."""

    __slots__ = ("_ended", "native")

    def __init__(self, native: Any, ended: deque[tuple[int, Any]]) -> None:
        self.native = native
        self._ended = ended

    def __del__(self) -> None:
        self._ended.append((_monotonic_ms(), self.native))


class _LoopThread:
    """The thread of this process on which hdfs-native's coroutines run, and all the clients.

    It starts when needed and never ends: an interpreter that goes down leaves alone what such a
    thread holds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clients: dict[object, _Client] = {}
        self._ended: deque[tuple[int, Any]] = deque()

    def submit(self, step: Callable[[], Awaitable[_Result]], timeout_s: float) -> Future[_Result]:
        """Run `step` there; TimeoutError in the future when it has not ended in time."""

        async def bounded() -> _Result:
            return await asyncio.wait_for(step(), timeout_s)

        return asyncio.run_coroutine_threadsafe(bounded(), self._started())

    def client(self, kind: object, opened: Callable[[], Any]) -> _Client:
        """The one of that kind, or a new one."""
        with self._lock:
            client = self._clients.get(kind)
            if client is None:
                client = _Client(opened(), self._ended)
                self._clients[kind] = client
            while self._ended and self._ended[0][0] + _QUIET_MS < _monotonic_ms():
                self._ended.popleft()
        return client

    def put_aside(self, kind: object, client: _Client) -> None:
        """Nobody gets this client any more; whoever holds it may go on with it."""
        with self._lock:
            if self._clients.get(kind) is client:
                del self._clients[kind]

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, name="tierlog-hdfs", daemon=True).start()
                atexit.register(self._calm)
            return self._loop

    def _serve(self) -> None:
        if self._loop is not None:
            self._loop.run_forever()

    def _calm(self) -> None:
        """The process ends: nothing of ours may still be on its way into the interpreter."""

        async def cancel_all() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=_GRACE_S / 2)
                for task in late:
                    task.cancel()

        if self._loop is not None:
            wait([asyncio.run_coroutine_threadsafe(cancel_all(), self._loop)], timeout=_GRACE_S)


_fork_guard = _ForkGuard()
_loop_thread = _LoopThread()


class HdfsConnection:
    """A cluster as hdfs-native reaches it; `call` is the only way in."""

    def __init__(self, url: str, options: HdfsOptions) -> None:
        """`url` names the cluster alone, ``hdfs://host:port`` or ``hdfs://nameservice``.

        ConfigError when hdfs-native is missing or refuses the settings; nothing is asked yet.
        """
        self.url = url
        self._options = options
        self._kind = (url, options.client_fields())
        try:
            import hdfs_native
        except ImportError as error:
            raise ConfigError(
                f"{url}: hdfs:// stores need the extra 'hdfs': pip install 'tierlog[hdfs]'"
            ) from error
        self._native = hdfs_native
        # Refuses bad settings here rather than in the first call. Not kept: a fork may follow. One
        # that was never called may end.
        self._opened()

    def client(self) -> _Client:
        """The client that calls go through until one of them has waited in vain."""
        _fork_guard.enter(self.url)
        return _loop_thread.client(self._kind, self._opened)

    def call(
        self,
        step: Callable[[Any], Awaitable[_Result]],
        *,
        timeout_s: float | None = None,
        client: _Client | None = None,
    ) -> _Result:
        """The result of `step(client)`, on the current client unless given.

        CallFailedError for everything that goes wrong, at the latest when time is up.
        """
        used = self.client() if client is None else client
        waits_s = self._options.timeout_s if timeout_s is None else timeout_s
        future = _loop_thread.submit(lambda: step(used.native), waits_s)
        try:
            return future.result(waits_s + _GRACE_S)
        except TimeoutError:
            _loop_thread.put_aside(self._kind, used)
            raise CallFailedError(
                Failure.SILENT, f"no answer within {waits_s:g} s", passing=True
            ) from None
        except (OSError, RuntimeError) as error:
            raise _call_failed(error) from None
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":
                raise
            # A panic in hdfs-native; it derives from BaseException only.
            _loop_thread.put_aside(self._kind, used)
            raise CallFailedError(
                Failure.LOST, f"hdfs-native stopped: {_first_line(str(error))}", passing=True
            ) from None
        finally:
            future.cancel()

    def attempt(self, step: Callable[[Any], Awaitable[object]], *, wait_s: float) -> None:
        """Run `step` for its effect, and wait for it at most so long; its outcome is nobody's."""
        used = self.client()
        future = _loop_thread.submit(lambda: step(used.native), self._options.timeout_s)
        future.add_done_callback(_looked_at)
        if wait_s > 0:
            wait([future], timeout=wait_s)

    def write_options(self) -> Any:
        """For a new file, which must not exist."""
        return self._native.WriteOptions(
            block_size=self._options.block_size_bytes,
            replication=self._options.replication,
            overwrite=False,
            create_parent=True,
        )

    def _opened(self) -> Any:
        options = self._options
        single = ":" in self.url.rpartition("]")[2].removeprefix("hdfs://")
        try:
            return self._native.AsyncClient(
                self.url,
                options.settings(single=single),
                options.config_dir,
                kerberos_principal=options.kerberos_principal,
                kerberos_keytab=options.kerberos_keytab,
                kerberos_cache=options.kerberos_cache,
            )
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            text = _call_failed(error).text
            raise ConfigError(
                f"{self.url}: {text}; name a NameNode with its port, or a name service of the "
                "Hadoop settings"
            ) from None


def _looked_at(future: Future[object]) -> None:
    if not future.cancelled():
        future.exception()


def _call_failed(error: Exception) -> CallFailedError:
    """What hdfs-native's exception says about the call."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return CallFailedError(Failure.ABSENT, _first_line(text))
    if isinstance(error, FileExistsError):
        return CallFailedError(Failure.EXISTS, _first_line(text))
    if isinstance(error, OSError):
        refused = isinstance(error, IsADirectoryError)
        return CallFailedError(
            Failure.REFUSED if refused else Failure.LOST, _first_line(text), passing=not refused
        )
    # A RuntimeError carries the name and the fields of hdfs-native's own error as Rust prints them.
    found = _FAILED.match(text)
    kind, detail = (found[1], found[2] or "") if found else ("", text)
    remote = _REMOTE.match(detail) if kind in ("RPCError", "FatalRPCError") else None
    if remote is not None:
        kind, detail = re.split(r"[.$]", remote[1])[-1], remote[2]
    if kind in _UNDECIDED:
        return CallFailedError(Failure.LOST, _first_line(f"{kind}: {detail}"), passing=True)
    return CallFailedError(
        Failure.REFUSED,
        _first_line(f"{kind}: {detail.lstrip(chr(34))}".removesuffix(": ")),
        passing=found is not None and kind not in _NOT_PASSING and _NOT_A_FILE not in detail,
    )


def _first_line(text: str) -> str:
    line = " ".join(_TAIL.split(text, maxsplit=1)[0].split())
    return line if len(line) <= _MAX_TEXT else line[:_MAX_TEXT] + "..."

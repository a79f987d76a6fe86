"""hdfs-native under a deadline: its calls run in threads that can be left behind.

hdfs-native waits for a silent NameNode for ever. Whoever calls it through here waits for a worker
thread, so long and no longer, and then goes on without it. A client whose answer did not come is
put aside, since it would go on asking the dead connection; the next call opens a new one. Calls
that still wait in vain are counted, and beyond a few no new ones begin until some have ended: a
NameNode that accepts and never answers costs some threads, not one per attempt.

Not its coroutines, although those may be cancelled: they are polled inside the interpreter, and
when a connection breaks while a call begins, hdfs-native's listener and the interpreter wait for
each other for good. Nor its file objects: they close themselves, and so wait, when they are let go.

What a call that was left behind had sent may still be carried out later. `HdfsStore` is built so
that this does no harm.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import Enum
from queue import SimpleQueue
from typing import Any, TypeVar

from tierlog.clock import SystemClock
from tierlog.errors import ConfigError
from tierlog.remote.store.fork_guard import ForkGuard

__all__ = ["CallFailedError", "Failure", "HdfsClient", "HdfsConnection", "HdfsOptions"]

_MAX_TEXT = 300
# Calls to one cluster that were left behind and have not ended.
_MAX_STUCK = 32
# And such as nobody waits for: what they would have done is left for later.
_MAX_BACKGROUND = 8
_MAX_IDLE_WORKERS = 32
# How long a process that ends waits for calls that are under way.
_GRACE_S = 2.0
# The end of a client waits for its threads, and one of them may be looking up a name.
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

        Several are tried in any order, so that a new client may find another one than that which
        kept silent. The long pauses are left to our own attempts.
        """
        socket_timeout_ms = min(_MAX_SOCKET_TIMEOUT_MS, max(1, int(self.timeout_s * 1000) // 3))
        return {
            "dfs.client.failover.max.attempts": "0" if single else "3",
            ".".join(("dfs", "client", "failover", "random", "order")): "true",
            "dfs.client.failover.sleep.base.millis": "50",
            "dfs.client.failover.sleep.max.millis": "500",
            "dfs.client.socket-timeout": str(socket_timeout_ms),
            **self.config,
        }

    def client_fields(self) -> tuple[object, ...]:
        """What two clients of one cluster may differ in."""
        return (
            tuple(sorted(self.settings(single=True).items())),
            self.config_dir,
            self.kerberos_principal,
            self.kerberos_keytab,
            self.kerberos_cache,
        )


class HdfsClient:
    """A client of hdfs-native for as long as somebody can use it."""

    __slots__ = ("_ended", "_now_ms", "native")

    def __init__(self, native: Any, ended: deque[tuple[int, Any]]) -> None:
        self.native = native
        self._ended = ended
        self._now_ms = _monotonic_ms

    def __del__(self) -> None:
        self._ended.append((self._now_ms(), self.native))


class _Clusters:
    """The clients of this process, one per cluster at a time, and how many calls are stuck."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[object, HdfsClient] = {}
        self._stuck: dict[object, int] = {}
        self._ended: deque[tuple[int, Any]] = deque()

    def client(self, kind: object, opened: Callable[[], Any]) -> HdfsClient:
        """The one of that kind, or a new one."""
        with self._lock:
            client = self._clients.get(kind)
            if client is None:
                client = HdfsClient(opened(), self._ended)
                self._clients[kind] = client
            while self._ended and self._ended[0][0] + _QUIET_MS < _monotonic_ms():
                self._ended.popleft()
        return client

    def put_aside(self, kind: object, client: HdfsClient) -> None:
        """Nobody gets this client any more; whoever holds it may go on with it."""
        with self._lock:
            if self._clients.get(kind) is client:
                del self._clients[kind]

    def count_stuck(self, kind: object, change: int) -> None:
        with self._lock:
            self._stuck[kind] = self._stuck.get(kind, 0) + change

    def stuck(self, kind: object) -> int:
        return self._stuck.get(kind, 0)


class _Call(Future[_Result]):
    """One call in a worker. When nobody waits for it any more, it is left behind."""

    def __init__(self, work: Callable[[], _Result], kind: object) -> None:
        super().__init__()
        self._work = work
        self._kind = kind
        self._guard = threading.Lock()
        self._ended = False
        self.left_behind = False

    def leave_behind(self) -> None:
        with self._guard:
            if not self._ended and not self.left_behind:
                self.left_behind = True
                _clusters.count_stuck(self._kind, 1)

    def run(self) -> None:
        """In the worker; an outcome, whatever it is, is for those who still wait."""
        result, error = None, None
        try:
            result = self._work()
        except BaseException as caught:  # noqa: BLE001 - who waits is told
            error = caught
        with self._guard:
            self._ended = True
            if self.left_behind:
                _clusters.count_stuck(self._kind, -1)
        # What the work holds, a client not least, ends with it.
        del self._work
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)  # type: ignore[arg-type]


class _Workers:
    """Daemon threads, as many as there are calls at the same time; idle ones are used again."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[_Call[Any]]] = deque()
        self._running: set[_Call[Any]] = set()
        self._registered = False

    def start(self, call: _Call[Any]) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._calm)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        try:
            self._idle.pop().put(call)
        except IndexError:
            calls: SimpleQueue[_Call[Any]] = SimpleQueue()
            calls.put(call)
            threading.Thread(
                target=self._serve, args=(calls,), name="tierlog-hdfs", daemon=True
            ).start()

    def _serve(self, calls: SimpleQueue[_Call[Any]]) -> None:
        while True:
            calls.get().run()
            if len(self._idle) >= _MAX_IDLE_WORKERS:
                return
            self._idle.append(calls)

    def _calm(self) -> None:
        """The process ends: what can end does so before the interpreter goes away beneath it."""
        wait(list(self._running), timeout=_GRACE_S)


_fork_guard = ForkGuard("HDFS", "would share its connections")
_clusters = _Clusters()
_workers = _Workers()


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
        # Refuses bad settings here rather than in the first call. Not kept: a fork may follow.
        self._opened()

    def client(self) -> HdfsClient:
        """The client that calls go through until one of them has waited in vain."""
        _fork_guard.enter(self.url)
        return _clusters.client(self._kind, self._opened)

    def call(
        self,
        step: Callable[[Any], _Result],
        *,
        timeout_s: float | None = None,
        client: HdfsClient | None = None,
        late: Callable[[Any], object] | None = None,
    ) -> _Result:
        """The result of `step(client)`, on the current client unless given.

        CallFailedError for everything that goes wrong, at the latest when time is up. Should
        `step` end after that, `late(client)` follows it.
        """
        stuck = _clusters.stuck(self._kind)
        if stuck >= _MAX_STUCK:
            raise CallFailedError(
                Failure.SILENT, f"{stuck} earlier calls still wait for an answer", passing=True
            )
        used = self.client() if client is None else client
        waits_s = self._options.timeout_s if timeout_s is None else timeout_s

        def work() -> _Result:
            try:
                return step(used.native)
            finally:
                if late is not None and call.left_behind:
                    late(used.native)

        call = _Call(work, self._kind)
        _workers.start(call)
        try:
            return call.result(waits_s)
        except TimeoutError:
            call.leave_behind()
            _clusters.put_aside(self._kind, used)
            raise CallFailedError(
                Failure.SILENT, f"no answer within {waits_s:g} s", passing=True
            ) from None
        except (OSError, RuntimeError) as error:
            raise _call_failed(error) from None
        except BaseException as error:
            call.leave_behind()
            if type(error).__module__ != "pyo3_runtime":
                raise
            # A panic in hdfs-native; it derives from BaseException only.
            _clusters.put_aside(self._kind, used)
            raise CallFailedError(
                Failure.LOST, f"hdfs-native stopped: {_first_line(str(error))}", passing=True
            ) from None

    def attempt(self, step: Callable[[Any], object]) -> bool:
        """Run `step` for its effect; nobody waits for it or hears how it ended.

        False when too many such calls are under way, and nothing was done.
        """
        background = ("background", self._kind)
        if _clusters.stuck(background) >= _MAX_BACKGROUND:
            return False
        used = self.client()
        call = _Call(lambda: step(used.native), background)
        call.leave_behind()
        _workers.start(call)
        return True

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
            return self._native.Client(
                self.url,
                options.settings(single=single),
                options.config_dir,
                kerberos_principal=options.kerberos_principal,
                kerberos_keytab=options.kerberos_keytab,
                kerberos_cache=options.kerberos_cache,
            ).inner
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            text = _call_failed(error).text
            raise ConfigError(
                f"{self.url}: {text}; name a NameNode with its port, or a name service of the "
                "Hadoop settings"
            ) from None


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

"""Call hdfs-native with a deadline. Each call runs in a worker thread that the caller can abandon.

hdfs-native waits for a silent NameNode without limit. In this module, the caller waits for a worker
thread until the deadline and then continues without the thread. After a timeout, the next call
opens a new client, since the old client would keep using the dead connection. Abandoned calls that
have not ended are counted. Above a limit, no new call begins, so a NameNode that accepts
connections and never answers costs a bounded number of threads instead of one per attempt.

hdfs-native's coroutines can be cancelled, but they are not used here: they are polled inside the
interpreter, and if a connection breaks while a call begins, hdfs-native's listener and the
interpreter deadlock. hdfs-native's file objects are not used either, because their destructors
close the file, which can block.

An abandoned call may still take effect later. `HdfsStore` is built so that a late effect does no
harm.
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
# Limit on the number of abandoned calls to one cluster that have not ended.
_MAX_STUCK = 32
# Limit on the number of background calls to one cluster. Above this limit, background tasks are
# postponed.
_MAX_BACKGROUND = 8
_MAX_IDLE_WORKERS = 32
# Longest time that the end of the process waits for active calls.
_GRACE_S = 2.0
# Time before an unused client is closed. Closing waits for the client's threads, and a thread may
# be resolving a host name.
_QUIET_MS = 60_000
_MAX_SOCKET_TIMEOUT_MS = 60_000

_FAILED = re.compile(r"(\w+)(?:\((.*))?", re.DOTALL)
_REMOTE = re.compile(r'"([\w.$]+)", "(.*)', re.DOTALL)
# Matches where a message continues with a stack trace, a list of machines or a further line.
_TAIL = re.compile(r'\\n|\n|: \[|"\)*$')

# Names that the NameNode or hdfs-native gives to errors that a retry cannot cure.
_PERMANENT = frozenset(
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
    """How a call failed."""

    ABSENT = "there is no such file"
    EXISTS = "the file exists already"
    REFUSED = "the call was refused; nothing has changed"
    LOST = "the connection broke; the call may have taken effect"
    SILENT = "no answer in time; the call may still take effect"


class CallFailedError(Exception):
    """A call of hdfs-native failed. `HdfsStore` converts this error before it reaches a caller."""

    def __init__(self, failure: Failure, text: str, *, retriable: bool = False) -> None:
        super().__init__(text)
        self.failure = failure
        self.text = text
        self.retriable = retriable


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsOptions:
    """The options of `open_store` for `hdfs://`.

    ``timeout_s`` bounds each wait for HDFS. ``config`` holds Hadoop settings. These settings take
    precedence over the files in ``config_dir`` (by default, the folder that ``HADOOP_CONF_DIR`` or
    ``HADOOP_HOME`` names). ``replication`` and ``block_size_bytes`` apply to new files; the
    defaults are the cluster's settings.
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
        """Return `config` plus the settings that the deadline needs. `single` says that the cluster
        has one NameNode.

        Several NameNodes are tried in random order, so a new client may find a NameNode that
        answers. The pauses of failover inside hdfs-native are short, because tierlog itself pauses
        longer between attempts.
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
        """Return the options that belong to a client. Stores with equal values share a client."""
        return (
            tuple(sorted(self.settings(single=True).items())),
            self.config_dir,
            self.kerberos_principal,
            self.kerberos_keytab,
            self.kerberos_cache,
        )


class HdfsClient:
    """A client of hdfs-native. The client is closed at least `_QUIET_MS` after the last reference
    to it was dropped."""

    __slots__ = ("_ended", "_now_ms", "native")

    def __init__(self, native: Any, ended: deque[tuple[int, Any]]) -> None:
        self.native = native
        self._ended = ended
        self._now_ms = _monotonic_ms

    def __del__(self) -> None:
        self._ended.append((self._now_ms(), self.native))


class _Clusters:
    """The clients of this process, one for each cluster and set of options, and the counts of
    abandoned calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[object, HdfsClient] = {}
        self._stuck: dict[object, int] = {}
        self._ended: deque[tuple[int, Any]] = deque()

    def client(self, kind: object, opened: Callable[[], Any]) -> HdfsClient:
        """Return the client of `kind`; open it if there is none."""
        with self._lock:
            client = self._clients.get(kind)
            if client is None:
                client = HdfsClient(opened(), self._ended)
                self._clients[kind] = client
            while self._ended and self._ended[0][0] + _QUIET_MS < _monotonic_ms():
                self._ended.popleft()
        return client

    def drop_client(self, kind: object, client: HdfsClient) -> None:
        """Stop returning this client from `client`. Callers that hold it may continue to use it."""
        with self._lock:
            if self._clients.get(kind) is client:
                del self._clients[kind]

    def count_stuck(self, kind: object, change: int) -> None:
        with self._lock:
            self._stuck[kind] = self._stuck.get(kind, 0) + change

    def stuck(self, kind: object) -> int:
        return self._stuck.get(kind, 0)


class _Call(Future[_Result]):
    """One call in a worker. The caller can abandon the call."""

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
        """Execute the call in the worker. Only a caller that still waits gets the result."""
        result, error = None, None
        try:
            result = self._work()
        except BaseException as caught:  # noqa: BLE001 - the caller gets it from the future
            error = caught
        with self._guard:
            self._ended = True
            if self.left_behind:
                _clusters.count_stuck(self._kind, -1)
        # Release the objects that the call holds, above all a client, before it reports its end.
        del self._work
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)  # type: ignore[arg-type]


class _Workers:
    """Daemon threads, one for each concurrent call; idle threads are reused."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[_Call[Any]]] = deque()
        self._running: set[_Call[Any]] = set()
        self._registered = False

    def start(self, call: _Call[Any]) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self._wait_for_calls)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        try:
            self._idle.pop().put(call)
        except IndexError:
            calls: SimpleQueue[_Call[Any]] = SimpleQueue()
            calls.put(call)
            threading.Thread(
                target=self._run_calls, args=(calls,), name="tierlog-hdfs", daemon=True
            ).start()

    def _run_calls(self, calls: SimpleQueue[_Call[Any]]) -> None:
        while True:
            calls.get().run()
            if len(self._idle) >= _MAX_IDLE_WORKERS:
                return
            self._idle.append(calls)

    def _wait_for_calls(self) -> None:
        """Let active calls end before the interpreter shuts down, because they run native code."""
        wait(list(self._running), timeout=_GRACE_S)


_fork_guard = ForkGuard("HDFS", "would share its connections")
_clusters = _Clusters()
_workers = _Workers()


class HdfsConnection:
    """Connection to a cluster through hdfs-native. All requests go through `call` and `attempt`."""

    def __init__(self, url: str, options: HdfsOptions) -> None:
        """`url` names the cluster alone, ``hdfs://host:port`` or ``hdfs://nameservice``.

        Raises ConfigError when hdfs-native is missing or refuses the settings. Sends no request.
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
        # Opening a client refuses bad settings before the first call. The client is not kept,
        # because the process may fork.
        self._open_native_client()

    def client(self) -> HdfsClient:
        """Return the client for new calls. After a call that timed out, this is a new client."""
        _fork_guard.enter(self.url)
        return _clusters.client(self._kind, self._open_native_client)

    def call(
        self,
        step: Callable[[Any], _Result],
        *,
        timeout_s: float | None = None,
        client: HdfsClient | None = None,
        after_timeout: Callable[[Any], object] | None = None,
    ) -> _Result:
        """Return the result of `step(client)`. `client` is the current client unless the caller
        passes another one.

        Raises CallFailedError when the call fails or times out. When `step` ends after the
        timeout, `after_timeout(client)` is called.
        """
        stuck = _clusters.stuck(self._kind)
        if stuck >= _MAX_STUCK:
            raise CallFailedError(
                Failure.SILENT, f"{stuck} earlier calls still have no answer", retriable=True
            )
        used = self.client() if client is None else client
        waits_s = self._options.timeout_s if timeout_s is None else timeout_s

        def work() -> _Result:
            try:
                return step(used.native)
            finally:
                if after_timeout is not None and call.left_behind:
                    after_timeout(used.native)

        call = _Call(work, self._kind)
        _workers.start(call)
        try:
            return call.result(waits_s)
        except TimeoutError:
            call.leave_behind()
            _clusters.drop_client(self._kind, used)
            raise CallFailedError(
                Failure.SILENT, f"no answer within {waits_s:g} s", retriable=True
            ) from None
        except (OSError, RuntimeError) as error:
            raise _to_call_error(error) from None
        except BaseException as error:
            call.leave_behind()
            if type(error).__module__ != "pyo3_runtime":
                raise
            # A panic in hdfs-native derives from BaseException only.
            _clusters.drop_client(self._kind, used)
            raise CallFailedError(
                Failure.LOST, f"hdfs-native panicked: {_first_line(str(error))}", retriable=True
            ) from None

    def attempt(self, step: Callable[[Any], object]) -> bool:
        """Start `step` in the background. The result and the errors of `step` are ignored.

        If too many background calls are active, `step` is not started and the method returns False.
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
        """Return the options for creating a file that must not exist yet."""
        return self._native.WriteOptions(
            block_size=self._options.block_size_bytes,
            replication=self._options.replication,
            overwrite=False,
            create_parent=True,
        )

    def _open_native_client(self) -> Any:
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
            text = _to_call_error(error).text
            raise ConfigError(
                f"{self.url}: {text}; name a NameNode with its port, or a name service of the "
                "Hadoop settings"
            ) from None


def _to_call_error(error: Exception) -> CallFailedError:
    """Convert an exception of hdfs-native to a CallFailedError."""
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return CallFailedError(Failure.ABSENT, _first_line(text))
    if isinstance(error, FileExistsError):
        return CallFailedError(Failure.EXISTS, _first_line(text))
    if isinstance(error, OSError):
        refused = isinstance(error, IsADirectoryError)
        return CallFailedError(
            Failure.REFUSED if refused else Failure.LOST, _first_line(text), retriable=not refused
        )
    # The text of a RuntimeError consists of the name and the fields of hdfs-native's error, as Rust
    # prints them.
    found = _FAILED.match(text)
    kind, detail = (found[1], found[2] or "") if found else ("", text)
    remote = _REMOTE.match(detail) if kind in ("RPCError", "FatalRPCError") else None
    if remote is not None:
        kind, detail = re.split(r"[.$]", remote[1])[-1], remote[2]
    if kind in _UNDECIDED:
        return CallFailedError(Failure.LOST, _first_line(f"{kind}: {detail}"), retriable=True)
    return CallFailedError(
        Failure.REFUSED,
        _first_line(f"{kind}: {detail.lstrip(chr(34))}".removesuffix(": ")),
        retriable=found is not None and kind not in _PERMANENT and _NOT_A_FILE not in detail,
    )


def _first_line(text: str) -> str:
    line = " ".join(_TAIL.split(text, maxsplit=1)[0].split())
    return line if len(line) <= _MAX_TEXT else line[:_MAX_TEXT] + "..."

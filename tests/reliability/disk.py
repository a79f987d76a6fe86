"""Every file call of this process below one folder: listed, made to fail, its changes recorded.

`disk_calls.c` sees the calls of Python, of the Rust core and of SQLite alike. A program calls
`run_preloaded` first, which starts it again with the library in front of the C library.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "ERRORS",
    "SHORT",
    "Call",
    "Change",
    "DiskWatch",
    "break_disk",
    "build_library",
    "paused",
    "run_preloaded",
]

SOURCE = Path(__file__).with_name("disk_calls.c")
_LOADED = "TIERLOG_TEST_DISK_CALLS"
# The call transfers only a part of its bytes.
SHORT = "SHORT"
ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EINTR": errno.EINTR, SHORT: -1}


def run_preloaded(module: str, arguments: Sequence[str]) -> int | None:
    """Run the module in a process with the library; its exit code. None in that process."""
    if os.environ.get(_LOADED) == "1":
        # Processes that this one starts are none of the test.
        del os.environ["LD_PRELOAD"], os.environ[_LOADED]
        return None
    with tempfile.TemporaryDirectory(prefix="tierlog-disk-") as folder:
        built = build_library(Path(folder))
        environment = {**os.environ, "LD_PRELOAD": str(built), _LOADED: "1"}
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        command = [sys.executable, "-m", module, *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


def build_library(folder: Path) -> Path:
    """Build the library in `folder`, for a process that has it in ``LD_PRELOAD``."""
    built = folder / "disk_calls.so"
    command = ["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(built), "-ldl"]
    subprocess.run(command, check=True)
    return built


def break_disk(folder: str, call: str, error: str) -> None:
    """Let every `call` of this process below `folder` fail with `error` from now on."""
    _library().disk_break(os.fsencode(folder), call.encode(), ERRORS[error])


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    text, number = ctypes.c_char_p, ctypes.c_int
    library.disk_watch.argtypes = [text, number, number, ctypes.c_long, number]
    library.disk_break.argtypes = [text, text, number]
    return library


@contextmanager
def paused() -> Iterator[None]:
    """Calls of this thread are not counted and do not fail. Their changes still are recorded."""
    library = _library()
    library.disk_pause()
    try:
        yield
    finally:
        library.disk_resume()


@dataclass(frozen=True, slots=True)
class Call:
    """A file call, and the path below the watched folder."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Change:
    """What a call changed. ``file``: number of its inode; ``target``: the new name in a rename."""

    name: str
    file: int
    position: int
    data: bytes
    path: str
    target: str


class DiskWatch:
    """Lists the calls below `folder`, and their changes if `changes` is true, in `logs`."""

    def __init__(self, folder: Path, logs: Path, *, changes: bool = False) -> None:
        self._folder = folder
        self._calls_path = logs / "calls"
        self._changes_path = logs / "changes"
        self._has_changes = changes

    @contextmanager
    def watching(self, fail_at: int = 0, error: str = "EIO") -> Iterator[None]:
        """Watch during the body; the call of that number (from 1) fails with `error`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        calls = os.open(self._calls_path, flags)
        changes = os.open(self._changes_path, flags) if self._has_changes else -1
        library = _library()
        self.was_struck = False
        folder = os.fsencode(self._folder)
        library.disk_watch(folder, calls, changes, fail_at, ERRORS[error])
        try:
            yield
        finally:
            self.was_struck = bool(library.disk_stop())
            os.close(calls)
            if changes >= 0:
                os.close(changes)

    def calls(self) -> list[Call]:
        """The calls of the last watch."""
        lines = self._calls_path.read_text().splitlines()
        return [Call(*line.split("\t")) for line in lines]

    def changes(self) -> Iterator[Change]:
        """The changes of the last watch."""
        with self._changes_path.open("rb") as file:
            while line := file.readline():
                name, inode, position, size, path, target = line[:-1].decode().split("\t")
                data = file.read(int(size))
                yield Change(name, int(inode), int(position), data, path, target)

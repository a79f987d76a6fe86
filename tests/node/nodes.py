"""Starts `tierlog serve --data-dir` as a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from confluent_kafka.admin import AdminClient

__all__ = ["NodeProcess", "running_node"]

_ADDRESS = re.compile(r"bootstrap.servers=(\S+:\d+)$", re.MULTILINE)


class NodeProcess:
    """A node on the data directory of a folder; its settings are those of a server.properties."""

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object] | None = None,
        *,
        store: str | None = None,
        limit_bytes: int | None = None,
    ) -> None:
        properties = folder / "server.properties"
        properties.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{key}={value}\n" for key, value in (settings or {}).items())
        properties.write_text("".join(lines))
        code = "import sys; from tierlog.cli.command import main; sys.exit(main())"
        if limit_bytes is not None:
            # No file of this process grows beyond the limit: writes fail with EFBIG.
            code = (
                "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
                f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes},) * 2); {code}"
            )
        command = [sys.executable, "-c", code, "serve", "--data-dir", str(folder / "data")]
        command += ["--listen", "127.0.0.1:0", "--config", str(properties)]
        self.errors = folder / "stderr"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, *(["--store", store] if store else [])],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        assert self.process.stdout is not None
        screen = ""
        for line in self.process.stdout:
            screen += line
            if line.startswith("  stop"):
                break
        found = _ADDRESS.search(screen)
        if found is None:
            self._wait()
            raise AssertionError(f"{screen!r}: {self.errors.read_text()}")
        self.bootstrap_servers = found[1]

    @cached_property
    def admin(self) -> AdminClient:
        """A client that lives as long as this object: its futures end with it."""
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def stop(self) -> int:
        """End it in good order and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def running_node(
    folder: Path,
    settings: Mapping[str, object] | None = None,
    *,
    store: str | None = None,
    limit_bytes: int | None = None,
) -> Iterator[NodeProcess]:
    """A node that is killed at the end unless it was ended before."""
    node = NodeProcess(folder, settings, store=store, limit_bytes=limit_bytes)
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.kill()

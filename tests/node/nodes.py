"""Starts `tierlog serve --data-dir` as a process of its own."""

from __future__ import annotations

import json
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

from tests.kafka_tools import wait_until
from tests.node.disk_node import FAULT_FILE, STRUCK_FILE

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
        data_limit_bytes: int | None = None,
        disk_library: Path | None = None,
    ) -> None:
        self._folder = folder
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
        if data_limit_bytes is not None:
            # More memory of its own than this is refused to the process, stacks included.
            limits = f"(resource.RLIMIT_DATA, ({data_limit_bytes},) * 2)"
            code = f"import resource; resource.setrlimit{limits}; {code}"
        program = ["-c", code] if disk_library is None else ["-m", "tests.node.disk_node"]
        command = [sys.executable, *program, "serve", "--data-dir", str(folder / "data")]
        command += ["--listen", "127.0.0.1:0", "--config", str(properties)]
        self.errors = folder / "stderr"
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [*command, *(["--store", store] if store else [])],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | _preload(folder, disk_library),
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

    def break_disk(self, folder: Path, call: str, error: str) -> None:
        """Let every call of that name below `folder` fail; see `tests.reliability.disk`."""
        (self._folder / FAULT_FILE).write_text(json.dumps([str(folder), call, error]))
        self.process.send_signal(signal.SIGUSR1)
        wait_until((self._folder / STRUCK_FILE).exists, 60, what="the fault")

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


def _preload(folder: Path, library: Path | None) -> dict[str, str]:
    """Environment of a node whose disk can be broken."""
    if library is None:
        return {}
    return {"LD_PRELOAD": str(library), "NODE_FOLDER": str(folder)}


@contextmanager
def running_node(
    folder: Path,
    settings: Mapping[str, object] | None = None,
    *,
    store: str | None = None,
    limit_bytes: int | None = None,
    data_limit_bytes: int | None = None,
    disk_library: Path | None = None,
) -> Iterator[NodeProcess]:
    """A node that is killed at the end unless it was ended before."""
    node = NodeProcess(
        folder,
        settings,
        store=store,
        limit_bytes=limit_bytes,
        data_limit_bytes=data_limit_bytes,
        disk_library=disk_library,
    )
    try:
        yield node
    finally:
        if node.process.poll() is None:
            node.kill()

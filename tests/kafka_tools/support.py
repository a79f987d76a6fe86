"""What the harness needs from the machine: a JVM, loopback ports, and waiting with a deadline."""

from __future__ import annotations

import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

LOOPBACK = "127.0.0.1"
# Below Linux' default ephemeral range (32768 up), so no outgoing connection takes a port while
# its broker is down between two starts.
PORT_RANGE = range(20_000, 32_000)


class KafkaToolsError(RuntimeError):
    """The real Kafka could not be resolved, started or run; the message says what to do.

    `stdout` and `stderr` hold what a failing tool had printed until then.
    """

    def __init__(self, message: str, *, stdout: str = "", stderr: str = "") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


def find_program(name: str, package: str) -> str:
    """Path of `name`, from JAVA_HOME or PATH; KafkaToolsError names the package if absent."""
    home = os.environ.get("JAVA_HOME")
    if name == "java" and home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    found = shutil.which(name)
    if found is None:
        raise KafkaToolsError(
            f"{name} not found on PATH: install it to run the real Kafka (Debian package {package})"
        )
    return found


def wait_until(
    predicate: Callable[[], bool],
    timeout_s: float,
    *,
    what: str = "condition",
    interval_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Poll `predicate` until it is true; TimeoutError naming `what` after `timeout_s` seconds."""
    pause = threading.Event()
    deadline = clock() + timeout_s
    while not predicate():
        if clock() >= deadline:
            raise TimeoutError(f"{what}: not true within {timeout_s:g} s")
        pause.wait(interval_s)


def free_ports(count: int) -> list[int]:
    """`count` distinct loopback ports nobody listens on right now."""
    candidates = random.SystemRandom().sample(PORT_RANGE, 500)
    ports: list[int] = []
    for port in candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise KafkaToolsError(f"no {count} free loopback ports in {PORT_RANGE}")


def tail_text(path: Path, lines: int = 20) -> str:
    """The last `lines` lines of a log file, or a note that there is none."""
    if not path.exists():
        return f"({path} was not written)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])

"""``tierlog tier`` as a process beside a broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

__all__ = ["LAG", "LED", "TIERLOG", "Tier", "run", "running"]

TIERLOG = str(Path(sys.executable).with_name("tierlog"))
LAG = "kafka_server_brokertopicmetrics_remotecopylagbytes"
LED = "tierlog_partitions_led"


@dataclass
class Tier:
    """The command as a process, with what it said."""

    arguments: list[str]
    metrics_url: str
    stderr: list[str] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [TIERLOG, "tier", *self.arguments]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        threading.Thread(target=self._read, args=[self._process.stderr], daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self.stderr.append(line.rstrip("\n"))

    def kill(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.stderr
        self._process.kill()
        self._process.wait()

    def kill_if_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self.stderr
        self._process.send_signal(number)

    def end(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def metric(self, name: str) -> float | None:
        """A series of the endpoint, None while there is none."""
        try:
            with urllib.request.urlopen(self.metrics_url, timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        values = [line.split()[1] for line in text.splitlines() if line.split()[0] == name]
        return float(values[0]) if values else None

    def has_said(self, text: str) -> bool:
        return any(text in line for line in self.stderr)

    def scrape(self) -> None:
        lag = self.metric(LAG)
        if lag is not None:
            self.lags.append(lag)


@contextmanager
def running(tier: Tier) -> Iterator[Tier]:
    tier.start()
    try:
        yield tier
    finally:
        tier.kill_if_running()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which has to find nothing wrong."""
    done = subprocess.run([TIERLOG, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
    return done

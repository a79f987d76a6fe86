"""A sidecar that runs in a thread of the test, and what it reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tierlog.config import Config, RemoteLogConfig
from tierlog.sidecar import Outcome, Sidecar, Status, TierListener, TierRow

QUICK = Config(remote_log=RemoteLogConfig(manager_task_interval_ms=20))


@dataclass
class Told(TierListener):
    rows: list[TierRow] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)

    def on_row(self, row: TierRow) -> None:
        self.rows.append(row)

    def on_warning(self, text: str) -> None:
        self.warnings.append(text)

    def on_failure(self, task: str, text: str) -> None:
        self.failures.append(f"{task}: {text}")

    def on_status(self, status: Status) -> None:
        self.statuses.append(status)

    def bases(self, outcome: Outcome) -> list[tuple[str, int]]:
        return sorted((row.topic, row.base_offset) for row in self.rows if row.outcome is outcome)

    def looks(self, count: int) -> Callable[[], bool]:
        """Return a function that tells whether ``count`` more looks are over."""
        until = len(self.statuses) + count
        return lambda: len(self.statuses) >= until


@contextmanager
def running(
    folder: Path, log_dirs: list[Path], config: Config | None = None, **options: Any
) -> Iterator[Told]:
    (folder / "store").mkdir(exist_ok=True)
    told, stop = Told(), threading.Event()
    with Sidecar(
        [str(path) for path in log_dirs],
        (folder / "store").as_uri(),
        state_dir=str(folder / "state"),
        config=config or QUICK,
        **options,
    ) as sidecar:
        thread = threading.Thread(target=sidecar.run, args=[stop, told])
        thread.start()
        try:
            yield told
        finally:
            stop.set()
            thread.join()

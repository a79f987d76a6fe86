"""What a test of a setting works with: a folder of its own, settings, and the shipped commands."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kafka_tools.golden import DATA_DIR
from tierlog.cli import main
from tierlog.config import Config, load_config

__all__ = ["LOG_DIR", "TOPIC", "Observe", "Place", "files_of"]

LOG_DIR = str(DATA_DIR / "clean" / "disk1")
TOPIC = "epochs"


@dataclass
class Place:
    """A folder, and the properties that the observed command is given."""

    folder: Path
    properties: Mapping[str, str]

    @property
    def config(self) -> Config:
        """The settings as a keyword argument of a public call."""
        return load_config(properties=self.properties)

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def write_config(self, **more: str) -> str:
        """Write the settings as a ``server.properties``; its path."""
        file = self.folder / "server.properties"
        lines = {**{key.replace("_", "."): value for key, value in more.items()}, **self.properties}
        file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        return str(file)

    def tier(self, *arguments: str, log_dir: str = LOG_DIR, topic: str = TOPIC) -> Said:
        """Run `tierlog tier --once` with the settings."""
        return command(
            "tier",
            *([log_dir] if log_dir else []),
            *("--config", self.write_config()),
            *("--to", self.store.as_uri(), "--state-dir", str(self.folder / "state")),
            *(["--topic", topic] if topic else []),
            *("--once", *arguments),
        )

    def tiered(self) -> Place:
        """Fill the store under default settings."""
        assert Place(self.folder, {}).tier().code == 0
        return self


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Observe = Callable[[Place], Any]


def command(*arguments: str) -> Said:
    """Run the command in this process."""
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return Said(code, *(one.buffer.getvalue().decode() for one in (out, err)))


def files_of(folder: Path) -> dict[str, str]:
    """Size and digest of every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): (
            f"{path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

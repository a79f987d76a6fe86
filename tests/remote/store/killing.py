"""A store that is killed before a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tierlog._core import sync_files
from tierlog.remote.store import local_store


def there(root: Path) -> dict[str, bytes]:
    """All files, hidden ones too."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


class Killer:
    """Kills the process before its n-th call that changes the disk."""

    def __init__(self, number: int) -> None:
        self.left = number

    def install(self) -> None:
        for name in ("open", "mkdir", "write", "link"):
            setattr(os, name, self._killing(getattr(os, name)))
        setattr(local_store, "sync_files", self._killing(sync_files))  # noqa: B010

    def _killing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **keywords)

        return call

"""Refuse to use a native library after a fork, because the library's threads do not exist in the
child process."""

from __future__ import annotations

import os

from tierlog.errors import ConfigError

__all__ = ["ForkGuard"]


class ForkGuard:
    """Raises ConfigError when a forked child uses a library that its parent had already used."""

    def __init__(self, library: str, harm: str) -> None:
        self._library = library
        self._harm = harm
        self._used = False
        self._broken = False
        os.register_at_fork(after_in_child=self._mark_broken)

    def _mark_broken(self) -> None:
        self._broken = self._broken or self._used

    def enter(self, url: str) -> None:
        """Record that this process uses the library. Raises ConfigError if the parent of this
        forked process had used the library."""
        if self._broken:
            raise ConfigError(
                f"{url}: this process was forked from one that had used {self._library}, and "
                f"{self._harm}; start workers with the spawn or forkserver method"
            )
        self._used = True

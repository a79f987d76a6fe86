"""Native libraries with threads of their own do not survive a fork; this says so in time."""

from __future__ import annotations

import os

from tierlog.errors import ConfigError

__all__ = ["ForkGuard"]


class ForkGuard:
    """Remembers that this process inherited a library in use, whose threads are gone."""

    def __init__(self, library: str, harm: str) -> None:
        self._library = library
        self._harm = harm
        self._used = False
        self._broken = False
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        self._broken = self._broken or self._used

    def enter(self, url: str) -> None:
        """Before each use. ConfigError in a child of a process that had used the library."""
        if self._broken:
            raise ConfigError(
                f"{url}: this process was forked from one that had used {self._library}, and "
                f"{self._harm}; start workers with the spawn or forkserver method"
            )
        self._used = True

"""The ``tierlog`` command: one module per verb.

Data goes to stdout, progress and hints to stderr. Exit codes: 0 fine, 1 problems found, 2 wrong
usage, 130 interrupted, 141 the reader of stdout is gone. Every verb is a function in
``tierlog.tools`` or ``tierlog.sidecar`` first; this package translates. Modules that do the work
are imported by the verb that needs them, so that ``--help`` answers at once.

Only this package reads the environment and the clock for the verbs.
"""

from __future__ import annotations

from tierlog.cli.command import main

__all__ = ["main"]

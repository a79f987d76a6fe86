"""The ``tierlog`` command: one module per verb.

Data goes to stdout; progress and hints go to stderr. The exit codes are 0 for success, 1 when
problems were found, 2 for wrong usage, 130 after an interrupt, and 141 when the reader of stdout
has closed it. This package parses arguments and calls functions of other packages, which do the
work. Each verb imports such packages only when it runs, so that ``--help`` answers at once.

For the verbs, only this package reads the environment and the clock.
"""

from __future__ import annotations

from tierlog.cli.command import main

__all__ = ["main"]

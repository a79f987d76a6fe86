"""Says what the machine lacks."""

from __future__ import annotations

import shutil

HAS_KCAT = shutil.which("kcat") is not None
collect_ignore = [] if HAS_KCAT else ["test_kcat.py"]


def pytest_report_header() -> list[str]:
    """Which client is missed, and why."""
    if HAS_KCAT:
        return []
    return ["node: no kcat; make test installs it where the system's packages have it"]

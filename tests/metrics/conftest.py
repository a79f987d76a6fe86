"""Says what the machine lacks."""

from __future__ import annotations

from tests.metrics.promtool import find_promtool


def pytest_report_header() -> list[str]:
    """Which judge is missed, and why."""
    if find_promtool() is not None:
        return []
    return ["metrics: no promtool; make test unpacks it where Debian's packages are to be had"]

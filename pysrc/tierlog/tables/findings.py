"""Collect the damage that a catalog finds, or raise it."""

from __future__ import annotations

from tierlog.errors import CorruptDataError
from tierlog.tables.plan import Finding, Partition

__all__ = ["Findings"]


class Findings:
    """Collects damage as findings, or raises it as errors."""

    def __init__(self, fail_on_corrupt: bool) -> None:
        self._fail_on_corrupt = fail_on_corrupt
        self.found: list[Finding] = []

    def note(
        self,
        error: CorruptDataError,
        partition: Partition,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        may_fail: bool = True,
    ) -> None:
        """Add a finding for `error`. Raise `error` instead if `may_fail` is true and the read was
        opened with ``fail_on_corrupt``. Equal findings are added only once."""
        if self._fail_on_corrupt and may_fail:
            raise error
        finding = Finding(
            partition=partition, error=error, start_offset=start_offset, end_offset=end_offset
        )
        # Two error objects are never equal, so compare the texts of the findings.
        if str(finding) not in map(str, self.found):
            self.found.append(finding)

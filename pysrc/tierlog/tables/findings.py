"""What a catalog could not understand, noted or raised."""

from __future__ import annotations

from tierlog.errors import CorruptDataError
from tierlog.tables.plan import Finding, Partition

__all__ = ["Findings"]


class Findings:
    """Damage as findings, or as errors."""

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
        """Note what is wrong, once, or raise it if it `may_fail` the read."""
        if self._fail_on_corrupt and may_fail:
            raise error
        finding = Finding(
            partition=partition, error=error, start_offset=start_offset, end_offset=end_offset
        )
        # Errors are equal only to themselves.
        if str(finding) not in map(str, self.found):
            self.found.append(finding)

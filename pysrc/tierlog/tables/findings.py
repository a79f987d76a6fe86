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
    ) -> None:
        """Note what is wrong, once, or raise it."""
        if self._fail_on_corrupt:
            raise error
        self.add(error, partition, start_offset, end_offset)

    def add(
        self,
        error: CorruptDataError,
        partition: Partition,
        start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> None:
        """Note what is wrong, once."""
        finding = Finding.of(error, partition, start_offset, end_offset)
        if finding not in self.found:
            self.found.append(finding)

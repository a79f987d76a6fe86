"""Decides when a refused local segment is tried again.

A damaged segment is not scanned in every run. It is scanned again when its file, the listing, the
leader epochs or the cleanup policy has changed, for example after an operator has restored the
file. It is also scanned again after `RETRY_MS`, because a read error may go away by itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.files import FileIdentity
from tierlog.log.segment_files import SegmentFiles
from tierlog.tiering.local_log import LogView

__all__ = ["RETRY_MS", "Refusal"]

RETRY_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The state of a segment when it was refused. ``found`` identifies its file; None when the file
    was missing."""

    segment: SegmentFiles
    leader_epochs: LeaderEpochs | None
    compacted: bool | None
    found: FileIdentity | None
    text: str
    retry_at_ms: int
    has_vanished: bool

    @classmethod
    def of(
        cls, view: LogView, segment: SegmentFiles, text: str, now_ms: int, *, has_vanished: bool
    ) -> Refusal:
        """Return the refusal of `segment`; ``now_ms`` is a monotonic time."""
        return cls(
            segment=segment,
            leader_epochs=view.log.leader_epochs,
            compacted=view.compacted,
            found=_identity(segment.log_path),
            text=text,
            retry_at_ms=now_ms + RETRY_MS,
            has_vanished=has_vanished,
        )

    def retry(self, view: LogView, segment: SegmentFiles, now_ms: int) -> SegmentFiles | None:
        """Return the segment to try again; None while nothing has changed.

        If the file was changed in place, the segment is returned with the present size, because the
        listing skips a directory in which no name has changed. A replaced file is tried again after
        the next listing.
        """
        now = _identity(segment.log_path)
        listed = segment.identity
        if now is not None and listed is not None and now[:2] == listed[:2]:
            segment = replace(segment, size_bytes=now.size_bytes, identity=now)
        same = (self.leader_epochs, self.compacted) == (view.log.leader_epochs, view.compacted)
        if same and self.segment == segment and self.found == now and now_ms < self.retry_at_ms:
            return None
        return segment


def _identity(path: str) -> FileIdentity | None:
    try:
        return FileIdentity.of(os.stat(path, follow_symlinks=False))
    except OSError:
        return None

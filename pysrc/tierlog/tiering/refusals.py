"""When a local segment that was refused is tried again.

A damaged segment is not scanned in every look. It is scanned again when its file, the listing or
what it is compared with has changed - an operator restored it - and after a while in any case: a
damage may have been one of the read, not of the disk.
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
    """A segment as it was when it was refused; ``found`` is its file, None when it was gone."""

    segment: SegmentFiles
    leader_epochs: LeaderEpochs | None
    compacted: bool | None
    found: FileIdentity | None
    text: str
    retry_at_ms: int

    @classmethod
    def of(cls, view: LogView, segment: SegmentFiles, text: str, now_ms: int) -> Refusal:
        """The refusal of `segment` now; ``now_ms`` is a monotonic time."""
        return cls(
            segment=segment,
            leader_epochs=view.log.leader_epochs,
            compacted=view.compacted,
            found=_identity(segment.log_path),
            text=text,
            retry_at_ms=now_ms + RETRY_MS,
        )

    def retry(self, view: LogView, segment: SegmentFiles, now_ms: int) -> SegmentFiles | None:
        """The segment to try again, None while nothing has changed.

        A file that was changed in place is taken as it is now: the listing does not look into
        directories where no name has changed. Another file needs another listing.
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

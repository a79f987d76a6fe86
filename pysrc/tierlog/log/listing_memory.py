"""Remembers the listing of partition directories until they may have changed.

A node has thousands of partitions, and most of them do not change between two listings. Every new
or deleted name changes the time of the directory. Checkpoints are replaced, never written in place.
A rolled segment is truncated only after all later segments are deleted. So it is enough to check
the directory, the active segment and the leader epochs.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace

from tierlog.clock import Clock
from tierlog.errors import CorruptDataError
from tierlog.log import checkpoint
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.files import FileIdentity
from tierlog.log.names import Skipped, SkipReason
from tierlog.log.segment_files import SegmentFiles

__all__ = ["DirectoryContents", "ListingMemory", "Moment"]

# File systems may have coarse times, so a change right after a listing may have the same time as a
# change right before it. A directory that changed more recently than this is listed again.
SETTLED_MS = 2_000
# Every directory is listed again after this time.
REFRESH_MS = 600_000
# An entry that is skipped for another reason may change without a change of the time of the
# directory.
_LASTING = frozenset({SkipReason.UNKNOWN_NAME, SkipReason.ORPHAN_INDEX})

# Device, inode, mode, size, time modified and time changed. Equal values mean the same unchanged
# file.
_Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContents:
    """The contents of a partition's directory without the checkpoints beside it."""

    segments: tuple[SegmentFiles, ...]
    leader_epochs: LeaderEpochs | None
    topic_id: str | None
    begins_without_epochs: bool = False
    pending_swaps: tuple[int, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of a directory before its listing; None when unknown."""

    now_ms: int
    directory: _Identity | None
    epochs: _Identity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    read_at: Moment
    contents: DirectoryContents


class ListingMemory:
    """The memory of `LogDir.listing`. Only one thread may use it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, directory: str) -> DirectoryContents | None:
        """Return the remembered contents; None when the directory has to be listed."""
        kept = self._kept.get(directory)
        if kept is None:
            return None
        contents = self._still(directory, kept)
        if contents is None:
            del self._kept[directory]
        elif contents is not kept.contents:
            self._kept[directory] = replace(kept, contents=contents)
        return contents

    def moment(self, directory: str) -> Moment:
        """Return the state of the directory before its listing, for `keep`."""
        return Moment(
            now_ms=self._clock.now_ms(),
            directory=_identity(directory),
            epochs=_identity(os.path.join(directory, checkpoint.LEADER_EPOCHS)),
        )

    def keep(self, directory: str, read_at: Moment, contents: DirectoryContents) -> None:
        """Remember a listing, unless it may change without notice."""
        lasting = not contents.problems and all(one.reason in _LASTING for one in contents.skipped)
        if lasting and _settled(read_at):
            self._kept[directory] = _Kept(read_at=read_at, contents=contents)

    def forget_all_but(self, directories: set[str]) -> None:
        """Forget directories that no longer exist."""
        for directory in self._kept.keys() - directories:
            del self._kept[directory]

    def _still(self, directory: str, kept: _Kept) -> DirectoryContents | None:
        now, then = self.moment(directory), kept.read_at
        if not 0 <= now.now_ms - then.now_ms < REFRESH_MS:
            return None
        if (now.directory, now.epochs) != (then.directory, then.epochs):
            return None
        return _with_active(kept.contents)


def _identity(path: str) -> _Identity | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def _settled(read_at: Moment) -> bool:
    if read_at.directory is None:
        return False
    changed_ms = max(read_at.directory[-2:]) // 1_000_000
    return changed_ms + SETTLED_MS <= read_at.now_ms


def _with_active(contents: DirectoryContents) -> DirectoryContents | None:
    """Return the contents with the current state of the file of the active segment; None when
    unknown."""
    if not contents.segments:
        return contents
    *rolled, active = contents.segments
    try:
        found = os.stat(active.log_path, follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    identity = FileIdentity.of(found)
    if identity == active.identity:
        return contents
    now = replace(active, size_bytes=identity.size_bytes, identity=identity)
    return replace(contents, segments=(*rolled, now))

"""What partition directories held when last read, for as long as that cannot have changed.

A node has thousands of partitions, and in most of them nothing happens between two looks. Every
name that comes or goes changes the time of the directory; the checkpoints in it are replaced, never
written in place; and a rolled segment is truncated only after those behind it are gone. What is
left is the active segment and the leader epochs: two calls instead of reading the directory and a
look at each file.
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

# A file system's times may be coarse, and a change right after a look must not bear the same time
# as the one right before: what is younger is not trusted.
SETTLED_MS = 2_000
# However quiet, everything is read again so often.
REFRESH_MS = 600_000
# What else was found may change without the directory doing so.
_LASTING = frozenset({SkipReason.UNKNOWN_NAME, SkipReason.ORPHAN_INDEX})

# Device, inode, mode, size, modified and changed: equal ones are the same unchanged file.
_Identity = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContents:
    """A partition's directory by itself, without what the checkpoints beside it say."""

    segments: tuple[SegmentFiles, ...]
    leader_epochs: LeaderEpochs | None
    topic_id: str | None
    begins_without_epochs: bool = False
    pending_swaps: tuple[int, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a directory was before it was read; None where it could not be told."""

    now_ms: int
    directory: _Identity | None
    epochs: _Identity | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    read_at: Moment
    contents: DirectoryContents


class ListingMemory:
    """For `LogDir.listing`, look after look. One thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, directory: str) -> DirectoryContents | None:
        """What the directory holds; None when it has to be read."""
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
        """To be asked before the directory is read, and given to `keep` afterwards."""
        return Moment(
            now_ms=self._clock.now_ms(),
            directory=_identity(directory),
            epochs=_identity(os.path.join(directory, checkpoint.LEADER_EPOCHS)),
        )

    def keep(self, directory: str, read_at: Moment, contents: DirectoryContents) -> None:
        """Remember what was read, where it lasts."""
        lasting = not contents.problems and all(one.reason in _LASTING for one in contents.skipped)
        if lasting and _settled(read_at):
            self._kept[directory] = _Kept(read_at=read_at, contents=contents)

    def forget_all_but(self, directories: set[str]) -> None:
        """Directories that are not there any more."""
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
    """The contents with the active segment's file as it is now; None when that is unknown."""
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

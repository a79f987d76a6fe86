"""Finds the files of a partition's segments in its directory.

Only regular files count. Each skipped file has a reason: it is not a regular file, another file has
its offset, or it vanished. If a segment is skipped, the segment before it still ends at its base
offset, so a hole in the log does not look like a longer segment.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from tierlog.errors import CorruptDataError
from tierlog.log.files import FileIdentity, SegmentHandle, StrPath, file_kind, printable
from tierlog.log.names import (
    MAX_OFFSET,
    Skipped,
    SkipReason,
    is_known_in_partition,
    parse_segment_file,
)

__all__ = ["DirectoryFiles", "Findings", "SegmentFiles"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Findings:
    """The skipped files and the damaged checkpoints, in order."""

    skipped: list[Skipped] = field(default_factory=list)
    problems: list[CorruptDataError] = field(default_factory=list)

    def skip(self, path: str, reason: SkipReason, detail: str = "") -> None:
        self.skipped.append(Skipped(path=printable(path), reason=reason, detail=detail))

    def skip_error(self, path: str, error: OSError) -> None:
        gone = isinstance(error, FileNotFoundError)
        reason = SkipReason.VANISHED if gone else SkipReason.UNREADABLE
        self.skip(path, reason, "" if gone else error.strerror or str(error))

    def read(self, path: str, reader: Callable[[StrPath], T], missing: T | None) -> T | None:
        """Return the result of ``reader`` for a file; ``missing`` if there is no file, None if it
        is damaged."""
        try:
            return reader(path)
        except FileNotFoundError:
            return missing
        except CorruptDataError as error:
            self.problems.append(error)
        except OSError as error:
            self.skip_error(path, error)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """One segment: its ``.log`` and the files beside it. A path is None if there is no such file.

    The segment holds the offsets [``base_offset``, ``next_base_offset``). ``next_base_offset`` is
    None for the active segment, which is the last one. ``size_bytes`` and ``identity`` are those of
    the ``.log`` at the time of the listing. The snapshots have the producer state at the base
    offset and at the next base offset.
    """

    base_offset: int
    next_base_offset: int | None
    log_path: str
    size_bytes: int
    offset_index_path: str | None = None
    time_index_path: str | None = None
    transaction_index_path: str | None = None
    start_snapshot_path: str | None = None
    end_snapshot_path: str | None = None
    identity: FileIdentity | None = None

    @property
    def is_active(self) -> bool:
        """Whether this is the segment to which the broker appends, or appended last."""
        return self.next_base_offset is None

    def open(self) -> SegmentHandle:
        """Open the ``.log`` for reading. Raises OSError as ``SegmentHandle`` does."""
        return SegmentHandle(self.log_path)


@dataclass(frozen=True, slots=True)
class DirectoryFiles:
    """The segment files of one partition directory.

    ``paths`` has the path of each file, by kind and base offset. ``logs`` has the identity of each
    ``.log`` file, by base offset. ``barriers`` has the base offsets of segments that exist but
    cannot be read. The segment before a barrier ends there. ``others`` has the names of files that
    a broker keeps beside segments.
    """

    paths: dict[tuple[str, int], str] = field(default_factory=dict)
    logs: dict[int, FileIdentity] = field(default_factory=dict)
    barriers: set[int] = field(default_factory=set)
    swaps: set[int] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, directory: str, dir_fd: int, findings: Findings) -> DirectoryFiles:
        """Return the segment files of an open directory; ``directory`` is its path."""
        with os.scandir(dir_fd) as entries:
            return cls.of(entries, directory, findings)

    @classmethod
    def of(
        cls, entries: Iterable[os.DirEntry[str]], directory: str, findings: Findings
    ) -> DirectoryFiles:
        """Return the segment files among directory entries. Some of the files may have vanished."""
        files = cls()
        for entry in sorted(entries, key=lambda entry: entry.name):
            files._take(entry, directory, findings)
        return files

    def _take(self, entry: os.DirEntry[str], directory: str, findings: Findings) -> None:
        path = os.path.join(directory, entry.name)
        file = parse_segment_file(entry.name)
        if file is None:
            if is_known_in_partition(entry.name):
                self.others.add(entry.name)
            else:
                findings.skip(path, SkipReason.UNKNOWN_NAME)
            return
        if file.base_offset > MAX_OFFSET:
            findings.skip(path, SkipReason.BAD_OFFSET)
            return
        if file.stage:
            findings.skip(path, file.stage)
            if file.stage is SkipReason.SWAP:
                self.swaps.add(file.base_offset)
            return
        identity = _identity_of_regular(entry, file.kind, path, findings)
        if identity is not None:
            self._keep(file.kind, file.base_offset, path, identity, findings)
        elif file.kind == "log":
            self.barriers.add(file.base_offset)

    def _keep(
        self, kind: str, base: int, path: str, identity: FileIdentity, findings: Findings
    ) -> None:
        key = (kind, base)
        if key in self.paths:
            # Kafka writes twenty digits and ignores a file with another number of digits.
            kept = self.paths[key]
            twenty = len(os.path.basename(path).partition(".")[0]) == 20
            findings.skip(kept if twenty else path, SkipReason.DUPLICATE_BASE)
            if not twenty:
                return
        self.paths[key] = path
        if kind == "log":
            self.logs[base] = identity

    def segments(self, findings: Findings) -> tuple[SegmentFiles, ...]:
        """Return all segments in the order of base offsets. The last one is active."""
        snapshots = {base: path for (kind, base), path in self.paths.items() if kind == "snapshot"}
        bases = sorted(self.logs)
        for (kind, base), path in sorted(self.paths.items(), key=lambda item: item[1]):
            if kind not in ("log", "snapshot") and base not in self.logs:
                findings.skip(path, SkipReason.ORPHAN_INDEX)
        return tuple(
            SegmentFiles(
                base_offset=base,
                next_base_offset=next_base,
                log_path=self.paths["log", base],
                size_bytes=self.logs[base].size_bytes,
                offset_index_path=self.paths.get(("index", base)),
                time_index_path=self.paths.get(("timeindex", base)),
                transaction_index_path=self.paths.get(("txnindex", base)),
                start_snapshot_path=snapshots.get(base),
                end_snapshot_path=None if next_base is None else snapshots.get(next_base),
                identity=self.logs[base],
            )
            for base, next_base in _ranges(bases, self.barriers)
        )


# The identity of a file beside a ``.log``, which is never compared.
_NOT_ASKED = FileIdentity(0, 0, 0, 0)


def _identity_of_regular(
    entry: os.DirEntry[str], kind: str, path: str, findings: Findings
) -> FileIdentity | None:
    """Return the identity of a ``.log``; `_NOT_ASKED` for other files, which need no stat. Return
    None, with a reason in `findings`, if the entry is not a regular file."""
    try:
        if kind != "log" and entry.is_file(follow_symlinks=False):
            return _NOT_ASKED
        status = entry.stat(follow_symlinks=False)
    except OSError as error:
        findings.skip_error(path, error)
        return None
    if not stat.S_ISREG(status.st_mode):
        findings.skip(path, SkipReason.NOT_A_FILE, file_kind(status.st_mode).value)
        return None
    return FileIdentity.of(status)


def _ranges(bases: Sequence[int], barriers: Set[int]) -> Iterator[tuple[int, int | None]]:
    """Yield each base offset with the next one, whether that is readable or not; None after the
    last readable one."""
    bounds = sorted({*bases, *barriers})
    for base in bases[:-1]:
        yield base, bounds[bisect_right(bounds, base)]
    if bases:
        yield bases[-1], None

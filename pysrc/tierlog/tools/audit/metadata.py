"""Copies a SQLite metadata file and reads the copy.

The owner of the file may write to the file and its write-ahead log (``-wal``) at any time. So both
files are copied again if they changed during the copy. Damage is reported only if every copy is
damaged.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from tierlog.errors import ConfigError, CorruptDataError, RemoteMetadataError
from tierlog.log.files import printable
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.segment.layout import partition_prefix
from tierlog.tools.audit.rows import AuditedSegment, segment_of
from tierlog.tools.findings import Finding, Place, Tally

__all__ = ["KnownSegments", "read_metadata"]

_TRIES = 3
# Suffixes of the database file and of the files that SQLite keeps beside an open database.
_SUFFIXES = ("", "-wal", "-journal")
_MOVE_AWAY = "move the file away and rebuild the metadata from the bucket"


@dataclass(slots=True)
class KnownSegments:
    """The segments of a metadata file, by the keys of their `.log` objects.

    ``unreadable`` has the folders of partitions whose metadata is damaged. The segments of these
    partitions are unknown.
    """

    segments: dict[str, AuditedSegment] = field(default_factory=dict)
    unreadable: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)


def read_metadata(place: str) -> KnownSegments:
    """Return every segment in the file `place`, a path or a ``file:`` URL.

    Damaged partitions are findings. Raises OSError when the file does not exist, CorruptDataError
    when the file is not metadata, and RemoteMetadataError when the file keeps changing.
    """
    path = _path(place)
    seen: KnownSegments | CorruptDataError | None = None
    for _ in range(_TRIES):
        seen = _look(path) or seen
        if isinstance(seen, KnownSegments) and not seen.unreadable:
            return seen
    if isinstance(seen, CorruptDataError):
        raise seen
    if seen is None:
        raise RemoteMetadataError(
            f"{printable(path)}: changed each time it was read; try again, or stop its owner"
        )
    return seen


def _path(place: str) -> str:
    if "://" not in place:
        return place
    parts = urlsplit(place)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{place}: expected a metadata file, as a path or file:///path")
    return unquote(parts.path)


def _look(path: str) -> KnownSegments | CorruptDataError | None:
    """Return the contents of one copy; None when the file changed during the copy."""
    with TemporaryDirectory(prefix="tierlog-metadata-") as folder:
        copy = os.path.join(folder, "metadata.sqlite")
        if not _copied(path, copy):
            return None
        try:
            with closing(SqliteRemoteLogMetadataManager(copy)) as metadata:
                return _known(metadata, path)
        except CorruptDataError as error:
            return error.located(printable(path))


def _copied(path: str, copy: str) -> bool:
    """Copy the file and its ``-wal`` file. Return whether both stayed unchanged during the copy."""
    before = _stamps(path)
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError) if suffix else nullcontext():
            shutil.copyfile(path + suffix, copy + suffix)
    return _stamps(path) == before


def _stamps(path: str) -> list[tuple[int, int, int] | None]:
    """Return, for each file, values that differ after any write to the file; None for a missing
    file."""
    found: list[tuple[int, int, int] | None] = []
    for suffix in _SUFFIXES:
        try:
            status = os.stat(path + suffix)
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return found


def _known(metadata: SqliteRemoteLogMetadataManager, path: str) -> KnownSegments:
    known, tally = KnownSegments(), Tally()
    for partition in metadata.partitions():
        log_start_offset = metadata.log_start_offset(partition)
        try:
            segments = metadata.list(partition)
        except CorruptDataError as error:
            known.unreadable.add(partition_prefix(partition).rstrip("/"))
            tally.place = Place(partition.topic, partition.partition)
            tally.error(error, path, _MOVE_AWAY)
            continue
        for segment in segments:
            row = segment_of(
                segment,
                state=segment.state.name,
                stored=False,
                truncation_offset=segment.truncation_offset,
                log_start_offset=log_start_offset,
            )
            known.segments[row.path] = row
    known.findings = tally.findings
    return known

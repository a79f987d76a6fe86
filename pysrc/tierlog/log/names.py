"""Parses the names in a broker's log directories, and says why some of them are not read.

<topic>-<partition>/                          a partition; the name is split at the last dash
<topic>-<partition>.<32 hex digits>-delete/   or -future, -stray: no partition, or not yet
<base offset>.log                             Kafka writes 20 digits; any number is read
<base offset>.log.deleted                     or .cleaned, .swap: stages of removal and cleaning
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tierlog.log.checkpoint import META_PROPERTIES, TopicPartition, is_topic_name

__all__ = [
    "MAX_OFFSET",
    "SegmentFileName",
    "SkipReason",
    "Skipped",
    "is_known_in_partition",
    "is_known_in_root",
    "parse_partition_directory",
    "parse_segment_file",
    "shows_log_dir",
    "staged_directory",
]

MAX_OFFSET = 2**63 - 1
_MAX_INT32 = 2**31 - 1

_SEGMENT_FILE = re.compile(
    r"([0-9]+)\.(log|index|timeindex|txnindex|snapshot)(\.deleted|\.cleaned|\.swap)?"
)
_DIRECTORY_STAGE = re.compile(r".+\.[0-9a-f]{32}-(delete|future|stray)")
_PARTITION_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")

# Files that a broker keeps beside segments or beside partitions and that are no part of a log.
_KNOWN_IN_PARTITION = re.compile(
    r"(leader-epoch-checkpoint|partition\.metadata)(\.tmp)?|quorum-state(\.tmp)?"
    r"|[0-9]+-[0-9]+\.checkpoint(\.part|\.deleted)?"
    r"|[0-9]+\.remote(LogIndex|OffsetIndex|TimeIndex|IndexCheckpoint)"
)
_KNOWN_IN_ROOT = re.compile(
    r"\.lock|\.kafka_cleanshutdown|(meta\.properties|bootstrap\.checkpoint)(\.tmp)?"
    r"|(cleaner|log-start|recovery-point|replication)-offset-checkpoint(\.tmp)?"
    r"|remote-log-index-cache|lost\+found"
)


class SkipReason(StrEnum):
    """Why a name in a log directory is skipped; the value is shown to people."""

    DELETED = "deleted by the broker, which removes it after a delay"
    CLEANED = "unfinished output of the log cleaner"
    SWAP = "output of the log cleaner that will replace segments"
    PARTITION_DELETED = "partition deleted by the broker, which removes it after a delay"
    PARTITION_FUTURE = "copy of a partition that is moving to another log directory"
    PARTITION_STRAY = "partition that is no longer assigned to the broker"
    DUPLICATE_BASE = "another file here has the same base offset"
    DUPLICATE_PARTITION = "the same partition is also in another log directory"
    ORPHAN_INDEX = "index without its segment"
    BAD_OFFSET = "not an offset that Kafka can have"
    NOT_A_FILE = "not a regular file"
    NOT_A_DIRECTORY = "not a directory"
    UNKNOWN_NAME = "not a name that Kafka gives"
    WORLD_WRITABLE = "directory that everybody may write to"
    VANISHED = "gone before it could be opened"
    UNREADABLE = "could not be read"

    @property
    def routine(self) -> bool:
        """Whether healthy brokers have such names."""
        return self in _ROUTINE


_ROUTINE = frozenset(
    {
        SkipReason.DELETED,
        SkipReason.CLEANED,
        SkipReason.PARTITION_DELETED,
        SkipReason.PARTITION_FUTURE,
        SkipReason.VANISHED,
    }
)
_FILE_STAGES = {
    ".deleted": SkipReason.DELETED,
    ".cleaned": SkipReason.CLEANED,
    ".swap": SkipReason.SWAP,
}
_DIRECTORY_STAGES = {
    "delete": SkipReason.PARTITION_DELETED,
    "future": SkipReason.PARTITION_FUTURE,
    "stray": SkipReason.PARTITION_STRAY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A name that the listing skipped. ``path`` is shown to people, so unusual characters are
    escaped."""

    path: str
    reason: SkipReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason.value}" + (f": {self.detail}" if self.detail else "")


def parse_partition_directory(name: str) -> TopicPartition | None:
    """Return the topic and the partition of a directory name, split at the last dash; None if it is
    no partition."""
    topic, dash, number = name.rpartition("-")
    if not dash or not is_topic_name(topic) or not _PARTITION_NUMBER.fullmatch(number):
        return None
    return TopicPartition(topic, int(number)) if int(number) <= _MAX_INT32 else None


class SegmentFileName(NamedTuple):
    """The name of a file of a segment. ``kind`` is its suffix without the dot. ``stage`` is the
    reason not to read it; None for a file to read."""

    base_offset: int
    kind: str
    stage: SkipReason | None


def parse_segment_file(name: str) -> SegmentFileName | None:
    """Return the parts of a file's name; None if it is not a file of a segment. The offset may be
    too large."""
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None:
        return None
    digits, kind, stage = match.groups()
    # Python refuses to convert thousands of digits, and no offset has more than 19.
    base_offset = int(digits) if len(digits.lstrip("0")) <= 19 else MAX_OFFSET + 1
    return SegmentFileName(base_offset, kind, _FILE_STAGES[stage] if stage else None)


def staged_directory(name: str) -> SkipReason | None:
    """Return the stage in the name of a partition's directory; None for an ordinary name."""
    match = _DIRECTORY_STAGE.fullmatch(name)
    return _DIRECTORY_STAGES[match[1]] if match else None


def shows_log_dir(name: str) -> bool:
    """Return whether a directory with an entry of this name is a broker's log directory."""
    is_partition = parse_partition_directory(name) is not None
    return name == META_PROPERTIES or is_partition or staged_directory(name) is not None


def is_known_in_partition(name: str) -> bool:
    """Return whether a broker keeps a file of this name beside segments."""
    return _KNOWN_IN_PARTITION.fullmatch(name) is not None


def is_known_in_root(name: str) -> bool:
    """Return whether a broker keeps a file or directory of this name beside partitions."""
    return _KNOWN_IN_ROOT.fullmatch(name) is not None

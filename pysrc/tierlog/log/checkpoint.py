"""The small text files in a broker's log directories.

    leader-epoch-checkpoint           epoch startOffset           both strictly ascending
    replication-offset-checkpoint     topic partition offset      high watermarks
    recovery-point-offset-checkpoint  topic partition offset      end of the flushed log
    log-start-offset-checkpoint       topic partition offset      starts above the first segment
    cleaner-offset-checkpoint         topic partition offset      compacted topics
    partition.metadata                the topic's id
    meta.properties                   cluster, node and directory id

In a checkpoint, line 1 is the version (0), and line 2 is the number of entries. Each further line
is one entry, whose fields are separated by one space. A newline ends every line. An empty file has
no entries. The leader epochs that are uploaded with a segment have the same format.

Parsers treat the bytes as hostile. For text that Kafka would not write, a parser raises
CorruptDataError. The error has the position of the first byte of the bad line, and its text names
the line. tierlog writes these files only into the directories of a node, never into those of a
broker.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tierlog.config import parse_properties
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.files import StrPath, printable, read_small
from tierlog.types import check_topic_name, kafka_uuid_bytes

__all__ = [
    "CLEANER_OFFSETS",
    "CLEAN_SHUTDOWN",
    "HIGH_WATERMARKS",
    "LEADER_EPOCHS",
    "LOG_START_OFFSETS",
    "META_PROPERTIES",
    "PARTITION_METADATA",
    "RECOVERY_POINTS",
    "EpochEntry",
    "LeaderEpochs",
    "MetaProperties",
    "TopicPartition",
    "is_topic_id",
    "is_topic_name",
    "parse_leader_epochs",
    "parse_meta_properties",
    "parse_offset_checkpoint",
    "parse_partition_metadata",
    "read_leader_epochs",
    "read_meta_properties",
    "read_offset_checkpoint",
    "read_partition_metadata",
]

LEADER_EPOCHS = "leader-epoch-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
"""This file exists only after a clean stop. The content depends on the version and is not read."""

# These limits are far above the sizes of the files of a broker with hundreds of thousands of
# partitions.
_CHECKPOINT_LIMIT_BYTES = 32 << 20
_PROPERTIES_LIMIT_BYTES = 64 << 10
_LINE_LIMIT_BYTES = 1024

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_VERSION_LINE = re.compile(r"version: (0|[1-9][0-9]{0,9})")
_TOPIC_ID_LINE = re.compile(r"topic_id: (.*)")


class TopicPartition(NamedTuple):
    """A topic's name and a partition's number; equal to the plain pair."""

    topic: str
    partition: int


class EpochEntry(NamedTuple):
    """A leader epoch and the first offset written in it; equal to the plain pair."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """A lineage, which says for each offset which leader epoch wrote it.

    ``entries`` ascend strictly by epoch and by start offset. An epoch ends where the next one
    starts; the last epoch has no end. Raises ValueError when entries do not ascend or are negative.
    """

    entries: tuple[EpochEntry, ...] = ()

    def __post_init__(self) -> None:
        entries = tuple(EpochEntry(*entry) for entry in self.entries)
        for entry, previous in zip(entries, ((-1, -1), *entries), strict=False):
            if entry.epoch <= previous[0] or entry.start_offset <= previous[1]:
                raise ValueError(f"leader epochs do not ascend: {previous} then {tuple(entry)}")
        object.__setattr__(self, "entries", entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[EpochEntry]:
        return iter(self.entries)

    def epoch_for(self, offset: int) -> int | None:
        """The epoch that wrote ``offset``. Before the first entry, the epoch is unknown (None)."""
        index = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[index - 1].epoch if index else None

    def end_offset(self, epoch: int, log_end_offset: int) -> int | None:
        """The first offset after ``epoch``; None if the lineage does not have this epoch."""
        offsets = self.offsets_of(epoch, log_end_offset)
        return None if offsets is None else offsets[1]

    def offsets_of(self, epoch: int, log_end_offset: int) -> tuple[int, int] | None:
        """The offsets [first, end) of ``epoch``; None if the lineage does not have this epoch."""
        entries = self.entries
        index = bisect_left(entries, (epoch, -1))
        if index == len(entries) or entries[index][0] != epoch:
            return None
        last = index + 1 == len(entries)
        return entries[index][1], log_end_offset if last else entries[index + 1][1]

    def up_to(self, next_base_offset: int) -> LeaderEpochs:
        """Return the entries that start below an offset. These entries are uploaded with a segment
        that ends at this offset."""
        end = bisect_left(self.entries, next_base_offset, key=lambda entry: entry.start_offset)
        return LeaderEpochs(self.entries[:end])

    def clipped(self, base_offset: int, next_base_offset: int) -> LeaderEpochs:
        """The epochs of the offsets [base, next base). The first epoch starts at base or later."""
        if next_base_offset <= base_offset:
            return LeaderEpochs()
        entries = self.up_to(next_base_offset).entries
        first = bisect_right(entries, base_offset, key=lambda entry: entry.start_offset)
        if first == 0:
            return LeaderEpochs(entries)
        clip = EpochEntry(entries[first - 1].epoch, base_offset)
        return LeaderEpochs((clip, *entries[first:]))

    def with_front(self, base_offset: int) -> LeaderEpochs:
        """Return this lineage with epoch 0 from `base_offset` up to its first entry.

        Messages of formats 0 and 1 have no leader epoch. This method assigns them to epoch 0. All
        replicas use epoch 0, so they agree even if a broker starts to count epochs later.
        """
        if self.entries and self.entries[0].start_offset <= base_offset:
            return self
        rest = self.entries[1:] if self.entries and not self.entries[0].epoch else self.entries
        return LeaderEpochs((EpochEntry(0, base_offset), *rest))

    def encode(self) -> bytes:
        """Return the text that ``parse_leader_epochs`` reads."""
        lines = ["0", str(len(self.entries)), *(f"{e.epoch} {e.start_offset}" for e in self)]
        return "".join(f"{line}\n" for line in lines).encode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The cluster id, the node id and the directory id of a log directory. An id is None if the
    file does not have it."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None


class _Line(NamedTuple):
    """One line of a checkpoint: its number (from 1), the position of its first byte and its
    text."""

    number: int
    position: int
    text: str


def _bad_line(
    line: _Line, path: str | None, expected: str, found: str | None = None, reason: str = "bad_line"
) -> CorruptDataError:
    shown = printable(line.text[:200])
    return CorruptDataError(
        reason=reason,
        path=path,
        position=line.position,
        expected=f"line {line.number}: {expected}",
        found=repr(shown) if found is None else found,
    )


def _lines(data: bytes, path: str | None) -> Iterator[_Line]:
    """Yield the lines one at a time, so that a hostile file is read only up to its first bad
    line."""
    position, number = 0, 1
    while position < len(data):
        end = data.find(b"\n", position)
        size = (len(data) if end < 0 else end) - position
        raw = data[position : position + min(size, _LINE_LIMIT_BYTES)]
        line = _Line(number, position, raw.removesuffix(b"\r").decode("utf-8", "backslashreplace"))
        if size > _LINE_LIMIT_BYTES:
            raise _bad_line(line, path, "a short line", f"a line of {size} bytes", "too_large")
        if end < 0:
            # A number that a crash cut short still parses as a number, so the newline must follow
            # it.
            raise _bad_line(line, path, "a newline at the end of the line", reason="truncated")
        yield line
        position, number = end + 1, number + 1


def _number(text: str, maximum: int) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    value = int(text)
    return value if value <= maximum else None


def _entries(data: bytes, path: str | None) -> Iterator[_Line]:
    """Yield the entry lines of a checkpoint, and check its version and its number of entries."""
    if not data:
        return
    if len(data) > _CHECKPOINT_LIMIT_BYTES:
        text = f"a checkpoint of at most {_CHECKPOINT_LIMIT_BYTES} bytes"
        raise _bad_line(_Line(1, 0, ""), path, text, f"{len(data)} bytes", "too_large")
    lines = _lines(data, path)
    version = next(lines)
    if version.text != "0":
        raise _bad_line(version, path, "version 0", reason="bad_version")
    announced = next(lines, None)
    if announced is None:
        end = _Line(2, len(data), "")
        raise _bad_line(end, path, "the number of entries", "the end", "truncated")
    count = _number(announced.text, _MAX_INT32)
    if count is None:
        raise _bad_line(announced, path, "the number of entries")
    seen = 0
    for line in lines:
        if seen == count:
            raise _bad_line(line, path, f"the end after {count} entries", reason="bad_count")
        seen += 1
        yield line
    if seen < count:
        end = _Line(seen + 3, len(data), "")
        found = f"the end after {seen}"
        raise _bad_line(end, path, f"{count} entries", found, "bad_count")


def parse_leader_epochs(data: bytes, path: str | None = None) -> LeaderEpochs:
    """Parse a leader-epoch-checkpoint, or the leader epochs uploaded with a segment."""
    entries: list[EpochEntry] = []
    for line in _entries(data, path):
        fields = line.text.split(" ")
        if len(fields) != 2:
            raise _bad_line(line, path, "'epoch startOffset'")
        epoch, offset = _number(fields[0], _MAX_INT32), _number(fields[1], _MAX_INT64)
        if epoch is None or offset is None:
            raise _bad_line(line, path, "'epoch startOffset', both numbers from 0")
        if entries and (epoch <= entries[-1].epoch or offset <= entries[-1].start_offset):
            above = f"{entries[-1].epoch} {entries[-1].start_offset}"
            expected = f"epoch and offset above those of '{above}'"
            raise _bad_line(line, path, expected, reason="offset_order")
        entries.append(EpochEntry(epoch, offset))
    return LeaderEpochs(tuple(entries))


def parse_offset_checkpoint(data: bytes, path: str | None = None) -> dict[TopicPartition, int]:
    """Parse any of the four ``topic partition offset`` checkpoints."""
    offsets: dict[TopicPartition, int] = {}
    for line in _entries(data, path):
        fields = line.text.split(" ")
        if len(fields) != 3:
            raise _bad_line(line, path, "'topic partition offset'")
        partition, offset = _number(fields[1], _MAX_INT32), _number(fields[2], _MAX_INT64)
        if not is_topic_name(fields[0]) or partition is None or offset is None:
            raise _bad_line(line, path, "'topic partition offset', both numbers from 0")
        key = TopicPartition(fields[0], partition)
        if key in offsets:
            raise _bad_line(line, path, "each partition once", reason="duplicate")
        offsets[key] = offset
    return offsets


def parse_partition_metadata(data: bytes, path: str | None = None) -> str:
    """Return the topic id in a partition.metadata, which has 22 characters."""
    if len(data) > _PROPERTIES_LIMIT_BYTES:
        line = _Line(1, 0, "")
        raise _bad_line(line, path, "two short lines", f"{len(data)} bytes", "too_large")
    rows = data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    first = _Line(1, 0, rows[0])
    second = _Line(2, len(rows[0]) + 1, rows[1] if len(rows) > 1 else "")
    if not _VERSION_LINE.fullmatch(first.text):
        raise _bad_line(first, path, "'version: 0'", reason="bad_version")
    match = _TOPIC_ID_LINE.fullmatch(second.text)
    if match is None or not is_topic_id(match[1]):
        raise _bad_line(second, path, "'topic_id: ' and an id of 22 characters, not all zero")
    if len(rows) > 2:
        position = second.position + len(second.text) + 1
        raise _bad_line(_Line(3, position, rows[2]), path, "the end of the file")
    return match[1]


def parse_meta_properties(data: bytes, path: str | None = None) -> MetaProperties:
    """Parse a meta.properties of version 0 (broker.id) or 1 (node.id)."""
    if len(data) > _PROPERTIES_LIMIT_BYTES:
        line = _Line(1, 0, "")
        raise _bad_line(line, path, "a short file", f"{len(data)} bytes", "too_large")
    try:
        values = parse_properties(data.decode("latin-1"))
    except ConfigError as error:
        raise _bad_property(path, "Java properties", str(error)) from error
    version = values.get("version", "").strip()
    if version not in ("0", "1"):
        raise _bad_property(path, "version=0 or version=1", _shown(version))
    name = "node.id" if version == "1" else "broker.id"
    node = values.get(name, "").strip()
    node_id = _number(node, _MAX_INT32)
    if node_id is None and (node or version == "1"):
        raise _bad_property(path, f"{name}= and a number from 0", _shown(node))
    directory_id = values.get("directory.id", "").strip() or None
    if directory_id is not None and not is_topic_id(directory_id):
        raise _bad_property(path, "directory.id= and 22 characters", _shown(directory_id))
    cluster_id = values.get("cluster.id", "").strip() or None
    if cluster_id is None and version == "1":
        raise _bad_property(path, "cluster.id", "none")
    return MetaProperties(
        version=int(version), cluster_id=cluster_id, node_id=node_id, directory_id=directory_id
    )


def _shown(value: str) -> str:
    return repr(printable(value[:100])) if value else "none"


def _bad_property(path: str | None, expected: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        reason="bad_properties", path=path, position=0, expected=expected, found=found
    )


def is_topic_name(text: str) -> bool:
    """Return whether Kafka allows this topic name. The path of such a name stays inside of its
    directory."""
    try:
        check_topic_name(text)
    except ValueError:
        return False
    return True


def is_topic_id(text: str) -> bool:
    """Return whether this is the text form of a Kafka Uuid that is not all zero."""
    try:
        return any(kafka_uuid_bytes(text))
    except ValueError:
        return False


def read_leader_epochs(path: StrPath) -> LeaderEpochs:
    """Read a file and pass it to ``parse_leader_epochs``. Raises OSError as ``open_regular``
    does."""
    return parse_leader_epochs(read_small(path, _CHECKPOINT_LIMIT_BYTES), _name(path))


def read_offset_checkpoint(path: StrPath) -> dict[TopicPartition, int]:
    """Read a file and pass it to ``parse_offset_checkpoint``. Raises OSError as ``open_regular``
    does."""
    return parse_offset_checkpoint(read_small(path, _CHECKPOINT_LIMIT_BYTES), _name(path))


def read_partition_metadata(path: StrPath) -> str:
    """Read a file and pass it to ``parse_partition_metadata``. Raises OSError as ``open_regular``
    does."""
    return parse_partition_metadata(read_small(path, _PROPERTIES_LIMIT_BYTES), _name(path))


def read_meta_properties(path: StrPath) -> MetaProperties:
    """Read a file and pass it to ``parse_meta_properties``. Raises OSError as ``open_regular``
    does."""
    return parse_meta_properties(read_small(path, _PROPERTIES_LIMIT_BYTES), _name(path))


def _name(path: StrPath) -> str:
    return printable(str(path))

"""Lists a broker's log directories. The listing only reads files, and the broker may be running.

    <log.dir>/meta.properties, *-offset-checkpoint ...
    <log.dir>/<topic>-<partition>/<base offset>.log, .index, .timeindex, .txnindex, .snapshot
                                  leader-epoch-checkpoint, partition.metadata

The broker may change files during and after a listing, so a listed file may be gone when it is
opened, and the active segment may be in any state. Names that are not part of a log are left out
with a reason, and damaged checkpoints with their error. Unknown values are None, which is not the
same as empty or zero.

This module never opens a file for writing, never locks (``.lock`` belongs to the broker), never
maps files, and follows no symlinks below the given directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from tierlog.arguments import FLAG, PATH, takes
from tierlog.errors import ConfigError, CorruptDataError, OutOfRangeError
from tierlog.log import checkpoint
from tierlog.log.checkpoint import LeaderEpochs, MetaProperties, TopicPartition
from tierlog.log.files import (
    FileChange,
    FileIdentity,
    FileKind,
    SegmentHandle,
    StrPath,
    file_kind,
    open_directory,
    printable,
)
from tierlog.log.listing_memory import DirectoryContents, ListingMemory
from tierlog.log.names import (
    Skipped,
    SkipReason,
    is_known_in_root,
    parse_partition_directory,
    parse_segment_file,
    shows_log_dir,
    staged_directory,
)
from tierlog.log.segment_files import DirectoryFiles, Findings, SegmentFiles

__all__ = [
    "CLUSTER_METADATA_TOPIC",
    "FileChange",
    "FileIdentity",
    "Listing",
    "LogDir",
    "PartitionLog",
    "SegmentFiles",
    "SegmentHandle",
    "SkipReason",
    "Skipped",
    "open_log_dir",
    "parse_partition_directory",
]

# The errors that `open` reports when a path has no readable file.
_NO_SUCH_FILE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EACCES})

CLUSTER_METADATA_TOPIC = "__cluster_metadata"
# The position of the magic byte in a batch, in every message format.
_MAGIC_POSITION = 16

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLog:
    """One partition in one log directory.

    ``segments`` ascend by base offset. None means unknown:

    * ``topic_id``, ``leader_epochs``: the file is missing or damaged (``problems`` says which);
      ``lineage`` may still be known;
    * ``log_start_offset``: the broker's checkpoint is damaged. If the checkpoint is sound but has
      no entry, this is the base offset of the first segment; the remote tier may start below it;
    * ``high_watermark``: no sound checkpoint has it. A running broker's high watermark may be
      higher;
    * ``compacted``: the cleaner's checkpoint is damaged. False means only that the cleaner has not
      recorded this partition; it may not have reached a compacted topic yet.

    ``recorded_log_start`` is the log start offset in the broker's checkpoint; None if the
    checkpoint has no entry. ``archived_as`` is the topic id of the archive, if it may differ from
    that of the topic. ``begins_without_epochs`` says whether the log begins with messages from
    before format 2, which have no leader epoch. ``own_epochs`` is the broker's own ``lineage``, if
    ``leader_epochs`` was completed from an archive. The first entry of ``own_epochs`` may have
    begun earlier, with records that the broker deleted. ``pending_swaps`` has the base offsets of
    ``.swap`` files. A broker that starts replaces listed segments by these files, so until then
    the segments of this partition may still change.
    """

    topic: str
    partition: int
    topic_id: str | None
    directory: str
    segments: tuple[SegmentFiles, ...]
    leader_epochs: LeaderEpochs | None
    log_start_offset: int | None
    high_watermark: int | None
    recovery_point: int | None = None
    compacted: bool | None = False
    begins_without_epochs: bool = False
    pending_swaps: tuple[int, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()
    archived_as: str | None = None
    recorded_log_start: int | None = None
    own_epochs: LeaderEpochs | None = None

    @property
    def archive_id(self) -> str | None:
        """The topic id under which the partition is archived; None when unknown."""
        return self.archived_as or self.topic_id

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the partition, as in the checkpoints."""
        return TopicPartition(self.topic, self.partition)

    @property
    def name(self) -> str:
        """The name of the partition: ``<topic>-<partition>``."""
        return f"{self.topic}-{self.partition}"

    @property
    def is_cluster_metadata(self) -> bool:
        """Whether this is KRaft's own log, which has other rules and is never tiered."""
        return self.topic == CLUSTER_METADATA_TOPIC

    @property
    def lineage(self) -> LeaderEpochs | None:
        """The leader epochs of all offsets: those of the broker's checkpoint, and epoch 0 for
        earlier messages without an epoch. None when unknown."""
        if not self.begins_without_epochs or not self.segments:
            return self.leader_epochs
        return (self.leader_epochs or LeaderEpochs()).with_front(self.segments[0].base_offset)

    @property
    def rolled_segments(self) -> tuple[SegmentFiles, ...]:
        """All segments but the active one."""
        return self.segments[:-1]

    @property
    def active_segment(self) -> SegmentFiles | None:
        """The last segment; None if there are no segments."""
        return self.segments[-1] if self.segments else None

    def segment_for(self, offset: int) -> SegmentFiles:
        """Return the segment that holds ``offset``. Raises OutOfRangeError if it is below the first
        segment."""
        for segment in reversed(self.segments):
            if segment.base_offset <= offset:
                return segment
        first = self.segments[0].base_offset if self.segments else "no segment"
        raise OutOfRangeError(
            f"{self.name}: offset {offset} is below the first offset held, {first}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The result of one listing. ``problems`` and ``skipped`` have only findings outside of
    partitions."""

    partitions: tuple[PartitionLog, ...]
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[CorruptDataError, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RootCheckpoints:
    """The checkpoints of one log directory; None for a damaged one."""

    high_watermarks: Mapping[TopicPartition, int] | None
    recovery_points: Mapping[TopicPartition, int] | None
    log_starts: Mapping[TopicPartition, int] | None
    cleaner_offsets: Mapping[TopicPartition, int] | None

    @classmethod
    def read(cls, root: str, findings: Findings) -> _RootCheckpoints:
        def offsets(name: str) -> Mapping[TopicPartition, int] | None:
            none: dict[TopicPartition, int] = {}
            path = os.path.join(root, name)
            return findings.read(path, checkpoint.read_offset_checkpoint, none)

        return cls(
            high_watermarks=offsets(checkpoint.HIGH_WATERMARKS),
            recovery_points=offsets(checkpoint.RECOVERY_POINTS),
            log_starts=offsets(checkpoint.LOG_START_OFFSETS),
            cleaner_offsets=offsets(checkpoint.CLEANER_OFFSETS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDir:
    """The log directories of one broker. A LogDir keeps no files open. Every listing reads the
    directories again.

    ``meta`` has the meta.properties of each path; None if the file is missing or damaged.
    """

    paths: tuple[str, ...]
    meta: tuple[MetaProperties | None, ...]
    allow_world_writable: bool = False

    @property
    def cluster_id(self) -> str | None:
        """The cluster id in the meta.properties of the directories."""
        return next((m.cluster_id for m in self.meta if m and m.cluster_id), None)

    @property
    def node_id(self) -> int | None:
        """The broker id in the meta.properties of the directories."""
        return next((m.node_id for m in self.meta if m and m.node_id is not None), None)

    @property
    def clean_shutdown(self) -> bool:
        """Whether every directory has the marker of a clean stop. A running broker has no
        marker."""
        marks = (os.path.join(path, checkpoint.CLEAN_SHUTDOWN) for path in self.paths)
        return all(os.path.lexists(mark) for mark in marks)

    def listing(self, memory: ListingMemory | None = None) -> Listing:
        """Return all partitions, sorted by topic and number, and the names that were left out.

        With a `memory` of an earlier listing, directories that have not changed are not read again.
        """
        findings = Findings()
        partitions = tuple(self.each_partition(findings, memory))
        if memory is not None:
            memory.forget_all_but({log.directory for log in partitions})
        return Listing(
            partitions=partitions,
            skipped=tuple(findings.skipped),
            problems=tuple(findings.problems),
        )

    def each_partition(
        self, findings: Findings, memory: ListingMemory | None = None
    ) -> Iterator[PartitionLog]:
        """Yield the partitions of `listing`. Each partition is read when its turn comes. So a
        caller that keeps no partitions needs memory for only one. `findings` receives the names
        outside of partitions that are left out."""
        places: dict[TopicPartition, list[tuple[str, _RootCheckpoints]]] = {}
        for root in self.paths:
            findings.read(os.path.join(root, checkpoint.META_PROPERTIES), _read_meta, None)
            checkpoints = _RootCheckpoints.read(root, findings)
            for path, topic_partition in _partitions_of(root, findings):
                places.setdefault(topic_partition, []).append((path, checkpoints))
        for topic_partition, where in sorted(places.items(), key=itemgetter(0)):
            logs = [
                log
                for path, checkpoints in where
                if (log := self._partition(path, topic_partition, checkpoints, findings, memory))
            ]
            if len(logs) == 1:
                yield logs[0]
            for log in logs if len(logs) > 1 else ():
                findings.skip(log.directory, SkipReason.DUPLICATE_PARTITION)

    def partitions(self) -> tuple[PartitionLog, ...]:
        """The partitions of ``listing``."""
        return self.listing().partitions

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """Return one partition as it is now. Raises OutOfRangeError when no directory holds it."""
        name = f"{topic}-{partition}"
        wanted = TopicPartition(topic, partition)
        found: list[PartitionLog] = []
        findings = Findings()
        for root in self.paths if parse_partition_directory(name) == wanted else ():
            path = os.path.join(root, name)
            if os.path.lexists(path):
                checkpoints = _RootCheckpoints.read(root, findings)
                log = self._partition(path, wanted, checkpoints, findings, None)
                found += [log] if log else []
        if len(found) == 1:
            return found[0]
        count = "several directories of" if found else "no"
        where = ", ".join(printable(path) for path in self.paths)
        why = "".join(f"; {skipped}" for skipped in findings.skipped)
        raise OutOfRangeError(f"{where}: {count} partition {printable(name)}{why}")

    def _partition(
        self,
        path: str,
        topic_partition: TopicPartition,
        checkpoints: _RootCheckpoints,
        findings: Findings,
        memory: ListingMemory | None,
    ) -> PartitionLog | None:
        contents = self._contents(path, findings, memory)
        if contents is None:
            return None
        return _partition_log(path, topic_partition, contents, checkpoints)

    def _contents(
        self, path: str, findings: Findings, memory: ListingMemory | None
    ) -> DirectoryContents | None:
        """Return the contents of a partition's directory; None, with a reason in `findings`, if the
        directory is left out."""
        if memory is None:
            return self._read(path, findings)
        contents = memory.recall(path)
        if contents is None:
            read_at = memory.moment(path)
            contents = self._read(path, findings)
            if contents is not None:
                memory.keep(path, read_at, contents)
        return contents

    def _read(self, path: str, findings: Findings) -> DirectoryContents | None:
        own = Findings()
        try:
            with open_directory(path) as fd:
                mode = os.fstat(fd).st_mode
                if mode & stat.S_IWOTH and not self.allow_world_writable:
                    findings.skip(path, SkipReason.WORLD_WRITABLE)
                    return None
                files = DirectoryFiles.read(path, fd, own)
        except OSError as error:
            findings.skip_error(path, error)
            return None
        return _contents(path, files, own)


def _read_meta(path: StrPath) -> MetaProperties | None:
    return checkpoint.read_meta_properties(path)


def _partitions_of(root: str, findings: Findings) -> Iterator[tuple[str, TopicPartition]]:
    """Yield the directories of partitions in a log directory."""
    try:
        with open_directory(root) as fd:
            names = sorted(os.listdir(fd))
    except OSError as error:
        findings.skip_error(root, error)
        return
    for name in names:
        path = os.path.join(root, name)
        topic_partition = _partition_of_entry(path, name, findings)
        if topic_partition:
            yield path, topic_partition


def _partition_of_entry(path: str, name: str, findings: Findings) -> TopicPartition | None:
    """Return the partition of an entry in a log directory; None if it has none, with a reason in
    `findings`."""
    if is_known_in_root(name):
        return None
    stage = staged_directory(name)
    if stage:
        findings.skip(path, stage)
        return None
    topic_partition = parse_partition_directory(name)
    if topic_partition is None:
        findings.skip(path, SkipReason.UNKNOWN_NAME)
        return None
    try:
        kind = file_kind(os.stat(path, follow_symlinks=False).st_mode)
    except OSError as error:
        findings.skip_error(path, error)
        return None
    if kind is not FileKind.DIRECTORY:
        findings.skip(path, SkipReason.NOT_A_DIRECTORY, kind.value)
        return None
    return topic_partition


def _contents(path: str, files: DirectoryFiles, findings: Findings) -> DirectoryContents:
    def read(name: str, reader: Callable[[StrPath], _T]) -> _T | None:
        there = name in files.others
        return findings.read(os.path.join(path, name), reader, None) if there else None

    segments = files.segments(findings)
    epochs = read(checkpoint.LEADER_EPOCHS, checkpoint.read_leader_epochs)
    damaged = epochs is None and checkpoint.LEADER_EPOCHS in files.others
    return DirectoryContents(
        segments=segments,
        leader_epochs=epochs,
        begins_without_epochs=not damaged and _begins_without_epochs(segments, epochs),
        topic_id=read(checkpoint.PARTITION_METADATA, checkpoint.read_partition_metadata),
        pending_swaps=tuple(sorted(files.swaps)),
        skipped=tuple(findings.skipped),
        problems=tuple(findings.problems),
    )


def _begins_without_epochs(segments: tuple[SegmentFiles, ...], epochs: LeaderEpochs | None) -> bool:
    """Return whether the first message is older than format 2. The log is opened only if the leader
    epochs begin above its first segment."""
    first = next((segment for segment in segments if segment.size_bytes), None)
    if first is None or (epochs and epochs.entries[0].start_offset <= first.base_offset):
        return False
    try:
        with first.open() as handle:
            magic = handle.read_at(_MAGIC_POSITION, 1)
    except OSError:
        return False
    return magic in (b"\0", b"\1")


def _partition_log(
    path: str,
    topic_partition: TopicPartition,
    contents: DirectoryContents,
    checkpoints: _RootCheckpoints,
) -> PartitionLog:
    segments = contents.segments
    first_base = segments[0].base_offset if segments else None
    starts, cleaner = checkpoints.log_starts, checkpoints.cleaner_offsets
    return PartitionLog(
        recorded_log_start=None if starts is None else starts.get(topic_partition),
        topic=topic_partition.topic,
        partition=topic_partition.partition,
        topic_id=contents.topic_id,
        directory=path,
        segments=segments,
        leader_epochs=contents.leader_epochs,
        log_start_offset=None if starts is None else starts.get(topic_partition, first_base),
        high_watermark=(checkpoints.high_watermarks or {}).get(topic_partition),
        recovery_point=(checkpoints.recovery_points or {}).get(topic_partition),
        compacted=None if cleaner is None else topic_partition in cleaner,
        begins_without_epochs=contents.begins_without_epochs,
        pending_swaps=contents.pending_swaps,
        skipped=contents.skipped,
        problems=contents.problems,
    )


@takes(path=PATH, more=PATH, allow_world_writable=FLAG)
def open_log_dir(path: StrPath, *more: StrPath, allow_world_writable: bool = False) -> LogDir:
    """Open the log directories (``log.dirs``) of one broker, running or stopped.

    Raises OSError when a directory cannot be listed, or its meta.properties cannot be read from the
    disk. Raises ConfigError for the directory of a single partition, for a directory that nothing
    shows to be a broker's, for directories of different brokers or clusters, and for a directory
    that everybody may write to (unless ``allow_world_writable``).
    """
    paths: list[str] = []
    for given in (path, *more):
        # Only the path that the caller gives may be a symlink.
        resolved = os.path.realpath(os.fspath(given), strict=True)
        _require_log_dir(resolved, allow_world_writable)
        if resolved not in paths:
            paths.append(resolved)
    metas = tuple(map(_meta_of, paths))
    for what, values in (
        ("cluster.id", {m.cluster_id for m in metas if m and m.cluster_id}),
        ("node.id", {m.node_id for m in metas if m and m.node_id is not None}),
    ):
        if len(values) > 1:
            found = " and ".join(sorted(str(value) for value in values))
            raise ConfigError(
                f"{', '.join(map(printable, paths))}: expected one {what}, found {found}; "
                "open the directories of one broker at a time"
            )
    return LogDir(paths=tuple(paths), meta=metas, allow_world_writable=allow_world_writable)


def _meta_of(path: str) -> MetaProperties | None:
    """Return the meta.properties of a log directory; None if the file is missing or damaged. Raises
    OSError when the disk fails, since the content is then unknown."""
    try:
        return _read_meta(os.path.join(path, checkpoint.META_PROPERTIES))
    except CorruptDataError:
        return None
    except OSError as error:
        if error.errno in _NO_SUCH_FILE:
            return None
        raise


def _require_log_dir(path: str, allow_world_writable: bool) -> None:
    shown = printable(path)
    with open_directory(path) as fd:
        mode = os.fstat(fd).st_mode
        names = os.listdir(fd)
    if mode & stat.S_IWOTH and not allow_world_writable:
        raise ConfigError(
            f"{shown}: expected a directory that only its owner and group can write to, found "
            "one that everybody can write to; remove that right (chmod o-w) or allow it explicitly"
        )
    has_segments = any(file and file.kind == "log" for file in map(parse_segment_file, names))
    if has_segments and parse_partition_directory(os.path.basename(path)):
        raise ConfigError(
            f"{shown}: expected a broker's log directory, found that of one partition; "
            f"give the directory above it, {printable(os.path.dirname(path))}"
        )
    # A directory above or beside the log directories must not count as an empty log directory,
    # since the error would go unnoticed.
    if not any(map(shows_log_dir, names)):
        raise ConfigError(
            f"{shown}: expected a broker's log directory, found neither a partition nor "
            f"{checkpoint.META_PROPERTIES}; give the path that log.dirs has"
        )

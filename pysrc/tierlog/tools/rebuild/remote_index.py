"""Rebuilds the remote index files of a store's partitions in a folder.

The files are made from the partition's sound `.indexes` objects alone, with the code that a node
uses to append to its remote index files. So the files are equal to the files of a node that indexed
these segments with the same settings. Offsets that no sound segment has are a gap in the files, as
on a node that lost segments.

The lineage of the newest segment shows which offsets a later leader truncated. Entries of these
offsets are left out. The store does not record at which offset a node cut its files.

Each worker makes the files in its own folder. It then renames each complete file to its final name,
unless this name exists. So a task may run twice, and two runs may overlap. If existing files of a
partition differ from the rebuilt files, all existing files are kept, since a node may be using
them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tierlog.arguments import instance_of, takes
from tierlog.config import RemoteIndexConfig
from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.log.checkpoint import parse_leader_epochs
from tierlog.reader.lineage import newest_segment
from tierlog.remote.index_files.directory import RemoteIndexDir, RemoteIndexKind
from tierlog.remote.index_files.sequence import (
    FileSequence,
    SegmentEntries,
    SequenceWriter,
    segment_entries,
)
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.parallel import map_in_parallel
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.indexes import IndexKind, verify_indexes
from tierlog.remote.segment.layout import indexes_key, partition_prefix
from tierlog.remote.store.object_store import ObjectStore, holds_exactly
from tierlog.remote.urls import LocalStore, open_store
from tierlog.tiering.truncation import truncation_offset
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.output import wide_field
from tierlog.tools.packed import pack, unpack
from tierlog.tools.rebuild.segment import Outcome, finding, finding_of
from tierlog.tools.rebuild.store import read_whole, sections_of
from tierlog.types import TopicIdPartition

__all__ = [
    "RemoteIndexOutcome",
    "RemoteIndexRow",
    "RemoteIndexTask",
    "StoredPartition",
    "pack_partitions",
    "remote_index_task",
]

# To list a partition takes longer than to read a small segment of the partition.
_TASK_SEGMENTS = 256
_TASK_PARTITIONS = 32
_SUFFIXES = tuple(f".{kind}" for kind in RemoteIndexKind)
_AGAIN = "restore the object, then run this again into an empty folder"
_CONFLICT = (
    "nothing to do if a node uses these files; otherwise remove that folder, then run this again"
)
_FAILED = "see why the store or the disk failed, then run this again: finished work is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPartition:
    """A partition of a store and its number of segments. ``packed_suspects`` are the keys of
    `.indexes` objects that were damaged before this run."""

    partition: TopicIdPartition
    packed_suspects: bytes
    segments: int

    @classmethod
    def of(
        cls, partition: TopicIdPartition, suspects: Iterable[str], segments: int
    ) -> StoredPartition:
        """Return a partition with these suspects, whose keys are packed."""
        return cls(partition=partition, packed_suspects=pack([*suspects]), segments=segments)

    def suspects(self) -> frozenset[str]:
        """Return the keys of `.indexes` objects that were damaged before this run."""
        return frozenset(unpack(self.packed_suspects))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexTask:
    """Partitions for one worker. ``target`` is the folder of all partitions' files."""

    url: str
    target: str
    dry_run: bool
    partitions: tuple[StoredPartition, ...]
    settings: RemoteIndexConfig = field(default_factory=RemoteIndexConfig)

    @property
    def name(self) -> str:
        """The name of the first partition."""
        partition = self.partitions[0].partition
        return f"{partition.topic}-{partition.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexRow:
    """The remote index files of one partition in the report.

    ``end_offset`` is the last offset that an entry covers; None if there are no entries.
    ``size_bytes`` is the size of the files that hold entries, not counting the files that index
    them. ``path`` is the partition's folder below the target.
    """

    topic: str
    partition: int
    files: int
    entries: int
    base_offset: int | None
    end_offset: int | None
    size_bytes: int
    outcome: Outcome
    path: str = wide_field()
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteIndexOutcome:
    """A row of the report and its findings."""

    row: RemoteIndexRow
    findings: tuple[Finding, ...] = ()


def pack_partitions(
    partitions: Iterable[StoredPartition],
    *,
    url: str,
    target: str,
    dry_run: bool,
    settings: RemoteIndexConfig,
) -> tuple[RemoteIndexTask, ...]:
    """Return tasks, the largest partitions first. Small partitions share a task."""
    groups: list[list[StoredPartition]] = []
    held = 0
    for one in sorted(partitions, key=lambda one: one.segments, reverse=True):
        full = groups and (
            held + one.segments > _TASK_SEGMENTS or len(groups[-1]) == _TASK_PARTITIONS
        )
        if not groups or full:
            groups.append([])
            held = 0
        groups[-1].append(one)
        held += one.segments
    return tuple(
        RemoteIndexTask(
            url=url, target=target, dry_run=dry_run, partitions=tuple(group), settings=settings
        )
        for group in groups
    )


@takes(task=instance_of("a RemoteIndexTask of a plan", RemoteIndexTask))
def remote_index_task(task: RemoteIndexTask) -> list[RemoteIndexOutcome]:
    """Make the remote index files of one task, in any process, after all `.indexes` objects were
    repaired.

    Return one outcome for each partition of the task. Damage is a finding in the outcome, never an
    error.
    """
    source, target = open_store(task.url), LocalStore(task.target)
    return [_rebuild(source, target, one, task) for one in task.partitions]


def _rebuild(
    source: ObjectStore, target: LocalStore, one: StoredPartition, task: RemoteIndexTask
) -> RemoteIndexOutcome:
    dry_run = task.dry_run
    path = partition_prefix(one.partition)
    findings: list[Finding] = []
    row, outcome = FileSequence(), Outcome.QUARANTINED
    try:
        with tempfile.TemporaryDirectory(prefix="tierlog-index-") as folder:
            directory = RemoteIndexDir.of(folder, one.partition)
            writer = SequenceWriter(
                directory,
                one.partition,
                rotate_bytes=task.settings.rotate_bytes,
                rotate_ms=task.settings.rotate_ms,
                sync=False,
            )
            segments = _segments(source, one)
            row = _write_entries(source, writer, segments, findings)
            if dry_run and one.suspects():
                # A dry run repairs no suspects, so it cannot tell which files a real run would
                # write.
                outcome = Outcome.WOULD_WRITE
            elif segments:
                findings += _gaps(path, segments)
                outcome = _rename_files(target, path, directory, row, dry_run=dry_run)
            else:
                outcome = Outcome.LEFT_ALONE
        if outcome is Outcome.CONFLICT:
            findings.append(_conflict(f"{target.url}/{path}"))
    except CorruptDataError as error:
        findings.append(finding_of(error, error.path or path, _AGAIN))
    except (OSError, RemoteStorageError) as error:
        findings.append(finding(path, "failed", "store and disk at work", str(error), _FAILED))
    return RemoteIndexOutcome(
        row=_row(one.partition, path, row, outcome, findings), findings=tuple(findings)
    )


def _conflict(path: str) -> Finding:
    there = "other bytes or files of this partition"
    return finding(path, "conflict", "no files, or these bytes", there, _CONFLICT)


def _row(
    partition: TopicIdPartition,
    path: str,
    row: FileSequence,
    outcome: Outcome,
    findings: Sequence[Finding],
) -> RemoteIndexRow:
    return RemoteIndexRow(
        topic=partition.topic,
        partition=partition.partition,
        files=len(row.files),
        entries=sum(file.entry_count for file in row.files),
        base_offset=row.files[0].base_offset if row.files else None,
        end_offset=row.last_offset if row.files else None,
        size_bytes=sum(file.size_bytes for file in row.files),
        outcome=outcome,
        path=path,
        findings=tuple(found.what for found in findings),
    )


# -- what goes into the files


def _segments(source: ObjectStore, one: StoredPartition) -> list[RemoteLogSegmentMetadata]:
    """Return the partition's sound segments that belong to its log, in the order in which nodes
    index them."""
    suspects = one.suspects()
    described = list_segments(
        source,
        partition_prefix(one.partition),
        # The check of the store has already reported the problems.
        on_problem=lambda _: None,
    )
    sound = [
        segment
        for segment in described
        if segment.topic_id_partition == one.partition
        and (indexes_key(segment) not in suspects or _is_sound(source, segment))
    ]
    if not sound:
        return []
    kind = IndexKind.LEADER_EPOCH
    newest = newest_segment(sound)
    text = sections_of(source, newest, kind)[kind]
    lineage = parse_leader_epochs(bytes(text), indexes_key(newest))
    cut = [replace(one, truncation_offset=truncation_offset(one, lineage)) for one in sound]
    kept = [segment for segment in cut if segment.served_end_offset >= segment.start_offset]
    return sorted(kept, key=lambda one: (one.start_offset, one.end_offset, one.segment_id.id))


def _is_sound(source: ObjectStore, segment: RemoteLogSegmentMetadata) -> bool:
    """Return whether all checksums of an `.indexes` object are right. A task may have repaired the
    object before this check."""
    key = indexes_key(segment)
    try:
        verify_indexes(read_whole(source, key), path=f"{source.url}/{key}")
    except CorruptDataError:
        return False
    return True


def _write_entries(
    source: ObjectStore,
    writer: SequenceWriter,
    segments: Sequence[RemoteLogSegmentMetadata],
    findings: list[Finding],
) -> FileSequence:
    """Write the entries of these segments with `writer`, which has a folder of its own."""
    for segment, entries in _fetch_entries(source, segments):
        if isinstance(entries, CorruptDataError):
            findings.append(finding_of(entries, indexes_key(segment), _AGAIN))
        else:
            writer.insert(entries, writer.sequence.gaps_in(0, segment.served_end_offset))
    return writer.sequence


def _fetch_entries(
    source: ObjectStore, segments: Sequence[RemoteLogSegmentMetadata]
) -> Iterator[tuple[RemoteLogSegmentMetadata, SegmentEntries | CorruptDataError]]:
    """Yield each segment with its entries or an error, in order. A few segments are fetched at a
    time."""

    def fetch(
        segment: RemoteLogSegmentMetadata,
    ) -> tuple[RemoteLogSegmentMetadata, SegmentEntries | CorruptDataError]:
        kind = IndexKind.REMOTE_LOG
        try:
            return segment, segment_entries(segment, sections_of(source, segment, kind)[kind])
        except CorruptDataError as error:
            return segment, error

    return map_in_parallel(fetch, segments)


def _gaps(path: str, segments: Iterable[RemoteLogSegmentMetadata]) -> Iterator[Finding]:
    """Yield a note for each gap: consecutive offsets that none of these segments has."""
    last: int | None = None
    for segment in segments:
        if last is not None and segment.start_offset > last + 1:
            missing = f"none for offsets {last + 1} to {segment.start_offset - 1}"
            yield replace(
                finding(
                    path,
                    "gap",
                    "a sound segment for every offset",
                    missing,
                    "nothing to do: a node notices when a segment with these offsets returns",
                    severity=Severity.NOTE,
                ),
                first_offset=last + 1,
                last_offset=segment.start_offset - 1,
            )
        last = max(last or 0, segment.served_end_offset)


# -- where the files go


def _rename_files(
    target: LocalStore, path: str, made: RemoteIndexDir, row: FileSequence, *, dry_run: bool
) -> Outcome:
    """Rename the files to their final names unless other files exist there. An existing file is
    never replaced."""
    names = [f"{file.base_offset:020d}.{kind}" for file in row.files for kind in RemoteIndexKind]
    there = _names_in(target, path)
    if not there <= set(names):
        return Outcome.CONFLICT
    for name in sorted(there):
        if not holds_exactly(target, path + name, _content(made, name)):
            return Outcome.CONFLICT
    missing = [name for name in names if name not in there]
    if not missing:
        return Outcome.SAME
    if dry_run:
        return Outcome.WOULD_WRITE
    for base in dict.fromkeys(name.partition(".")[0] for name in missing):
        files = {path + name: _content(made, name) for name in missing if name.startswith(base)}
        stored = target.put_all_if_absent(files)
        if not all(stored[key] or holds_exactly(target, key, files[key]) for key in files):
            return Outcome.CONFLICT
    return Outcome.WRITTEN


def _names_in(target: LocalStore, path: str) -> set[str]:
    """Return the names of the remote index files in the folder `path`."""
    try:
        keys = [info.key for info in target.list(path)]
    except RemoteResourceNotFoundError:
        return set()
    return {key.removeprefix(path) for key in keys if key.endswith(_SUFFIXES)}


def _content(made: RemoteIndexDir, name: str) -> bytes:
    with open(os.path.join(made.path, name), "rb") as file:
        return file.read()

"""Rebuilds index files of a broker's log directories into another folder.

For each segment, the rebuild writes the files that Kafka's own recovery would write: ``.index``,
``.timeindex``, ``.txnindex`` if a transaction was aborted, and the producer ``.snapshot`` at the
segment's end. For each partition, the rebuild writes ``leader-epoch-checkpoint``: the broker's own
checkpoint if this is sound, otherwise the epochs of the batches. All files are written below
``<target>/<topic>-<partition>/``. The log directory is only read.

The transaction index and the snapshot depend on the producer state before the segment. This state
comes from the broker's own ``.snapshot`` at the segment's base offset if it is sound, otherwise
from the previous segment. So segments form chains: consecutive segments that one worker takes in
order. A chain begins at a sound snapshot or at the start of the log. A partition without a leader
epoch checkpoint is one chain. The division into chains does not change the written bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tierlog.errors import (
    ConfigError,
    CorruptDataError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from tierlog.log.checkpoint import LEADER_EPOCHS, META_PROPERTIES, EpochEntry, LeaderEpochs
from tierlog.log.files import printable, read_small
from tierlog.log.index_files import read_producer_snapshot
from tierlog.log.log_dir import PartitionLog, parse_partition_directory
from tierlog.log.rebuild import RebuiltIndexes
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.sources import is_url
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import holds_exactly
from tierlog.tools.findings import Finding, Severity
from tierlog.tools.rebuild.segment import (
    Examined,
    Outcome,
    SegmentOutcome,
    examine,
    finding,
    finding_of,
)

__all__ = [
    "LogChain",
    "check_folder",
    "check_target",
    "plan_log_chains",
    "rebuild_log_chains",
]

_MAX_SNAPSHOT_BYTES = 64 << 20
# The maximum number of files, and of bytes, that are synced together in one commit of the file
# system.
_FILES_AT_ONCE = 192
_BYTES_AT_ONCE = 16 << 20
_RESTORE = "nothing was written for it: restore the segment from another replica or the remote tier"
_STATE = (
    "its .txnindex and .snapshot were not written, since they could be wrong: restore the segment "
    "before it, then run this again"
)
_CONFLICT = "an earlier run wrote it from other bytes of the log: give an empty folder"
_FAILED = "look at the disk, then run this again: finished work is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChain:
    """Segments of one partition that one worker takes in order.

    ``target`` is the folder to write to; None for a dry run. ``knows_state`` is true if the chain
    begins at the start of the log or at a sound snapshot.
    """

    log: PartitionLog
    target: str | None
    index_interval_bytes: int
    knows_state: bool = True

    @property
    def size_bytes(self) -> int:
        """The bytes of the segments."""
        return sum(segment.size_bytes for segment in self.log.segments)

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.log.segments)

    @property
    def name(self) -> str:
        """The name of the partition."""
        return self.log.name


def _overlap(one: str, other: str) -> bool:
    """Return whether two folders are the same, or one lies in the other."""
    return os.path.commonpath((one, other)) in (one, other)


def check_folder(path: str) -> None:
    """Raise ConfigError for a path that cannot be a folder of this machine."""
    if is_url(path):
        raise ConfigError(f"{printable(path)}: expected a folder of this machine, found a URL")
    place = os.path.realpath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise ConfigError(
            f"{printable(path)}: expected a folder, found the file {printable(place)}"
        )


def check_target(target: str, source: str | None) -> str:
    """Return the resolved folder to write to. Raises ConfigError when the folder belongs to a
    broker, when it overlaps the folder `source`, or when it is no folder."""
    check_folder(target)
    place = os.path.realpath(target)
    if source is not None and _overlap(place, os.path.realpath(source)):
        raise ConfigError(
            f"{printable(target)}: expected a folder outside of {printable(source)}, found one "
            "that holds it or lies in it; index files are never written where a broker may read"
        )
    folder = place
    while True:
        if os.path.lexists(os.path.join(folder, META_PROPERTIES)):
            raise ConfigError(
                f"{printable(target)}: expected a folder of its own, found {META_PROPERTIES} in "
                f"{printable(folder)}, a broker's log directory"
            )
        if folder == os.path.dirname(folder):
            break
        folder = os.path.dirname(folder)
    for name in os.listdir(place) if os.path.isdir(place) else ():
        inside = os.path.join(place, name)
        if parse_partition_directory(name) and os.path.isdir(inside):
            logs = [file for file in os.listdir(inside) if file.endswith(".log")]
            if logs:
                raise ConfigError(
                    f"{printable(target)}: expected a folder without logs, found "
                    f"{printable(os.path.join(name, logs[0]))}"
                )
    return place


def plan_log_chains(
    logs: Iterable[PartitionLog],
    target: str | None,
    *,
    index_interval_bytes: int,
    chain_bytes: Callable[[int], int],
) -> Iterator[LogChain]:
    """Yield chains that have every segment exactly once. ``chain_bytes`` gets the bytes of all
    partitions so far and returns a size. A chain of this size or more ends before the next segment
    that has a sound snapshot."""
    seen_bytes = 0
    for log in logs:
        bare = replace(log, skipped=(), problems=())
        divisible = bool(log.leader_epochs)
        seen_bytes += sum(segment.size_bytes for segment in log.segments)
        enough_bytes = chain_bytes(seen_bytes)
        run: list[SegmentFiles] = []
        held_bytes = 0
        for segment in log.segments:
            full = divisible and run and held_bytes >= enough_bytes
            if full and _stored_snapshot(segment) is not None:
                yield _chain(bare, run, target, index_interval_bytes)
                run, held_bytes = [], 0
            run.append(segment)
            held_bytes += segment.size_bytes
        if run:
            yield _chain(bare, run, target, index_interval_bytes)


def _chain(
    log: PartitionLog, run: list[SegmentFiles], target: str | None, index_interval_bytes: int
) -> LogChain:
    return LogChain(
        log=replace(log, segments=tuple(run)),
        target=target,
        index_interval_bytes=index_interval_bytes,
    )


def rebuild_log_chains(chains: Sequence[LogChain]) -> Iterator[SegmentOutcome]:
    """Yield one outcome per segment of chains that share a target, in order. Damage is a finding,
    never an error.

    Many files are synced together. The outcome of a segment is yielded when all files of the
    segment are durable.
    """
    target = chains[0].target if chains else None
    store = None if target is None else LocalStore(target)
    waiting: list[_Rebuilt] = []
    for chain in chains:
        for rebuilt in _rebuild_segments(chain):
            waiting.append(rebuilt)
            held = [data for one in waiting for data in one.files.values() if data is not None]
            if len(held) >= _FILES_AT_ONCE or sum(map(len, held)) >= _BYTES_AT_ONCE:
                yield from _write_files(store, waiting)
                waiting = []
    yield from _write_files(store, waiting)


@dataclass(slots=True, kw_only=True)
class _Rebuilt:
    """A segment whose files are not written yet.

    ``files`` has the contents by name; None for a file that must not exist. ``examined`` is the
    scan from which the files were made.
    """

    chain: LogChain
    segment: SegmentFiles
    examined: Examined
    files: dict[str, bytes | None]
    findings: list[Finding]

    @property
    def is_sound(self) -> bool:
        return bool(self.files)

    def failed(self, error: Exception) -> None:
        self.findings.append(
            finding(self.segment.log_path, "failed", "files at work", str(error), _FAILED)
        )

    def add_epochs(self, epochs: list[EpochEntry] | None) -> None:
        """Add the partition's checkpoint to the files of its newest segment. If the epochs are
        unknown, or the log has no epochs, no file is added."""
        if epochs is None:
            self.findings.append(_unknown_epochs(self.segment))
        elif epochs:
            self.files[LEADER_EPOCHS] = LeaderEpochs(tuple(epochs)).encode()

    def outcome(self, outcome: Outcome) -> SegmentOutcome:
        log, segment = self.chain.log, self.segment
        if outcome is Outcome.CONFLICT:
            self.findings.append(_conflict(self.chain, segment))
        row = self.examined.row(
            log.topic,
            log.partition,
            segment.base_offset,
            segment.size_bytes,
            outcome,
            segment.log_path,
            self.findings,
        )
        return SegmentOutcome(row=row, findings=tuple(self.findings))


def _rebuild_segments(chain: LogChain) -> Iterator[_Rebuilt]:
    """Yield the segments of a chain, in order."""
    snapshot: bytes | None = None
    known, expected_base = chain.knows_state, chain.log.segments[0].base_offset
    epochs: list[EpochEntry] | None = list(chain.log.leader_epochs or ())
    told = bool(epochs)
    for number, segment in enumerate(chain.log.segments):
        stored = _stored_snapshot(segment)
        if stored is not None:
            snapshot, known = stored, True
        elif segment.base_offset != expected_base:
            snapshot, known = None, False
        follows = segment.base_offset == expected_base
        rebuilt = _rebuild_segment(chain, number, snapshot, known)
        after = rebuilt.examined.rebuilt if rebuilt.is_sound else None
        if not told:
            epochs = _epochs_after(epochs, after) if follows else None
        if segment.is_active and rebuilt.is_sound:
            rebuilt.add_epochs(epochs)
        yield rebuilt
        known = known and after is not None
        snapshot = after.producer_snapshot if known and after is not None else None
        expected_base = segment.base_offset
        if segment.next_base_offset is not None:
            expected_base = segment.next_base_offset


def _epochs_after(
    before: list[EpochEntry] | None, rebuilt: RebuiltIndexes | None
) -> list[EpochEntry] | None:
    """Return the leader epochs up to the end of a segment, which Kafka's recovery would also find
    in the batches; None when a segment could not be read."""
    if before is None or rebuilt is None:
        return None
    newest = before[-1].epoch if before else -1
    return before + [EpochEntry(*one) for one in rebuilt.leader_epochs if one[0] > newest]


def _stored_snapshot(segment: SegmentFiles) -> bytes | None:
    """Return the broker's producer state at the segment's base offset; None when the snapshot is
    missing or damaged."""
    if segment.start_snapshot_path is None:
        return None
    try:
        data = read_small(segment.start_snapshot_path, _MAX_SNAPSHOT_BYTES)
        read_producer_snapshot(data)
    except (OSError, CorruptDataError):
        return None
    return data


def _rebuild_segment(chain: LogChain, number: int, snapshot: bytes | None, known: bool) -> _Rebuilt:
    """Rebuild a segment. `snapshot` is the producer state at the start of the segment, if that
    state is `known`."""
    log, segment = chain.log, chain.log.segments[number]
    made = _Rebuilt(
        chain=chain,
        segment=segment,
        examined=Examined(rebuilt=None, damage=None),
        files={},
        findings=[],
    )
    try:
        with segment.open() as handle:
            made.examined = examined = examine(
                handle,
                base_offset=segment.base_offset,
                next_base_offset=segment.next_base_offset,
                is_active=segment.is_active,
                lineage=log.leader_epochs,
                allow_gaps=log.compacted is not False,
                producer_snapshot=snapshot,
                index_interval_bytes=chain.index_interval_bytes,
            )
        if examined.damage is not None:
            made.findings.append(finding_of(examined.damage, segment.log_path, _RESTORE))
        elif examined.rebuilt is not None:
            made.files = _files(segment, examined, examined.rebuilt, known, made.findings)
    except OSError as error:
        made.failed(error)
    return made


def _files(
    segment: SegmentFiles,
    examined: Examined,
    rebuilt: RebuiltIndexes,
    known: bool,
    findings: list[Finding],
) -> dict[str, bytes | None]:
    """Return the files of the segment by name; None for a file that must not exist."""
    base = f"{segment.base_offset:020d}"
    files: dict[str, bytes | None] = {
        f"{base}.index": rebuilt.offset_index,
        f"{base}.timeindex": rebuilt.time_index,
    }
    if examined.tail is not None:
        note = finding_of(examined.tail, segment.log_path, "nothing to do: the broker cuts it off")
        findings.append(replace(note, severity=Severity.NOTE))
    if not known:
        findings.append(_unknown_state(segment, examined.has_transactions))
        return files if examined.has_transactions else {**files, f"{base}.txnindex": None}
    end = segment.next_base_offset
    files[f"{base}.txnindex"] = rebuilt.transaction_index or None
    files[f"{rebuilt.end_offset if end is None else end:020d}.snapshot"] = rebuilt.producer_snapshot
    return files


def _unknown_state(segment: SegmentFiles, matters: bool) -> Finding:
    return finding(
        segment.log_path,
        "producer_state_unknown",
        "the state of producers at its base offset",
        "no sound snapshot there, and no sound segment before it",
        _STATE if matters else "its .snapshot was not written; the segment has no transactions",
        severity=Severity.PROBLEM if matters else Severity.NOTE,
    )


def _unknown_epochs(segment: SegmentFiles) -> Finding:
    return finding(
        os.path.join(os.path.dirname(segment.log_path), LEADER_EPOCHS),
        "leader_epochs_unknown",
        "a sound checkpoint, or sound segments",
        "neither",
        "the checkpoint was not written: restore the segments, then run this again",
        severity=Severity.NOTE,
    )


def _conflict(chain: LogChain, segment: SegmentFiles) -> Finding:
    return finding(
        os.path.join(chain.target or "", chain.log.name, f"{segment.base_offset:020d}.index"),
        "conflict",
        "no file, or these bytes",
        "other bytes for this segment",
        _CONFLICT,
    )


def _write_files(store: LocalStore | None, waiting: Sequence[_Rebuilt]) -> Iterator[SegmentOutcome]:
    """Write the files of these segments. An existing file is never replaced."""
    stored: dict[str, bool] = {}
    if store is not None:
        with suppress(RemoteStorageError):
            # A failed write is repeated below for one segment at a time, so that the error names
            # the segment.
            stored = store.put_all_if_absent(_keys(waiting))
    for one in waiting:
        if not one.is_sound:
            yield one.outcome(Outcome.QUARANTINED)
        elif store is None:
            yield one.outcome(Outcome.WOULD_WRITE)
        else:
            try:
                yield one.outcome(_written(store, one, stored))
            except RemoteStorageError as error:
                one.failed(error)
                yield one.outcome(Outcome.QUARANTINED)


def _keys(rebuilt: Iterable[_Rebuilt]) -> dict[str, bytes]:
    return {
        f"{one.chain.name}/{name}": data
        for one in rebuilt
        for name, data in one.files.items()
        if data is not None
    }


def _written(store: LocalStore, one: _Rebuilt, stored: dict[str, bool]) -> Outcome:
    """Return the outcome of a segment's files; ``stored`` says for each key whether this run wrote
    the file."""
    files = _keys([one])
    if not files.keys() <= stored.keys():
        stored = store.put_all_if_absent(files)
    absent = [name for name, data in one.files.items() if data is None]
    if any(_is_there(store, f"{one.chain.name}/{name}") for name in absent):
        return Outcome.CONFLICT
    there = [key for key in files if not stored[key]]
    if not all(holds_exactly(store, key, files[key]) for key in there):
        return Outcome.CONFLICT
    return Outcome.SAME if len(there) == len(files) else Outcome.WRITTEN


def _is_there(store: LocalStore, key: str) -> bool:
    try:
        store.head(key)
    except RemoteResourceNotFoundError:
        return False
    return True

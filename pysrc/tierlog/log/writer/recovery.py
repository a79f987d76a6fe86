"""Opens a partition's directory, after a clean stop or after a crash.

Segments above the recovery point are scanned with their checksums. The first batch that is not
sound ends the log: the segment is cut there, and later segments are deleted. Indexes are written
anew where they may be wrong. The producer state is that of the newest sound snapshot and of all
batches after it (Kafka's ``LogLoader``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.errors import CorruptDataError
from tierlog.log.files import FileIdentity
from tierlog.log.index_files import read_producer_snapshot
from tierlog.log.names import parse_segment_file
from tierlog.log.segment_files import SegmentFiles
from tierlog.log.writer.epochs import EpochFile
from tierlog.log.writer.files import sync_directory
from tierlog.log.writer.producers import ProducerStates
from tierlog.log.writer.segment import ActiveSegment, segment_path
from tierlog.log.writer.swap import finish_swaps
from tierlog.types import StopReason

__all__ = ["OpenRequest", "OpenedLog", "RolledSegment", "open_log", "rolled_files"]

_SEGMENT_KINDS = ("log", "index", "timeindex", "txnindex", "snapshot")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledSegment:
    """A segment that is not appended to any more; `newest_ms` is its largest timestamp."""

    files: SegmentFiles
    newest_ms: int


@dataclass(slots=True, kw_only=True)
class OpenedLog:
    """A partition's log, ready for appends. ``cut_bytes``: what was removed from its end."""

    rolled: list[RolledSegment]
    active: ActiveSegment
    indexer: _core.SegmentIndexer
    producers: ProducerStates
    epochs: EpochFile
    recovery_point: int
    cut_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """The partition to open. ``is_clean``: the last process stopped in good order."""

    directory: str
    index_interval_bytes: int
    recovery_point: int
    log_start_offset: int
    is_clean: bool
    now_ms: int


def open_log(request: OpenRequest) -> OpenedLog:
    """Return the log, recovered where needed; a new log begins at the log start offset."""
    return _Recovery(request).open()


class _Recovery:
    def __init__(self, request: OpenRequest) -> None:
        self._request = request
        self._directory = request.directory
        self._bases = _clear_directory(request.directory) or [self._create(request)]
        self._rolled: list[RolledSegment] = []
        self._producers = ProducerStates()
        self._epochs = EpochFile(request.directory)
        self._cut_bytes = 0

    def _create(self, request: OpenRequest) -> int:
        path = segment_path(self._directory, request.log_start_offset, "log")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        return request.log_start_offset

    def open(self) -> OpenedLog:
        """Walk the segments from the newest usable snapshot on."""
        request = self._request
        first, snapshot = self._first_to_scan()
        self._rolled = [self._keep(row) for row in range(first)]
        self._producers = ProducerStates(snapshot)
        row = first
        while True:
            base = self._bases[row]
            indexer = _core.SegmentIndexer(base, request.index_interval_bytes, snapshot)
            table = self._scan(base, indexer)
            if table is None:
                # The damaged end was cut off: what is left is the active segment.
                self._delete(self._bases[row + 1 :])
                del self._bases[row + 1 :]
                continue
            self._producers.learn(table)
            self._learn_epochs(table)
            is_last = row + 1 == len(self._bases)
            active = ActiveSegment(self._directory, base, indexer, _created_ms(request, base))
            active.note_first_batch(table)
            if is_last:
                break
            snapshot = self._finish(row, active, indexer)
            row += 1
        active.rewrite_indexes()
        return self._opened(active, indexer)

    def _opened(self, active: ActiveSegment, indexer: _core.SegmentIndexer) -> OpenedLog:
        self._epochs.cut_from(active.end_offset)
        self._epochs.cut_below(self._request.log_start_offset)
        self._drop_snapshots(active.end_offset)
        active.sync()
        sync_directory(self._directory)
        return OpenedLog(
            rolled=self._rolled,
            active=active,
            indexer=indexer,
            producers=self._producers,
            epochs=self._epochs,
            recovery_point=active.end_offset,
            cut_bytes=self._cut_bytes,
        )

    def _first_to_scan(self) -> tuple[int, bytes | None]:
        """Return the first segment to scan, with the snapshot of the state before it."""
        row = len(self._bases) - 1
        while row > 0 and (self._is_unflushed(row - 1) or not self._has_indexes(row - 1)):
            row -= 1
        while row > 0:
            snapshot = _sound_snapshot(segment_path(self._directory, self._bases[row], "snapshot"))
            if snapshot is not None:
                return row, snapshot
            row -= 1
        return 0, _sound_snapshot(segment_path(self._directory, self._bases[0], "snapshot"))

    def _is_unflushed(self, row: int) -> bool:
        is_above = self._bases[row + 1] > self._request.recovery_point
        return is_above and not self._request.is_clean

    def _has_indexes(self, row: int) -> bool:
        base = self._bases[row]
        try:
            for kind, size in (("index", 8), ("timeindex", 12)):
                if os.stat(segment_path(self._directory, base, kind)).st_size % size:
                    return False
        except FileNotFoundError:
            return False
        return True

    def _scan(self, base: int, indexer: _core.SegmentIndexer) -> BatchTable | None:
        """Index a segment; None when its end was damaged, which is cut off."""
        path = segment_path(self._directory, base, "log")
        verify = not self._request.is_clean
        try:
            table = BatchTable(indexer.push(path, 0, verify))
            end = table.stop_position
            if table.stop_reason is StopReason.END:
                return table
        except CorruptDataError as error:
            end = error.position
        size_bytes = os.stat(path).st_size
        self._cut_bytes += size_bytes - end
        os.truncate(path, end)
        return None

    def _learn_epochs(self, table: BatchTable) -> None:
        """Enter the epochs of batches that a crash kept from the checkpoint."""
        epochs = table.leader_epoch.tolist()
        for epoch, offset in zip(epochs, table.base_offset.tolist(), strict=True):
            if epoch > self._epochs.latest:
                self._epochs.assign(epoch, offset)

    def _finish(self, row: int, active: ActiveSegment, indexer: _core.SegmentIndexer) -> bytes:
        """Write the indexes and the snapshot of a rolled segment."""
        try:
            active.rewrite_indexes()
            newest_ms = indexer.max_timestamp_ms
            snapshot = active.finish(self._request.now_ms, 2**63 - 1)
            path = segment_path(self._directory, self._bases[row + 1], "snapshot")
            with open(path, "wb", opener=_no_link_opener) as file:
                file.write(snapshot)
                file.flush()
                os.fsync(file.fileno())
            active.sync()
        finally:
            active.close()
        self._rolled.append(self._segment(row, newest_ms))
        return snapshot

    def _keep(self, row: int) -> RolledSegment:
        return self._segment(row, _newest_ms(self._directory, self._bases[row]))

    def _segment(self, row: int, newest_ms: int) -> RolledSegment:
        files = rolled_files(self._directory, self._bases[row], self._bases[row + 1])
        return RolledSegment(files=files, newest_ms=newest_ms)

    def _delete(self, bases: Sequence[int]) -> None:
        for base in bases:
            for kind in _SEGMENT_KINDS:
                path = segment_path(self._directory, base, kind)
                if os.path.lexists(path):
                    self._cut_bytes += os.lstat(path).st_size if kind == "log" else 0
                    os.unlink(path)

    def _drop_snapshots(self, end_offset: int) -> None:
        """Delete the snapshots that belong to no segment's start."""
        wanted = {*self._bases, end_offset} if self._request.is_clean else {*self._bases}
        for name in os.listdir(self._directory):
            file = parse_segment_file(name)
            if file and file.kind == "snapshot" and file.base_offset not in wanted:
                os.unlink(os.path.join(self._directory, name))


def _no_link_opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


def _clear_directory(directory: str) -> list[int]:
    """Delete or complete what a crash left half done, and return the base offsets of the
    segments."""
    finish_swaps(directory)
    bases = []
    for name in sorted(os.listdir(directory)):
        file = parse_segment_file(name)
        if name.endswith(".tmp"):
            os.unlink(os.path.join(directory, name))
        elif file and file.kind == "log":
            bases.append(file.base_offset)
    return sorted(bases)


def _sound_snapshot(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            data = file.read()
        read_producer_snapshot(data)
    except (FileNotFoundError, CorruptDataError):
        return None
    return data


def _created_ms(request: OpenRequest, base: int) -> int:
    """Return when a segment was last written, as Kafka does for one without a timestamp."""
    path = segment_path(request.directory, base, "log")
    written_ms = os.stat(path).st_mtime_ns // 1_000_000
    return min(written_ms, request.now_ms)


def _newest_ms(directory: str, base: int) -> int:
    """Return the largest timestamp of a segment, by the last entry of its time index."""
    path = segment_path(directory, base, "timeindex")
    with open(path, "rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - 12))
        timestamps, _, _ = _core.parse_time_index(file.read(), base, "anything")
    if len(timestamps):
        return int(memoryview(timestamps)[-1])
    return os.stat(segment_path(directory, base, "log")).st_mtime_ns // 1_000_000


def rolled_files(directory: str, base: int, next_base: int) -> SegmentFiles:
    """Return the files of a rolled segment as a listing shows them."""

    def path(kind: str, offset: int = base) -> str:
        return segment_path(directory, offset, kind)

    status = os.stat(path("log"))
    aborts = path("txnindex")
    start, end = path("snapshot"), path("snapshot", next_base)
    return SegmentFiles(
        base_offset=base,
        next_base_offset=next_base,
        log_path=path("log"),
        size_bytes=status.st_size,
        offset_index_path=path("index"),
        time_index_path=path("timeindex"),
        transaction_index_path=aborts if os.path.lexists(aborts) else None,
        start_snapshot_path=start if os.path.lexists(start) else None,
        end_snapshot_path=end if os.path.lexists(end) else None,
        identity=FileIdentity.of(status),
    )

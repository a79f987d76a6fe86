"""The segment that is appended to: its `.log` and the index files beside it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tierlog import _core
from tierlog.batches import BatchTable
from tierlog.log.writer.files import create_file, write_all
from tierlog.types import StopReason

__all__ = ["ActiveSegment", "segment_path"]

OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES = 8, 12
_INDEX_KINDS = ("index", "timeindex", "txnindex")
_END = StopReason.END.value
_MAX_INT32 = 2**31 - 1


def segment_path(directory: str, base_offset: int, kind: str) -> str:
    """Return the path of a segment's file; ``kind`` is its suffix without the dot."""
    return os.path.join(directory, f"{base_offset:020d}.{kind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollLimits:
    """When a segment is full."""

    segment_bytes: int
    segment_ms: int
    index_bytes: int


class ActiveSegment:
    """Appends batches and their index entries.

    A failed write leaves files and indexer in an unknown state: the caller stops the partition.
    """

    def __init__(
        self, directory: str, base_offset: int, indexer: _core.SegmentIndexer, created_ms: int
    ) -> None:
        """Open the files, created when missing; what they hold was indexed by `indexer` before."""
        self.base_offset = base_offset
        self.log_path = segment_path(directory, base_offset, "log")
        self._directory = directory
        self._indexer = indexer
        self._created_ms = created_ms
        self._first_timestamp_ms: int | None = None
        self._fds: dict[str, int] = {}
        # Bytes that each index file has.
        self._index_bytes = dict.fromkeys(_INDEX_KINDS, 0)
        try:
            for kind in ("log", "index", "timeindex"):
                self._fds[kind] = create_file(segment_path(directory, base_offset, kind))
            self.size_bytes = os.fstat(self._fds["log"]).st_size
        except OSError:
            self.close()
            raise
        self._publish()

    # -- state, which readers may ask for while a batch is appended

    @property
    def end_offset(self) -> int:
        """Offset after the last batch whose bytes and index entries are written."""
        return self._ends[0]

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, else the end offset."""
        end_offset, first_open_offset = self._ends
        return end_offset if first_open_offset is None else first_open_offset

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp of its batches, -1 without one."""
        return self._max_timestamp_ms

    def _publish(self) -> None:
        # Nothing may ask the indexer while it takes a batch, and both offsets are of one moment.
        indexer = self._indexer
        self._max_timestamp_ms = indexer.max_timestamp_ms
        self._ends = indexer.end_offset, indexer.first_open_transaction_offset

    @property
    def has_transaction_index(self) -> bool:
        """Whether an aborted transaction ends here."""
        return "txnindex" in self._fds

    def is_full(self, size_bytes: int, last_offset: int, newest_ms: int, limits: RollLimits,
                now_ms: int) -> bool:  # fmt: skip
        """Return whether an append of `size_bytes` up to `last_offset` needs a new segment."""
        if self.size_bytes > limits.segment_bytes - size_bytes:
            return True
        waited_ms = self._waited_ms(newest_ms, now_ms)
        if self.size_bytes > 0 and waited_ms > limits.segment_ms:
            return True
        slots = limits.index_bytes // OFFSET_ENTRY_BYTES
        time_slots = limits.index_bytes // TIME_ENTRY_BYTES - 1
        return (
            self._index_bytes["index"] // OFFSET_ENTRY_BYTES >= slots
            or self._index_bytes["timeindex"] // TIME_ENTRY_BYTES >= time_slots
            or last_offset - self.base_offset > _MAX_INT32
        )

    def _waited_ms(self, newest_ms: int, now_ms: int) -> int:
        # As in Kafka, by the timestamps of the batches, or by the clock without any.
        if self._first_timestamp_ms is not None and self._first_timestamp_ms >= 0:
            return newest_ms - self._first_timestamp_ms
        return now_ms - self._created_ms

    # -- writing

    def append(self, data: bytes) -> None:
        """Append checked batches, whose offsets follow."""
        write_all(self._fds["log"], data, self.size_bytes)
        native = self._indexer.push(data, self.size_bytes, False)
        if native.stop_reason != _END:
            table = BatchTable(native)
            raise OSError(f"{self.log_path}: an appended batch was not accepted: {table!r}")
        self.size_bytes += len(data)
        if self._first_timestamp_ms is None:
            self.note_first_batch(BatchTable(native))
        self.write_entries()
        self._publish()

    def note_first_batch(self, table: BatchTable) -> None:
        """Remember the timestamp of the first batch, which decides when the segment is rolled."""
        if self._first_timestamp_ms is None and len(table):
            self._first_timestamp_ms = int(table.max_timestamp_ms[0])

    def write_entries(self) -> None:
        """Append the new entries of the indexer to the index files."""
        for kind, entries in zip(_INDEX_KINDS, self._indexer.take_entries(), strict=True):
            self._append_entries(kind, entries)

    def _append_entries(self, kind: str, entries: bytes) -> None:
        if not entries:
            return
        if kind not in self._fds:
            path = segment_path(self._directory, self.base_offset, kind)
            self._fds[kind] = create_file(path)
        write_all(self._fds[kind], entries, self._index_bytes[kind])
        self._index_bytes[kind] += len(entries)

    def rewrite_indexes(self) -> None:
        """Replace what the index files hold by the entries of the indexer."""
        for kind in _INDEX_KINDS:
            path = segment_path(self._directory, self.base_offset, kind)
            if kind == "txnindex" and not os.path.lexists(path):
                continue
            if kind not in self._fds:
                self._fds[kind] = create_file(path)
            os.ftruncate(self._fds[kind], 0)
            self._index_bytes[kind] = 0
        self.write_entries()
        self._drop_empty_transaction_index()

    def _drop_empty_transaction_index(self) -> None:
        if "txnindex" in self._fds and not self._index_bytes["txnindex"]:
            os.close(self._fds.pop("txnindex"))
            os.unlink(segment_path(self._directory, self.base_offset, "txnindex"))

    def finish(self, now_ms: int, expiration_ms: int) -> bytes:
        """End the time index and return the producer snapshot after the segment. The indexer goes
        on with the next segment."""
        entries, snapshot = self._indexer.roll(now_ms, expiration_ms)
        self._append_entries("timeindex", entries)
        return snapshot

    def sync(self) -> None:
        """Make everything that was written durable."""
        _core.sync_files(
            {
                segment_path(self._directory, self.base_offset, kind): fd
                for kind, fd in self._fds.items()
            }
        )

    def close(self) -> None:
        """Close the files; may be repeated."""
        while self._fds:
            os.close(self._fds.popitem()[1])

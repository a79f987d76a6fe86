"""The indexes of one remote segment, as the index cache returns them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from tierlog import _core
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.index_files import AbortedTransaction
from tierlog.remote.index_cache.directory import IndexFile
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind, verify_indexes
from tierlog.remote.segment.log_index import RemoteLogIndexEntries, decode_remote_log_index
from tierlog.remote.segment.storage import check_same_segment
from tierlog.types import RemoteLogSegmentId

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["IndexKey", "RemoteIndexEntry", "key_of"]

# Topic id, partition, and id of the segment.
IndexKey: TypeAlias = tuple[str, int, str]


def key_of(segment_id: RemoteLogSegmentId) -> IndexKey:
    """Return the key under which a cache keeps the indexes of the segment."""
    partition = segment_id.topic_id_partition
    return partition.topic_id, partition.partition, segment_id.id


class RemoteIndexEntry:
    """The verified indexes of one segment, as views of its cached file without copies.

    An entry stays usable as long as a caller refers to it or to a view of it, even after the cache
    has removed it. Threads may share an entry. Offsets are Kafka offsets; positions are byte
    positions in the `.log` object. Methods raise CorruptDataError, which names the object or file,
    when a section with a valid checksum has invalid content.
    """

    __slots__ = (
        "_data",
        "_header",
        "_is_removed",
        "_lock",
        "_offsets",
        "_remote_log_index",
        "_times",
        "checked_for",
        "file",
        "index",
        "metadata",
        "size_bytes",
    )

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        size_bytes: int,
        *,
        file: IndexFile | None = None,
        header: IndexesHeader | None = None,
        data: Buffer | None = None,
    ) -> None:
        self.metadata = metadata
        self.size_bytes = size_bytes
        self.file = file
        self.checked_for: RemoteLogSegmentMetadata | None = None
        self._is_removed = False
        self._lock = threading.RLock()
        self._header = header
        self._data = None if data is None else memoryview(data).cast("B").toreadonly()
        self._offsets: memoryview | None = None
        self.index: _core.SegmentIndex | None = None
        self._times: memoryview | None = None
        self._remote_log_index: RemoteLogIndexEntries | None = None

    def __repr__(self) -> str:
        return f"RemoteIndexEntry({self.metadata.segment_id}, {self.size_bytes} bytes)"

    # -- for the cache

    @property
    def verified(self) -> bool:
        """Whether the entry's checksums were compared. An entry of an earlier process starts
        unverified."""
        return self._data is not None

    def verify(self) -> None:
        """Compare every checksum of the file, unless that was done before. Raises CorruptDataError
        or OSError when the file is damaged."""
        with self._lock:
            if self._data is not None or self.file is None:
                return
            data = memoryview(self.file.read()).cast("B").toreadonly()
            header, description = verify_indexes(data, path=self.file.path)
            check_same_segment(header, description.metadata, self.metadata)
            self._header = header
            self._data = data

    def remove_once(self, remove: Callable[[], object]) -> bool:
        """Call `remove` on the first call only; return whether this was the first call."""
        with self._lock:
            if self._is_removed:
                return False
            self._is_removed = True
            remove()
            return True

    def check_segment(self, segment: RemoteLogSegmentMetadata) -> None:
        """Raise CorruptDataError unless the entry describes the requested segment."""
        if segment is not self.checked_for:
            check_same_segment(self._require_header(), self.metadata, segment)
            self.checked_for = segment

    # -- for readers

    def section(self, kind: IndexKind) -> memoryview:
        """Return the stored bytes of a section, read-only."""
        section = self._require_header().section(kind)
        assert self._data is not None
        return self._data[section.position : section.end_position]

    def lookup_offset(self, target_offset: int) -> tuple[int, int]:
        """Return (offset, position) of the entry with the largest offset <= `target_offset`, or
        (start offset, 0) when there is none.

        The batch at that position may end before the target, so the caller must scan forward from
        it (as after Kafka's ``OffsetIndex.lookup``).
        """
        return _core.lookup_offset_index(
            self._offset_index(), self.metadata.start_offset, target_offset
        )

    def lookup_upper_bound(self, end_position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first entry at or past `end_position`, else None."""
        return _core.lookup_upper_bound(
            self._offset_index(), self.metadata.start_offset, end_position
        )

    def lookup_timestamp(self, target_ms: int) -> tuple[int, int]:
        """Return (timestamp, offset) of the entry with the largest timestamp <= `target_ms`, or
        (-1, start offset) when there is none.

        Records with that timestamp or a later timestamp are at or after that offset (as for Kafka's
        ``TimeIndex.lookup``).
        """
        return _core.lookup_time_index(self._time_index(), self.metadata.start_offset, target_ms)

    @property
    def segment_index(self) -> _core.SegmentIndex:
        """The native index that finds and checks the batches of a read. The native index holds the
        offset index, the batch checksums and the segment's bounds."""
        found = self.index
        if found is None:
            segment, kind = self.metadata, IndexKind.BATCH_CHECKSUM
            checksums: Buffer = b""
            if kind in self._require_header().kinds:
                checksums = self.section(kind)
            entries = self._offset_index()
            try:
                found = self.index = _core.SegmentIndex(
                    entries,
                    checksums,
                    segment.start_offset,
                    segment.end_offset,
                    segment.segment_size_bytes,
                )
            except CorruptDataError as error:
                raise self._locate_error(error, kind) from None
        return found

    def aborted_transactions(
        self, from_offset: int, upper_bound_offset: int
    ) -> tuple[tuple[AbortedTransaction, ...], bool]:
        """Return the aborted transactions with offsets in [from, upper bound), and whether the
        result is complete.

        If the result is not complete, the caller continues in the next segment (as for Kafka's
        ``TransactionIndex.collectAbortedTxns``).
        """
        section = self.section(IndexKind.TRANSACTION)
        try:
            found, complete = _core.collect_aborted(
                section, self.metadata.start_offset, from_offset, upper_bound_offset
            )
        except CorruptDataError as error:
            raise self._locate_error(error, IndexKind.TRANSACTION) from None
        return tuple(AbortedTransaction(*entry) for entry in found), complete

    @property
    def remote_log_index(self) -> RemoteLogIndexEntries:
        """The remoteLogIndex, verified on first use."""
        found = self._remote_log_index
        if found is None:
            kind = IndexKind.REMOTE_LOG
            try:
                found = decode_remote_log_index(self.section(kind))
            except CorruptDataError as error:
                raise self._locate_error(error, kind) from None
            self._remote_log_index = found
        return found

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The lineage up to the segment's end offset."""
        section = self.section(IndexKind.LEADER_EPOCH)
        return parse_leader_epochs(bytes(section), self._require_header().path)

    def _offset_index(self) -> memoryview:
        found = self._offsets
        if found is None:
            found = self._offsets = self._check_order(IndexKind.OFFSET)
        return found

    def _time_index(self) -> memoryview:
        found = self._times
        if found is None:
            found = self._times = self._check_order(IndexKind.TIME)
        return found

    def _check_order(self, kind: IndexKind) -> memoryview:
        """Check the order of an offset or time index; return the index without its zero padding."""
        section = self.section(kind)
        base_offset = self.metadata.start_offset
        try:
            if kind is IndexKind.OFFSET:
                _first, _second, length = _core.parse_offset_index(section, base_offset)
            else:
                _first, _second, length = _core.parse_time_index(section, base_offset)
        except CorruptDataError as error:
            raise self._locate_error(error, kind) from None
        return section[:length]

    def _locate_error(self, error: CorruptDataError, kind: IndexKind) -> CorruptDataError:
        header = self._require_header()
        return CorruptDataError(
            reason=error.reason,
            path=header.path,
            position=header.section(kind).position + error.position,
            expected=error.expected,
            found=error.found,
            hint="rebuild the indexes from the .log object",
        )

    def _require_header(self) -> IndexesHeader:
        if self._header is None:
            raise ValueError(f"{self!r} was not verified")
        return self._header

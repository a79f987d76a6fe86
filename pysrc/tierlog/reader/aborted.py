"""Finds the aborted transactions that a reader of committed records leaves out.

The transaction index of the segment with an abort marker lists the aborted transaction. That
segment may come long after the records. So the search for the transactions begins at the segment
that was read. The search goes on through later remote segments with aborted transactions, and then
through the local segments. The search ends when an index shows that no later index can list a
transaction of the records that were read. If the search meets a gap, the marker may have been in
the gap. In this case, the search ends with an error, unless the producer snapshot before the gap
shows that no transaction was open. If a later leader truncated a segment, the index entries after
the truncation are not part of the log's history, because the transactions may have ended
differently.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tierlog import _core
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.files import read_small
from tierlog.log.index_files import AbortedTransaction, read_producer_snapshot
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.same_log import VanishedError, require_same_topic
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.gaps import Gap, KnownGaps, gap_error
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.reader.local_batches import LocalRead
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.types import FetchView
from tierlog.remote.metadata.manager import RemoteLogMetadataManager, RemoteLogSegmentMetadata
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from tierlog.reader.kept_indexes import Indexes
    from tierlog.reader.remote_read import RemoteRead

__all__ = ["TransactionReader"]

_MAX_INDEX_BYTES = 64 << 20
_NO_LIMIT = 2**63 - 1
_Found = tuple[Iterable[AbortedTransaction], bool]


class TransactionReader:
    """Collects aborted transactions from transaction indexes, remote and local. Blocking.

    If there is no ``index_cache``, each remote index takes one request to the store.
    """

    def __init__(
        self,
        storage: RemoteStorageManager | None = None,
        metadata: RemoteLogMetadataManager | None = None,
        *,
        index_cache: Indexes | None = None,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._index_cache = index_cache
        # Offsets that were deleted before they were copied may have held the end of a transaction.
        self._gaps = None if metadata is None else KnownGaps(metadata)

    def of_local(
        self, view: FetchView, read: LocalRead, *, at_once: bool = False
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that may have records in a local read, by first offset.
        With `at_once`, raise BlockingIOError when indexes have to be read."""
        if read.first_offset < 0:
            return ()
        if at_once:
            if any(one.transaction_index_path is not None for one in view.log.segments):
                raise BlockingIOError(
                    errno.EAGAIN, "the transaction indexes are read from the disk"
                )
            return ()
        indexes = _of_local_segments(view, read.segment_base, read.first_offset, read.next_offset)
        return _collect(indexes)

    def of_remote(
        self, view: FetchView, partition: TopicIdPartition, read: RemoteRead
    ) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions that may have records in a remote read, by first offset.

        Raises GapError when the tier lacks offsets that may have held the end of such a
        transaction.
        """
        lineage = view.log.leader_epochs
        if read.first_offset < 0 or read.segment is None or lineage is None:
            return ()
        return _collect(self._from_remote(view, partition, lineage, read.segment, read))

    def _from_remote(
        self,
        view: FetchView,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        first: RemoteLogSegmentMetadata,
        read: RemoteRead,
    ) -> Iterator[_Found]:
        begin, end = read.first_offset, read.next_offset
        segment, offset = first, begin
        # The directory has the transaction indexes from the local log start offset on.
        while True:
            ranges = ranges_in_lineage(segment, lineage)
            if not segment.txn_index_empty:
                yield self._of_segment(segment, ranges, begin, end)
            offset = 1 + next((last for _, last in ranges if last >= offset), segment.end_offset)
            if offset >= view.local_log_start_offset:
                break
            found = self._find_next_with_index(partition, lineage, offset)
            next_offset = view.local_log_start_offset if found is None else found.start_offset
            self._check_gaps(view, partition, lineage, range(offset, next_offset), end)
            if found is None:
                break
            segment = found
        yield from _of_local_segments(view, view.local_log_start_offset, begin, end)

    def _check_gaps(
        self,
        view: FetchView,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        offsets: range,
        end: int,
    ) -> None:
        """Raise GapError when a gap that begins in `offsets` may hide the end of a transaction that
        began before `end`."""
        if self._gaps is None:
            return
        tier_end = view.local_log_start_offset
        gaps = self._gaps.of(
            partition, lineage, end_offset=None if tier_end == _NO_LIMIT else tier_end
        )
        for gap in gaps:
            if gap.first_offset in offsets and not self._is_settled(partition, lineage, gap, end):
                raise gap_error(partition, gap.first_offset, gap.last_offset)

    def _is_settled(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, gap: Gap, end: int
    ) -> bool:
        """Whether the producer snapshot right before the gap shows no open transaction that began
        before `end`."""
        assert self._metadata is not None
        last = gap.first_offset - 1
        epoch = lineage.epoch_for(last)
        before = None if epoch is None else self._metadata.lookup(partition, epoch, last)
        if before is None or before.end_offset != last:
            # A later leader truncated the segment there, so its snapshot also covers batches after
            # that offset.
            return False
        states = read_producer_snapshot(self._section(before, IndexKind.PRODUCER_SNAPSHOT))
        firsts = states.current_txn_first_offset
        return not bool(((firsts >= 0) & (firsts < end)).any())

    def _section(self, segment: RemoteLogSegmentMetadata, kind: IndexKind) -> bytes:
        if self._index_cache is not None:
            return bytes(self._index_cache.get(segment).section(kind))
        assert self._storage is not None
        return bytes(self._storage.fetch_indexes(segment, [kind])[kind])

    def _find_next_with_index(
        self, partition: TopicIdPartition, lineage: LeaderEpochs, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """Return the next segment of the lineage from `offset` on that has aborted
        transactions."""
        if self._metadata is None:
            return None
        first_epoch = lineage.epoch_for(offset)
        for epoch, start_offset in lineage:
            if first_epoch is not None and epoch < first_epoch:
                continue
            start = max(start_offset, offset)
            found = self._metadata.next_segment_with_txn_index(partition, epoch, start)
            # If a segment begins after the end of its leader epoch, the whole segment was
            # truncated.
            if found is not None and any(
                last >= start for _, last in ranges_in_lineage(found, lineage)
            ):
                return found
        return None

    def _of_segment(
        self, segment: RemoteLogSegmentMetadata, ranges: list[tuple[int, int]], begin: int, end: int
    ) -> _Found:
        if ranges == [(segment.start_offset, segment.end_offset)]:
            return self._read_index(segment, begin, end)
        entries, _ = self._read_index(segment, 0, _NO_LIMIT)
        known = [
            one
            for one in entries
            if any(first <= one.last_offset <= last for first, last in ranges)
        ]
        found = [one for one in known if one.last_offset >= begin and one.first_offset < end]
        return found, any(one.last_stable_offset >= end for one in known)

    def _read_index(self, segment: RemoteLogSegmentMetadata, begin: int, end: int) -> _Found:
        if self._index_cache is not None:
            return self._index_cache.get(segment).aborted_transactions(begin, end)
        if self._storage is None:
            return (), True
        kind = IndexKind.TRANSACTION
        section = self._storage.fetch_indexes(segment, [kind])[kind]
        found, complete = _core.collect_aborted(section, segment.start_offset, begin, end)
        return [AbortedTransaction(*one) for one in found], complete


def _collect(indexes: Iterator[_Found]) -> tuple[AbortedTransaction, ...]:
    """Return the transactions of the indexes up to the first complete index. If segments overlap,
    their indexes list some transactions twice."""
    known: dict[tuple[int, int], AbortedTransaction] = {}
    for found, complete in indexes:
        for one in found:
            known.setdefault((one.producer_id, one.first_offset), one)
        if complete:
            break
    return tuple(sorted(known.values(), key=lambda one: (one.first_offset, one.producer_id)))


def _of_local_segments(view: FetchView, base: int, begin: int, end: int) -> Iterator[_Found]:
    """Yield the indexes up to the end of the log, because a transaction that began before the last
    stable offset may have ended after this offset."""
    segments = view.log.segments
    if segments and segments[0].base_offset > base:
        raise VanishedError(f"{view.log.name}: begins at {segments[0].base_offset} by now")
    for segment in segments:
        after = segment.next_base_offset
        if after is None or after > base:
            found = _of_local_segment(view, segment, begin, end)
            require_same_topic(view.log)
            yield found


def _of_local_segment(view: FetchView, segment: SegmentFiles, begin: int, end: int) -> _Found:
    """Return the aborted transactions in the broker's transaction index. A damaged index is rebuilt
    from the log."""
    if segment.is_active and view.active_aborted is not None:
        known = view.active_aborted
        return (one for one in known if one.last_offset >= begin and one.first_offset < end), False
    path = segment.transaction_index_path
    if path is None:
        return (), False
    try:
        data = read_small(path, _MAX_INDEX_BYTES)
        found, complete = _core.collect_aborted(data, segment.base_offset, begin, end)
    except FileNotFoundError as error:
        raise VanishedError(f"{path}: gone meanwhile") from error
    except CorruptDataError:
        data = _rebuild_index(view, segment)
        found, complete = _core.collect_aborted(data, segment.base_offset, begin, end)
    return (AbortedTransaction(*one) for one in found), complete


def _rebuild_index(view: FetchView, segment: SegmentFiles) -> bytes:
    snapshot = ProducerStates(view.log).before(segment)
    with segment.open() as handle:
        rebuilt = rebuild_indexes(
            handle,
            base_offset=segment.base_offset,
            producer_snapshot=snapshot,
            accept_damage=segment.is_active,
        )
    return rebuilt.transaction_index

"""Finds the offset at which readers of committed records stop, and the records that these readers
leave out.

These readers stop at the last stable offset, which is the first offset of the oldest open
transaction. Below the last stable offset, the readers leave out the batches of aborted
transactions. A transaction index lists the producers and offsets of these batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tierlog import _core
from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.files import SegmentHandle
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.log_dir import PartitionLog
from tierlog.log.rebuild import RebuiltIndexes, rebuild_indexes
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.damage import LostRecords, raise_damage
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.types import FetchView
from tierlog.types import RemoteLogSegmentId, TopicIdPartition

if TYPE_CHECKING:
    from tierlog.reader.aborted import TransactionReader
    from tierlog.reader.remote_read import RemoteRead

__all__ = ["RemoteAborted", "StableLog", "committed_rows"]

_TRANSACTIONAL = 0x10
_NO_LIMIT = 2**63 - 1

_Aborted = tuple[AbortedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StableLog:
    """A directory's log at one moment, with its last stable offset and aborted transactions.

    ``last_stable_offset`` assumes that all records in the directory are below the high watermark,
    because the directory does not show the high watermark.
    """

    log: PartitionLog
    start_offset: int
    last_stable_offset: int
    log_end_offset: int
    active_aborted: _Aborted

    @classmethod
    def of(
        cls,
        log: PartitionLog,
        earlier: Callable[[int], bytes | None] | None = None,
        report: Callable[[LostRecords], object] = raise_damage,
    ) -> StableLog:
        """Read the active segment; ``earlier`` as in `ProducerStates`.

        ``report`` receives damage of the active segment. After damage, the log is stable up to the
        first transaction that was open before the damage, because later records may belong to
        transactions whose end is unknown.

        The transaction index of a running broker may lag behind its log. So the transaction index
        is rebuilt from the same bytes from which the last stable offset is found.
        """
        start = log.log_start_offset or 0
        if not log.segments:
            return cls(
                log=log,
                start_offset=start,
                last_stable_offset=start,
                log_end_offset=start,
                active_aborted=(),
            )
        active = log.segments[-1]
        snapshot = ProducerStates(log, earlier).before(active)
        try:
            with active.open() as handle:
                rebuilt = _rebuild_up_to_damage(log, active, handle, snapshot, report)
        except CorruptDataError as error:
            raise error.located(active.log_path) from None
        found, _ = _core.collect_aborted(
            rebuilt.transaction_index, active.base_offset, 0, _NO_LIMIT
        )
        return cls(
            log=log,
            start_offset=max(start, log.segments[0].base_offset),
            last_stable_offset=rebuilt.last_stable_offset,
            log_end_offset=rebuilt.end_offset,
            active_aborted=tuple(AbortedTransaction(*one) for one in found),
        )

    @classmethod
    def nothing(cls, partition: TopicIdPartition) -> StableLog:
        """Return an empty log, which stands for a partition that only the tier has."""
        log = PartitionLog(
            topic=partition.topic,
            partition=partition.partition,
            topic_id=partition.topic_id,
            directory="",
            segments=(),
            leader_epochs=None,
            log_start_offset=None,
            high_watermark=None,
        )
        return cls(
            log=log,
            start_offset=_NO_LIMIT,
            last_stable_offset=_NO_LIMIT,
            log_end_offset=_NO_LIMIT,
            active_aborted=(),
        )

    def view(self, lineage: LeaderEpochs | None = None) -> FetchView:
        """Return the view of this log that a fetch uses, without the active segment."""
        log = replace(
            self.log,
            segments=tuple(one for one in self.log.segments if not one.is_active),
            leader_epochs=lineage or self.log.leader_epochs,
        )
        return FetchView(
            log=log,
            log_start_offset=0,
            local_log_start_offset=self.start_offset,
            high_watermark=self.last_stable_offset,
            last_stable_offset=self.last_stable_offset,
            log_end_offset=self.last_stable_offset,
        )

    def aborted_in(self, segment: SegmentFiles) -> _Aborted:
        """Return the aborted transactions that may have records in a segment of the directory.

        Raises VanishedError when files were deleted meanwhile.
        """
        # Imported here, so that a read of a directory alone starts sooner.
        from tierlog.reader.aborted import TransactionReader
        from tierlog.reader.local_batches import LocalRead

        after = segment.next_base_offset
        if after is None:
            return self.active_aborted
        read = LocalRead(
            first_offset=segment.base_offset, next_offset=after, segment_base=segment.base_offset
        )
        return TransactionReader().of_local(self.view(), read) + self.active_aborted


def _rebuild_up_to_damage(
    log: PartitionLog,
    segment: SegmentFiles,
    handle: SegmentHandle,
    producer_snapshot: bytes | None,
    report: Callable[[LostRecords], object],
) -> RebuiltIndexes:
    """Return the indexes of a segment. If the segment is damaged, report the damage, and return the
    indexes of the batches before the damage."""
    rebuild = partial(
        rebuild_indexes,
        handle,
        base_offset=segment.base_offset,
        producer_snapshot=producer_snapshot,
    )
    try:
        return rebuild()
    except CorruptDataError as error:
        rebuilt = rebuild(accept_damage=True)
        report(
            LostRecords(
                topic=log.topic,
                partition=log.partition,
                first_offset=rebuilt.last_stable_offset,
                last_offset=None,
                error=error.located(segment.log_path),
            )
        )
        return rebuilt


class RemoteAborted:
    """Finds the aborted transactions of remote segments, once for each segment."""

    def __init__(
        self,
        transactions: TransactionReader,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        beyond: StableLog,
    ) -> None:
        """``beyond`` is the log of the directory, which holds the offsets that come after those of
        the tier."""
        self._transactions = transactions
        self._partition = partition
        self._view = beyond.view(lineage)
        self._active = beyond.active_aborted
        self._segment_id: RemoteLogSegmentId | None = None
        self._aborted: _Aborted = ()

    def of(self, read: RemoteRead) -> _Aborted:
        """Return the aborted transactions that may have records in the segment from this read
        on."""
        segment = read.segment
        assert segment is not None
        if self._segment_id != segment.segment_id:
            rest = read._replace(records=b"", next_offset=segment.end_offset + 1)
            found = self._transactions.of_remote(self._view, self._partition, rest)
            self._segment_id, self._aborted = segment.segment_id, found + self._active
        return self._aborted


def committed_rows(
    records: RecordColumns, aborted: Iterable[AbortedTransaction]
) -> Iterator[RecordColumns]:
    """Yield slices of `records` that together have all rows except those of aborted
    transactions."""
    if not len(records):
        return
    first, last = int(records.offset[0]), int(records.offset[-1])
    batches = records.batches
    left_out = np.zeros(len(batches), np.bool_)
    for one in aborted:
        if one.first_offset <= last and one.last_offset >= first:
            left_out |= (
                (batches.producer_id == one.producer_id)
                & (batches.base_offset >= one.first_offset)
                & (batches.base_offset <= one.last_offset)
            )
    left_out &= (batches.attributes & _TRANSACTIONAL) != 0
    if not left_out.any():
        yield records
        return
    starts = records.batch_starts
    # The rows at which slices begin and end.
    edges = np.flatnonzero(np.diff(left_out)) + 1
    rows = [0, *edges.tolist(), len(batches)]
    for begin, end in pairwise(rows):
        low, high = int(starts[begin]), int(starts[end])
        if not left_out[begin] and low < high:
            yield records.rows(low, high)

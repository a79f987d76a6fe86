"""What readers of committed records see: where they stop, and what they leave out.

They stop at the last stable offset, the first one of the oldest transaction that has not ended.
Below it a transactional batch belongs to an aborted transaction, and is left out, when a
transaction index names its producer and offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tierlog import _core
from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.log_dir import PartitionLog
from tierlog.log.rebuild import rebuild_indexes
from tierlog.log.segment_files import SegmentFiles
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
    """A directory's log at one moment, as far as it is stable.

    ``last_stable_offset`` supposes that all that is in the directory is committed: it alone does
    not say where the high watermark is.
    """

    log: PartitionLog
    start_offset: int
    last_stable_offset: int
    active_aborted: _Aborted

    @classmethod
    def of(
        cls, log: PartitionLog, earlier: Callable[[int], bytes | None] | None = None
    ) -> StableLog:
        """Reads the active segment; CorruptDataError when it is damaged. ``earlier`` as in
        `ProducerStates`.

        Its transaction index may lag behind what a running broker has just written, so it is made
        from the same bytes as the offset.
        """
        start = log.log_start_offset or 0
        if not log.segments:
            return cls(log=log, start_offset=start, last_stable_offset=start, active_aborted=())
        active = log.segments[-1]
        snapshot = ProducerStates(log, earlier).before(active)
        try:
            with active.open() as handle:
                rebuilt = rebuild_indexes(
                    handle, base_offset=active.base_offset, producer_snapshot=snapshot
                )
        except CorruptDataError as error:
            raise error.located(active.log_path) from None
        found, _ = _core.collect_aborted(
            rebuilt.transaction_index, active.base_offset, 0, _NO_LIMIT
        )
        return cls(
            log=log,
            start_offset=max(start, log.segments[0].base_offset),
            last_stable_offset=rebuilt.last_stable_offset,
            active_aborted=tuple(AbortedTransaction(*one) for one in found),
        )

    @classmethod
    def nothing(cls, partition: TopicIdPartition) -> StableLog:
        """Of a partition that no directory has: all there is to know is in the tier."""
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
        return cls(log=log, start_offset=_NO_LIMIT, last_stable_offset=_NO_LIMIT, active_aborted=())

    def view(self, lineage: LeaderEpochs | None = None) -> FetchView:
        """As a fetch sees it, without the active segment."""
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
        """The aborted transactions that a segment of the directory may have to do with.

        VanishedError when files are gone meanwhile.
        """
        # Reading a directory starts sooner without the modules of the fetch path.
        from tierlog.reader.aborted import TransactionReader
        from tierlog.reader.local import LocalRead

        after = segment.next_base_offset
        if after is None:
            return self.active_aborted
        read = LocalRead(
            first_offset=segment.base_offset, next_offset=after, segment_base=segment.base_offset
        )
        return TransactionReader().of_local(self.view(), read) + self.active_aborted


class RemoteAborted:
    """The aborted transactions of remote segments, looked up once for each."""

    def __init__(
        self,
        transactions: TransactionReader,
        partition: TopicIdPartition,
        lineage: LeaderEpochs,
        beyond: StableLog,
    ) -> None:
        """``beyond``: the directory that goes on where the tier ends."""
        self._transactions = transactions
        self._partition = partition
        self._view = beyond.view(lineage)
        self._active = beyond.active_aborted
        self._segment_id: RemoteLogSegmentId | None = None
        self._aborted: _Aborted = ()

    def of(self, read: RemoteRead) -> _Aborted:
        """Those that the rest of the segment may have to do with, from this read on."""
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
    """The rows of `records` without those of aborted transactions, in runs of rows."""
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
    # Where it changes, and both ends.
    edges = np.flatnonzero(np.diff(left_out)) + 1
    rows = [0, *edges.tolist(), len(batches)]
    for begin, end in pairwise(rows):
        low, high = int(starts[begin]), int(starts[end])
        if not left_out[begin] and low < high:
            yield records.rows(low, high)

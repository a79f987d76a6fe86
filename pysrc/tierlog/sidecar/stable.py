"""Finds the last stable offset of a listed log, from the broker's answer or else from the disk.

If the broker does not answer, the log is searched for open transactions up to the high watermark.
Results that cannot change are remembered, so a growing log is read only once. If the broker has
answered before, the search starts at the offset of that answer, because every transaction below
it has ended. So little is read when the broker does not answer for a short time.
"""

from __future__ import annotations

from tierlog.broker import BrokerAnswer
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.eligibility import StableOffset, StableSource, last_stable_offset
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.log.transactions import OpenTransactions
from tierlog.types import StopReason

__all__ = ["StableOffsets"]


class StableOffsets:
    """Finds the last stable offsets of one partition."""

    def __init__(self) -> None:
        self._epochs: LeaderEpochs | None = None
        # The open transactions after each segment that is below the high watermark.
        self._after: dict[tuple[str, int | None, int], OpenTransactions] = {}
        # The broker's last answer, and the leader epoch of the record before it.
        self._answered: tuple[int, int] | None = None

    def of(self, log: PartitionLog, answer: BrokerAnswer | None) -> StableOffset:
        """Return the last stable offset of the log in its present listing."""
        if answer is not None and answer.last_stable_offset is not None:
            self._remember(log, answer.last_stable_offset)
            return last_stable_offset(
                broker_last_stable_offset=answer.last_stable_offset,
                high_watermark=None,
                transactions_known=False,
            )
        answered = self._still_answered(log)
        if answered is not None and (log.high_watermark or 0) <= answered:
            return StableOffset(value=answered, source=StableSource.BROKER)
        known, first_open = self._open_transactions(log, answered or 0)
        return last_stable_offset(
            broker_last_stable_offset=None,
            high_watermark=log.high_watermark,
            transactions_known=known,
            first_open_transaction_offset=first_open,
        )

    def _remember(self, log: PartitionLog, offset: int) -> None:
        epoch = log.leader_epochs.epoch_for(offset - 1) if log.leader_epochs else None
        self._answered = None if epoch is None else (offset, epoch)

    def _still_answered(self, log: PartitionLog) -> int | None:
        """Return the last answer if the record before it is unchanged. All earlier records are then
        unchanged, too."""
        if self._answered is None or log.leader_epochs is None:
            return None
        offset, epoch = self._answered
        return offset if log.leader_epochs.epoch_for(offset - 1) == epoch else None

    def _open_transactions(self, log: PartitionLog, ended_before: int) -> tuple[bool, int | None]:
        """Return whether the log was searched up to the high watermark, and the first open offset.
        Transactions that began below ``ended_before`` have ended."""
        if log.high_watermark is None:
            return False, None
        if log.leader_epochs != self._epochs:
            # A new leader may have truncated the log and written other records.
            self._epochs = log.leader_epochs
            self._after.clear()
        state = OpenTransactions()
        after: dict[tuple[str, int | None, int], OpenTransactions] = {}
        for segment in log.segments:
            if segment.base_offset >= log.high_watermark:
                break
            if segment.next_base_offset is not None and segment.next_base_offset <= ended_before:
                continue
            key = (segment.log_path, segment.next_base_offset, segment.size_bytes)
            remembered = self._after.get(key)
            found = remembered or _after(segment, state, log.high_watermark)
            if found is None:
                return False, None
            state = found
            end = segment.next_base_offset
            if end is not None and end <= log.high_watermark:
                after[key] = state
        self._after = after
        return True, state.first_offset


def _after(
    segment: SegmentFiles, state: OpenTransactions, high_watermark: int
) -> OpenTransactions | None:
    """Return the open transactions after the segment; None when it cannot be read to its end."""
    try:
        with segment.open() as handle:
            table = scan_segment(handle, verify_crc=False)
    except OSError:
        return None
    if table.stop_reason is not StopReason.END and not segment.is_active:
        return None
    return state.after(table, high_watermark)

"""The idempotent and transactional producers of a partition, for the checks before an append.

The last five batches of a producer are remembered, so that a repeated one is answered with the
offset that it has (Kafka's ``ProducerStateManager``). The native indexer keeps what belongs in a
snapshot; both learn of every appended batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tierlog.batches import BatchTable
from tierlog.log.index_files import read_producer_snapshot
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.log.writer.validation import NewBatch

__all__ = ["AppendedBatch", "ProducerStates"]

_KEPT_BATCHES = 5
_SEQUENCES = 2**31


class AppendedBatch(NamedTuple):
    """A batch that the log has."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    epoch: int = -1
    newest_ms: int = -1
    txn_first_offset: int = -1
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=_KEPT_BATCHES))

    def begin_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerStates:
    """Every producer that wrote to the partition and has not expired."""

    def __init__(self, snapshot: bytes | None = None) -> None:
        self._producers: dict[int, _Producer] = {}
        if snapshot is not None:
            self._load(snapshot)

    def __len__(self) -> int:
        return len(self._producers)

    def _load(self, snapshot: bytes) -> None:
        found = read_producer_snapshot(snapshot)
        for row, producer_id in enumerate(found.producer_id.tolist()):
            producer = _Producer(
                int(found.producer_epoch[row]),
                int(found.timestamp_ms[row]),
                int(found.current_txn_first_offset[row]),
            )
            last_offset, delta = int(found.last_offset[row]), int(found.offset_delta[row])
            last_sequence = int(found.last_sequence[row])
            if last_offset >= 0:
                first_sequence = (last_sequence - delta) % _SEQUENCES if last_sequence >= 0 else -1
                producer.batches.append(
                    AppendedBatch(
                        first_sequence,
                        last_sequence,
                        last_offset - delta,
                        last_offset,
                        producer.newest_ms,
                    )
                )
            self._producers[producer_id] = producer

    # -- before an append

    def find_duplicate(self, batch: NewBatch) -> AppendedBatch | None:
        """Return the appended batch that `batch` repeats; None when it is a new one."""
        producer = self._producers.get(batch.producer_id)
        if producer is None or batch.base_sequence < 0 or producer.epoch != batch.producer_epoch:
            return None
        wanted = batch.base_sequence, batch.last_sequence
        return next(
            (one for one in producer.batches if (one.first_sequence, one.last_sequence) == wanted),
            None,
        )

    def check(self, batches: Iterable[NewBatch]) -> None:
        """AppendRefusedError when a batch does not follow the producer's last one."""
        # The batches of one append follow one another.
        ahead: dict[int, tuple[int, int]] = {}
        for batch in batches:
            if batch.producer_id < 0:
                continue
            producer = self._producers.get(batch.producer_id)
            epoch, last_sequence = ahead.get(batch.producer_id) or _last_of(producer)
            self._check_epoch(batch, epoch)
            if batch.is_control:
                ahead[batch.producer_id] = batch.producer_epoch, last_sequence
                continue
            _check_sequence(batch, epoch, last_sequence)
            if producer and producer.txn_first_offset >= 0 and not batch.is_transactional:
                raise AppendRefusedError(
                    Refusal.INVALID_TXN_STATE,
                    f"producer {batch.producer_id} has a transaction open since offset "
                    f"{producer.txn_first_offset}; expected a transactional batch",
                )
            ahead[batch.producer_id] = batch.producer_epoch, batch.last_sequence

    @staticmethod
    def _check_epoch(batch: NewBatch, epoch: int) -> None:
        if batch.producer_epoch < epoch:
            raise AppendRefusedError(
                Refusal.INVALID_PRODUCER_EPOCH,
                f"producer {batch.producer_id}: epoch {batch.producer_epoch} is older than "
                f"{epoch}, which another producer with this id uses",
            )

    # -- after an append

    def learn(self, table: BatchTable) -> None:
        """Take in batches that the log had when it was opened."""
        rows = zip(
            table.record_count.tolist(),
            table.size_bytes.tolist(),
            table.max_timestamp_ms.tolist(),
            table.producer_id.tolist(),
            table.producer_epoch.tolist(),
            table.base_sequence.tolist(),
            table.attributes.tolist(),
            strict=True,
        )
        offsets = zip(table.base_offset.tolist(), table.last_offset.tolist(), strict=True)
        for row, (base, last) in zip(rows, offsets, strict=True):
            self._learn_one(NewBatch(*row), base, last)

    def learn_appended(self, batches: Sequence[NewBatch], base_offset: int) -> None:
        """Take in batches that were appended from `base_offset` on."""
        for batch in batches:
            end_offset = base_offset + batch.record_count
            self._learn_one(batch, base_offset, end_offset - 1)
            base_offset = end_offset

    def _learn_one(self, batch: NewBatch, base: int, last: int) -> None:
        if batch.producer_id < 0:
            return
        producer = self._producers.setdefault(batch.producer_id, _Producer())
        if batch.is_control and not batch.record_count:
            return
        producer.begin_epoch(batch.producer_epoch)
        producer.newest_ms = newest_ms = batch.max_timestamp_ms
        if batch.is_control:
            producer.txn_first_offset = -1
            return
        first = batch.base_sequence
        last_sequence = (first + last - base) % _SEQUENCES if first >= 0 else -1
        producer.batches.append(AppendedBatch(first, last_sequence, base, last, newest_ms))
        if batch.is_transactional and producer.txn_first_offset < 0:
            producer.txn_first_offset = base

    def last_records(self) -> dict[int, tuple[int | None, int]]:
        """Return the last data offset, None without one, and the epoch of each producer id."""
        return {
            producer_id: (one.batches[-1].last_offset if one.batches else None, one.epoch)
            for producer_id, one in self._producers.items()
        }

    def expire(self, before_ms: int) -> None:
        """Forget producers without an open transaction whose last batch is not younger than
        `before_ms`."""
        expired = [
            producer_id
            for producer_id, one in self._producers.items()
            if one.txn_first_offset < 0 and one.newest_ms <= before_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]


def _last_of(producer: _Producer | None) -> tuple[int, int]:
    if producer is None:
        return -1, -1
    return producer.epoch, producer.batches[-1].last_sequence if producer.batches else -1


def _check_sequence(batch: NewBatch, epoch: int, last_sequence: int) -> None:
    if epoch < 0:
        # The producer is new here, or its records were deleted: any sequence may come.
        return
    is_new_epoch = batch.producer_epoch != epoch
    expected = 0 if is_new_epoch else (last_sequence + 1) % _SEQUENCES
    if batch.base_sequence != expected:
        raise AppendRefusedError(
            Refusal.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {batch.producer_id} epoch {batch.producer_epoch}: expected sequence "
            f"{expected}, found {batch.base_sequence}",
        )

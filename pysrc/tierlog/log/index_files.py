"""Kafka's index files beside a segment as numpy columns (docs/FORMATS.md).

Offset and time indexes of an active segment are pre-sized and end in zeros. ``tail`` says which
bytes may follow the last entry: ``"empty"`` none, ``"zeros"`` zeros, ``"anything"`` any bytes,
since a broker may be writing. Other bytes, and entries that do not ascend, raise
``CorruptDataError`` with the byte position.

The functions take bytes and write no files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tierlog import _core
from tierlog.batches import Int16Column, Int32Column, Int64Column

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "AbortedTransaction",
    "OffsetIndex",
    "ProducerSnapshot",
    "Tail",
    "TimeIndex",
    "TransactionIndex",
    "read_offset_index",
    "read_producer_snapshot",
    "read_time_index",
    "read_transaction_index",
]

Tail = Literal["empty", "zeros", "anything"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetIndex:
    """A ``.index``: the last offset of a batch and the byte position of its start, both ascending.

    ``data`` has the entries without the tail of the file.
    """

    base_offset: int
    offset: Int64Column
    position: Int64Column
    data: bytes

    def lookup(self, target_offset: int) -> tuple[int, int]:
        """Return (offset, position) of the last entry at or below an offset; (base offset, 0) if
        there is none.

        The batch at this position may end before the target offset, so the caller scans forward
        (Kafka's ``OffsetIndex.lookup``).
        """
        return _core.lookup_offset_index(self.data, self.base_offset, target_offset)

    def lookup_upper_bound(self, end_position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the first entry at or after a byte position; None if there
        is none.

        A fetch that ends at this position does not include the offset
        (``OffsetIndex.fetchUpperBoundOffset``).
        """
        return _core.lookup_upper_bound(self.data, self.base_offset, end_position)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeIndex:
    """A ``.timeindex``. A record with a larger timestamp (ms) than an entry has a larger offset
    than the entry.

    ``data`` has the entries without the tail of the file.
    """

    base_offset: int
    timestamp_ms: Int64Column
    offset: Int64Column
    data: bytes

    def lookup(self, target_ms: int) -> tuple[int, int]:
        """Return (timestamp, offset) of the last entry at or below a time; (-1, base offset) if
        there is none."""
        return _core.lookup_time_index(self.data, self.base_offset, target_ms)


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its first and its last offset, and the last stable offset at its
    end."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionIndex:
    """A ``.txnindex`` as int64 columns. Each row is one aborted transaction; rows are ordered by
    last offset."""

    base_offset: int
    producer_id: Int64Column
    first_offset: Int64Column
    last_offset: Int64Column
    last_stable_offset: Int64Column
    data: bytes

    def collect(
        self, from_offset: int, upper_bound_offset: int
    ) -> tuple[tuple[AbortedTransaction, ...], bool]:
        """Return the aborted transactions for a read of the offsets [from, upper bound), and
        whether they are complete.

        If the list is not complete, the index of the next segment has more (Kafka's
        ``TransactionIndex.collectAbortedTxns``).
        """
        found, complete = _core.collect_aborted(
            self.data, self.base_offset, from_offset, upper_bound_offset
        )
        return tuple(AbortedTransaction(*entry) for entry in found), complete


class ProducerSnapshot:
    """A producer ``.snapshot`` as columns, one row per producer in the order of the file. -1 means
    unknown.

    ``producer_id``, ``last_offset``, ``timestamp_ms`` and ``current_txn_first_offset`` are int64.
    ``last_sequence``, ``offset_delta`` and ``coordinator_epoch`` are int32. ``producer_epoch`` is
    int16.
    """

    producer_id: Int64Column
    producer_epoch: Int16Column
    last_sequence: Int32Column
    last_offset: Int64Column
    offset_delta: Int32Column
    timestamp_ms: Int64Column
    coordinator_epoch: Int32Column
    current_txn_first_offset: Int64Column

    __slots__ = (
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_offset",
        "last_sequence",
        "offset_delta",
        "producer_epoch",
        "producer_id",
        "timestamp_ms",
    )

    def __init__(self, columns: list[tuple[str, _core.Column]]) -> None:
        for name, column in columns:
            setattr(self, name, np.asarray(column))

    def __len__(self) -> int:
        return len(self.producer_id)


def read_offset_index(data: Buffer, base_offset: int, *, tail: Tail = "zeros") -> OffsetIndex:
    """Reads a ``.index`` of the segment that starts at ``base_offset``."""
    frozen = bytes(data)
    offset, position, valid_bytes = _core.parse_offset_index(frozen, base_offset, tail)
    return OffsetIndex(
        base_offset=base_offset,
        offset=np.asarray(offset),
        position=np.asarray(position),
        data=frozen[:valid_bytes],
    )


def read_time_index(data: Buffer, base_offset: int, *, tail: Tail = "zeros") -> TimeIndex:
    """Reads a ``.timeindex`` of the segment that starts at ``base_offset``."""
    frozen = bytes(data)
    timestamp_ms, offset, valid_bytes = _core.parse_time_index(frozen, base_offset, tail)
    return TimeIndex(
        base_offset=base_offset,
        timestamp_ms=np.asarray(timestamp_ms),
        offset=np.asarray(offset),
        data=frozen[:valid_bytes],
    )


def read_transaction_index(data: Buffer, base_offset: int) -> TransactionIndex:
    """Reads a ``.txnindex``; pass ``b""`` for a missing file. Last offsets must not lie below
    ``base_offset``."""
    frozen = bytes(data)
    native = _core.parse_transaction_index(frozen, base_offset)
    columns = {name: np.asarray(column) for name, column in native}
    return TransactionIndex(base_offset=base_offset, data=frozen, **columns)


def read_producer_snapshot(data: Buffer) -> ProducerSnapshot:
    """Reads and verifies a producer ``.snapshot``."""
    return ProducerSnapshot(_core.parse_producer_snapshot(data))

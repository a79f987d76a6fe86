"""Finds open transactions from the headers of scanned batches.

A producer's transaction is open from its first transactional batch to the control batch (the commit
or abort marker) of the same producer. The first offset of the oldest open transaction limits the
last stable offset (``org.apache.kafka.storage.internals.log.ProducerStateManager``).

Transaction indexes and producer snapshots are rebuilt in Rust, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["OpenTransactions", "TransactionColumns"]

_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_NEVER = np.iinfo(np.int64).max


class TransactionColumns(Protocol):
    """The columns of a batch table that this module uses; one row per batch, in the order of the
    log."""

    @property
    def base_offset(self) -> npt.NDArray[np.int64]: ...
    @property
    def producer_id(self) -> npt.NDArray[np.int64]: ...
    @property
    def attributes(self) -> npt.NDArray[np.int16]: ...


@dataclass(frozen=True, slots=True)
class OpenTransactions:
    """The transactions that are open at an offset, as their first offsets by producer id.

        state = OpenTransactions()
        for segment in segments:                       # from the log's start, in order
            state = state.after(scan_segment(segment.log_path), end_offset=high_watermark)
        state.first_offset

    If all batches of a transaction were deleted, the transaction is not seen. If a transaction
    began below the log start offset, it counts from its first remaining batch.
    """

    first_offsets: Mapping[int, int] = field(default_factory=dict)

    @property
    def first_offset(self) -> int | None:
        """The first offset of the oldest open transaction; None when none is open."""
        return min(self.first_offsets.values(), default=None)

    def after(self, table: TransactionColumns, end_offset: int | None = None) -> OpenTransactions:
        """Return the state after these batches, which must follow the batches seen before.

        Batches at or above ``end_offset`` do not count. If ``end_offset`` is the high watermark, a
        marker above it does not end a transaction, since the marker may still be lost.
        """
        attributes = table.attributes
        rows = ((attributes & _TRANSACTIONAL) != 0) & (table.producer_id >= 0)
        if end_offset is not None:
            rows &= table.base_offset < end_offset
        order = np.flatnonzero(rows)
        if len(order) == 0:
            return self
        producers, of_row = np.unique(table.producer_id[order], return_inverse=True)
        is_marker = (attributes[order] & _CONTROL) != 0
        indices = np.arange(len(order))
        last_marker = np.full(len(producers), -1, dtype=np.int64)
        np.maximum.at(last_marker, of_row[is_marker], indices[is_marker])
        is_open = ~is_marker & (indices > last_marker[of_row])
        first = np.full(len(producers), _NEVER, dtype=np.int64)
        np.minimum.at(first, of_row[is_open], table.base_offset[order][is_open])
        offsets = dict(self.first_offsets)
        for row, producer in enumerate(producers.tolist()):
            if last_marker[row] >= 0:
                offsets.pop(producer, None)
            if first[row] != _NEVER:
                offsets.setdefault(producer, int(first[row]))
        return OpenTransactions(offsets)

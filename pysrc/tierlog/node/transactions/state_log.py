"""The states of all transactions, durable in the topic ``__transaction_state``.

The last record of a transactional id counts. When the log has grown long, all states are written
anew and the older segments are deleted, so the log does not grow with the number of transactions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from tierlog.clock import Clock
from tierlog.log.records import decode_pieces
from tierlog.log.writer.batches import encode_batch
from tierlog.log.writer.partition import PartitionWriter
from tierlog.node.transactions.state_record import decode_state, encode_key, encode_state
from tierlog.node.transactions.types import Transaction

__all__ = ["STATE_TOPIC", "STATE_TOPIC_SETTINGS", "StateLog"]

STATE_TOPIC = "__transaction_state"
STATE_TOPIC_SETTINGS = {"retention.ms": "-1", "retention.bytes": "-1"}
# A log is long when it is larger than this, and than this many times the size of all states.
_LONG_BYTES = 4 << 20
_LONG_TIMES = 4
# About the size of the batches when there are many states to write.
_BATCH_BYTES = 256 << 10


_Record: TypeAlias = tuple[bytes, bytes | None]


class StateLog:
    """The log of the only partition of the topic. Calls block; any thread, one at a time."""

    def __init__(
        self,
        writer: PartitionWriter,
        leader_epoch: int,
        clock: Clock,
        long_bytes: int = _LONG_BYTES,
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._least_bytes = self._long_bytes = long_bytes
        self._size_bytes = sum(one.size_bytes for one in writer.view().segments)
        self.leader_epoch = leader_epoch

    @property
    def is_long(self) -> bool:
        """Whether `shorten` is due."""
        return self._size_bytes > self._long_bytes

    def load(self) -> dict[str, Transaction]:
        """Return the latest state of each transactional id. CorruptDataError for a record that is
        none of this topic."""
        states: dict[str, Transaction] = {}
        log = self._writer.view()
        for segment in log.segments:
            for columns in decode_pieces(segment.log_path):
                for record in columns.records():
                    transactional_id, found = decode_state(record.key or b"", record.value)
                    states.pop(transactional_id, None)
                    if found is not None:
                        states[transactional_id] = found
        return states

    def append(self, found: Transaction) -> None:
        """Write a state. AppendRefusedError when the disk fails."""
        self._append([(encode_key(found.transactional_id), encode_state(found))])

    def remove(self, transactional_ids: Iterable[str]) -> None:
        """Write that these ids have no state any more."""
        self._append([(encode_key(one), None) for one in transactional_ids])

    def shorten(self, states: Iterable[Transaction]) -> None:
        """Write all states anew and delete the older segments."""
        self._writer.roll()
        start = self._writer.log_end_offset
        self._size_bytes = 0
        self._append((encode_key(found.transactional_id), encode_state(found)) for found in states)
        self._writer.flush()
        self._writer.raise_log_start_offset(start)
        self._writer.delete_segments_below(start)
        self._long_bytes = max(self._least_bytes, _LONG_TIMES * self._size_bytes)

    def _append(self, records: Iterable[_Record]) -> None:
        rows: list[_Record] = []
        waiting_bytes = 0
        for key, value in records:
            rows.append((key, value))
            waiting_bytes += len(key) + len(value or b"")
            if waiting_bytes >= _BATCH_BYTES:
                self._write(rows)
                rows, waiting_bytes = [], 0
        if rows:
            self._write(rows)

    def _write(self, rows: list[_Record]) -> None:
        batch = encode_batch(rows, self._clock.now_ms())
        self._writer.append(batch, leader_epoch=self.leader_epoch)
        self._size_bytes += len(batch)

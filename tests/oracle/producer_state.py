"""Producer state as Kafka's recovery builds it, and its snapshot file (formats section 7.4).

What a batch does to its producer's entry, when replayed as a replica would:

data batch     remembers (last sequence, last offset, offset delta, max timestamp), keeps the
               newest five, all forgotten first when the producer epoch changes; a transactional
               batch opens a transaction at its base offset unless one is open
ABORT, COMMIT  takes over epoch, coordinator epoch and the record's timestamp, closes the open
               transaction, keeps the remembered batches unless the epoch changed
empty control  touches nothing, but an unknown producer gets an entry of unknowns
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import batches
from .indexes import AbortedTransaction
from .model import ABORT, Batch, EndTransactionMarker, Record
from .primitives import I32_MAX, OracleError, crc32c

BATCHES_TO_KEEP = 5
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(">hIi")
SNAPSHOT_ENTRY = struct.Struct(">qhiqiqiq")
CRC_START = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMetadata:
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == -1:
            return -1
        return (self.last_sequence - self.offset_delta) % (I32_MAX + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotEntry:
    """One producer as the snapshot file holds it; unknowns are -1, the offset delta 0."""

    producer_id: int
    producer_epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


@dataclass(slots=True, kw_only=True)
class Producer:
    """One producer in memory."""

    producer_id: int
    epoch: int = -1
    coordinator_epoch: int = -1
    timestamp_ms: int = -1
    current_txn_first_offset: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_TO_KEEP))

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch

    def to_snapshot(self) -> SnapshotEntry:
        last = self.batches[-1] if self.batches else None
        open_offset = self.current_txn_first_offset
        return SnapshotEntry(
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            last_sequence=last.last_sequence if last else -1,
            last_offset=last.last_offset if last else -1,
            offset_delta=last.offset_delta if last else 0,
            timestamp_ms=self.timestamp_ms,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=-1 if open_offset is None else open_offset,
        )


def from_snapshot(entry: SnapshotEntry) -> Producer:
    producer = Producer(
        producer_id=entry.producer_id,
        epoch=entry.producer_epoch,
        coordinator_epoch=entry.coordinator_epoch,
        timestamp_ms=entry.timestamp_ms,
    )
    if entry.current_txn_first_offset >= 0:
        producer.current_txn_first_offset = entry.current_txn_first_offset
    if entry.last_offset >= 0:
        producer.batches.append(
            BatchMetadata(
                last_sequence=entry.last_sequence,
                last_offset=entry.last_offset,
                offset_delta=entry.offset_delta,
                timestamp_ms=entry.timestamp_ms,
            )
        )
    return producer


class ProducerStateManager:
    """Every producer of one partition, the open transactions, and the aborts seen on the way.

    ``producers`` keeps insertion order; ``aborted`` grows with each ABORT that closes a
    transaction; ``end_offset`` is the offset after the last batch.  Nothing ever expires: expiry
    belongs to a broker's clock, not to the log.
    """

    def __init__(self, entries: Iterable[SnapshotEntry] = ()) -> None:
        self.producers: dict[int, Producer] = {}
        self.open_transactions: dict[int, int] = {}  # first offset -> producer id
        self.aborted: list[AbortedTransaction] = []
        self.end_offset = 0
        for entry in entries:
            self.producers[entry.producer_id] = from_snapshot(entry)
            if entry.current_txn_first_offset >= 0:
                self.open_transactions[entry.current_txn_first_offset] = entry.producer_id

    def append(self, batch: Batch) -> None:
        """Replays one v2 batch; OracleError bad_record for what no broker would have appended."""
        if batch.producer_id >= 0:
            if batch.is_control:
                self._append_control(batch)
            else:
                self._append_data(batch)
        self.end_offset = batch.last_offset + 1

    def _producer(self, producer_id: int) -> Producer:
        return self.producers.setdefault(producer_id, Producer(producer_id=producer_id))

    def _append_data(self, batch: Batch) -> None:
        producer = self._producer(batch.producer_id)
        if producer.current_txn_first_offset is not None and not batch.is_transactional:
            message = f"a plain batch of producer {batch.producer_id} inside its transaction"
            raise OracleError("bad_record", message, batch.position)
        producer.set_epoch(batch.producer_epoch)
        producer.timestamp_ms = batch.max_timestamp_ms
        producer.batches.append(
            BatchMetadata(
                last_sequence=batch.last_sequence,
                last_offset=batch.last_offset,
                offset_delta=batch.last_offset - batch.base_offset,
                timestamp_ms=batch.max_timestamp_ms,
            )
        )
        if batch.is_transactional and producer.current_txn_first_offset is None:
            producer.current_txn_first_offset = batch.base_offset
            self.open_transactions[batch.base_offset] = batch.producer_id

    def _append_control(self, batch: Batch) -> None:
        producer = self._producer(batch.producer_id)
        record = batches.first_record(batch)
        if record is None:
            return
        marker = self._marker(batch, record)
        first_offset = producer.current_txn_first_offset
        producer.set_epoch(batch.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp_ms = record.timestamp_ms
        producer.current_txn_first_offset = None
        if first_offset is not None:
            self._complete(batch, first_offset, aborted=marker.type == ABORT)

    def _marker(self, batch: Batch, record: Record) -> EndTransactionMarker:
        try:
            marker = batches.end_transaction_marker(record)
        except OracleError as error:
            raise OracleError(error.reason, str(error), batch.position) from error
        if marker is None:
            message = "a producer's control record that is neither ABORT nor COMMIT"
            raise OracleError("bad_record", message, batch.position)
        return marker

    def _complete(self, batch: Batch, first_offset: int, *, aborted: bool) -> None:
        """Closes a transaction; the marker's own offset is its last one."""
        if self.open_transactions.get(first_offset) is None:
            message = f"no transaction is open at {first_offset}"
            raise OracleError("bad_record", message, batch.position)
        if aborted:
            entry = AbortedTransaction(
                producer_id=batch.producer_id,
                first_offset=first_offset,
                last_offset=batch.base_offset,
                last_stable_offset=self._stable_after(batch),
            )
            self.aborted.append(entry)
        del self.open_transactions[first_offset]

    def _stable_after(self, batch: Batch) -> int:
        """The first offset of another producer's open transaction, else the one past the marker."""
        others = [
            first
            for first, producer_id in self.open_transactions.items()
            if producer_id != batch.producer_id
        ]
        return min(others, default=batch.base_offset + 1)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, else the end offset."""
        return min(self.open_transactions, default=self.end_offset)

    def snapshot(self) -> bytes:
        """The file Kafka would write now, entries in the order its map would yield them."""
        order = hash_map_order(self.producers)
        return encode_snapshot([self.producers[key].to_snapshot() for key in order])


def hash_map_order(producer_ids: Iterable[int]) -> list[int]:
    """Distinct ids in the order a Java HashMap yields them after these insertions.

    A table of 16 buckets doubles when more than three quarters full; a bucket's chain keeps
    insertion order, also through doubling.  A chain that grows past eight doubles tables below 64
    too; beyond that Java makes a tree of it, which real ids do not reach and this ignores.
    """
    chains: dict[int, list[int]] = {}
    buckets = 16
    for count, producer_id in enumerate(dict.fromkeys(producer_ids), 1):
        chain = chains.setdefault(_bucket(producer_id, buckets), [])
        chain.append(producer_id)
        grow = int(len(chain) > 8 and buckets < 64)
        if count > buckets * (1 + grow) * 3 // 4:
            grow += 1
        if grow:
            buckets <<= grow
            chains = _rehash(chains, buckets)
    return [producer_id for index in sorted(chains) for producer_id in chains[index]]


def _rehash(chains: dict[int, list[int]], buckets: int) -> dict[int, list[int]]:
    again: dict[int, list[int]] = {}
    for index in sorted(chains):
        for producer_id in chains[index]:
            again.setdefault(_bucket(producer_id, buckets), []).append(producer_id)
    return again


def _bucket(producer_id: int, buckets: int) -> int:
    folded = (producer_id ^ producer_id >> 32) & 0xFFFFFFFF
    return (folded ^ folded >> 16) & (buckets - 1)


def encode_snapshot(entries: Iterable[SnapshotEntry]) -> bytes:
    """The snapshot file of these entries, in this order."""
    packed = [
        SNAPSHOT_ENTRY.pack(
            entry.producer_id,
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.offset_delta,
            entry.timestamp_ms,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in entries
    ]
    covered = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(covered)) + covered


def decode_snapshot(data: bytes) -> list[SnapshotEntry]:
    """Every entry; OracleError truncated, unknown_magic, bad_crc or bad_length."""
    if len(data) < SNAPSHOT_HEADER.size:
        raise OracleError("truncated", f"{len(data)} bytes", len(data))
    version, crc, count = SNAPSHOT_HEADER.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise OracleError("unknown_magic", f"snapshot version {version}", 0)
    if crc != crc32c(data[CRC_START:]):
        raise OracleError("bad_crc", f"stored {crc:#010x}", 2)
    if count < 0 or len(data) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise OracleError("bad_length", f"{count} entries in {len(data)} bytes", 6)
    found = []
    for fields in SNAPSHOT_ENTRY.iter_unpack(data[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp_ms, coordinator, first = fields
        found.append(
            SnapshotEntry(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=sequence,
                last_offset=offset,
                offset_delta=delta,
                timestamp_ms=timestamp_ms,
                coordinator_epoch=coordinator,
                current_txn_first_offset=first,
            )
        )
    return found

"""Every index of a segment from its bytes alone, as Kafka's recovery of a segment writes them.

Per batch, in this order: the largest max timestamp so far and the last offset of the first batch
that has it; then, when more than ``index_interval_bytes`` lie between the last indexed position
(0 at first) and this batch, one offset entry (last offset of this batch, its position) and one
time entry of the maximum so far; then leader epoch and producer state, for v2 batches only.  One
last time entry is tried at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import batches, indexes, producer_state
from .model import Batch
from .primitives import OracleError

TAIL_REASONS = frozenset({"end", "torn_tail", "zero_tail"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """The files as bytes, and what else a scan of the whole segment knows."""

    offset_index: bytes
    batch_checksums: bytes
    time_index: bytes
    transaction_index: bytes
    producer_snapshot: bytes
    leader_epochs: tuple[tuple[int, int], ...]
    bytes_per_epoch: tuple[tuple[int, int], ...]
    end_offset: int
    last_stable_offset: int
    max_timestamp_ms: int
    batches: tuple[Batch, ...]
    stop_reason: str
    stop_position: int


def batch_checksums(
    data: bytes, accepted: list[Batch], offset_entries: list[tuple[int, int]]
) -> bytes:
    """The checksum field of the first batch, then of the batch at each entry."""
    at = {batch.position: 17 if batch.magic == 2 else 12 for batch in accepted}
    places = [0, *(position for _offset, position in offset_entries)] if accepted else []
    return b"".join(data[place + at[place] :][:4] for place in places)


def rebuild(
    data: bytes,
    *,
    index_interval_bytes: int = 4096,
    base_offset: int | None = None,
    producer_snapshot: bytes | None = None,
) -> Rebuilt:
    """Indexes of a whole segment; OracleError when it holds corruption other than a bad tail.

    ``base_offset`` is the segment's (default: its first batch's); ``producer_snapshot`` the state
    at that offset (default: no producers).
    """
    accepted, reason, position = batches.scan(data)
    if base_offset is None:
        base_offset = accepted[0].base_offset if accepted else 0
    entries = producer_state.decode_snapshot(producer_snapshot) if producer_snapshot else []
    manager = producer_state.ProducerStateManager(entries)
    manager.end_offset = base_offset
    for batch in accepted:
        if batch.magic == 2:
            manager.append(batch)
        else:
            manager.end_offset = batch.last_offset + 1
    offset_entries, time_entries = local_indexes(accepted, index_interval_bytes, base_offset)
    if reason not in TAIL_REASONS:
        raise OracleError(reason, "the segment does not scan clean", position)
    return Rebuilt(
        offset_index=indexes.encode_offset_index(offset_entries, base_offset),
        batch_checksums=batch_checksums(data, accepted, offset_entries),
        time_index=indexes.encode_time_index(time_entries, base_offset),
        transaction_index=indexes.encode_transaction_index(manager.aborted),
        producer_snapshot=manager.snapshot(),
        leader_epochs=tuple(leader_epochs(accepted)),
        bytes_per_epoch=tuple(bytes_per_epoch(accepted)),
        end_offset=manager.end_offset,
        last_stable_offset=manager.last_stable_offset,
        max_timestamp_ms=max([-1, *(batch.max_timestamp_ms for batch in accepted)]),
        batches=tuple(accepted),
        stop_reason=reason,
        stop_position=position,
    )


def local_indexes(
    accepted: list[Batch], index_interval_bytes: int, base_offset: int
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The (offset, position) and (timestamp, offset) entries of these batches."""
    offset_entries: list[tuple[int, int]] = []
    time_entries: list[tuple[int, int]] = []
    max_timestamp_ms, max_offset = indexes.NO_TIMESTAMP, base_offset
    indexed_position = 0
    for batch in accepted:
        indexes.relative(batch.last_offset, base_offset, batch.position)
        if batch.max_timestamp_ms > max_timestamp_ms:
            max_timestamp_ms, max_offset = batch.max_timestamp_ms, batch.last_offset
        if batch.position - indexed_position > index_interval_bytes:
            offset_entries.append((batch.last_offset, batch.position))
            indexes.append_time(time_entries, max_timestamp_ms, max_offset, base_offset)
            indexed_position = batch.position
    indexes.append_time(time_entries, max_timestamp_ms, max_offset, base_offset)
    return offset_entries, time_entries


def leader_epochs(accepted: list[Batch]) -> list[tuple[int, int]]:
    """(epoch, base offset) each time a v2 batch's epoch passes the highest so far."""
    found: list[tuple[int, int]] = []
    for batch in accepted:
        if batch.leader_epoch >= 0 and (not found or batch.leader_epoch > found[-1][0]):
            found.append((batch.leader_epoch, batch.base_offset))
    return found


def bytes_per_epoch(accepted: list[Batch]) -> list[tuple[int, int]]:
    """(epoch, bytes of its batches), ascending; batches without an epoch count under -1."""
    sums: dict[int, int] = {}
    for batch in accepted:
        sums[batch.leader_epoch] = sums.get(batch.leader_epoch, 0) + batch.size_bytes
    return sorted(sums.items())

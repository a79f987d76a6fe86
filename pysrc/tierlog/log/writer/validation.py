"""Checks batches that a client sent before they are appended (Kafka's ``LogValidator``)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tierlog.config.topic import TimestampType, TopicConfig
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_pieces
from tierlog.log.writer.refusal import AppendRefusedError, Refusal
from tierlog.types import StopReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog.columns import RecordColumns

__all__ = ["AppendOrigin", "CheckedBatches", "NewBatch", "check_batches"]

_LARGEST_SEQUENCE = 2**31 - 1
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_TOO_LARGE = "too_large"
_CODES = {
    "bad_record": Refusal.INVALID_RECORD,
    "bad_compression": Refusal.INVALID_RECORD,
    "offset_order": Refusal.INVALID_RECORD,
    _TOO_LARGE: Refusal.MESSAGE_TOO_LARGE,
}
# More than nearly all batches open to. What opens to more is decompressed alone.
_USUAL_BYTES = 2 << 20
_LARGE_BATCH = threading.Lock()


class AppendOrigin(Enum):
    """The writer of the batches. Only a coordinator writes control batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"


class NewBatch(NamedTuple):
    """A batch before it has an offset. The producer's fields are -1 without one."""

    record_count: int
    size_bytes: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; -1 without one."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.record_count - 1) & _LARGEST_SEQUENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedBatches:
    """Sound batches back to back, and what the log needs to know of each."""

    data: Buffer
    batches: tuple[NewBatch, ...]
    size_bytes: int
    record_count: int
    max_timestamp_ms: int
    log_append_time: bool


def check_batches(
    data: Buffer,
    topic: TopicConfig,
    now_ms: int,
    *,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    max_decompressed_bytes: int,
) -> CheckedBatches:
    """Return the batches of `data` when a broker may append them; AppendRefusedError otherwise.

    Every checksum and every record is checked. With append time, `now_ms` is the timestamp of all
    records; otherwise the header gets the largest timestamp that the records have.

    Batches are decompressed a few at a time, and a large one only when no other call of the process
    decompresses a large one: a small batch may open to `max_decompressed_bytes`.
    """
    least = min(_USUAL_BYTES, max_decompressed_bytes)
    try:
        return _check(data, topic, now_ms, origin, least)
    except CorruptDataError as error:
        if error.reason != _TOO_LARGE or least == max_decompressed_bytes:
            raise _refusal(error) from error
    with _LARGE_BATCH:
        try:
            return _check(data, topic, now_ms, origin, max_decompressed_bytes)
        except CorruptDataError as error:
            raise _refusal(error) from error


def _check(
    data: Buffer, topic: TopicConfig, now_ms: int, origin: AppendOrigin, max_decompressed_bytes: int
) -> CheckedBatches:
    """See `check_batches`. CorruptDataError for batches that cannot be decoded."""
    batches: list[NewBatch] = []
    size_bytes = 0
    for columns in decode_pieces(
        data,
        include_control=origin is not AppendOrigin.CLIENT,
        max_decompressed_bytes=max_decompressed_bytes,
        budget_bytes=_USUAL_BYTES,
    ):
        _check_stop(columns)
        batches += _checked(columns, topic, now_ms, origin)
        size_bytes = columns.batches.stop_position
    if not batches:
        raise AppendRefusedError(Refusal.INVALID_RECORD, "expected a batch, found none")
    return CheckedBatches(
        data=data,
        batches=tuple(batches),
        size_bytes=size_bytes,
        record_count=sum(one.record_count for one in batches),
        max_timestamp_ms=max(one.max_timestamp_ms for one in batches),
        log_append_time=_is_append_time(topic),
    )


def _is_append_time(topic: TopicConfig) -> bool:
    return topic.message_timestamp_type is TimestampType.LOG_APPEND_TIME


def _checked(
    columns: RecordColumns, topic: TopicConfig, now_ms: int, origin: AppendOrigin
) -> Iterator[NewBatch]:
    table = columns.batches
    starts = columns.batch_starts.tolist()
    rows = zip(
        table.base_offset.tolist(),
        table.last_offset.tolist(),
        table.record_count.tolist(),
        table.size_bytes.tolist(),
        table.producer_id.tolist(),
        table.producer_epoch.tolist(),
        table.base_sequence.tolist(),
        table.attributes.tolist(),
        table.magic.tolist(),
        strict=True,
    )
    for row, (base, last, count, size, pid, epoch, sequence, attributes, magic) in enumerate(rows):
        batch = NewBatch(count, size, -1, pid, epoch, sequence, attributes)
        _check_header(batch, magic, last - base + 1, origin, topic)
        first, end = starts[row], starts[row + 1]
        _check_offsets(columns.offset[first:end], base, count)
        if _is_append_time(topic):
            newest_ms = now_ms
        else:
            newest_ms = _largest_timestamp(columns.timestamp_ms[first:end], topic, now_ms)
        yield batch._replace(max_timestamp_ms=newest_ms)


def _check_stop(columns: RecordColumns) -> None:
    table = columns.batches
    if table.stop_reason not in (StopReason.END, StopReason.MEMORY_BUDGET):
        found = f"{table.stop_reason.value} at byte {table.stop_position}: {table.stop_found}"
        raise AppendRefusedError(Refusal.CORRUPT_MESSAGE, f"expected whole batches, found {found}")


def _refusal(error: CorruptDataError) -> AppendRefusedError:
    return AppendRefusedError(_CODES.get(error.reason, Refusal.CORRUPT_MESSAGE), str(error))


def _check_header(
    batch: NewBatch, magic: int, offsets: int, origin: AppendOrigin, topic: TopicConfig
) -> None:
    if magic != 2:
        raise AppendRefusedError(
            Refusal.INVALID_RECORD,
            f"expected batches of magic 2, found messages of magic {magic}; use a client that "
            "speaks Produce version 3 or later",
        )
    count = batch.record_count
    if count < 1 or count != offsets:
        text = f"expected as many records as offsets, found {count} records of {offsets} offsets"
        raise AppendRefusedError(Refusal.INVALID_RECORD, text)
    if batch.is_control and origin is AppendOrigin.CLIENT:
        raise AppendRefusedError(Refusal.INVALID_RECORD, "a client may not write control batches")
    if batch.producer_id >= 0 and batch.base_sequence < 0 and not batch.is_control:
        text = f"producer {batch.producer_id}: expected a sequence, found {batch.base_sequence}"
        raise AppendRefusedError(Refusal.INVALID_RECORD, text)
    if batch.is_transactional and batch.producer_id < 0:
        text = "a transactional batch needs a producer id"
        raise AppendRefusedError(Refusal.INVALID_RECORD, text)
    if batch.size_bytes > topic.max_message_bytes:
        raise AppendRefusedError(
            Refusal.MESSAGE_TOO_LARGE,
            f"a batch of {batch.size_bytes} bytes exceeds max.message.bytes, "
            f"{topic.max_message_bytes}",
        )


def _check_offsets(offset: np.ndarray[tuple[int], np.dtype[np.int64]], base: int, n: int) -> None:
    if len(offset) != n or not np.array_equal(offset, np.arange(base, base + n)):
        text = "expected records with the offset deltas 0, 1, 2 ..., found others"
        raise AppendRefusedError(Refusal.INVALID_RECORD, text)


def _largest_timestamp(
    timestamps_ms: np.ndarray[tuple[int], np.dtype[np.int64]], topic: TopicConfig, now_ms: int
) -> int:
    largest, smallest = int(timestamps_ms.max()), int(timestamps_ms.min())
    for found, limit, name in (
        (now_ms - smallest, topic.message_timestamp_before_max_ms, "before"),
        (largest - now_ms, topic.message_timestamp_after_max_ms, "after"),
    ):
        # -1 stands for no timestamp.
        if found > limit and (name == "after" or smallest >= 0):
            raise AppendRefusedError(
                Refusal.INVALID_TIMESTAMP,
                f"a timestamp lies {found} ms {name} the time of the node, {now_ms}; "
                f"message.timestamp.{name}.max.ms is {limit}",
            )
    return largest

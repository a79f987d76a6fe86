"""Kafka's own plain layout, read as if it were ours: what its LocalTieredStorage wrote.

    <topic>-<partition>-<topicId>/<base offset, 20 digits>-<segmentId>.log         Kafka's bytes
                                  ....index ....timeindex                          Kafka's files
                                  ....txnindex                                     only after aborts
                                  ....leader_epoch_checkpoint
                                  ....snapshot                                     written last

The URL of such a store is ``kafka+`` and that of the folder ``kafka-tiered-storage``, wherever it
lies: ``kafka+file:///...``, ``kafka+s3://...``. Its keys are those of `layout`, so whatever reads
a store of ours reads this one; it is never written to.

An `.indexes` object is made when it is asked for, out of Kafka's files and a few small pieces of
the log: what they do not say, the last offset above all, stands in the batches behind the last
entry of the offset index. Files that do not fit together are a CorruptDataError; a segment that
lacks one of them is shown without `.indexes`, as a copy that did not end.
"""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierlog.errors import CorruptDataError, RemoteResourceNotFoundError, RemoteStorageError
from tierlog.log.checkpoint import LeaderEpochs, parse_leader_epochs
from tierlog.log.index_files import (
    OffsetIndex,
    TimeIndex,
    read_offset_index,
    read_producer_snapshot,
    read_time_index,
    read_transaction_index,
)
from tierlog.log.segment import scan_segment
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata, RemoteLogSegmentState
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.layout import (
    INDEXES_SUFFIX,
    LOG_SUFFIX,
    ObjectKey,
    encode_rdi,
    parse_key,
)
from tierlog.remote.segment.log_index import encode_remote_log_index
from tierlog.remote.store.object_store import (
    ObjectInfo,
    ObjectStore,
    check_key,
    check_prefix,
    check_range,
    not_found,
    storage_error,
)
from tierlog.types import RemoteLogSegmentId, StopReason, TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["KAFKA_FOLDER", "KAFKA_SCHEME", "KafkaLayoutStore"]

KAFKA_SCHEME = "kafka+"
KAFKA_FOLDER = "kafka-tiered-storage"

_NAME = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{0,9})"
    r"-(?P<topic_id>[A-Za-z0-9_-]{22})"
    r"/(?P<offset>[0-9]{20})-(?P<segment_id>[A-Za-z0-9_-]{22})(?P<suffix>\.[a-z_]+)",
    re.ASCII,
)
_OFFSETS, _TIMES, _ABORTS = ".index", ".timeindex", ".txnindex"
_PRODUCERS, _EPOCHS = ".snapshot", ".leader_epoch_checkpoint"
_NEEDED = frozenset({LOG_SUFFIX, _OFFSETS, _TIMES, _PRODUCERS, _EPOCHS})
_SUFFIXES = _NEEDED | {_ABORTS}

# Six times Kafka's default for the largest index file.
_MAX_FILE_BYTES = 64 << 20
# Each run of the remote log index costs one small read; readers go on from run to run.
_RUN_BYTES = 4 << 20
_TAIL_BYTES = 64 << 10
# Of the batch that begins a run: base offset, length, epoch, magic, CRC, attributes, delta and
# base timestamp (formats, magic 2).
_BATCH_START = struct.Struct(">qiibIhiq")
_KEPT_BYTES = 32 << 20
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of one segment beside its `.log`, as Kafka wrote them."""

    offsets: OffsetIndex
    times: TimeIndex
    aborts: bytes
    producers: bytes
    lineage: LeaderEpochs


class KafkaLayoutStore(ObjectStore):
    """What `inner` holds, under our keys. Any thread, if that one may be used by any."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0

    def __repr__(self) -> str:
        return f"KafkaLayoutStore({self._inner!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return KafkaLayoutStore, (self._inner,)

    @property
    def url(self) -> str:
        return KAFKA_SCHEME + self._inner.url

    @property
    def is_local(self) -> bool:
        return self._inner.is_local

    # -- reading

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        check_range(start_position, size_bytes)
        wanted = self._parsed(key)
        if wanted.suffix == LOG_SUFFIX:
            return self._inner.get_range(_their_key(wanted), start_position, size_bytes)
        data = self._indexes(wanted)
        if start_position >= len(data):
            raise storage_error(
                f"{self.url}: read of {key} from position {start_position}, but it has "
                f"{len(data)} bytes",
                retriable=False,
            )
        return data[start_position : start_position + size_bytes]

    def head(self, key: str) -> ObjectInfo:
        wanted = self._parsed(key)
        log = self._inner.head(_their_key(wanted))
        size_bytes = log.size_bytes if wanted.suffix == LOG_SUFFIX else len(self._indexes(wanted))
        return ObjectInfo(
            key=key,
            size_bytes=size_bytes,
            etag=log.etag,
            last_modified_ms=log.last_modified_ms,
        )

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        beneath = folder + "/" if folder else ""
        waiting: dict[str, dict[str, ObjectInfo]] = {}
        for info in self._inner.list():
            ours = _our_key(info.key)
            if ours is None:
                if info.key.startswith(beneath):
                    yield info
                continue
            # The last file of a copy that goes on is empty for a moment.
            if not str(ours).startswith(beneath) or (
                ours.suffix == _PRODUCERS and not info.size_bytes
            ):
                continue
            found = waiting.setdefault(ours.stem, {})
            found[ours.suffix] = info
            if ours.suffix in _NEEDED and found.keys() >= _NEEDED:
                yield from _shown(ours.stem, found)
        for stem, found in waiting.items():
            if not found.keys() >= _NEEDED:
                yield from _shown(stem, found)

    def _parsed(self, key: str) -> ObjectKey:
        """The segment's object; RemoteResourceNotFoundError for whatever else might be asked."""
        try:
            return parse_key(key)
        except ValueError:
            raise not_found(self.url, check_key(key), "Kafka's layout has segments only") from None

    # -- an `.indexes` object

    def _indexes(self, wanted: ObjectKey) -> bytes:
        with self._lock:
            data = self._kept.get(wanted.stem)
            if data is not None:
                self._kept.move_to_end(wanted.stem)
                return data
        data = self._make(wanted)
        with self._lock:
            if wanted.stem not in self._kept:
                self._kept[wanted.stem] = data
                self._kept_bytes += len(data)
            while self._kept_bytes > _KEPT_BYTES:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= len(dropped)
        return data

    def _make(self, wanted: ObjectKey) -> bytes:
        log = self._inner.head(_their_key(wanted))
        files = self._files(wanted)
        positions = files.offsets.position
        if len(positions) and int(positions[-1]) >= log.size_bytes:
            expected = f"positions in the {log.size_bytes} bytes of the log"
            raise self._bad_entry(wanted, expected, f"position {int(positions[-1])}")
        last_position = int(positions[-1]) if len(positions) else 0
        end_offset, max_timestamp_ms = self._tail(log, last_position)
        if len(files.times.timestamp_ms):
            max_timestamp_ms = max(max_timestamp_ms, int(files.times.timestamp_ms[-1]))
        try:
            metadata = self._metadata(wanted, log, files, end_offset, max_timestamp_ms)
        except ValueError as error:
            raise CorruptDataError(
                reason="bad_segment",
                path=f"{self._inner.url}/{log.key}",
                position=0,
                expected="a segment that Kafka could have tiered",
                found=str(error),
            ) from None
        sections = {
            IndexKind.OFFSET: files.offsets.data,
            IndexKind.TIME: files.times.data,
            IndexKind.TRANSACTION: files.aborts,
            IndexKind.PRODUCER_SNAPSHOT: files.producers,
            IndexKind.LEADER_EPOCH: files.lineage.encode(),
            IndexKind.REMOTE_LOG: self._runs(wanted, metadata, files),
        }
        return encode_indexes(SegmentDescription(metadata=metadata), sections)

    def _files(self, wanted: ObjectKey) -> _Files:
        def read(suffix: str, parse: Callable[[bytes], _Value]) -> _Value:
            try:
                return parse(self._read(wanted, suffix))
            except CorruptDataError as error:
                path = f"{self._inner.url}/{_their_key(wanted, suffix)}"
                raise error.located(path) from None

        base_offset = wanted.base_offset
        return _Files(
            offsets=read(_OFFSETS, lambda data: read_offset_index(data, base_offset)),
            times=read(_TIMES, lambda data: read_time_index(data, base_offset)),
            aborts=read(_ABORTS, lambda data: read_transaction_index(data, base_offset).data),
            producers=read(_PRODUCERS, _checked_snapshot),
            lineage=read(_EPOCHS, parse_leader_epochs),
        )

    def _read(self, wanted: ObjectKey, suffix: str) -> bytes:
        """A whole file. Of all of them only the transaction index may be missing."""
        key = _their_key(wanted, suffix)
        try:
            size_bytes = self._inner.head(key).size_bytes
        except RemoteResourceNotFoundError:
            if suffix in _NEEDED:
                raise
            return b""
        if size_bytes > _MAX_FILE_BYTES:
            raise CorruptDataError(
                reason="too_large",
                path=f"{self._inner.url}/{key}",
                position=_MAX_FILE_BYTES,
                expected=f"an index of at most {_MAX_FILE_BYTES} bytes",
                found=f"one of {size_bytes}",
            )
        return bytes(self._inner.get_range(key, 0, size_bytes)) if size_bytes else b""

    def _metadata(
        self,
        wanted: ObjectKey,
        log: ObjectInfo,
        files: _Files,
        end_offset: int,
        max_timestamp_ms: int,
    ) -> RemoteLogSegmentMetadata:
        partition = TopicIdPartition(
            topic_id=wanted.topic_id, topic=wanted.topic_label, partition=wanted.partition
        )
        epochs = files.lineage.clipped(wanted.base_offset, end_offset + 1).entries
        # A lineage begins inside of the segment when records before that were deleted.
        starts = [wanted.base_offset, *(entry.start_offset for entry in epochs[1:])]
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=wanted.segment_id),
            start_offset=wanted.base_offset,
            end_offset=end_offset,
            max_timestamp_ms=max_timestamp_ms,
            broker_id=-1,
            event_timestamp_ms=log.last_modified_ms,
            segment_size_bytes=log.size_bytes,
            leader_epochs=tuple(
                (entry.epoch, start) for entry, start in zip(epochs, starts, strict=False)
            ),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            txn_index_empty=not files.aborts,
        )

    def _tail(self, log: ObjectInfo, position: int) -> tuple[int, int]:
        """Last offset and largest timestamp of the batches from `position` to the end.

        A log that ends in the middle of a batch is one that is still being copied."""
        end_offset = max_timestamp_ms = -1
        window_bytes = _TAIL_BYTES
        while position < log.size_bytes:
            size_bytes = min(window_bytes, log.size_bytes - position)
            table = scan_segment(self._inner.get_range(log.key, position, size_bytes))
            at_end = position + size_bytes == log.size_bytes
            cut = table.stop_reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL)
            if table.stop_reason is not StopReason.END and (at_end or not cut):
                raise CorruptDataError(
                    reason=table.stop_reason.value,
                    path=f"{self._inner.url}/{log.key}",
                    position=position + table.stop_position,
                    expected=table.stop_expected,
                    found=table.stop_found,
                    hint="a copy that goes on, or one that did not end",
                )
            if len(table):
                end_offset = int(table.last_offset[-1])
                max_timestamp_ms = max(max_timestamp_ms, int(table.max_timestamp_ms.max()))
                position, window_bytes = position + table.stop_position, _TAIL_BYTES
            else:
                # One batch is larger than the window.
                window_bytes *= 4
        return end_offset, max_timestamp_ms

    def _runs(self, wanted: ObjectKey, metadata: RemoteLogSegmentMetadata, files: _Files) -> bytes:
        """The remoteLogIndex: runs that begin where the offset index says that a batch does."""
        starts = _run_starts(files.offsets.position.tolist())
        first_offsets, first_timestamps_ms = [], []
        for position in starts:
            base_offset, magic, timestamp_ms = self._batch_start(wanted, position)
            if magic != 2:
                # The headers of older batches do not say where a run begins: one run for all.
                starts, first_offsets, first_timestamps_ms = [0], [wanted.base_offset], [-1]
                break
            first_offsets.append(base_offset)
            first_timestamps_ms.append(timestamp_ms)
        known = np.array([wanted.base_offset - 1, *first_offsets, metadata.end_offset + 1])
        if bool((np.diff(known) <= 0).any()):
            expected = f"batches of ascending offsets from {wanted.base_offset} on"
            raise self._bad_entry(wanted, expected, f"first offsets {first_offsets[:8]}")
        last_offsets = [*(first - 1 for first in first_offsets[1:]), metadata.end_offset]
        return encode_remote_log_index(
            first_offsets,
            last_offsets,
            first_timestamps_ms,
            _latest(files.times, last_offsets, metadata.max_timestamp_ms),
            np.diff([*starts, metadata.segment_size_bytes]),
            [encode_rdi(metadata, start) for start in starts],
        )

    def _batch_start(self, wanted: ObjectKey, position: int) -> tuple[int, int, int]:
        """Base offset, magic and base timestamp of the batch at `position`."""
        data = bytes(self._inner.get_range(_their_key(wanted), position, _BATCH_START.size))
        if len(data) < _BATCH_START.size:
            return -1, -1, -1
        base_offset, _, _, magic, _, _, _, timestamp_ms = _BATCH_START.unpack(data)
        return base_offset, magic, timestamp_ms

    def _bad_entry(self, wanted: ObjectKey, expected: str, found: str) -> CorruptDataError:
        return CorruptDataError(
            reason="bad_position",
            path=f"{self._inner.url}/{_their_key(wanted, _OFFSETS)}",
            position=0,
            expected=f"an offset index with {expected}",
            found=found,
        )

    # -- writing, which never happens

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        raise self._read_only(key)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        raise self._read_only(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        raise self._read_only(key)

    def delete(self, key: str) -> None:
        raise self._read_only(key)

    def _read_only(self, key: str) -> RemoteStorageError:
        return storage_error(
            f"{self.url}: {key}: Kafka's own layout is only read; give a store of tierlog's own",
            retriable=False,
        )


def _checked_snapshot(data: bytes) -> bytes:
    read_producer_snapshot(data)
    return data


def _their_key(wanted: ObjectKey, suffix: str = LOG_SUFFIX) -> str:
    return (
        f"{wanted.topic_label}-{wanted.partition}-{wanted.topic_id}/"
        f"{wanted.base_offset:020d}-{wanted.segment_id}{suffix}"
    )


def _our_key(key: str) -> ObjectKey | None:
    """What one of Kafka's files belongs to, with its own suffix; None for any other name."""
    match = _NAME.fullmatch(key)
    if match is None or match["suffix"] not in _SUFFIXES:
        return None
    return ObjectKey(
        topic_label=match["topic"],
        topic_id=match["topic_id"],
        partition=int(match["partition"]),
        base_offset=int(match["offset"]),
        segment_id=match["segment_id"],
        suffix=match["suffix"],
    )


def _shown(stem: str, found: dict[str, ObjectInfo]) -> Iterator[ObjectInfo]:
    """The objects of ours that the files of a segment stand for, once all are there or no more
    come. Half of a segment is one object without the other."""
    complete = found.keys() >= _NEEDED
    info = found.get(LOG_SUFFIX)
    if info is not None:
        yield _renamed(info, stem + LOG_SUFFIX, info.size_bytes)
    if complete or info is None:
        other = next(iter(found.values())) if info is None else info
        yield _renamed(other, stem + INDEXES_SUFFIX, -1)


def _renamed(info: ObjectInfo, key: str, size_bytes: int) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=size_bytes,
        etag=info.etag,
        last_modified_ms=info.last_modified_ms,
    )


def _run_starts(positions: Iterable[int]) -> list[int]:
    starts = [0]
    for position in positions:
        if position - starts[-1] >= _RUN_BYTES:
            starts.append(position)
    return starts


def _latest(times: TimeIndex, last_offsets: Iterable[int], max_timestamp_ms: int) -> list[int]:
    """No record up to each of these offsets is later: records later than an entry of the time
    index come behind that entry's offset, so the first entry at or past an offset bounds it."""
    rows = np.searchsorted(times.offset, list(last_offsets), side="left")
    bounds = [*times.timestamp_ms.tolist(), max_timestamp_ms]
    return [bounds[row] for row in rows.tolist()]

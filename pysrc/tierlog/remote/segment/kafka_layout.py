"""A read-only store that shows the files of Kafka's LocalTieredStorage under tierlog's keys
(`layout`).

    <topic>-<partition>-<topicId>/<base offset, 20 digits>-<segmentId>.log         Kafka's bytes
                                  ....index ....timeindex                          Kafka's files
                                  ....txnindex                                     only after aborts
                                  ....leader_epoch_checkpoint
                                  ....snapshot                                     written last

The URL of such a store is ``kafka+`` plus the URL of the folder ``kafka-tiered-storage``:
``kafka+file:///...``, ``kafka+s3://...``. The keys of such a store follow `layout`, so every reader
of a tierlog store can read it.

tierlog never writes to a store in Kafka's layout.

An `.indexes` object is built on request from Kafka's files and a few small ranges of the log.
Fields that the files lack, above all the last offset, are read from the batches after the last
entry of the offset index. Files that contradict each other raise CorruptDataError. If a segment
lacks a file, the listing shows its `.log` object without an `.indexes` object, as for an unfinished
copy.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tierlog import _core
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
    past_end,
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
# Size of a remoteLogIndex entry. Building an entry takes one small read; a reader scans from the
# start of an entry.
_ENTRY_BYTES = 4 << 20
_TAIL_BYTES = 64 << 10
# The start of a batch of magic 2 up to its base timestamp (docs/FORMATS.md).
_BATCH_START_BYTES = 35
_MAX_CACHED_BYTES = 32 << 20
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Files:
    """The parsed files of one segment, without its `.log`."""

    offsets: OffsetIndex
    times: TimeIndex
    aborts: bytes
    producers: bytes
    lineage: LeaderEpochs


class KafkaLayoutStore(ObjectStore):
    """Shows the files of `inner` under tierlog's keys. Thread-safe if `inner` is thread-safe."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cached_bytes = 0

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
        object_key = self._parse_segment_key(key)
        if object_key.suffix == LOG_SUFFIX:
            return self._inner.get_range(_kafka_key(object_key), start_position, size_bytes)
        data = self._find_indexes(object_key)
        if start_position >= len(data):
            raise past_end(self.url, key, start_position, len(data))
        return data[start_position : start_position + size_bytes]

    def head(self, key: str) -> ObjectInfo:
        object_key = self._parse_segment_key(key)
        log = self._inner.head(_kafka_key(object_key))
        size_bytes = (
            log.size_bytes
            if object_key.suffix == LOG_SUFFIX
            else len(self._find_indexes(object_key))
        )
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
            ours = _parse_kafka_key(info.key)
            if ours is None:
                if info.key.startswith(beneath):
                    yield info
                continue
            # In an unfinished copy, the last file may exist but still be empty.
            if not str(ours).startswith(beneath) or (
                ours.suffix == _PRODUCERS and not info.size_bytes
            ):
                continue
            found = waiting.setdefault(ours.stem, {})
            found[ours.suffix] = info
            if ours.suffix in _NEEDED and found.keys() >= _NEEDED:
                yield from _tierlog_objects(ours.stem, found)
        for stem, found in waiting.items():
            if not found.keys() >= _NEEDED:
                yield from _tierlog_objects(stem, found)

    def _parse_segment_key(self, key: str) -> ObjectKey:
        """Return the parsed key of a segment object; raise RemoteResourceNotFoundError for any
        other key."""
        try:
            return parse_key(key)
        except ValueError:
            raise not_found(self.url, check_key(key), "Kafka's layout has segments only") from None

    # -- an `.indexes` object

    def _find_indexes(self, object_key: ObjectKey) -> bytes:
        with self._lock:
            data = self._cache.get(object_key.stem)
            if data is not None:
                self._cache.move_to_end(object_key.stem)
                return data
        data = self._build_indexes(object_key)
        with self._lock:
            if object_key.stem not in self._cache:
                self._cache[object_key.stem] = data
                self._cached_bytes += len(data)
            while self._cached_bytes > _MAX_CACHED_BYTES:
                _, dropped = self._cache.popitem(last=False)
                self._cached_bytes -= len(dropped)
        return data

    def _build_indexes(self, object_key: ObjectKey) -> bytes:
        log = self._inner.head(_kafka_key(object_key))
        files = self._read_files(object_key)
        positions = files.offsets.position
        if len(positions) and int(positions[-1]) >= log.size_bytes:
            expected = f"positions in the {log.size_bytes} bytes of the log"
            raise self._bad_entry(object_key, expected, f"position {int(positions[-1])}")
        last_position = int(positions[-1]) if len(positions) else 0
        end_offset, max_timestamp_ms = self._scan_tail(log, last_position)
        if len(files.times.timestamp_ms):
            max_timestamp_ms = max(max_timestamp_ms, int(files.times.timestamp_ms[-1]))
        try:
            metadata = self._make_metadata(object_key, log, files, end_offset, max_timestamp_ms)
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
            IndexKind.REMOTE_LOG: self._encode_log_index(object_key, metadata, files),
        }
        return encode_indexes(SegmentDescription(metadata=metadata), sections)

    def _read_files(self, object_key: ObjectKey) -> _Files:
        def read(suffix: str, parse: Callable[[bytes], _Value]) -> _Value:
            try:
                return parse(self._read_file(object_key, suffix))
            except CorruptDataError as error:
                path = f"{self._inner.url}/{_kafka_key(object_key, suffix)}"
                raise error.located(path) from None

        base_offset = object_key.base_offset
        return _Files(
            offsets=read(_OFFSETS, lambda data: read_offset_index(data, base_offset)),
            times=read(_TIMES, lambda data: read_time_index(data, base_offset)),
            aborts=read(_ABORTS, lambda data: read_transaction_index(data, base_offset).data),
            producers=read(_PRODUCERS, _check_snapshot),
            lineage=read(_EPOCHS, parse_leader_epochs),
        )

    def _read_file(self, object_key: ObjectKey, suffix: str) -> bytes:
        """Read a file. Return ``b""`` for a missing transaction index; any other missing file is an
        error."""
        key = _kafka_key(object_key, suffix)
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

    def _make_metadata(
        self,
        object_key: ObjectKey,
        log: ObjectInfo,
        files: _Files,
        end_offset: int,
        max_timestamp_ms: int,
    ) -> RemoteLogSegmentMetadata:
        partition = TopicIdPartition(
            topic_id=object_key.topic_id,
            topic=object_key.topic_label,
            partition=object_key.partition,
        )
        epochs = files.lineage.clipped(object_key.base_offset, end_offset + 1).entries
        # If earlier records were deleted, the lineage may begin inside the segment.
        starts = [object_key.base_offset, *(entry.start_offset for entry in epochs[1:])]
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=object_key.segment_id),
            start_offset=object_key.base_offset,
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

    def _scan_tail(self, log: ObjectInfo, position: int) -> tuple[int, int]:
        """Return last offset and largest timestamp of the batches from `position` to the end.

        Raises CorruptDataError when the log ends inside a batch, because such a log is still being
        copied."""
        end_offset = max_timestamp_ms = -1
        chunk_bytes = _TAIL_BYTES
        while position < log.size_bytes:
            size_bytes = min(chunk_bytes, log.size_bytes - position)
            table = scan_segment(self._inner.get_range(log.key, position, size_bytes))
            at_end = position + size_bytes == log.size_bytes
            cut = table.stop_reason in (StopReason.TORN_TAIL, StopReason.ZERO_TAIL)
            if table.stop_reason is not StopReason.END and (at_end or not cut):
                error = table.stop_error()
                raise error.located(
                    f"{self._inner.url}/{log.key}",
                    "the copy is unfinished; read it again later",
                    shift=position,
                )
            if len(table):
                end_offset = int(table.last_offset[-1])
                max_timestamp_ms = max(max_timestamp_ms, int(table.max_timestamp_ms.max()))
                position, chunk_bytes = position + table.stop_position, _TAIL_BYTES
            else:
                # The batch is larger than the chunk, so read a larger chunk.
                chunk_bytes *= 4
        return end_offset, max_timestamp_ms

    def _encode_log_index(
        self, object_key: ObjectKey, metadata: RemoteLogSegmentMetadata, files: _Files
    ) -> bytes:
        """Encode the remoteLogIndex. The entries start at batches to which the offset index
        points."""
        starts = _entry_starts(files.offsets.position.tolist())
        first_offsets, first_timestamps_ms = [], []
        for position in starts:
            base_offset, magic, timestamp_ms = self._read_batch_start(object_key, position)
            if magic != 2:
                # Headers of older batches do not contain the base offset, so use one entry for the
                # whole log.
                starts, first_offsets, first_timestamps_ms = [0], [object_key.base_offset], [-1]
                break
            first_offsets.append(base_offset)
            first_timestamps_ms.append(timestamp_ms)
        known = np.array([object_key.base_offset - 1, *first_offsets, metadata.end_offset + 1])
        if bool((np.diff(known) <= 0).any()):
            expected = f"batches of ascending offsets from {object_key.base_offset} on"
            raise self._bad_entry(object_key, expected, f"first offsets {first_offsets[:8]}")
        last_offsets = [*(first - 1 for first in first_offsets[1:]), metadata.end_offset]
        return encode_remote_log_index(
            first_offsets,
            last_offsets,
            first_timestamps_ms,
            _timestamp_bounds(files.times, last_offsets, metadata.max_timestamp_ms),
            np.diff([*starts, metadata.segment_size_bytes]),
            [encode_rdi(metadata, start) for start in starts],
        )

    def _read_batch_start(self, object_key: ObjectKey, position: int) -> tuple[int, int, int]:
        """Return base offset, magic and base timestamp of the batch at `position`."""
        data = self._inner.get_range(_kafka_key(object_key), position, _BATCH_START_BYTES)
        base_offset, _size, magic, timestamp_ms = _core.batch_start(data)
        if base_offset is None or magic is None or timestamp_ms is None:
            return -1, -1, -1
        return base_offset, magic, timestamp_ms

    def _bad_entry(self, object_key: ObjectKey, expected: str, found: str) -> CorruptDataError:
        return CorruptDataError(
            reason="bad_position",
            path=f"{self._inner.url}/{_kafka_key(object_key, _OFFSETS)}",
            position=0,
            expected=f"an offset index with {expected}",
            found=found,
        )

    # -- writing is refused

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        raise self._read_only_error(key)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        raise self._read_only_error(key)

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        raise self._read_only_error(key)

    def delete(self, key: str) -> None:
        raise self._read_only_error(key)

    def _read_only_error(self, key: str) -> RemoteStorageError:
        return storage_error(
            f"{self.url}: {key}: a store in Kafka's own layout is read-only; write to a store of "
            "tierlog's own",
            retriable=False,
        )


def _check_snapshot(data: bytes) -> bytes:
    read_producer_snapshot(data)
    return data


def _kafka_key(object_key: ObjectKey, suffix: str = LOG_SUFFIX) -> str:
    return (
        f"{object_key.topic_label}-{object_key.partition}-{object_key.topic_id}/"
        f"{object_key.base_offset:020d}-{object_key.segment_id}{suffix}"
    )


def _parse_kafka_key(key: str) -> ObjectKey | None:
    """Parse the name of a file in Kafka's layout; the result has the file's suffix. None for any
    other name."""
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


def _tierlog_objects(stem: str, found: dict[str, ObjectInfo]) -> Iterator[ObjectInfo]:
    """Yield the tierlog objects of one segment, when all its files were listed or the listing has
    ended. For an incomplete segment, only the `.log` object is yielded, or only the `.indexes`
    object when there is no log."""
    complete = found.keys() >= _NEEDED
    info = found.get(LOG_SUFFIX)
    if info is not None:
        yield _with_key(info, stem + LOG_SUFFIX, info.size_bytes)
    if complete or info is None:
        other = next(iter(found.values())) if info is None else info
        yield _with_key(other, stem + INDEXES_SUFFIX, -1)


def _with_key(info: ObjectInfo, key: str, size_bytes: int) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size_bytes=size_bytes,
        etag=info.etag,
        last_modified_ms=info.last_modified_ms,
    )


def _entry_starts(positions: Iterable[int]) -> list[int]:
    starts = [0]
    for position in positions:
        if position - starts[-1] >= _ENTRY_BYTES:
            starts.append(position)
    return starts


def _timestamp_bounds(
    times: TimeIndex, last_offsets: Iterable[int], max_timestamp_ms: int
) -> list[int]:
    """Return, for each of `last_offsets`, an upper bound of the timestamps up to that offset.
    Records with a larger timestamp than a time index entry come after the entry's offset. So the
    timestamp of the first entry at or past an offset is such a bound."""
    rows = np.searchsorted(times.offset, list(last_offsets), side="left")
    bounds = [*times.timestamp_ms.tolist(), max_timestamp_ms]
    return [bounds[row] for row in rows.tolist()]

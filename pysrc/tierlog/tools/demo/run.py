"""Tiers real logs, reads every record back and compares all bytes.

The logs may belong to any broker. The demo does not write to the logs. ``make demo`` uses the Kafka
logs of the repository. The demo compares every object in the store with the broker's file, every
record read from the store with the record decoded from that file, and the number of records with
the count of the scan.

The demo measures little data, so its figures are only examples. ``make bench`` measures reliable
figures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from tierlog.batches import BatchTable
from tierlog.columns import RecordColumns
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.log_dir import open_log_dir
from tierlog.log.records import decode_records
from tierlog.log.segment import scan_segment
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.log_reader import LogReader
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.bucket import describe_segments
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store

__all__ = [
    "CODECS",
    "MIXED",
    "CodecFigures",
    "DemoResult",
    "DemoSegment",
    "LeftOut",
    "TieredRow",
    "empty_folder",
    "run_demo",
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MIXED = "mixed"

_COMPARE_BYTES = 4 << 20
# Short measurements are repeated this often; the fastest one counts.
_REPEATS = 3


class TieredRow(Protocol):
    """The result of tiering one segment; see `tierlog.sidecar.TierRow`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def outcome(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def text(self) -> str: ...


Tier = Callable[[Sequence[str], str], Iterable[TieredRow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSegment:
    """One tiered segment and the measurements of its reads.

    ``codec`` is the codec of its data batches, or "mixed". ``cold_read_us`` is the time from an
    offset in its middle to the first record, when tierlog has nothing open or cached.
    """

    topic: str
    partition: int
    base_offset: int
    key: str
    size_bytes: int
    batches: int
    records: int
    codec: str
    cold_read_us: float
    read_back_us: float

    @property
    def name(self) -> str:
        """The name of the segment: ``topic:partition @ base offset``."""
        return f"{self.topic}:{self.partition} @ {self.base_offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Segments that share the reason why they were not tiered. ``text`` explains the reason for one
    of these segments."""

    outcome: str
    reason: str
    segments: int
    size_bytes: int
    text: str


@dataclass(slots=True, kw_only=True)
class CodecFigures:
    """The figures of all batches that one codec compressed. ``opened_bytes`` is the size of keys
    and values as producers sent them."""

    codec: str
    batches: int = 0
    records: int = 0
    stored_bytes: int = 0
    opened_bytes: int = 0
    decode_us: float = 0.0
    decoded_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class DemoResult:
    """The values that the summary and the report show. Times are in microseconds."""

    log_dirs: tuple[str, ...]
    store_url: str
    cluster_id: str
    segments: list[DemoSegment] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    codecs: dict[str, CodecFigures] = field(default_factory=dict)
    mismatches: list[str] = field(default_factory=list)
    objects_equal: int = 0
    records_equal: int = 0
    partitions: int = 0
    copy_us: float = 0.0
    scan_us: float = 0.0
    read_back_us: float = 0.0
    all_us: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether segments were tiered and all of them came back unchanged."""
        return bool(self.segments) and not self.mismatches and not self.failed

    @property
    def failed(self) -> list[LeftOut]:
        """The segments that should have been tiered and were not."""
        return [one for one in self.left_out if one.outcome in ("refused", "failed")]

    @property
    def size_bytes(self) -> int:
        """The number of tiered log bytes."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def records(self) -> int:
        """The number of tiered records, not counting transaction markers."""
        return sum(segment.records for segment in self.segments)


def empty_folder(given: str | None) -> Path:
    """Create the folder to work in if it is missing, and return it. Raise ConfigError when the
    folder is not empty."""
    if given is None:
        return Path(tempfile.mkdtemp(prefix="tierlog-demo-"))
    folder = Path(given).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{folder}: expected an empty folder for the demo, found files in it")
    return folder


def run_demo(
    log_dirs: Sequence[str],
    store_url: str,
    *,
    tier: Tier,
    timer_ns: Callable[[], int],
    on_step: Callable[[str], None] = lambda _: None,
) -> DemoResult:
    """Tier ``log_dirs`` into the empty store ``store_url`` by calls of ``tier``, and read all
    segments back."""
    stopwatch = _Stopwatch(timer_ns)
    whole = _Stopwatch(timer_ns)
    logs = open_log_dir(*log_dirs)
    result = DemoResult(
        log_dirs=tuple(log_dirs), store_url=store_url, cluster_id=logs.cluster_id or "unknown"
    )
    on_step("tiering")
    stopwatch.lap_us()
    rows = list(tier(log_dirs, store_url))
    result.copy_us = stopwatch.lap_us()
    result.left_out = _left_out(rows)
    files = {
        (log.topic, log.partition, segment.base_offset): (segment, log.log_start_offset or 0)
        for log in logs.partitions()
        for segment in log.segments
    }
    held = [description.metadata for description in describe_segments(open_store(store_url))]
    held.sort(key=lambda one: (one.topic_id_partition, one.start_offset))
    result.partitions = len({one.topic_id_partition for one in held})
    for metadata in held:
        partition = metadata.topic_id_partition
        on_step(f"comparing {partition.topic}:{partition.partition}")
        local = files[partition.topic, partition.partition, metadata.start_offset]
        _compare(metadata, *local, result, stopwatch)
    result.all_us = whole.lap_us()
    return result


class _Stopwatch:
    """Measures the microseconds between two calls of `lap_us`."""

    def __init__(self, timer_ns: Callable[[], int]) -> None:
        self._timer_ns = timer_ns
        self._last_ns = timer_ns()

    def lap_us(self) -> float:
        now_ns = self._timer_ns()
        passed_us = (now_ns - self._last_ns) / 1000
        self._last_ns = now_ns
        return passed_us


def _left_out(rows: Iterable[TieredRow]) -> list[LeftOut]:
    groups: dict[tuple[str, str], list[TieredRow]] = {}
    for row in rows:
        if str(row.outcome) != "copied":
            groups.setdefault((str(row.outcome), row.reason), []).append(row)
    return [
        LeftOut(
            outcome=outcome,
            reason=reason,
            segments=len(group),
            size_bytes=sum(row.size_bytes for row in group),
            text=f"{group[0].topic}:{group[0].partition} @ {group[0].base_offset}: {group[0].text}",
        )
        for (outcome, reason), group in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]


def _compare(
    metadata: RemoteLogSegmentMetadata,
    local: SegmentFiles,
    log_start_offset: int,
    result: DemoResult,
    stopwatch: _Stopwatch,
) -> None:
    """Read one segment in every way, compare the results and measure the times. Readers leave out
    deleted records below the log start offset."""
    partition = metadata.topic_id_partition
    topic, number = partition.topic, partition.partition
    first, end = metadata.start_offset, metadata.end_offset + 1
    reader = _fresh_reader(result.store_url, metadata)
    stopwatch.lap_us()
    refused = None
    stored: list[RecordColumns] = []
    try:
        next(iter(reader.read(topic, number, (first + end) // 2, end)), None)
        cold_read_us = stopwatch.lap_us()
        stored += reader.read(topic, number, max(first, log_start_offset), end)
    except CorruptDataError as error:
        refused, cold_read_us = f"a read was refused: {error}", stopwatch.lap_us()
    read_back_us = stopwatch.lap_us()
    scans = []
    for _ in range(_REPEATS):
        table = scan_segment(local.log_path)
        scans.append(stopwatch.lap_us())
    result.scan_us += min(scans)
    decoded = decode_records(local.log_path)
    decoded = decoded.rows(int(np.searchsorted(decoded.offset, log_start_offset)), len(decoded))
    codec = _codec_of(table)
    segment = DemoSegment(
        topic=topic,
        partition=number,
        base_offset=first,
        key=log_key(metadata),
        size_bytes=metadata.segment_size_bytes,
        batches=len(table),
        records=len(decoded),
        codec=codec,
        cold_read_us=cold_read_us,
        read_back_us=read_back_us,
    )
    result.segments.append(segment)
    result.read_back_us += read_back_us
    object_differs = _object_mismatch(metadata, local, result.store_url)
    records_differ = refused or _record_mismatch(stored, decoded)
    result.objects_equal += object_differs is None
    result.records_equal += 0 if records_differ else len(decoded)
    for differs in (object_differs, records_differ):
        if differs:
            result.mismatches.append(f"{segment.name}: {differs}")
    _count_codecs(decoded, result.codecs)
    if codec in result.codecs:
        decodes = []
        stopwatch.lap_us()
        for _ in range(_REPEATS):
            whole = decode_records(local.log_path)
            decodes.append(stopwatch.lap_us())
        figures = result.codecs[codec]
        figures.decode_us += min(decodes)
        figures.decoded_bytes += _opened_bytes(whole)


def _fresh_reader(store_url: str, metadata: RemoteLogSegmentMetadata) -> LogReader:
    """Return a new reader that knows only this segment."""
    known = InMemoryRemoteLogMetadataManager()
    known.load([metadata])
    return StoreReader(ObjectStorageManager(open_store(store_url)), known)


def _object_mismatch(
    metadata: RemoteLogSegmentMetadata, local: SegmentFiles, store_url: str
) -> str | None:
    """Return a text that says where the `.log` object differs from the broker's file; None if they
    are equal."""
    storage = ObjectStorageManager(open_store(store_url))
    with local.open() as handle:
        if handle.size_bytes != metadata.segment_size_bytes:
            return f"the file has {handle.size_bytes} bytes, {metadata.segment_size_bytes} stored"
        for position in range(0, handle.size_bytes, _COMPARE_BYTES):
            end = position + _COMPARE_BYTES
            stored = storage.fetch_log_segment(metadata, position, end)
            if bytes(stored) != handle.read_at(position, _COMPARE_BYTES):
                return f"the object differs from the file in bytes {position} to {end}"
    return None


def _record_mismatch(stored: Sequence[RecordColumns], decoded: RecordColumns) -> str | None:
    """Return a text about the column that differs between store and file; None if all are equal."""
    if sum(map(len, stored)) != len(decoded):
        return f"{sum(map(len, stored))} records came back of {len(decoded)}"
    start = 0
    for piece in stored:
        rows = slice(start, start + len(piece))
        start = rows.stop
        same = {
            "offsets": np.array_equal(piece.offset, decoded.offset[rows]),
            "timestamps": np.array_equal(piece.timestamp_ms, decoded.timestamp_ms[rows]),
            "keys": piece.keys[:] == decoded.keys[rows],
            "values": piece.values[:] == decoded.values[rows],
            "headers": piece.headers[:] == decoded.headers[rows],
        }
        for column, is_same in same.items():
            if not is_same:
                return f"{column} of the records from row {rows.start} on differ"
    return None


def _codec_of(table: BatchTable) -> str:
    pairs = zip(table.codec, table.is_control.tolist(), strict=True)
    codecs = {codec for codec, is_control in pairs if not is_control}
    return codecs.pop() if len(codecs) == 1 else MIXED


def _count_codecs(decoded: RecordColumns, codecs: dict[str, CodecFigures]) -> None:
    """Add each batch to the figures of the batch's codec."""
    table = decoded.batches
    sizes = decoded.keys.lengths.astype(np.int64) + decoded.values.lengths
    sums = np.concatenate(([0], np.cumsum(sizes)))
    opened = sums[decoded.batch_starts[1:]] - sums[decoded.batch_starts[:-1]]
    rows = np.diff(decoded.batch_starts)
    for index, codec in enumerate(table.codec):
        if table.is_control[index]:
            continue
        figures = codecs.setdefault(codec, CodecFigures(codec=codec))
        figures.batches += 1
        figures.records += int(rows[index])
        figures.stored_bytes += int(table.size_bytes[index])
        figures.opened_bytes += int(opened[index])


def _opened_bytes(decoded: RecordColumns) -> int:
    return int(
        decoded.keys.lengths.sum(dtype=np.int64) + decoded.values.lengths.sum(dtype=np.int64)
    )

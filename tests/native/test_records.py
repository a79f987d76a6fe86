"""Decoded records against real Kafka logs and what a consumer read from them, and the API."""

from __future__ import annotations

import base64
import errno
import gc
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.dump_text import parse_log_dump
from tests.kafka_tools.golden import GoldenSegment, golden_segments, truth_records, truth_text
from tests.oracle import build, compression
from tests.oracle.model import Record
from tests.vectors import vector
from tierlog import _core
from tierlog.columns import BinaryColumn, RecordColumns
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_records
from tierlog.log.segment import scan_segment
from tierlog.types import StopReason

SEGMENTS = golden_segments()
LARGE_VALUE_BYTES = 1024


def rows_of(records: RecordColumns) -> list[tuple[Any, ...]]:
    columns = (records.offset.tolist(), records.timestamp_ms.tolist())
    return list(zip(*columns, records.keys, records.values, records.headers[:], strict=True))


def segment_id(segment: GoldenSegment) -> str:
    return segment.name


@pytest.mark.parametrize("segment", SEGMENTS, ids=segment_id)
def test_records_are_those_that_kafkas_tool_prints(segment: GoldenSegment) -> None:
    batches = parse_log_dump(truth_text(segment.path))
    records = decode_records(segment.path, include_control=True)
    dumped = [record for batch in batches for record in batch.records]
    assert records.offset.tolist() == [record.offset for record in dumped]
    assert records.timestamp_ms.tolist() == [record.timestamp_ms for record in dumped]
    for column, name in ((records.keys, "key_size"), (records.values, "value_size")):
        sizes = np.where(column.is_null, -1, column.lengths)
        assert sizes.tolist() == [getattr(record, name) for record in dumped]
    assert np.diff(records.batch_starts).tolist() == [len(batch.records) for batch in batches]
    without_control = decode_records(segment.path)
    data = [record.offset for batch in batches if not batch.is_control for record in batch.records]
    assert without_control.offset.tolist() == data
    assert len(without_control.batches) == len(batches)


def truth_of(stored: Any) -> Any:
    return base64.b64decode(stored) if isinstance(stored, str) else stored


def same_as_truth(found: bytes | None, stored: Any) -> bool:
    if found is not None and len(found) > LARGE_VALUE_BYTES:
        digest = hashlib.sha256(found).hexdigest()
        return bool(stored == {"size_bytes": len(found), "sha256": digest})
    return bool(found == truth_of(stored))


PARTITIONS = sorted({(part.data_set, part.topic, part.partition) for part in SEGMENTS})


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda part: "-".join(map(str, part)))
def test_records_are_those_that_a_consumer_read(partition: tuple[str, str, int]) -> None:
    data_set, topic, number = partition
    try:
        truth = {row["offset"]: row for row in truth_records(data_set, topic, number)}
    except FileNotFoundError:
        assert topic.startswith("__"), "only Kafka's own topics were not consumed"
        return
    segments = [part for part in golden_segments(topic, data_set) if part.partition == number]
    found = {row[0]: row for part in segments for row in rows_of(decode_records(part.path))}
    # Deleted records are still in the file, below the log start offset.
    assert truth.keys() <= found.keys()
    assert not truth or min(truth) > max(found.keys() - truth.keys(), default=-1)
    for offset, stored in truth.items():
        _offset, timestamp_ms, key, value, headers = found[offset]
        assert timestamp_ms == stored["timestamp_ms"]
        assert same_as_truth(key, stored["key"])
        assert same_as_truth(value, stored["value"])
        for (name, header), (stored_name, stored_header) in zip(
            headers, stored["headers"], strict=True
        ):
            assert name.decode() == stored_name
            assert same_as_truth(header, stored_header)


V2_ROWS = [
    (100, 1000, b"k1", b"v1", [(b"h", b"\x09"), (b"n", None)]),
    (101, 1005, None, b"v2", []),
    (102, 1003, b"k3", None, []),
]


@pytest.mark.parametrize("name", ["none", "transactional", "gzip", "snappy", "lz4", "zstd"])
def test_v2_vectors(name: str) -> None:
    assert rows_of(decode_records(vector(f"v2_{name}"))) == V2_ROWS


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4"])
@pytest.mark.parametrize(("magic", "times"), [(0, (-1, -1)), (1, (1000, 1005))])
def test_legacy_vectors(name: str, magic: int, times: tuple[int, int]) -> None:
    records = decode_records(vector(f"v{magic}_{name}"))
    assert rows_of(records) == [
        (100, times[0], b"k1", b"v1", []),
        (101, times[1], None, b"v2", []),
    ]
    assert set(records.batches.magic.tolist()) == {magic}


def test_every_way_to_read_gives_the_same_rows() -> None:
    segment = next(part for part in SEGMENTS if "headers" in part.topic)
    data = segment.path.read_bytes()
    expected = rows_of(decode_records(data))
    with segment.path.open("rb") as file:
        by_file = decode_records(file)
    others: list[RecordColumns] = [
        by_file,
        decode_records(segment.path),
        decode_records(str(segment.path)),
        decode_records(bytearray(data)),
        decode_records(memoryview(data)),
        decode_records(np.frombuffer(data, np.uint8)),
    ]
    for other in others:
        assert rows_of(other) == expected


@pytest.mark.parametrize("codec", [compression.NONE, compression.ZSTD])
def test_a_range_has_the_positions_of_the_source(codec: int, tmp_path: Path) -> None:
    data = segment_of(codec, batches=4)
    table = scan_segment(data)
    start, end = int(table.position[1]), int(table.position[3])
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    for source in (data, bytearray(data), path):
        records = decode_records(source, start, end)
        assert records.batches.position.tolist() == table.position[1:3].tolist()
        assert records.batches.stop_position == end
        assert rows_of(records) == rows_of(decode_records(data))[10:30]
        assert len(decode_records(source, len(data) + 5)) == 0


def segment_of(codec: int, batches: int = 1, per_batch: int = 10) -> bytes:
    parts = []
    for base_offset in range(0, batches * per_batch, per_batch):
        rows = [
            Record(
                offset=offset,
                timestamp_ms=5000 + offset,
                key=b"k%d" % offset if offset % 3 else None,
                value=b"value of more than twelve bytes %d" % offset if offset % 4 else b"",
                headers=((b"name", b"%d" % offset),) if offset % 5 == 0 else (),
            )
            for offset in range(base_offset, base_offset + per_batch)
        ]
        parts.append(build.batch(rows, base_offset=base_offset, codec=codec))
    return b"".join(parts)


def test_uncompressed_values_are_not_copied() -> None:
    data = segment_of(compression.NONE)
    column = decode_records(data).values.to_arrow()
    source = np.frombuffer(data, np.uint8)
    assert column.buffers()[2].address == source.__array_interface__["data"][0]
    assert column.buffers()[2].size == len(data)
    assert len(column.buffers()) == 3


def test_columns_keep_their_memory_alive() -> None:
    records = decode_records(bytes(bytearray(segment_of(compression.NONE))))
    opened = decode_records(bytes(bytearray(segment_of(compression.LZ4))))
    offset, values, opened_values = records.offset, records.values, opened.values
    arrow = opened.to_arrow()
    del records, opened
    gc.collect()
    assert offset.tolist() == list(range(10))
    assert values[1] == opened_values[1] == b"value of more than twelve bytes 1"
    assert arrow["value"][1].as_py() == values[1]


def large_segment(codec: int, first_value: bytes) -> bytes:
    """200,000 records: columns whose memory is kept for the next decode."""
    rows = [
        Record(offset=offset, timestamp_ms=offset, key=b"%d" % offset, value=first_value * 3)
        for offset in range(1000)
    ]
    one = build.batch(rows, codec=codec)
    # The base offset lies outside of the checksum.
    return b"".join((1000 * index).to_bytes(8) + one[8:] for index in range(200))


@pytest.mark.parametrize("codec", [compression.NONE, compression.LZ4])
def test_memory_is_used_again_only_when_nobody_looks_at_it(codec: int) -> None:
    first = decode_records(large_segment(codec, b"seven b"))
    offset, timestamp_ms = first.offset, first.timestamp_ms
    arrow_values = first.values.to_arrow()
    del first
    gc.collect()
    for text in (b"another", b"a third"):
        records = decode_records(large_segment(codec, text))
        assert records.values[199_999] == text * 3
        assert set(records.values[::997]) == {text * 3}
        assert records.offset[-1] == 199_999
        del records
    assert offset.tolist() == list(range(200_000))
    assert timestamp_ms[-1] == 999
    assert arrow_values[199_999].as_py() == b"seven b" * 3
    arrow_values.validate(full=True)
    gc.collect()
    assert _core.release_pooled_memory() > 200_000 * 16
    assert _core.release_pooled_memory() == 0


def test_a_writable_source_is_copied() -> None:
    data = bytearray(segment_of(compression.NONE))
    records = decode_records(data)
    before = rows_of(records)
    data[:] = bytes(len(data))
    assert rows_of(records) == before
    data.append(0)  # nothing holds on to the caller's buffer


def test_columns_are_read_only() -> None:
    records = decode_records(segment_of(compression.GZIP))
    for column in (
        records.offset,
        records.timestamp_ms,
        records.batch_starts,
        records.keys.lengths,
        records.keys.views,
        records.headers.list_offsets,
        records.batches.base_offset,
    ):
        assert not column.flags.writeable
    assert records.offset.dtype == records.timestamp_ms.dtype == np.int64


def test_binary_columns_are_sequences() -> None:
    records = decode_records(segment_of(compression.SNAPPY))
    keys = records.keys
    expected = [b"k%d" % row if row % 3 else None for row in range(10)]
    assert keys.to_list() == keys[:] == list(keys) == expected
    assert [keys[row] for row in range(-10, 10)] == expected * 2
    for piece in (slice(2, 5), slice(-3, None), slice(8, 2), slice(None, None, -2), slice(50, 60)):
        assert keys[piece] == expected[piece]
    for row in (10, -11):
        with pytest.raises(IndexError, match="of a column of 10 rows"):
            keys[row]
    assert keys.null_count == 4
    assert keys.is_null.tolist() == [key is None for key in expected]
    assert keys.lengths.tolist() == [len(key or b"") for key in expected]
    assert keys.lengths.dtype == np.int32
    assert b"k1" in keys
    assert repr(keys) == "BinaryColumn(10 rows, 4 null)"
    assert not records.values.null_count
    assert records.values.validity is None
    assert not records.values.is_null.any()
    assert records.headers[5] == records.headers[-5] == [(b"name", b"5")]
    assert records.headers[4:6] == [[], [(b"name", b"5")]]
    with pytest.raises(IndexError):
        records.headers[10]


def test_records_without_headers_or_rows() -> None:
    plain = build.batch([Record(offset=3, timestamp_ms=4, key=None, value=None)])
    records = decode_records(plain)
    assert rows_of(records) == [(3, 4, None, None, [])]
    assert records.headers.list_offsets.tolist() == [0, 0]
    assert records.to_arrow().to_pylist()[0]["headers"] == []
    empty = decode_records(b"")
    assert len(empty) == 0
    assert rows_of(empty) == []
    assert empty.batch_starts.tolist() == [0]
    assert empty.headers.list_offsets.tolist() == [0]
    assert empty.to_arrow().num_rows == 0
    assert repr(empty) == "RecordColumns(0 records, offsets none, 0 batches)"
    assert isinstance(empty.keys, BinaryColumn)


@pytest.mark.parametrize("codec", compression.CODEC_NAMES)
def test_arrow(codec: int) -> None:
    records = decode_records(segment_of(codec, batches=30, per_batch=50))
    batch = records.to_arrow()
    batch.validate(full=True)
    names = [("offset", pa.int64()), ("timestamp", pa.timestamp("ms", tz="UTC"))]
    names += [("key", pa.binary_view()), ("value", pa.binary_view())]
    assert [(field.name, field.type) for field in batch.schema][:4] == names
    assert batch["offset"].to_pylist() == records.offset.tolist()
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == records.timestamp_ms.tolist()
    assert batch["key"].to_pylist() == records.keys.to_list()
    assert batch["value"].to_pylist() == records.values.to_list()
    headers = [
        [(item["key"], item["value"]) for item in row] for row in batch["headers"].to_pylist()
    ]
    assert headers == records.headers[:]
    assert batch["key"].cast(pa.binary()).null_count == records.keys.null_count


def test_arrow_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    records = decode_records(segment_of(compression.NONE))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"tierlog\[arrow\]"):
        records.to_arrow()


def test_tails_are_results() -> None:
    data = segment_of(compression.NONE, batches=2)
    border = int(scan_segment(data).position[1])
    torn = decode_records(data[:-1])
    assert len(torn) == 10
    assert torn.batches.stop_reason is StopReason.TORN_TAIL
    assert torn.batches.stop_position == border
    zeros = decode_records(data[:border] + bytes(4096))
    assert zeros.batches.stop_reason is StopReason.ZERO_TAIL
    assert zeros.batches.stop_position == border


def test_damage_is_an_error_with_its_place(tmp_path: Path) -> None:
    data = bytearray(segment_of(compression.NONE, batches=2))
    border = int(scan_segment(bytes(data)).position[1])
    data[border + 80] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    with pytest.raises(CorruptDataError, match="CRC-32C") as caught:
        decode_records(path)
    error = caught.value
    assert (error.reason, error.position, error.path) == ("bad_crc", border, str(path))
    assert error.expected
    assert error.found
    with pytest.raises(CorruptDataError) as caught:
        decode_records(bytes(data))
    assert caught.value.path is None


def test_a_batch_may_open_to_the_limit_and_no_further() -> None:
    value = bytes(100_000)
    plain = build.record_payload([Record(offset=0, timestamp_ms=0, key=None, value=value)], 0, 0)
    for codec in (compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD):
        data = build.batch([Record(offset=0, timestamp_ms=0, key=None, value=value)], codec=codec)
        assert decode_records(data, max_decompressed_bytes=len(plain)).values[0] == value
        with pytest.raises(CorruptDataError) as caught:
            decode_records(data, max_decompressed_bytes=len(plain) - 1)
        assert caught.value.reason == "too_large"


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        decode_records(tmp_path / "missing.log")
    assert missing.value.errno == errno.ENOENT
    assert missing.value.filename == str(tmp_path / "missing.log")
    with pytest.raises(ValueError, match="regular file"):
        decode_records(tmp_path)
    with pytest.raises(TypeError):
        decode_records(5)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        decode_records(b"", -1)

"""The functions of one column on Arrow arrays: every golden segment, and bytes that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

import tierlog
from spark_udfs import codec
from tests.kafka_tools.golden import GoldenSegment, golden_segments, truth_records

SEGMENTS = golden_segments()
ENTRIES = [
    {
        "first_offset": 10 * row,
        "last_offset": 10 * row + 9,
        "first_timestamp_ms": row,
        "last_timestamp_ms": row + 1,
        "data_length": 100,
        "rdi": f"key:{100 * row}".encode(),
    }
    for row in range(3)
]


def one(column: pa.Array) -> dict[str, object]:
    (row,) = column.to_pylist()
    assert isinstance(row, dict)
    return row


@pytest.mark.parametrize("segment", SEGMENTS, ids=lambda segment: segment.name)
def test_every_golden_segment_as_bytes_and_as_a_path(segment: GoldenSegment) -> None:
    table, records = tierlog.scan_segment(segment.path), tierlog.decode_records(segment.path)
    column = pa.array([segment.path.read_bytes()])
    paths = pa.array([str(segment.path)])
    for work in (codec.scan_column, codec.records_column, codec.verify_column):
        assert work(column) == work(paths) == work(pa.array([segment.path.as_uri()]))
    found = one(codec.records_column(column))
    held = found["records"]
    assert isinstance(held, list)
    assert [row["offset"] for row in held] == records.offset.tolist()
    assert [row["value"] for row in held] == records.values.to_list()
    verified = one(codec.verify_column(column))
    assert (verified["batches"], verified["ok"]) == (
        len(table),
        table.stop_reason is tierlog.StopReason.END,
    )


def test_records_are_those_a_consumer_reads() -> None:
    segments = golden_segments("headers", "clean")
    column = pa.array([segment.path.read_bytes() for segment in segments])
    rows = [row for held in codec.records_column(column).to_pylist() for row in held["records"]]
    truth = truth_records("clean", "headers", 0)
    assert [row["offset"] for row in rows] == [row["offset"] for row in truth]
    assert [len(row["headers"]) for row in rows] == [len(row["headers"]) for row in truth]
    assert any(row["headers"] for row in rows)


def test_what_stands_before_damage_is_there() -> None:
    segment = golden_segments("codec-zstd", "clean")[0]
    table, data = tierlog.scan_segment(segment.path), bytearray(segment.path.read_bytes())
    data[int(table.position[4]) + 70] ^= 1
    column = pa.array([bytes(data)])
    (scanned,), (read,), (verified,) = (
        work(column).to_pylist()
        for work in (codec.scan_column, codec.records_column, codec.verify_column)
    )
    assert len(scanned["batches"]) == verified["batches"] == 4
    assert [row["offset"] for row in read["records"]] == list(range(int(table.last_offset[3]) + 1))
    for row in (scanned, read, verified):
        assert row["quarantine"]["reason"] == "bad_crc"
        assert row["quarantine"]["position"] == table.position[4]
    assert (verified["ok"], verified["crc32c"]) == (False, None)


def test_a_batch_that_cannot_be_decoded_hides_none_before_it() -> None:
    segment = golden_segments("codec-none", "clean")[0]
    table, data = tierlog.scan_segment(segment.path), bytearray(segment.path.read_bytes())
    row = 5
    start, size = int(table.position[row]), int(table.size_bytes[row])
    # The length of its first record; then the checksum is made right again.
    data[start + 61] = 0x7F
    crc = tierlog._core.crc32c(bytes(data[start + 21 : start + size]))
    data[start + 17 : start + 21] = crc.to_bytes(4, "big")
    (read,) = codec.records_column(pa.array([bytes(data)])).to_pylist()
    assert read["quarantine"] is not None
    assert read["quarantine"]["reason"] != "bad_crc"
    assert len(read["records"]) == int(table.record_count[:row].sum())


@pytest.mark.parametrize(
    "work",
    [codec.scan_column, codec.records_column, codec.verify_column, codec.decode_column],
)
def test_any_bytes_are_a_row(work: object) -> None:
    hostile = [b"", b"\0", os.urandom(3000), b"\xff" * 500, bytes(4096), None]
    assert callable(work)
    rows = work(pa.array(hostile, pa.binary()))
    assert len(rows) == len(hostile)
    rows.validate(full=True)
    assert rows.to_pylist()[-1] is None
    assert all(row["quarantine"] is not None for row in rows.to_pylist()[1:-1])


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    link = tmp_path / "link.log"
    link.symlink_to(SEGMENTS[0].path)
    column = pa.array([str(tmp_path / "none"), str(tmp_path), str(link), "s3://bucket/a.log", None])
    *rows, last = codec.scan_column(column).to_pylist()
    assert [row["quarantine"]["reason"] for row in rows] == ["unreadable"] * 3 + ["bad_value"]
    assert last is None


def test_entries_there_and_back() -> None:
    encoded = codec.encode_column(pa.array([ENTRIES, [], None]))
    first, empty, none = encoded.to_pylist()
    assert first["quarantine"] is None
    assert (empty["data"], none) == (b"", None)
    decoded = codec.decode_column(encoded.field("data"))
    entries = [
        {name: value for name, value in entry.items() if name != "position"}
        for entry in decoded.to_pylist()[0]["entries"]
    ]
    assert entries == ENTRIES


@pytest.mark.parametrize(
    "wrong",
    [{"last_offset": -5}, {"rdi": b"x" * 40000}, {"first_offset": None}, {"rdi": None}],
    ids=["offsets", "long", "no_offset", "no_rdi"],
)
def test_entries_that_cannot_be(wrong: dict[str, object]) -> None:
    column = pa.array([[*ENTRIES, {**ENTRIES[0], **wrong}], ENTRIES])
    bad, good = codec.encode_column(column).to_pylist()
    assert bad["data"] is None
    assert bad["quarantine"]["found"]
    assert good["quarantine"] is None

"""The worker functions on Arrow batches, as ``mapInArrow`` hands them over."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import tierlog
from spark_udfs.codec import ENTRY_SCHEMA, SCAN_SCHEMA, decode_remote_log_indexes, scan_segments
from tests.kafka_tools.golden import GoldenSegment, golden_segments

SEGMENTS = golden_segments("codec-zstd")


def files(segments: list[GoldenSegment]) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pydict(
            {"path": [segment.path.name], "content": [segment.path.read_bytes()]}
        )
        for segment in segments
    ]


def names(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def test_scanned_rows_are_the_batches() -> None:
    rows = pa.Table.from_batches(list(scan_segments(files(SEGMENTS))))
    assert rows.column_names == names(SCAN_SCHEMA)
    expected = [tierlog.scan_segment(segment.path) for segment in SEGMENTS]
    positions = [position for table in expected for position in table.position.tolist()]
    assert rows.column("position").to_pylist() == positions
    assert rows.column("stop_reason").null_count == len(rows)


def test_damage_is_a_row() -> None:
    data = bytearray(SEGMENTS[0].path.read_bytes())
    data[100] ^= 1
    batch = pa.RecordBatch.from_pydict({"path": ["a.log", "b.log"], "content": [bytes(data), b""]})
    rows = pa.Table.from_batches(list(scan_segments([batch]))).to_pylist()
    assert [(row["path"], row["stop_reason"], row["stop_position"]) for row in rows] == [
        ("a.log", "bad_crc", 0)
    ]


def test_paths_alone_are_read_by_the_worker(tmp_path: Path) -> None:
    paths = [str(segment.path) for segment in SEGMENTS]
    contents = [segment.path.read_bytes() for segment in SEGMENTS]
    alone = pa.RecordBatch.from_pydict({"path": [*paths, str(tmp_path / "none")]})
    carried = pa.RecordBatch.from_pydict({"path": paths, "content": contents})
    rows = pa.Table.from_batches(list(scan_segments([alone])))
    assert rows.slice(0, len(rows) - 1) == pa.Table.from_batches(list(scan_segments([carried])))
    last = rows.to_pylist()[-1]
    assert (last["stop_reason"], last["stop_position"], last["position"]) == ("unreadable", 0, None)


def test_remote_log_index_entries_and_damage() -> None:
    good = tierlog.encode_remote_log_index(
        [0, 10], [9, 19], [1, 2], [3, 4], [50, 60], [b"k:0", b"k:50"]
    )
    batch = pa.RecordBatch.from_pydict({"path": ["good", "bad"], "content": [good, good[:-1]]})
    table = pa.Table.from_batches(list(decode_remote_log_indexes([batch])))
    assert table.column_names == names(ENTRY_SCHEMA)
    rows = table.to_pylist()
    assert [row["rdi"] for row in rows] == [b"k:0", b"k:50", None]
    assert [row["last_offset"] for row in rows] == [9, 19, None]
    assert rows[2]["path"] == "bad"
    assert "expected" in rows[2]["error"]

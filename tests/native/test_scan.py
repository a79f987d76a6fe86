"""The scanner against real Kafka logs and Kafka's own words about them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.dump_text import DumpedBatch, parse_log_dump
from tests.kafka_tools.golden import GoldenSegment, golden_segments, truth_text
from tierlog.log.segment import scan_segment
from tierlog.types import StopReason

SEGMENTS = golden_segments()


def columns_of(batches: list[DumpedBatch]) -> dict[str, list[int]]:
    return {
        "base_offset": [batch.base_offset for batch in batches],
        "last_offset": [batch.last_offset for batch in batches],
        "position": [batch.position for batch in batches],
        "size_bytes": [batch.size_bytes for batch in batches],
        "max_timestamp_ms": [batch.max_timestamp_ms for batch in batches],
        "leader_epoch": [batch.leader_epoch for batch in batches],
        "producer_id": [batch.producer_id for batch in batches],
        "producer_epoch": [batch.producer_epoch for batch in batches],
        "base_sequence": [batch.base_sequence for batch in batches],
        "record_count": [batch.count for batch in batches],
        "magic": [batch.magic for batch in batches],
    }


@pytest.mark.parametrize("segment", SEGMENTS, ids=lambda segment: segment.name)
def test_rows_are_what_kafka_says(segment: GoldenSegment) -> None:
    batches = parse_log_dump(truth_text(segment.path))
    table = scan_segment(segment.path)
    for name, values in columns_of(batches).items():
        assert getattr(table, name).tolist() == values, name
    assert table.codec == [batch.codec for batch in batches]
    assert table.is_control.tolist() == [batch.is_control for batch in batches]
    assert table.is_transactional.tolist() == [batch.is_transactional for batch in batches]
    assert table.is_log_append_time.tolist() == [batch.is_log_append_time for batch in batches]
    horizons = [batch.delete_horizon_ms is not None for batch in batches]
    assert table.has_delete_horizon.tolist() == horizons


@pytest.mark.parametrize("segment", SEGMENTS[::7], ids=lambda segment: segment.name)
def test_every_way_to_read_gives_the_same_rows(segment: GoldenSegment) -> None:
    data = segment.path.read_bytes()
    by_path = scan_segment(str(segment.path))
    with segment.path.open("rb") as file:
        by_file = scan_segment(file)
    for other in (
        by_file,
        scan_segment(data),
        scan_segment(memoryview(data)),
        scan_segment(bytearray(data)),
        scan_segment(np.frombuffer(data, dtype=np.uint8)),
        scan_segment(segment.path, own_file=True),
        scan_segment(segment.path, verify_crc=False),
        scan_segment(segment.path, hash_bytes=True),
    ):
        assert other.position.tolist() == by_path.position.tolist()
        assert other.last_offset.tolist() == by_path.last_offset.tolist()
        assert (other.stop_reason, other.stop_position) == (
            by_path.stop_reason,
            by_path.stop_position,
        )


def test_columns_are_read_only_views_that_outlive_the_table() -> None:
    table = scan_segment(SEGMENTS[0].path)
    positions = table.position
    assert positions.dtype == np.int64
    assert not positions.flags.writeable
    assert not positions.flags.owndata
    expected = positions.tolist()
    del table
    assert positions.tolist() == expected


def test_a_range_of_a_segment() -> None:
    segment = next(segment for segment in SEGMENTS if segment.batch_count > 5)
    whole = scan_segment(segment.path)
    start, end = int(whole.position[2]), int(whole.position[4])
    part = scan_segment(segment.path, start, end)
    assert part.position.tolist() == whole.position[2:4].tolist()
    assert (part.stop_reason, part.stop_position) == (StopReason.END, end)
    cut = scan_segment(segment.path, start, end + 10)
    assert len(cut) == 2
    assert (cut.stop_reason, cut.stop_position) == (StopReason.TORN_TAIL, end)


@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "missing", "socket"])
def test_what_is_not_a_regular_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(SEGMENTS[0].path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    expected = FileNotFoundError if kind == "missing" else ValueError
    with pytest.raises(expected, match=re.escape(str(path))):
        scan_segment(path)


def test_wrong_arguments() -> None:
    with pytest.raises(TypeError, match="found int"):
        scan_segment(17)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="strided"):
        scan_segment(memoryview(b"x" * 20)[::2])
    with pytest.raises(OverflowError):
        scan_segment(b"", -1)


def test_a_writable_buffer_is_copied_before_it_is_read() -> None:
    data = bytearray(SEGMENTS[0].path.read_bytes())
    table = scan_segment(data)
    data[:] = bytes(len(data))
    data.clear()  # no view of it is left open
    assert len(table) == SEGMENTS[0].batch_count


def test_a_file_in_another_thread_goes_on_while_python_runs(tmp_path: Path) -> None:
    """Two scans of one file in two threads give the same rows: nothing is shared."""
    from concurrent.futures import ThreadPoolExecutor

    path = SEGMENTS[0].path
    with ThreadPoolExecutor(2) as pool:
        tables = list(pool.map(lambda _: scan_segment(path).last_offset.tolist(), range(8)))
    assert all(table == tables[0] for table in tables)

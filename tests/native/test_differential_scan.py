"""The native scanner and the oracle walk the same bytes: same rows, same reason, same position."""

from __future__ import annotations

import tempfile
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from tests.oracle import batches, build, primitives
from tests.oracle.model import Batch, Record
from tests.oracle.strategies import (
    Segment,
    profile,
    st_bit_flip,
    st_damaged_segment,
    st_segment,
    st_truncation,
)
from tierlog.batches import BatchTable
from tierlog.log.segment import scan_segment

COLUMNS = (
    "base_offset",
    "last_offset",
    "position",
    "size_bytes",
    "base_timestamp_ms",
    "max_timestamp_ms",
    "leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "attributes",
    "record_count",
    "magic",
)
BLOCK_BYTES = 512 << 10  # the scanner's own, whose borders batches must be able to cross


def rows_of(table: BatchTable) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(table, name).tolist() for name in COLUMNS), strict=True))


def expected_rows(found: list[Batch]) -> list[tuple[int, ...]]:
    return [tuple(getattr(batch, name) for name in COLUMNS) for batch in found]


def assert_same(table: BatchTable, data: bytes, *, start: int = 0, verify_crc: bool = True) -> None:
    found, reason, position = batches.scan(data, start=start, verify_crc=verify_crc)
    assert (table.stop_reason.value, table.stop_position) == (reason, position)
    assert rows_of(table) == expected_rows(found)
    if reason != "end":
        assert table.stop_expected
        assert table.stop_found


def scan_file(data: bytes, *, start: int = 0, verify_crc: bool = True) -> BatchTable:
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        file.write(data)
        file.flush()
        return scan_segment(file.name, start, verify_crc=verify_crc)


@profile(80)
@given(st_segment(), st.booleans())
def test_valid_segments(segment: Segment, verify_crc: bool) -> None:
    data = segment.data
    assert_same(scan_segment(data, verify_crc=verify_crc), data, verify_crc=verify_crc)
    assert_same(scan_file(data, verify_crc=verify_crc), data, verify_crc=verify_crc)


@profile(400)
@given(st_damaged_segment(), st.booleans())
def test_damaged_segments(data: bytes, verify_crc: bool) -> None:
    assert_same(scan_segment(data, verify_crc=verify_crc), data, verify_crc=verify_crc)
    assert_same(scan_file(data, verify_crc=verify_crc), data, verify_crc=verify_crc)


@profile(60)
@given(st_segment(), st.data())
def test_ranges(segment: Segment, draws: st.DataObject) -> None:
    data = segment.data
    start = segment.position(draws.draw(st.integers(0, len(segment.parts))))
    end = draws.draw(st.integers(start, len(data)))
    assert_same(scan_segment(data, start, end), data[:end], start=start)
    table = scan_segment(data, start, hash_bytes=True)
    assert table.range_crc32c == primitives.crc32c(data[start:])


@profile(200)
@given(st.binary(max_size=200), st.integers(0, 200))
def test_noise_from_any_start(data: bytes, start: int) -> None:
    start = min(start, len(data))
    assert_same(scan_segment(data, start), data, start=start)
    assert_same(scan_file(data, start=start), data, start=start)


@cache
def large_segment() -> bytes:
    """Batches, markers and wrappers of many sizes, over three of the scanner's blocks."""
    parts: list[bytes] = []
    size_bytes = offset = 0
    while size_bytes < 3 * BLOCK_BYTES:
        value = bytes([offset % 251]) * (offset * 37 % 9001)
        records = [Record(offset=offset, timestamp_ms=offset, key=b"key", value=value)]
        kind = offset % 5
        if kind == 0:
            parts.append(build.legacy_messages(records, magic=1))
        elif kind == 1:
            parts.append(build.legacy_wrapper(records, magic=0, codec=3))
        elif kind == 2:
            parts.append(
                build.end_transaction_marker(
                    offset=offset,
                    timestamp_ms=offset,
                    producer_id=offset,
                    producer_epoch=0,
                    coordinator_epoch=0,
                    commit=True,
                )
            )
        else:
            parts.append(build.batch(records, codec=kind % 2))
        size_bytes += len(parts[-1])
        offset += 1
    return b"".join(parts)


def test_a_segment_of_several_blocks() -> None:
    data = large_segment()
    for verify_crc in (True, False):
        assert_same(scan_segment(data, verify_crc=verify_crc), data, verify_crc=verify_crc)
        assert_same(scan_file(data, verify_crc=verify_crc), data, verify_crc=verify_crc)


@profile(25)
@given(
    st.one_of(
        st.deferred(lambda: st_bit_flip(large_segment())),
        st.deferred(lambda: st_truncation(large_segment())),
    ),
    st.booleans(),
)
def test_a_damaged_segment_of_several_blocks(data: bytes, verify_crc: bool) -> None:
    assert_same(scan_file(data, verify_crc=verify_crc), data, verify_crc=verify_crc)


@profile(20)
@given(st.sampled_from((1, 2)), st.integers(-80, 80))
def test_cuts_around_block_borders(blocks: int, distance: int) -> None:
    data = large_segment()[: blocks * BLOCK_BYTES + distance]
    assert_same(scan_file(data), data)

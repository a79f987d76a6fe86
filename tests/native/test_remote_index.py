"""The remoteLogIndex through Python: golden bytes, refusals, recovery, look-ups, cached index."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.kafka_tools.golden import golden_segments
from tests.native.remote_indexes import (
    encode_remote_offset_index,
    encode_remote_time_index,
    read_remote_offset_index,
    read_remote_time_index,
)
from tests.vectors import REMOTE_INDEX_ENTRY_RDI_CRC32C, vector
from tierlog import _core
from tierlog._hot import CachedIndex
from tierlog.errors import CorruptDataError
from tierlog.log.segment import scan_segment
from tierlog.remote.segment.log_index import (
    DEFAULT_GROUP_BYTES,
    MAX_RDI_BYTES,
    decode_remote_log_index,
    encode_remote_log_index,
    group_batches,
    lookup_offset,
    lookup_timestamp,
)

GOLDEN = vector("remote_index_entry_rdi") + vector("remote_index_entry_empty_rdi")
TRAILER = struct.pack(">q", 49)
ROWS = (
    [100, 150],
    [149, 300],
    [1000, 2001],
    [2000, 2500],
    [4096, 512],
    [b"k:0", b""],
)


def many(rows: int) -> bytes:
    first = np.arange(rows) * 10
    rdi = [b"key:%d" % row for row in range(rows)]
    return encode_remote_log_index(first, first + 9, first, first + 5, np.full(rows, 7), rdi)


def refusal(
    call: Callable[..., object], *arguments: object, **settings: object
) -> CorruptDataError:
    with pytest.raises(CorruptDataError) as caught:
        call(*arguments, **settings)
    return caught.value


def test_golden_entries() -> None:
    assert encode_remote_log_index(*ROWS) == GOLDEN
    for data in (GOLDEN, GOLDEN + TRAILER, bytearray(GOLDEN), memoryview(GOLDEN)):
        entries = decode_remote_log_index(data)
        assert entries.position.tolist() == [0, 49]
        columns = (
            entries.first_offset,
            entries.last_offset,
            entries.first_timestamp_ms,
            entries.last_timestamp_ms,
            entries.data_length,
        )
        assert [column.tolist() for column in columns] == list(ROWS[:5])
        assert list(entries.rdi) == ROWS[5]
        assert (len(entries), entries.valid_length, entries.torn) == (2, 95, None)
        assert entries.has_trailer == (len(data) == 103)
    stored = int.from_bytes(GOLDEN[4:8], "big")
    assert stored == zlib.crc32(GOLDEN[8:49])
    assert stored != REMOTE_INDEX_ENTRY_RDI_CRC32C


def test_columns_are_read_only_and_outlive_their_source() -> None:
    entries = decode_remote_log_index(bytearray(many(1000)))
    column = entries.last_offset
    rdi = entries.rdi
    del entries
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    assert column[-1] == 9999
    assert rdi[999] == b"key:999"


def test_empty() -> None:
    assert encode_remote_log_index([], [], [], [], [], []) == b""
    entries = decode_remote_log_index(b"")
    assert (len(entries), len(entries.rdi), entries.lookup_offset(0)) == (0, 0, None)
    assert encode_remote_offset_index(entries, 0) == encode_remote_time_index(entries, 0) == b""


@pytest.mark.parametrize("position", [0, 49])
def test_every_flip_is_found_and_located(position: int) -> None:
    end = 49 if position == 0 else 95
    for bit in range(position * 8, end * 8):
        data = bytearray(GOLDEN)
        data[bit // 8] ^= 1 << bit % 8
        error = refusal(decode_remote_log_index, data)
        assert error.position == position
        assert error.reason in ("bad_crc", "bad_length", "unknown_magic")


def test_every_cut_is_found_and_recovered_from() -> None:
    whole = GOLDEN + TRAILER
    for cut in range(len(whole)):
        valid = 95 if cut >= 95 else 49 if cut >= 49 else 0
        if cut == valid:
            assert decode_remote_log_index(whole[:cut]).valid_length == valid
            continue
        error = refusal(decode_remote_log_index, whole[:cut])
        assert (error.reason, error.position) == ("truncated", valid)
        entries = decode_remote_log_index(whole[:cut], recover=True, path="a.remoteLogIndex")
        assert entries.valid_length == valid
        assert entries.torn is not None
        assert str(entries.torn).startswith(f"a.remoteLogIndex: truncated at byte {valid}")


def test_recovery_never_skips_a_bad_entry() -> None:
    data = bytearray(many(3))
    data[60] ^= 1
    error = refusal(decode_remote_log_index, data, recover=True, path="x")
    assert (error.reason, error.path, error.position) == ("bad_crc", "x", 51)
    assert "rebuild" in str(error)


@pytest.mark.parametrize(
    ("column", "value", "row"),
    [
        (0, [100, -1], 1),
        (0, [100, 301], 1),
        (1, [149, 149], 1),
        (1, [99, 300], 0),
        (4, [0, 512], 0),
        (4, [4096, -1], 1),
        (4, [2**31, 512], 0),
        (5, [b"x" * (MAX_RDI_BYTES + 1), b""], 0),
        (5, [b"", b"x" * 65536], 1),
    ],
)
def test_the_encoder_refuses_what_does_not_fit(column: int, value: Any, row: int) -> None:
    columns: list[Any] = list(ROWS)
    columns[column] = value
    with pytest.raises(ValueError, match=f"row {row}: expected"):
        encode_remote_log_index(*columns)


@pytest.mark.parametrize("column", range(5))
@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 2**64])
def test_python_integers_never_wrap(column: int, value: int) -> None:
    columns: list[Any] = list(ROWS)
    columns[column] = [columns[column][0], value]
    with pytest.raises(ValueError, match="64 bits"):
        encode_remote_log_index(*columns)


def test_numpy_columns_never_wrap_or_round() -> None:
    columns: list[Any] = list(ROWS)
    columns[0] = np.array([100, 2**63], dtype=np.uint64)
    with pytest.raises(ValueError, match="row 1: expected 64 bits"):
        encode_remote_log_index(*columns)
    columns[0] = np.array([100.0, 150.5])
    with pytest.raises(ValueError, match="whole numbers"):
        encode_remote_log_index(*columns)
    columns[0] = [100, 150.5]
    with pytest.raises(ValueError, match=r"row 1: expected a whole number, found 150\.5"):
        encode_remote_log_index(*columns)
    columns[0] = np.array([[100], [150]])
    with pytest.raises(ValueError, match="one dimension"):
        encode_remote_log_index(*columns)
    for dtype in (np.uint64, np.int32, np.int16, ">i8"):
        columns[0] = np.array([100, 150], dtype=dtype)
        assert encode_remote_log_index(*columns) == GOLDEN
    columns[0] = np.array([100, 7, 150, 7])[::2]
    assert encode_remote_log_index(*columns) == GOLDEN


def test_columns_of_other_lengths_are_refused() -> None:
    for column in range(6):
        columns: list[Any] = list(ROWS)
        columns[column] = columns[column][:1]
        with pytest.raises(ValueError, match=r"rows|one per row"):
            encode_remote_log_index(*columns)
    with pytest.raises(TypeError, match="row 1: expected bytes, found str"):
        encode_remote_log_index(*ROWS[:5], [b"", "k"])  # type: ignore[list-item]


def test_rdi_columns_go_back_in_without_objects() -> None:
    data = many(100)
    entries = decode_remote_log_index(data)
    columns = (
        entries.first_offset,
        entries.last_offset,
        entries.first_timestamp_ms,
        entries.last_timestamp_ms,
        entries.data_length,
    )
    assert encode_remote_log_index(*columns, entries.rdi) == data
    assert encode_remote_log_index(*columns, tuple(entries.rdi)) == data
    first, last, first_ms, last_ms, lengths = (column[::2] for column in columns)
    half = encode_remote_log_index(first, last, first_ms, last_ms, lengths, entries.rdi[::2])
    assert list(decode_remote_log_index(half).rdi) == list(entries.rdi)[::2]
    for start, length in ((-1, 3), (0, -1), (0, 10**6), (10**18, 1)):
        one = np.array([1])
        with pytest.raises(ValueError, match=r"row 0: expected an rdi within"):
            _core.encode_remote_log_index(
                one, one, one, one, one, data, np.array([start]), np.array([length])
            )


def test_lookups() -> None:
    entries = decode_remote_log_index(GOLDEN)
    for target, row in ((-5, 0), (99, 0), (100, 0), (149, 0), (150, 1), (300, 1), (301, None)):
        assert lookup_offset(entries, target) == lookup_offset(GOLDEN, target) == row
    for target, row in ((0, 0), (2000, 0), (2001, 1), (2500, 1), (2501, None)):
        assert lookup_timestamp(entries, target) == lookup_timestamp(GOLDEN, target) == row


def test_times_that_fall_are_found_in_the_first_row_that_reaches_them() -> None:
    data = encode_remote_log_index(
        [0, 1, 2], [0, 1, 2], [0] * 3, [500, 100, 900], [1] * 3, [b""] * 3
    )
    assert [lookup_timestamp(data, target) for target in (50, 100, 501, 901)] == [0, 0, 2, None]


def test_offset_and_time_index_files() -> None:
    entries = decode_remote_log_index(GOLDEN)
    offset_index = encode_remote_offset_index(entries, 100)
    assert offset_index == struct.pack(">iiii", 49, 0, 200, 49)
    offsets, positions = read_remote_offset_index(offset_index, 100)
    assert (offsets.tolist(), positions.tolist()) == ([149, 300], [0, 49])
    time_index = encode_remote_time_index(entries, 100)
    assert time_index == struct.pack(">qiqi", 2000, 49, 2500, 200)
    times, offsets = read_remote_time_index(time_index, 100)
    assert (times.tolist(), offsets.tolist()) == ([2000, 2500], [149, 300])
    assert refusal(encode_remote_offset_index, entries, 150).reason == "offset_order"
    for bad in (offset_index[:-1], offset_index + bytes(8)):
        refusal(read_remote_offset_index, bad, 100)
        refusal(read_remote_time_index, bad, 100)


@pytest.mark.parametrize("group_bytes", [1, 4096, DEFAULT_GROUP_BYTES])
@pytest.mark.parametrize("segment", golden_segments()[::9], ids=lambda segment: segment.name)
def test_groups_of_real_segments(segment: Any, group_bytes: int) -> None:
    table = scan_segment(segment.path)
    entries = decode_remote_log_index(group_batches(table, "a/b:c.log", group_bytes=group_bytes))
    if len(table) == 0:
        assert len(entries) == 0
        return
    positions = [int(rdi.rpartition(b":")[2]) for rdi in entries.rdi]
    assert all(rdi.startswith(b"a/b:c.log:") for rdi in entries.rdi)
    # Back to back, from the first byte to the last, on batch borders.
    ends = [start + size for start, size in zip(positions, entries.data_length, strict=True)]
    assert [0, *ends] == [*positions, table.stop_position]
    assert set(positions) <= set(table.position.tolist())
    assert all(size >= group_bytes for size in entries.data_length[:-1])
    rows = [*np.searchsorted(table.position, positions).tolist(), len(table)]
    for row, (begin, end) in enumerate(pairwise(rows)):
        assert entries.first_offset[row] == table.base_offset[begin]
        assert entries.last_offset[row] == table.last_offset[end - 1]
        assert entries.first_timestamp_ms[row] == table.base_timestamp_ms[begin]
        assert entries.last_timestamp_ms[row] == table.max_timestamp_ms[begin:end].max()


def test_cached_index_answers_as_the_core() -> None:
    data = many(500)
    cached, entries = CachedIndex(data), _core.decode_remote_log_index(data)
    columns = {name: np.asarray(column).tolist() for name, column in entries.columns()}
    for target in (-(2**63), -1, 0, 9, 10, 11, 2345, 4989, 4990, 4999, 5000, 2**63 - 1):
        row = entries.lookup_offset(target)
        if row < 0:
            assert cached.lookup(target) is None
            assert cached.lookup_position(target) == -1
            continue
        assert cached.lookup_position(target) == columns["position"][row]
        names = ("position", "first_offset", "last_offset", "data_length")
        assert cached.lookup(target) == tuple(columns[name][row] for name in names)
        assert cached.rdi(columns["position"][row]) == b"key:%d" % row
    assert len(cached) == 500


def test_cached_index_refuses_what_the_core_refuses() -> None:
    assert refusal(CachedIndex, GOLDEN[:-1]).position == 49
    with pytest.raises(TypeError):
        CachedIndex("text")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        CachedIndex(GOLDEN).lookup(2**63)
    assert refusal(CachedIndex(GOLDEN).rdi, 1).position == 1
    assert len(CachedIndex(b"")) == 0
    assert CachedIndex(b"").lookup(0) is None
    source = bytearray(GOLDEN)
    cached = CachedIndex(source)
    source[:] = bytes(len(source))
    assert cached.rdi(0) == b"k:0"


def test_what_was_decoded_is_a_snapshot() -> None:
    data = bytearray(many(3))
    entries = decode_remote_log_index(data)
    data[:] = bytes(len(data))
    assert list(entries.rdi) == [b"key:0", b"key:1", b"key:2"]
    assert entries.last_offset.tolist() == [9, 19, 29]


def test_a_buffer_that_changes_meanwhile_is_good_or_refused() -> None:
    good = many(2000)
    bad = b"\0" * 46 + b"other" + good[51:]
    shared = bytearray(good)
    reasons: set[tuple[str, int]] = set()
    stop = threading.Event()

    def scribble() -> None:
        while not stop.is_set():
            shared[:] = bad
            shared[:] = good

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        for _ in range(200):
            try:
                entries = decode_remote_log_index(shared)
            except CorruptDataError as error:
                reasons.add((error.reason, error.position))
                continue
            assert (entries.rdi[0], entries.last_offset[-1]) == (b"key:0", 19_999)
    finally:
        stop.set()
        writer.join()
    assert reasons <= {("bad_length", 0)}

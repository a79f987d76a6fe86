"""Kafka's index files through Python: golden bytes, zero tails, refusals, look-ups, rebuild."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tests.oracle.build import seal
from tests.vectors import vector
from tierlog import _core
from tierlog._hot import CachedOffsetIndex
from tierlog.errors import CorruptDataError
from tierlog.log.index_files import (
    AbortedTransaction,
    read_offset_index,
    read_producer_snapshot,
    read_time_index,
    read_transaction_index,
)
from tierlog.log.segment import rebuild_indexes, scan_segment
from tierlog.types import StopReason

OFFSETS, TIMES = vector("offset_index"), vector("time_index")
ABORTS, SNAPSHOT = vector("transaction_index"), vector("producer_snapshot")
BATCHES = vector("v2_transactional") + vector("v2_abort_marker")


def refusal(
    call: Callable[..., object], *arguments: object, **settings: object
) -> CorruptDataError:
    with pytest.raises(CorruptDataError) as caught:
        call(*arguments, **settings)
    return caught.value


def test_golden_offset_index() -> None:
    index = read_offset_index(OFFSETS, 100)
    assert index.offset.tolist() == [103, 150, 300]
    assert index.position.tolist() == [0, 4200, 9000]
    expected = {99: (100, 0), 103: (103, 0), 149: (103, 0), 150: (150, 4200), 999: (300, 9000)}
    cached = CachedOffsetIndex(OFFSETS + bytes(80), 100)
    for target, answer in expected.items():
        assert index.lookup(target) == cached.lookup(target) == answer
    assert index.lookup_upper_bound(4200 + 100) == (300, 9000)
    assert index.lookup_upper_bound(4200 + 10_000) is None
    assert _core.encode_offset_index(index.offset, index.position, 100) == OFFSETS
    assert cached.base_offset == 100


def test_golden_time_index() -> None:
    index = read_time_index(TIMES, 100)
    assert index.timestamp_ms.tolist() == [1005, 2000]
    assert index.offset.tolist() == [103, 300]
    for target, answer in {1004: (-1, 100), 1005: (1005, 103), 3000: (2000, 300)}.items():
        assert index.lookup(target) == answer
    assert _core.encode_time_index(index.timestamp_ms, index.offset, 100) == TIMES


def test_golden_transaction_index() -> None:
    index = read_transaction_index(ABORTS, 100)
    first, second = AbortedTransaction(4242, 100, 103, 104), AbortedTransaction(4243, 101, 120, 121)
    assert index.collect(100, 104) == ((first,), True)
    assert index.collect(100, 200) == ((first, second), False)
    assert index.collect(104, 110) == ((second,), True)
    assert read_transaction_index(b"", 0).collect(0, 1) == ((), False)
    assert index.last_stable_offset.tolist() == [104, 121]


def test_golden_producer_snapshot() -> None:
    snapshot = read_producer_snapshot(SNAPSHOT)
    assert snapshot.producer_id.tolist() == [4242, 4243]
    assert snapshot.producer_epoch.tolist() == [3, 0]
    assert snapshot.last_sequence.tolist() == [19, -1]
    assert snapshot.last_offset.tolist() == [102, -1]
    assert snapshot.offset_delta.tolist() == [2, 0]
    assert snapshot.timestamp_ms.tolist() == [1005, 1011]
    assert snapshot.coordinator_epoch.tolist() == [5, -1]
    assert snapshot.current_txn_first_offset.tolist() == [-1, 101]
    for bit in range(len(SNAPSHOT) * 8):
        flipped = bytearray(SNAPSHOT)
        flipped[bit // 8] ^= 1 << bit % 8
        refusal(read_producer_snapshot, flipped)


def test_live_and_rolled_files() -> None:
    for read, data, size in ((read_offset_index, OFFSETS, 8), (read_time_index, TIMES, 12)):
        for zeros in (size, 10 * size):
            assert read(data + bytes(zeros), 100).data == data
            error = refusal(read, data + bytes(zeros), 100, tail="empty")
            assert (error.reason, error.position) == ("offset_order", len(data))
            assert read(bytes(zeros), 100).data == b""
        half_written = data + data[-size:-4] + bytes(4) + bytes(size)
        error = refusal(read, half_written, 100)
        assert error.found == half_written[len(data) :][:size].hex()
        assert read(half_written, 100, tail="anything").data == data
        for cut in range(1, size):
            error = refusal(read, data[:-cut], 100)
            assert (error.reason, error.position) == ("bad_length", len(data) - size)
        with pytest.raises(ValueError, match="tail"):
            read(data, 100, tail="short")  # type: ignore[arg-type]
    error = refusal(CachedOffsetIndex, OFFSETS[8:] + OFFSETS[:8], 100)
    assert error.position == 16


def test_transaction_index_refusals() -> None:
    cases = {
        ("bad_length", 34): ABORTS[:-1],
        ("unknown_magic", 34): ABORTS[:35] + b"\x01" + ABORTS[36:],
        ("offset_order", 34): ABORTS[:34] * 2,
    }
    for (reason, position), data in cases.items():
        error = refusal(read_transaction_index, data, 100)
        assert (error.reason, error.position) == (reason, position)
    assert refusal(read_transaction_index, ABORTS, 104).reason == "offset_order"


def test_encoders_refuse_what_does_not_fit() -> None:
    def column(*values: int) -> memoryview:
        return memoryview(struct.pack(f"={len(values)}q", *values)).cast("q")

    for offsets, positions, reason in (
        (column(99), column(0), "offset_order"),
        (column(100 + 2**31), column(0), "offset_order"),
        (column(100, 100), column(0, 1), "offset_order"),
        (column(100), column(2**31), "too_large"),
        (column(100), column(-1), "too_large"),
    ):
        error = refusal(_core.encode_offset_index, offsets, positions, 100)
        assert error.reason == reason
    with pytest.raises(ValueError, match="same length"):
        _core.encode_offset_index(column(1, 2), column(1), 0)
    # A time index leaves out what does not pass the largest before, as Kafka does.
    assert _core.encode_time_index(column(5, 5, 4, 6), column(1, 2, 3, 4), 0) == struct.pack(
        ">qiqi", 5, 1, 6, 4
    )


def test_rebuild_of_golden_batches() -> None:
    rebuilt = rebuild_indexes(BATCHES, base_offset=100)
    assert rebuilt.offset_index == b""
    assert rebuilt.time_index == struct.pack(">qi", 1010, 3)
    assert rebuilt.transaction_index == ABORTS[:34]
    assert (rebuilt.end_offset, rebuilt.last_stable_offset) == (104, 104)
    assert rebuilt.first_open_transaction_offset is None
    assert rebuilt.leader_epochs == ((7, 100),)
    assert rebuilt.bytes_per_epoch == ((7, len(BATCHES)),)
    assert (rebuilt.max_timestamp_ms, rebuilt.max_timestamp_offset) == (1010, 103)
    assert len(rebuilt.table) == 2
    every = rebuild_indexes(BATCHES, 0, base_offset=100)
    assert every.offset_index == struct.pack(">ii", 3, len(vector("v2_transactional")))


def test_rebuild_goes_on_from_a_snapshot() -> None:
    first = rebuild_indexes(vector("v2_transactional"), base_offset=100)
    assert (first.last_stable_offset, first.first_open_transaction_offset) == (100, 100)
    marker = vector("v2_abort_marker")
    second = rebuild_indexes(marker, producer_snapshot=first.producer_snapshot)
    assert second.transaction_index == ABORTS[:34]
    whole = rebuild_indexes(BATCHES)
    assert second.producer_snapshot == whole.producer_snapshot
    # Without it nobody knows that a transaction was open.
    assert rebuild_indexes(marker).transaction_index == b""
    error = refusal(rebuild_indexes, marker, producer_snapshot=SNAPSHOT[:-1])
    assert (error.reason, error.path) == ("bad_crc", "producer_snapshot")


def test_expired_producers_are_left_out_unless_a_transaction_is_open() -> None:
    def ids(now_ms: int | None, expiration_ms: int = 86_400_000) -> list[int]:
        rebuilt = rebuild_indexes(
            b"",
            base_offset=110,
            producer_snapshot=SNAPSHOT,
            now_ms=now_ms,
            producer_id_expiration_ms=expiration_ms,
        )
        return [*read_producer_snapshot(rebuilt.producer_snapshot).producer_id]

    assert ids(None) == [4242, 4243]
    assert ids(1004 + 86_400_000) == [4242, 4243]
    assert ids(1005 + 86_400_000) == [4243]
    assert ids(1100, 10) == [4243]


def test_rebuild_and_damage(tmp_path: Path) -> None:
    data = BATCHES + vector("v2_abort_marker")
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(data)
    error = refusal(rebuild_indexes, path)
    assert (error.reason, error.path, error.position) == ("offset_order", str(path), len(BATCHES))
    accepted = rebuild_indexes(path, accept_damage=True)
    assert accepted.table.stop_reason is StopReason.OFFSET_ORDER
    assert accepted.producer_snapshot == rebuild_indexes(BATCHES).producer_snapshot
    torn = rebuild_indexes(data[:-1], base_offset=100)
    assert torn.table.stop_reason is StopReason.TORN_TAIL
    zeros = rebuild_indexes(BATCHES + bytes(100))
    assert zeros.table.stop_reason is StopReason.ZERO_TAIL
    with pytest.raises(FileNotFoundError):
        rebuild_indexes(tmp_path / "none.log")


def marker(offset: int, payload: bytes, *, attributes: int = 0x30, count: int = 1) -> bytes:
    return seal(
        payload,
        base_offset=offset,
        leader_epoch=7,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp_ms=1010,
        max_timestamp_ms=1010,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=-1,
        record_count=count,
    )


def test_control_batches_no_broker_writes_are_refused() -> None:
    begin, good = vector("v2_transactional"), vector("v2_abort_marker")[61:]
    assert rebuild_indexes(begin + marker(103, good)).transaction_index == ABORTS[:34]
    for bad in (b"", good[:-1], good[:1] + bytes(len(good) - 1), good.replace(b"\x08", b"\x04", 1)):
        error = refusal(rebuild_indexes, begin + marker(103, bad))
        assert (error.reason, error.position) == ("bad_record", len(begin))
    emptied = rebuild_indexes(begin + marker(103, b"", count=0))
    assert emptied.first_open_transaction_offset == 100
    plain = seal(
        begin[61:],
        base_offset=103,
        leader_epoch=7,
        attributes=0,
        last_offset_delta=2,
        base_timestamp_ms=1000,
        max_timestamp_ms=1005,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=20,
        record_count=3,
    )
    assert refusal(rebuild_indexes, begin + plain).reason == "bad_record"


def test_offsets_must_fit_the_base() -> None:
    error = refusal(rebuild_indexes, BATCHES, base_offset=103)
    assert error.reason == "offset_order"
    far = 100 + 3 - 1 - 2**31
    assert refusal(rebuild_indexes, BATCHES, base_offset=far).reason == "offset_order"
    assert rebuild_indexes(BATCHES, base_offset=far + 2).end_offset == 104


@pytest.mark.parametrize("segment", golden_segments()[::11], ids=lambda segment: segment.name)
def test_rebuild_knows_what_a_scan_knows(segment: GoldenSegment) -> None:
    scanned = scan_segment(segment.path, hash_bytes=True)
    rebuilt = rebuild_indexes(segment.path, base_offset=segment.base_offset, hash_bytes=True)
    assert rebuilt.table.position.tolist() == scanned.position.tolist()
    assert rebuilt.table.range_crc32c == scanned.range_crc32c
    assert sum(size for _, size in rebuilt.bytes_per_epoch) == scanned.stop_position
    assert rebuilt.max_timestamp_ms == max(scanned.max_timestamp_ms.tolist(), default=-1)
    with segment.path.open("rb") as file:
        from_file = rebuild_indexes(file, base_offset=segment.base_offset)
    assert from_file.producer_snapshot == rebuilt.producer_snapshot
    assert from_file.offset_index == rebuilt.offset_index

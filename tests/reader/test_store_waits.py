"""What requests tell of the store, alone and several at once."""

from __future__ import annotations

from tierlog.reader.store_waits import StoreWaits

MIB = 1 << 20


def alone(waits: StoreWaits, size_bytes: int, duration_ms: int) -> float:
    waits.end(size_bytes, waits.begin(size_bytes), duration_ms)
    return waits.wait_ms


def together(waits: StoreWaits, requests: int, size_bytes: int, duration_ms: int) -> float:
    shared = [waits.begin(size_bytes) for _ in range(requests)]
    for one in shared:
        waits.end(size_bytes, one, duration_ms)
    return waits.wait_ms


def test_what_a_request_takes_beyond_its_bytes_is_waiting() -> None:
    waits = StoreWaits()
    assert waits.wait_ms == 0
    assert alone(waits, 8 * MIB, 28) == 20
    # The others may have waited for a processor.
    assert alone(waits, 8 * MIB, 11) == 3
    assert alone(waits, 8 * MIB, 50) == 3
    assert alone(waits, MIB, 1) == 0


def test_a_store_that_becomes_slow_is_noticed_after_some_requests() -> None:
    waits = StoreWaits()
    alone(waits, MIB, 1)
    found = [alone(waits, MIB, 31) for _ in range(8)]
    assert found[:7] == [0] * 7
    assert found[7] == 30


def test_requests_that_share_the_line_are_not_waiting() -> None:
    waits = StoreWaits()
    alone(waits, 8 * MIB, 8)
    for _ in range(5):
        assert together(waits, 3, 8 * MIB, 24) == 0


def test_what_is_known_stays_while_many_are_under_way() -> None:
    waits = StoreWaits()
    alone(waits, 8 * MIB, 28)
    for _ in range(5):
        assert together(waits, 16, 8 * MIB, 30) == 20
    # So short none of them would be if each waited as long.
    assert together(waits, 16, 8 * MIB, 12) == 4


def test_longer_than_the_bytes_of_all_is_waiting() -> None:
    waits = StoreWaits()
    assert together(waits, 8, MIB, 30) == 22


def test_a_request_that_fails_is_no_longer_under_way() -> None:
    waits = StoreWaits()
    waits.end(64 * MIB, waits.begin(64 * MIB), None)
    assert alone(waits, MIB, 21) == 20

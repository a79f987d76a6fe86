"""What reading from a store costs, holds and leaves behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fetch.tier import PATIENCE, Tier, made_batch, wait_for_threads
from tierlog.columns import RecordColumns
from tierlog.errors import CorruptDataError, RemoteStorageError
from tierlog.reader import store_reader
from tierlog.reader.store_reader import StoreReader

SIZE = 16 << 10
BATCHES = 64
SEGMENTS = 4
RECORDS = BATCHES * SEGMENTS
# A read of one record brings no more than this.
SMALL_BYTES = 512 << 10


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    """Segments of about 1 MiB each, one record to a batch of 16 KiB."""
    tier = Tier(tmp_path / "tier")
    for number in range(SEGMENTS):
        first = number * BATCHES
        tier.add([made_batch(first + one, size=SIZE) for one in range(BATCHES)])
    tier.store.reads.clear()
    yield tier
    gc.collect()
    wait_for_threads()
    assert threads() == []


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tier-read-ahead"]


def slowly(_key: str) -> None:
    """As a store does that is far away."""
    threading.Event().wait(0.005)


def read(
    tier: Tier, start: int = 0, end: int | None = None, fetch_bytes: int = 8 << 20
) -> Iterator[RecordColumns]:
    reader = StoreReader(tier.storage, tier.metadata, fetch_bytes=fetch_bytes)
    return reader.read("made", 0, start, end)


def offsets(pieces: Iterator[RecordColumns]) -> list[int]:
    return [offset for piece in pieces for offset in piece.offset.tolist()]


@pytest.mark.parametrize("before_read", [lambda _key: None, slowly])
@pytest.mark.parametrize("fetch_bytes", [1, SIZE * 3, 256 << 10, 8 << 20])
def test_every_record_once_from_near_and_far(
    tier: Tier, fetch_bytes: int, before_read: Callable[[str], object]
) -> None:
    tier.store.before_read = before_read
    for start, end in ((0, None), (5, 5), (5, 200), (BATCHES, 2 * BATCHES), (RECORDS, None)):
        found = offsets(read(tier, start, end, fetch_bytes=fetch_bytes))
        assert found == list(range(start, RECORDS if end is None else end))


@pytest.mark.parametrize("before_read", [lambda _key: None, slowly])
def test_a_few_records_cost_a_few_bytes(tier: Tier, before_read: Callable[[str], object]) -> None:
    tier.store.before_read = before_read
    for start in (0, 30, BATCHES - 1, RECORDS - 1):
        for count in (1, 3):
            tier.store.reads.clear()
            wanted = list(range(start, min(start + count, RECORDS)))
            assert offsets(read(tier, start, start + count)) == wanted
            wait_for_threads()
            logs = [size for key, _, size in tier.store.reads if key.endswith(".log")]
            segments = {offset // BATCHES for offset in wanted}
            assert len(logs) == len(segments)
            assert sum(logs) <= SMALL_BYTES * len(segments)
            # The leader epochs, and the indexes of each segment.
            assert len(tier.store.reads) - len(logs) <= 1 + 2 * len(segments)


@pytest.mark.parametrize("segment", range(SEGMENTS))
def test_the_first_piece_takes_two_round_trips(tier: Tier, segment: int) -> None:
    """The lineage out of the newest segment and the position in the first one are asked for at the
    same time."""
    of_indexes = 1 if segment == SEGMENTS - 1 else 2
    together = threading.Barrier(of_indexes, timeout=PATIENCE)

    def meet(key: str) -> None:
        if key.endswith(".indexes"):
            together.wait()

    tier.store.before_read = meet
    start = segment * BATCHES + 5
    assert offsets(read(tier, start, start + 1)) == [start]
    assert tier.store.count() == (of_indexes, 1)


def test_who_takes_one_piece_gets_little_more(tier: Tier) -> None:
    tier.store.before_read = slowly
    pieces = read(tier)
    assert int(next(pieces).offset[0]) == 0
    pieces.close()  # type: ignore[attr-defined]
    wait_for_threads()
    assert sum(size for key, _, size in tier.store.reads if key.endswith(".log")) <= SMALL_BYTES


def test_all_of_it_is_asked_for_once(tier: Tier) -> None:
    assert len(offsets(read(tier))) == RECORDS
    stored = sum(one.segment_size_bytes for one in tier.segments)
    logs = [size for key, _, size in tier.store.reads if key.endswith(".log")]
    assert stored <= sum(logs) <= stored * 1.1
    assert len(logs) <= 2 * SEGMENTS


def test_a_slow_store_is_read_ahead_and_no_further_than_the_end(tier: Tier) -> None:
    tier.store.before_read = slowly
    reading: set[str] = set()

    def noted(key: str) -> None:
        reading.add(threading.current_thread().name)
        slowly(key)

    tier.store.before_read = noted
    assert len(offsets(read(tier, fetch_bytes=64 << 10))) == RECORDS
    assert "tier-read-ahead" in reading
    tier.store.reads.clear()
    assert len(offsets(read(tier, 0, BATCHES, fetch_bytes=64 << 10))) == BATCHES
    wait_for_threads()
    fetched = sum(size for key, _, size in tier.store.reads if key.endswith(".log"))
    assert fetched <= 2 * tier.segments[0].segment_size_bytes + SMALL_BYTES


@pytest.mark.parametrize("end", ["closed", "dropped", "failed"])
def test_no_thread_is_left_behind(tier: Tier, end: str) -> None:
    tier.store.before_read = slowly
    pieces = read(tier, fetch_bytes=64 << 10)
    for _ in range(6):
        next(pieces)
    assert threads()
    if end == "closed":
        pieces.close()  # type: ignore[attr-defined]
    elif end == "failed":
        for key in (tier.keys(number)[0] for number in range(1, SEGMENTS)):
            tier.store.path(key).unlink()
        with pytest.raises(RemoteStorageError):
            offsets(pieces)
    del pieces
    gc.collect()
    for thread in threads():
        # Long before it would have gone by itself, for want of work.
        thread.join(PATIENCE / 3)
    assert threads() == []


@pytest.mark.parametrize("before_read", [lambda _key: None, slowly])
def test_pieces_may_be_kept_whatever_the_memory_is(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, before_read: Callable[[str], object]
) -> None:
    monkeypatch.setattr(store_reader, "_MOST_MEMORY_BYTES", 256 << 10)
    tier.store.before_read = before_read
    kept = list(read(tier, fetch_bytes=128 << 10))
    assert offsets(iter(kept)) == list(range(RECORDS))
    values = [value for piece in kept for value in piece.values]
    assert len(values) == RECORDS
    assert all(value is not None and len(value) == SIZE for value in values)


def test_no_more_is_read_ahead_than_the_memory_holds(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1 << 20
    monkeypatch.setattr(store_reader, "_MOST_MEMORY_BYTES", limit)
    tier.store.before_read = slowly
    came_out, most = 0, 0
    for piece in read(tier, fetch_bytes=64 << 10):
        came_out += int(piece.batches.size_bytes.sum())
        fetched = sum(size for key, _, size in tier.store.reads if key.endswith(".log"))
        most = max(most, fetched - came_out)
    # A read that finds the memory full gets as much again.
    assert 0 < most <= 2 * limit


def test_bytes_changed_on_their_way_are_asked_for_again(tier: Tier) -> None:
    struck: list[str] = []

    def flip_once(key: str, _position: int, data: bytes) -> bytes:
        if not key.endswith(".log") or key in struck:
            return data
        struck.append(key)
        return data[:200] + bytes([data[200] ^ 1]) + data[201:]

    tier.store.change = flip_once
    assert offsets(read(tier)) == list(range(RECORDS))
    assert len(struck) == SEGMENTS


def test_damage_ends_it_after_the_sound_records(tier: Tier) -> None:
    log_key, _ = tier.keys(1)
    position = sum(len(one.data) for one in tier.truth[BATCHES : BATCHES + 10])
    tier.store.damage(log_key, position + 500)
    seen: list[int] = []

    def read_on() -> None:
        for piece in read(tier, fetch_bytes=64 << 10):
            seen.extend(piece.offset.tolist())

    with pytest.raises(CorruptDataError, match=rf"{log_key}: bad_crc at byte {position}"):
        read_on()
    assert seen == list(range(BATCHES + 10))


def test_a_child_process_reads_on_by_itself(tier: Tier) -> None:
    tier.store.before_read = slowly
    pieces = read(tier, fetch_bytes=64 << 10)
    seen = [offset for _ in range(6) for offset in next(pieces).offset.tolist()]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            rest = offsets(pieces)
            status = 0 if seen + rest == list(range(RECORDS)) else 2
        finally:
            os.write(writing, bytes([status]))
            os._exit(status)
    os.close(writing)
    seen += offsets(pieces)
    assert seen == list(range(RECORDS))
    assert os.read(reading, 1) == b"\0"
    os.close(reading)
    assert os.waitpid(child, 0)[1] == 0


def test_two_readers_of_one_partition(tier: Tier) -> None:
    reader = StoreReader(tier.storage, tier.metadata, fetch_bytes=64 << 10)
    first, second = reader.read("made", 0, 0), reader.read("made", 0, 100)
    seen = offsets(iter([next(first), next(second), next(first)]))
    assert seen[:1] == [0]
    assert offsets(second)[-1] == RECORDS - 1
    assert offsets(first)[-1] == RECORDS - 1

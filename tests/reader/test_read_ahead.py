"""Sequential readers find the next range fetched, across segment borders, and nothing is lost."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.tier import (
    PATIENCE,
    Later,
    Tier,
    check,
    expected,
    made_batch,
    wait_for_threads,
)
from tierlog.clock import ManualClock, SystemClock
from tierlog.errors import ClosedError, CorruptDataError, RemoteStorageError
from tierlog.reader.memory import FetchMemory
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.workers import Threads
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.segment.layout import parse_key

NO_LIMIT = 2**60
SEGMENTS = 3
PER_SEGMENT = 120
# Every store counts as slow, so that all of it is read ahead.
EAGER = ReadAheadSettings(
    threads=4,
    chunk_bytes=64 << 10,
    max_chunk_bytes=128 << 10,
    max_window_bytes=1 << 20,
    slow_ms=0,
)


class ByHand:
    """Workers that work when the test says so."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()
        self.delays_ms: list[float] = []
        self.closed = False
        self.threads = 0

    def submit(self, job: Callable[[], None], delay_ms: float = 0) -> None:
        if not self.closed:
            self.jobs.append(job)
            self.delays_ms.append(delay_ms)

    def close(self) -> None:
        self.closed = True
        self.jobs.clear()

    def work(self) -> int:
        """All that there is to do, and what comes of it."""
        done = 0
        while self.jobs:
            self.jobs.popleft()()
            done += 1
        return done


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    """Three segments of some 600 KB, runs of 32 KiB."""
    tier = Tier(tmp_path, remote_index_interval_bytes=32 << 10)
    for segment in range(SEGMENTS):
        start = segment * PER_SEGMENT * 2
        tier.add([made_batch(start + 2 * one, size=2500, records=2) for one in range(PER_SEGMENT)])
    tier.store.reads.clear()
    return tier


@pytest.fixture
def workers() -> ByHand:
    return ByHand()


@pytest.fixture
def reader(tier: Tier, workers: ByHand) -> Iterator[RemoteBatchReader]:
    # A segment that is cut leaves a gap until the next leader's segments are there.
    reader = tier.reader(read_ahead=EAGER, workers=workers, on_gap="skip")
    yield reader
    reader.close()
    assert tier.memory.used_bytes == 0


END = SEGMENTS * PER_SEGMENT * 2


def read_on(tier: Tier, reader: RemoteBatchReader, offset: int, limit: int, **more: Any) -> int:
    """One read, checked: at the end of a piece it may be short, but by half at most."""
    read = tier.read(reader, offset, limit, **more)
    wanted = expected(tier.truth, offset, limit, NO_LIMIT, True)
    size = memoryview(read.records).nbytes
    full = sum(len(one.data) for one in wanted)
    while size < full and full - len(wanted[-1].data) >= size:
        full -= len(wanted.pop().data)
    check(read, wanted)
    assert limit < 256 << 10 or full * 2 >= limit or read.next_offset % (2 * PER_SEGMENT) == 0
    return read.next_offset


def start_reading(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand, reads: int = 3, offset: int = 0
) -> int:
    """So many reads, while the workers keep up; where the reader goes on."""
    for _ in range(reads):
        offset = read_on(tier, reader, offset, 20_000)
        workers.work()
    return offset


@pytest.mark.parametrize("limit", [0, 1, 6_000, 50_000, 300_000, 2 << 20])
@pytest.mark.parametrize("pace", [0, 1, 3])
def test_a_sequential_reader_gets_every_batch(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand, limit: int, pace: int
) -> None:
    """However quick the threads are: never, always, now and then."""
    offset = reads = 0
    while offset < END:
        offset = read_on(tier, reader, offset, limit)
        reads += 1
        if pace and reads % pace == 0:
            workers.work()
    assert offset == END


def test_what_was_read_ahead_takes_no_request(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers, reads=4)
    tier.store.reads.clear()
    while offset < END:
        read = tier.read(reader, offset, 20_000)
        assert read.requests == 0, offset
        offset = read.next_offset
        workers.work()
    assert tier.store.count()[1] <= (END // 240) * 12
    assert reader.stats().failed == 0


def test_the_next_segments_indexes_are_there_before_the_reader(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers)
    asked = {key for key, _, _ in tier.store.reads}
    assert {tier.keys(0)[1], tier.keys(1)[1]} <= asked
    assert offset < PER_SEGMENT


def test_readers_of_one_partition_do_not_disturb_each_other(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offsets = [0, 0, 2, 100, 250, 480]
    while any(offset < END for offset in offsets):
        for number, offset in enumerate(offsets):
            if offset < END:
                offsets[number] = read_on(tier, reader, offset, 9_000 + 1_000 * number)
        workers.work()
    assert offsets == [END] * len(offsets)
    assert reader.stats().bytes < 8 * sum(one.segment_size_bytes for one in tier.segments)


def test_random_reads_are_not_read_ahead(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    tier.read(reader, 0, 1)
    for offset in range(END - 3, 0, -7):
        read_on(tier, reader, offset, 5_000)
    assert not workers.jobs
    assert reader.stats().bytes == 0


def test_a_store_that_answers_at_once_is_read_in_place(tier: Tier, workers: ByHand) -> None:
    settings = ReadAheadSettings(chunk_bytes=100_000, slow_ms=10_000)
    reader = tier.reader(read_ahead=settings, workers=workers)
    offset = 0
    while offset < END:
        offset = read_on(tier, reader, offset, 10_000)
    assert not workers.jobs
    size = sum(one.segment_size_bytes for one in tier.segments)
    indexes, logs = tier.store.count()
    assert indexes == SEGMENTS
    assert logs <= size // 80_000 + 2 * SEGMENTS
    reader.close()
    assert tier.memory.used_bytes == 0


def test_a_quick_store_gives_more_the_longer_a_reader_goes_on(tier: Tier, workers: ByHand) -> None:
    """Who comes by his own mark once, reading here and there, gets little more than he asks for."""
    settings = ReadAheadSettings(chunk_bytes=100_000, slow_ms=10_000)
    reader = tier.reader(read_ahead=settings, workers=workers)
    offset, sizes = 0, []
    while offset < END:
        tier.store.reads.clear()
        offset = tier.read(reader, offset, 1_000).next_offset
        sizes += [size for key, _, size in tier.store.reads if key.endswith(".log")]
    assert sizes[1] < 70_000
    assert sizes[2] >= 100_000


# A server that sends at once; two reads of 20,000 bytes make a sequential reader of it.
SERVED = ReadAheadSettings(chunk_bytes=64 << 10, slow_ms=10_000)


def test_a_server_sends_two_pieces_while_the_reader_is_at_one(tier: Tier, workers: ByHand) -> None:
    tier.store.is_served = True
    reader = tier.reader(read_ahead=SERVED, workers=workers)
    offset = start_reading(tier, reader, workers, reads=1)
    assert reader.stats().pieces == 0
    offset = start_reading(tier, reader, workers, 1, offset)
    assert reader.stats().pieces == 3
    while offset < END:
        read = tier.read(reader, offset, 20_000)
        assert read.requests == 0, offset
        offset = read.next_offset
        del read
        workers.work()
        assert tier.memory.read_ahead_bytes <= 3 * (64 << 10)
    asked = sum(size for key, _, size in tier.store.reads if key.endswith(".log"))
    assert asked <= 1.1 * sum(one.segment_size_bytes for one in tier.segments)
    assert reader.stats().failed == 0
    reader.close()
    assert tier.memory.used_bytes == 0


@pytest.mark.parametrize("limit", [1, 6_000, 50_000, 300_000])
@pytest.mark.parametrize("pace", [0, 1, 3])
def test_every_batch_comes_from_a_server_too(
    tier: Tier, workers: ByHand, limit: int, pace: int
) -> None:
    tier.store.is_served = True
    reader = tier.reader(read_ahead=SERVED, workers=workers)
    offset = reads = 0
    while offset < END:
        offset = read_on(tier, reader, offset, limit)
        reads += 1
        if pace and reads % pace == 0:
            workers.work()
    reader.close()
    assert tier.memory.used_bytes == 0


def test_who_reads_here_and_there_has_nothing_under_way(tier: Tier, workers: ByHand) -> None:
    """Also when he comes by his own mark once."""
    tier.store.is_served = True
    reader = tier.reader(read_ahead=SERVED, workers=workers)
    for start in range(END - 30, 0, -31):
        offset = read_on(tier, reader, start, 5_000)
        read_on(tier, reader, offset, 5_000)
    assert not workers.jobs
    assert reader.stats().pieces == 0
    reader.close()


def test_without_room_nothing_is_under_way(tier: Tier, workers: ByHand) -> None:
    tier.store.is_served = True
    tier.memory = FetchMemory(400_000, read_ahead_share=0.15)
    reader = tier.reader(read_ahead=SERVED, workers=workers)
    offset = 0
    while offset < END:
        offset = read_on(tier, reader, offset, 20_000)
        # The reader's own piece is all that there is room for.
        assert tier.memory.read_ahead_bytes <= 60_000
        workers.work()
    reader.close()
    assert tier.memory.used_bytes == 0


def test_close_drops_what_a_server_was_asked_for(tier: Tier, workers: ByHand) -> None:
    tier.store.is_served = True
    reader = tier.reader(read_ahead=SERVED, workers=workers)
    offset = read_on(tier, reader, 0, 20_000)
    read_on(tier, reader, offset, 20_000)
    assert workers.jobs
    assert tier.memory.used_bytes > 0
    reader.close()
    assert not workers.jobs
    assert tier.memory.used_bytes == 0


def test_nothing_is_read_ahead_when_that_is_switched_off(tier: Tier, workers: ByHand) -> None:
    settings = ReadAheadSettings(max_window_bytes=0, slow_ms=0)
    reader = tier.reader(read_ahead=settings, workers=workers)
    offset = 0
    while offset < END:
        offset = read_on(tier, reader, offset, 10_000)
        assert tier.memory.used_bytes == 0
    assert not workers.jobs


# -- memory


def test_the_share_of_the_memory_is_the_bound(tier: Tier, workers: ByHand) -> None:
    tier.memory = FetchMemory(400_000)
    reader = tier.reader(read_ahead=EAGER, workers=workers)
    offset = 0
    while offset < END:
        offset = read_on(tier, reader, offset, 20_000)
        workers.work()
        assert tier.memory.read_ahead_bytes <= 200_000
    assert tier.memory.most_bytes <= 400_000
    reader.close()
    assert tier.memory.used_bytes == 0


def test_who_needs_memory_gets_what_was_read_ahead(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers, reads=4)
    ahead = tier.memory.used_bytes
    assert ahead > 100_000
    tier.memory.resize(ahead)
    held = tier.memory.acquire(ahead, 0)
    assert held is not None
    assert tier.memory.used_bytes == ahead
    # The reader goes on all the same, once there is room.
    tier.memory.resize(64 << 20)
    assert read_on(tier, reader, offset, 20_000) > offset
    tier.memory = FetchMemory(1)


def test_what_nobody_comes_for_goes_in_time(tier: Tier, workers: ByHand) -> None:
    clock = ManualClock()
    reader = tier.reader(read_ahead=EAGER, workers=workers, clock=clock)
    start_reading(tier, reader, workers, reads=4)
    assert tier.memory.used_bytes > 0
    clock.advance(EAGER.idle_ms - 1)
    reader.sweep()
    assert tier.memory.used_bytes > 0
    clock.advance(1)
    reader.sweep()
    assert tier.memory.used_bytes == 0
    stats = reader.stats()
    assert stats.streams == 0
    assert stats.wasted_bytes > 0


def test_so_many_readers_are_remembered(tier: Tier, workers: ByHand) -> None:
    settings = ReadAheadSettings(max_streams=5, slow_ms=0)
    reader = tier.reader(read_ahead=settings, workers=workers)
    for offset in range(0, 100, 3):
        tier.read(reader, offset, 1)
    assert reader.stats().streams <= 5


# -- bad days


def test_a_piece_that_was_damaged_on_its_way_is_asked_for_again(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = read_on(tier, reader, 0, 20_000)
    tier.store.change = lambda _key, _position, data: data[:-1] + bytes([data[-1] ^ 1])
    offset = tier.read(reader, offset, 1).next_offset
    workers.work()
    tier.store.change = lambda _key, _position, data: data
    while offset < END:
        offset = read_on(tier, reader, offset, 20_000)
    assert reader.stats().failed > 0


def test_damage_is_never_served_and_what_lies_before_is(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    victim = tier.truth[80]
    position = sum(len(one.data) for one in tier.truth[:80])
    tier.store.damage(tier.keys(0)[0], position + 1000)
    offset = 0
    while offset < victim.base_offset:
        offset = tier.read(reader, offset, 20_000).next_offset
        workers.work()
    assert offset == victim.base_offset
    with pytest.raises(CorruptDataError, match="bad_crc") as raised:
        tier.read(reader, offset, 20_000)
    assert raised.value.position == position


def test_a_store_that_fails_fails_only_who_needs_it(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers)

    def broken(_key: str) -> None:
        raise RemoteStorageError("broken")

    def until_it_fails(offset: int) -> None:
        while offset < END:
            reached.append(offset)
            offset = read_on(tier, reader, offset, 20_000)
            workers.work()

    tier.store.before_read = broken
    reached: list[int] = []
    with pytest.raises(RemoteStorageError, match="broken"):
        until_it_fails(offset)
    offset = reached[-1]
    tier.store.before_read = lambda _key: None
    while offset < END:
        offset = read_on(tier, reader, offset, 20_000)
        workers.work()


def test_a_segment_deleted_meanwhile_is_not_served(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers)
    gone = tier.segments[0]
    tier.metadata.update(
        gone.update_to(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, event_timestamp_ms=1)
    )
    read = tier.read(reader, offset, 20_000)
    assert read.first_offset == tier.segments[1].start_offset


def test_a_segment_cut_meanwhile_ends_where_it_was_cut(
    tier: Tier, reader: RemoteBatchReader, workers: ByHand
) -> None:
    offset = start_reading(tier, reader, workers)
    cut = tier.segments[0]
    tier.metadata.update(
        cut.update_to(
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            event_timestamp_ms=1,
            truncation_offset=offset + 10,
        )
    )
    reads = []
    while offset < 240:
        read = tier.read(reader, offset, 9_000)
        reads += [] if read.segment is None else [read.segment.start_offset]
        assert read.first_offset >= 240 or read.next_offset <= cut.start_offset + 240
        offset = read.next_offset
        workers.work()
    assert reads[-1] == 240
    assert reads.count(0) <= 6


def test_close_drops_what_is_under_way(tier: Tier) -> None:
    """A piece that comes after close is dropped, and nobody waits for a store that hangs."""
    arrived, go_on = threading.Event(), threading.Event()
    reader = tier.reader(read_ahead=EAGER)
    offset = tier.read(reader, 0, 20_000).next_offset

    def hang(_key: str, position: int, data: bytes) -> bytes:
        if position > 60_000:
            arrived.set()
            assert go_on.wait(PATIENCE)
        return data

    tier.store.change = hang
    offset = tier.read(reader, offset, 20_000).next_offset
    assert arrived.wait(PATIENCE)
    waiting = Later(lambda: tier.read(reader, offset, 2 << 20))
    reader.close()
    with pytest.raises(ClosedError):
        tier.read(reader, offset)
    assert tier.memory.used_bytes > 0
    go_on.set()
    with pytest.raises(ClosedError):
        waiting.result()
    del waiting
    wait_for_threads()
    assert tier.memory.used_bytes == 0


def test_idle_threads_keep_nothing_alive(tier: Tier) -> None:
    reader = tier.reader(read_ahead=replace(EAGER, idle_ms=2**40))
    offset = 0
    while offset < END:
        offset = tier.read(reader, offset, 20_000).next_offset
    assert reader.stats().threads > 0
    for _ in range(PATIENCE * 100):
        if tier.memory.used_bytes == 0:
            break
        threading.Event().wait(0.01)
    assert tier.memory.used_bytes == 0
    reader.close()
    wait_for_threads()


def test_threads_come_with_work_and_go_without() -> None:
    idle = threading.Event()
    threads = Threads(2, 1, SystemClock(), idle.set)
    seen: list[int] = []
    done = threading.Event()
    for number in range(5):
        threads.submit(partial(seen.append, number))
    threads.submit(done.set)
    assert done.wait(PATIENCE)
    assert threads.threads <= 2
    assert idle.wait(PATIENCE)
    wait_for_threads()
    assert (threads.threads, sorted(seen)) == (0, [0, 1, 2, 3, 4])
    threads.close()
    threads.submit(lambda: seen.append(9))
    assert threads.threads == 0


def test_a_job_waits_until_it_is_due() -> None:
    clock = ManualClock()
    threads = Threads(1, 10_000, clock, lambda: None)
    ran: list[tuple[str, int]] = []
    both_are_there, done = threading.Event(), threading.Event()

    def hold() -> None:
        assert both_are_there.wait(PATIENCE)

    def last() -> None:
        ran.append(("last", clock.monotonic_ms()))
        done.set()

    # One thread, held until both are there, then waits for what is due first, not what came first.
    threads.submit(hold)
    threads.submit(last, 900)
    threads.submit(lambda: ran.append(("first", clock.monotonic_ms())), 700)
    both_are_there.set()
    assert done.wait(PATIENCE)
    assert ran == [("first", 700), ("last", 900)]
    threads.close()
    wait_for_threads()


def test_requests_go_out_evenly_over_the_time_of_one(tier: Tier, workers: ByHand) -> None:
    """So that what they bring does not come all at once, and nothing for as long again."""
    clock = ManualClock()
    settings = replace(EAGER, slow_ms=2)
    tier.store.before_read = lambda _key: clock.sleep(40)
    reader = tier.reader(read_ahead=settings, workers=workers, clock=clock)
    offset = read_on(tier, reader, 0, 60_000)
    read_on(tier, reader, offset, 60_000)
    delays = workers.delays_ms
    # Indexes that read-ahead comes to, at once; then the pieces of a window.
    pieces = delays[delays.index(0.0) :]
    assert len([delay for delay in pieces if delay > 0]) >= 5
    steps = [after - before for before, after in pairwise(delay for delay in delays if delay)]
    assert max(delays) <= 40
    assert all(0 < step <= 10 for step in steps)
    reader.close()
    assert tier.memory.used_bytes == 0


@pytest.mark.parametrize(
    ("others_ms", "least_ms", "most_ms"), [(40, 35, 40), (70, 45, 69), (4_000, 70, 80)]
)
def test_requests_go_out_no_faster_than_pieces_are_done(
    tier: Tier, workers: ByHand, others_ms: int, least_ms: int, most_ms: int
) -> None:
    """A store that answers in 40 ms, but half of the pieces take longer: a window goes out in the
    mean time, and in twice the 40 ms at most."""
    clock = ManualClock()
    durations = cycle((40, others_ms))
    tier.store.before_read = lambda _key: clock.sleep(next(durations))
    reader = tier.reader(read_ahead=replace(EAGER, slow_ms=2), workers=workers, clock=clock)
    read_on(tier, reader, read_on(tier, reader, 0, 60_000), 60_000)
    workers.work()
    workers.delays_ms.clear()
    offset = read_on(tier, reader, 2 * PER_SEGMENT, 60_000)
    read_on(tier, reader, offset, 60_000)
    assert least_ms < max(workers.delays_ms) <= most_ms
    reader.close()
    assert tier.memory.used_bytes == 0


@pytest.mark.parametrize("settings", [EAGER, SERVED], ids=["slow", "served"])
@pytest.mark.parametrize("seed", range(6))
def test_many_readers_at_once(tier: Tier, seed: int, settings: ReadAheadSettings) -> None:
    """Threads of their own, small memory, a store that stumbles: each gets every batch in order."""
    chance = random.Random(seed)
    tier.memory = FetchMemory(600_000)
    tier.store.is_served = settings is SERVED
    lock = threading.Lock()

    def stumble(_key: str) -> None:
        with lock:
            fails = chance.random() < 0.05
        if fails:
            raise RemoteStorageError("stumbled")

    tier.store.before_read = stumble
    reader = tier.reader(read_ahead=settings, memory_wait_ms=20_000)

    def consume(offset: int, limit: int) -> bytes:
        found = []
        while offset < END:
            try:
                read = tier.read(reader, offset, limit)
            except RemoteStorageError:
                continue
            found.append(bytes(read.records))
            assert read.next_offset > offset or read.refused
            offset = read.next_offset
        return b"".join(found)

    limits = [1, 7_000, 30_000, 90_000]
    consumers = [Later(partial(consume, 0, limit)) for limit in limits]
    whole = b"".join(one.data for one in tier.truth)
    for consumer in consumers:
        assert consumer.result() == whole
    reader.close()
    wait_for_threads()
    del consumers, consumer
    assert tier.memory.used_bytes == 0
    assert tier.memory.most_bytes <= 600_000


def test_positions_are_those_of_the_object(tier: Tier, reader: RemoteBatchReader) -> None:
    offset = 0
    while offset < END:
        read = tier.read(reader, offset, 33_000)
        assert read.segment is not None
        key = parse_key(tier.keys(tier.segments.index(read.segment))[0])
        data = tier.store.path(str(key)).read_bytes()
        assert data[read.start_position : read.end_position] == bytes(read.records)
        offset = read.next_offset

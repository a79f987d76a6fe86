"""Reading under a fetch quota: ranged reads of logs wait and count, everything else does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fetch.tier import wait_for_threads
from tests.kafka_tools.golden import DATA_DIR
from tests.kafka_tools.support import wait_until
from tests.remote.index_cache.segments import WatchedStore
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.columns import RecordColumns
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import ClosedError, RemoteResourceNotFoundError
from tierlog.quota import QuotaManager
from tierlog.reader.open import open_reader, read, read_async
from tierlog.reader.store_reader import StoreReader
from tierlog.remote.segment.bucket import bucket_metadata
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar

if TYPE_CHECKING:
    from typing_extensions import Buffer

DISK = str(DATA_DIR / "clean" / "disk1")
TOPIC = "codec-none"
LIMIT = 1000
WINDOW_S = 11
WAIT_S = 30


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    state = str(tmp_path / "state")
    url = (tmp_path / "store").as_uri()
    config = tier_config(topics=(TOPIC,))
    with Sidecar([DISK], url, state_dir=state, config=config, clock=ManualClock()) as sidecar:
        assert sidecar.run_once().ok
    return tmp_path / "store"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


class Asked(WatchedStore):
    """Counts the bytes of `.log` objects that are asked for."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.log_bytes = 0

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        if key.endswith(".log"):
            self.log_bytes += size_bytes
        return super().get_range(key, start_position, size_bytes)


def fetches(limit: int, clock: ManualClock, mode: QuotaMode = QuotaMode.CHECK) -> QuotaManager:
    config = QuotaConfig(fetch_max_bytes_per_second=limit, fetch_quota_mode=mode)
    return QuotaManager.for_fetches(config, clock)


def log_bytes(store_dir: Path) -> int:
    return sum(path.stat().st_size for path in store_dir.rglob("*.log"))


def offsets(pieces: Iterator[RecordColumns]) -> list[int]:
    return [offset for piece in pieces for offset in piece.offset.tolist()]


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_reader_gets_everything_no_faster_than_the_quota(
    mode: QuotaMode, store_dir: Path, clock: ManualClock
) -> None:
    quota = fetches(LIMIT, clock, mode)
    pieces = offsets(read(store_dir.as_uri(), TOPIC, 0, fetch_quota=quota))
    assert pieces == offsets(read(store_dir.as_uri(), TOPIC, 0))
    snapshot = quota.snapshot()
    assert snapshot.total_bytes == log_bytes(store_dir)
    assert snapshot.reserved_bytes == 0
    passed_s = clock.monotonic_ms() / 1000
    if mode is QuotaMode.CHECK:
        # Each of the four segments is more than a window allows, and forgotten with it.
        assert 3 * WINDOW_S - 1 <= passed_s <= 3 * WINDOW_S + 1
    else:
        # The last one begins when the three before it are paid but for a window's allowance.
        paid = sum(segment.size_bytes for segment in open_reader(DISK).segments(TOPIC, 0)[:3])
        assert paid / LIMIT - WINDOW_S - 1 <= passed_s <= paid / LIMIT + 1


@pytest.mark.parametrize("mode", QuotaMode)
def test_each_ranged_read_waits_for_the_ones_before(
    mode: QuotaMode, store_dir: Path, clock: ManualClock
) -> None:
    opened = open_store(store_dir.as_uri())
    quota = fetches(LIMIT, clock, mode)
    reader = StoreReader(
        ObjectStorageManager(opened), bucket_metadata(opened), fetch_bytes=1, fetch_quota=quota
    )
    seen = []
    for _ in reader.read(TOPIC, 0, 0):
        second = clock.monotonic_ms() // 1000
        seen.append((second, quota.snapshot().total_bytes))
    largest = max(b - a for (_, a), (_, b) in zip([(0, 0), *seen], seen, strict=False))
    for second, total in seen:
        before = max((old for when, old in seen if when <= second - WINDOW_S), default=0)
        assert total - before <= LIMIT * WINDOW_S + largest


def test_what_counts_is_what_the_store_was_asked_for(store_dir: Path, clock: ManualClock) -> None:
    """Also what is read ahead, and nothing when it is used."""
    opened = Asked(store_dir)
    opened.before_read = lambda _key: threading.Event().wait(0.005)
    quota = fetches(1 << 30, clock)
    reader = StoreReader(
        ObjectStorageManager(opened), bucket_metadata(opened), fetch_bytes=1, fetch_quota=quota
    )
    pieces = reader.read(TOPIC, 0, 0)
    for _ in range(5):
        next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    wait_for_threads()
    assert quota.snapshot().total_bytes == opened.log_bytes


def test_listing_and_looking_up_are_free(store_dir: Path, clock: ManualClock) -> None:
    quota = fetches(1, clock)
    quota.record(1 << 20)
    reader = open_reader(store_dir.as_uri(), fetch_quota=quota)
    assert [one.topic for one in reader.partitions()] == [TOPIC]
    assert len(reader.segments(TOPIC, 0)) == 4
    start, end = reader.bounds(TOPIC, 0)
    assert start < end
    assert clock.monotonic_ms() == 0


def test_a_directory_has_no_quota(clock: ManualClock) -> None:
    quota = fetches(1, clock)
    quota.record(1 << 20)
    assert offsets(read(DISK, TOPIC, 0, fetch_quota=quota))
    assert clock.monotonic_ms() == 0
    assert quota.snapshot().total_bytes == 1 << 20


@pytest.mark.parametrize("mode", QuotaMode)
def test_a_request_that_fails_stays_counted(
    mode: QuotaMode, store_dir: Path, clock: ManualClock
) -> None:
    quota = fetches(1 << 30, clock, mode)
    opened = Asked(store_dir)
    reader = StoreReader(ObjectStorageManager(opened), bucket_metadata(opened), fetch_quota=quota)
    for path in store_dir.rglob("*.log"):
        path.unlink()
    for _ in range(3):
        with pytest.raises(RemoteResourceNotFoundError):
            offsets(reader.read(TOPIC, 0, 0))
    snapshot = quota.snapshot()
    assert (snapshot.total_bytes, snapshot.reserved_bytes) == (opened.log_bytes, 0)
    assert opened.log_bytes > 0


def test_a_closed_quota_ends_the_reading(store_dir: Path, clock: ManualClock) -> None:
    quota = fetches(LIMIT, clock)
    pieces = read(store_dir.as_uri(), TOPIC, 0, fetch_quota=quota)
    next(pieces)
    quota.close()
    with pytest.raises(ClosedError, match="fetch quota"):
        next(pieces)


def test_who_is_cancelled_in_an_event_loop_waits_for_no_quota(store_dir: Path) -> None:
    """Else the loop could not end either, which waits for its threads."""
    quota = QuotaManager.for_fetches(QuotaConfig())
    quota.set_limit(0)

    async def read_on() -> None:
        async for _ in read_async(store_dir.as_uri(), TOPIC, 0, fetch_quota=quota):
            pytest.fail("there is no room")

    async def main() -> None:
        task = asyncio.ensure_future(read_on())
        await asyncio.to_thread(wait_until, lambda: bool(quota._line), WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    loop = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    loop.start()
    loop.join(WAIT_S)
    ended = not loop.is_alive()
    quota.set_limit(None)
    loop.join(WAIT_S)
    assert ended
    assert not quota._line

"""The parts of a fetcher as `open_fetcher` puts them together."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fetch.tier import (
    FIRST_TIMESTAMP_MS,
    PARTITION,
    PATIENCE,
    Tier,
    made_batch,
)
from tests.fetch.tier_only import END, TierOnly
from tests.kafka_tools.support import wait_until
from tests.settings.observing import files_of
from tests.tools.golden_copy import overwrite
from tierlog.config import Config, RemoteIndexConfig
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.setup import open_fetcher
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.types import FetchPartition, FetchRequest
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.segment.indexes import IndexKind

MIB = 1 << 20


def request_of(offset: int, max_bytes: int) -> FetchRequest:
    asked = FetchPartition(partition=PARTITION, fetch_offset=offset, max_bytes=max_bytes)
    return FetchRequest(partitions=(asked,), max_wait_ms=0)


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    made = Tier(tmp_path / "tier", remote_index_interval_bytes=1000)
    for start in range(0, END, 50):
        made.add([made_batch(one, size=400) for one in range(start, start + 50)])
    made.store.reads.clear()
    return made


def fetch_all(fetcher: Fetcher) -> None:
    """Read a little of every segment, twice."""
    for offset in (10, 60, 110, 160) * 2:
        (answer,) = fetcher.fetch_sync(request_of(offset, 1)).partitions
        assert answer.size_bytes > 0


def test_indexes_are_asked_for_once_by_default(tier: Tier) -> None:
    with open_fetcher(TierOnly(tier), tier.storage, tier.metadata) as fetcher:
        fetch_all(fetcher)
        for offset in (30, 80, 130, 180):
            found = fetcher.list_offset_sync(PARTITION, FIRST_TIMESTAMP_MS + offset)
            assert found.offset == offset
        assert "remote-index-cache-sweeper" in {one.name for one in threading.enumerate()}
    assert tier.store.count()[0] == len(tier.segments)
    assert "remote-index-cache-sweeper" not in {one.name for one in threading.enumerate()}


def test_remote_index_files_spare_the_indexes(tier: Tier, tmp_path: Path) -> None:
    """Offsets and times, also of a segment that was indexed after the fetcher was opened."""
    config = Config(remote_index=RemoteIndexConfig(dir=str(tmp_path / "index")))
    files = RemoteIndexFiles(tmp_path / "index", PARTITION, rotate_bytes=3_000, rotate_ms=-1)
    with open_fetcher(TierOnly(tier), tier.storage, tier.metadata, config=config) as fetcher:
        for segment in tier.segments:
            kind = IndexKind.REMOTE_LOG
            files.append(segment, tier.storage.fetch_indexes(segment, [kind])[kind])
            tier.store.reads.clear()
            first = segment.start_offset
            (answer,) = fetcher.fetch_sync(request_of(first + 10, 1)).partitions
            assert answer.size_bytes > 0
            found = fetcher.list_offset_sync(PARTITION, FIRST_TIMESTAMP_MS + first + 30)
            assert found.offset == first + 30
            assert tier.store.count()[0] == 0
        before = files_of(tmp_path / "index")
        # Whatever becomes of them, the segments' own indexes answer.
        log = next((tmp_path / "index").rglob("*.remoteLogIndex"))
        overwrite(log, 20, b"damage")
        fetch_all(fetcher)
        found = fetcher.list_offset_sync(PARTITION, FIRST_TIMESTAMP_MS + 30)
        assert found.offset == 30
        assert tier.store.count()[0] > 0
        assert files_of(tmp_path / "index").keys() == before.keys()
    files.close()


def test_a_reader_of_a_store_looks_into_remote_index_files(tier: Tier, tmp_path: Path) -> None:
    config = Config(remote_index=RemoteIndexConfig(dir=str(tmp_path / "index")))
    with closing(
        RemoteIndexFiles(tmp_path / "index", PARTITION, rotate_bytes=3_000, rotate_ms=-1)
    ) as files:
        for segment in tier.segments:
            kind = IndexKind.REMOTE_LOG
            files.append(segment, tier.storage.fetch_indexes(segment, [kind])[kind])
    asked = []
    for given in (Config(), config):
        tier.store.reads.clear()
        reader = StoreReader(tier.storage, tier.metadata, config=given)
        topic, number = PARTITION.topic, PARTITION.partition
        pieces = list(reader.read(topic, number, 30, 180))
        assert [one for piece in pieces for one in piece.offset.tolist()] == list(range(30, 180))
        assert reader.offset_for_timestamp(topic, number, FIRST_TIMESTAMP_MS + 77) == 77
        asked.append(tier.store.count()[0])
    # Each call asks for the newest segment's leader epochs; nothing else of any indexes.
    assert asked[1] == 2 < asked[0]


def test_what_came_too_late_does_not_keep_others_from_reading(tmp_path: Path) -> None:
    """Three clients are gone; what was read for them fills the memory until somebody needs it."""
    tier = Tier(tmp_path)
    tier.add([made_batch(one, size=100_000) for one in range(END)])
    config = Config()
    config = replace(
        config,
        remote_log=replace(
            config.remote_log, fetch_memory_bytes=4 * MIB, fetch_max_wait_ms=PATIENCE * 1_000
        ),
    )
    reading, gate = threading.Semaphore(0), threading.Event()

    def hold(key: str) -> None:
        if key.endswith(".log"):
            reading.release()
            assert gate.wait(PATIENCE)

    async def come_and_go(offset: int) -> None:
        task = asyncio.ensure_future(fetcher.fetch(request_of(offset, MIB)))
        assert await asyncio.to_thread(reading.acquire, True, PATIENCE)
        task.cancel()
        await asyncio.wait([task])

    with open_fetcher(TierOnly(tier), tier.storage, tier.metadata, config=config) as fetcher:
        tier.store.before_read = hold
        for offset in (0, 50, 100):
            asyncio.run(come_and_go(offset))
        gate.set()
        wait_until(lambda: fetcher._pool.late_bytes > 2.5 * MIB, PATIENCE)
        (answer,) = fetcher.fetch_sync(request_of(150, 2 * MIB)).partitions
        assert answer.size_bytes > MIB

"""The parts of a fetcher as `open_fetcher` puts them together."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

from tests.kafka_tools.support import wait_until
from tests.tiering.fetch.tier import PARTITION, PATIENCE, Tier, made_batch, tier_only
from tierlog.config import Config
from tierlog.tiering.fetch.setup import open_fetcher
from tierlog.tiering.fetch.types import FetchPartition, FetchRequest, FetchView
from tierlog.types import TopicIdPartition

MIB = 1 << 20
END = 200


class TierOnly:
    """A host whose disk has nothing left of the log."""

    def __init__(self, tier: Tier) -> None:
        self._view = tier_only(tier, END)

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return self._view if partition == PARTITION else None


def request_of(offset: int, max_bytes: int) -> FetchRequest:
    asked = FetchPartition(partition=PARTITION, fetch_offset=offset, max_bytes=max_bytes)
    return FetchRequest(partitions=(asked,), max_wait_ms=0)


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

"""Fetchers whose store or threads wait until a test lets them go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

from tests.fetch.two_tiers import TwoTiers
from tests.kafka_tools.support import wait_until
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.pool import ReaderPool, ReadTicket
from tierlog.reader.types import (
    FetchPartition,
    PartitionData,
)
from tierlog.types import TopicIdPartition

WAIT_S = 30


NAME = "codec-none-0"


class Gated:
    """The reader of the tier, with a gate before every read."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Semaphore(0)
        self.fails: dict[TopicIdPartition, BaseException] = {}
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read_batches(self, partition: TopicIdPartition, *args: Any, **options: Any) -> Any:
        self.reads += 1
        self.waiting.release()
        assert self.open.wait(WAIT_S)
        if partition in self.fails:
            raise self.fails[partition]
        return self._reader.read_batches(partition, *args, **options)


class PromptPool(ReaderPool):
    """Hands out a read once it has begun: given up then, it is late, and not left out."""

    def submit(self, key: Hashable, read: Callable[[], Any]) -> ReadTicket[Any]:
        ticket = super().submit(key, read)
        wait_until(lambda: not self.queued(), WAIT_S, interval_s=0.001)
        return ticket


def gate_of(tiers: TwoTiers) -> Gated:
    found: Gated = tiers.gate  # type: ignore[attr-defined]
    return found


def remade(tiers: TwoTiers, **options: Any) -> Fetcher:
    reader, tiers.remote = tiers.remote, gate_of(tiers)  # type: ignore[assignment]
    try:
        return tiers.make(**options)
    finally:
        tiers.remote = reader


def both(tiers: TwoTiers) -> tuple[TopicIdPartition, TopicIdPartition]:
    """A partition of which only the tier has the front, and one that is local."""
    cold, hot = tiers.add("clean", NAME), tiers.add("clean", "epochs-0")
    tiers.drop_local(cold, tiers.views[cold].log.segments[-1].base_offset)
    return cold, hot


def at(partition: TopicIdPartition, offset: int = 0, **options: Any) -> FetchPartition:
    return FetchPartition(partition=partition, fetch_offset=offset, **options)


def size(answer: PartitionData) -> int:
    return memoryview(answer.records).nbytes

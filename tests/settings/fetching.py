"""What settings change in a `Fetcher`, and in reads of a store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fetch.tier import PARTITION, PATIENCE, Tier, made_batch
from tests.fetch.tier_only import TierOnly
from tests.fetch.views import golden_view
from tests.settings.observing import Place, command, files_of
from tierlog.clock import Clock, ManualClock
from tierlog.config import load_config
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.setup import open_fetcher
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.types import FetchPartition, FetchRequest, FetchView
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.types import TopicIdPartition

END = 200


class HandClock(ManualClock):
    """A clock that only `advance` moves; threads that wait look again after a moment."""

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        if duration_ms > 0:
            condition.wait(0.002)


@contextmanager
def fetching(
    place: Place, clock: Clock | None = None, metrics: RemoteLogMetrics | None = None, **base: str
) -> Iterator[tuple[Tier, Fetcher]]:
    """A fetcher of four segments, put together by the settings."""
    tier = Tier(place.folder / "tier", remote_index_interval_bytes=1_000)
    for start in range(0, END, 50):
        tier.add([made_batch(one, size=2_000) for one in range(start, start + 50)])
    tier.store.reads.clear()
    given = {key.replace("_", "."): value for key, value in base.items()}
    config = load_config(properties={**given, **place.properties})
    with open_fetcher(
        TierOnly(tier), tier.storage, tier.metadata, config=config, clock=clock, metrics=metrics
    ) as fetcher:
        yield tier, fetcher


def fetch(fetcher: Fetcher, offset: int, max_bytes: int = 1, client: str = "someone") -> int:
    asked = FetchPartition(partition=PARTITION, fetch_offset=offset, max_bytes=max_bytes)
    request = FetchRequest(partitions=(asked,), max_wait_ms=0, client_id=client)
    (answer,) = fetcher.fetch_sync(request).partitions
    return int(answer.size_bytes)


def index_requests(place: Place) -> int:
    """How often `.indexes` objects are asked for: at first, soon after, and after a long time."""
    clock = HandClock()
    with fetching(place, clock) as (tier, fetcher):
        for passed_ms in (0, 1_000, 1_000_000):
            clock.advance(passed_ms)
            for offset in (10, 60, 110, 160):
                assert fetch(fetcher, offset)
        return tier.store.count()[0]


def cached_indexes(place: Place) -> int:
    """The files of the cache, also those left behind."""
    with fetching(place) as (_, fetcher):
        assert fetch(fetcher, 10)
    cache = place.folder / "cache"
    return len(files_of(cache)) if cache.exists() else 0


def throttled_bytes(place: Place) -> list[int]:
    """What each of some fetches brings, one a second, here and there."""
    clock = HandClock()
    sizes: list[int] = []
    with fetching(place, clock) as (_, fetcher):
        for number in range(24):
            sizes.append(fetch(fetcher, number * 53 % END))
            clock.advance(1_000)
    return sizes


def held_reads(place: Place) -> tuple[int, int]:
    """Return how many threads read from a store that does not answer, and how many reads are
    refused."""
    gate = threading.Event()
    with fetching(place, remote_fetch_max_wait_ms="1") as (tier, fetcher):

        def hold(key: str) -> None:
            if key.endswith(".indexes"):
                assert gate.wait(PATIENCE)

        tier.store.before_read = hold
        asked = [
            FetchPartition(partition=PARTITION, fetch_offset=offset, max_bytes=1)
            for offset in range(14)
        ]
        response = fetcher.fetch_sync(FetchRequest(partitions=tuple(asked), max_wait_ms=0))
        refused = sum(bool(answer.text) for answer in response.partitions)
        gate.set()
        return len(fetcher._pool._threads), refused


def waits_long(place: Place) -> bool:
    """Whether a fetch waits for a store that does not answer."""
    gate = threading.Event()
    with fetching(place) as (tier, fetcher):

        def hold(_key: str) -> None:
            assert gate.wait(PATIENCE)

        tier.store.before_read = hold
        begun = time.monotonic()
        fetch(fetcher, 0)
        passed_s = time.monotonic() - begun
        gate.set()
        return passed_s >= 3


def largest_answer(place: Place) -> int:
    with fetching(place) as (_, fetcher):
        return fetch(fetcher, 0, 1 << 20)


class _OneView:
    """The host of one local partition."""

    def __init__(self, view: FetchView) -> None:
        self._view = view

    def view(self, _partition: TopicIdPartition) -> FetchView:
        return self._view


def local_answers_at_a_time(place: Place) -> int:
    """How many of six answers from a local log have records while all of them are kept."""
    view = golden_view("clean", "codec-none-0")
    assert view.log.topic_id is not None
    partition = TopicIdPartition(topic_id=view.log.topic_id, topic=view.log.topic, partition=0)
    asked = FetchPartition(partition=partition, fetch_offset=0, max_bytes=1)
    request = FetchRequest(partitions=(asked,), max_wait_ms=0)
    storage = ObjectStorageManager(open_store("memory:///nothing"))
    metadata = InMemoryRemoteLogMetadataManager()
    with open_fetcher(_OneView(view), storage, metadata, config=place.config) as fetcher:
        kept = [fetcher.fetch_sync(request).partitions[0] for _ in range(6)]
        return sum(answer.size_bytes > 0 for answer in kept)


def client_metrics(place: Place) -> int:
    metrics = RemoteLogMetrics(ManualClock())
    with fetching(place, metrics=metrics) as (_, fetcher):
        fetch(fetcher, 0, client="someone")
        return len(metrics.snapshot().client_fetched_bytes)


# -- reads of a store


def cat_waits_ms(place: Place) -> int:
    """How long `cat` waits for the fetch quota, by a clock that only waiting moves."""
    place.tiered()
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tierlog.quota.SystemClock", lambda: clock)
        url, config = place.store.as_uri(), place.write_config()
        said = command("cat", url, "epochs:0", "--config", config)
    assert said.code == 0, said.err
    return clock.monotonic_ms()

"""Every byte of a `.log` object is charged when the store is asked for it, and none is asked for
while the quota is used up. The truth is what the store sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tierlog
from tests.fetch.tier import (
    FIRST_TIMESTAMP_MS,
    PARTITION,
    TestStore,
    Tier,
    made_batch,
    tier_only,
    wait_for_threads,
)
from tierlog.clock import Clock, ManualClock, SystemClock
from tierlog.config import Config, QuotaConfig, QuotaMode
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.offsets import OffsetAnswer
from tierlog.fetch.quotas import FetchQuotas
from tierlog.reader.open import read
from tierlog.reader.read_ahead import ReadAheadSettings
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    PartitionData,
)
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIB = 1 << 20
LIMIT = 200_000
WINDOW_S = 11
BATCHES = 600
MODES = pytest.mark.parametrize("mode", QuotaMode)


class TimedStore(TestStore):
    """Notes when it was asked for how much of `.log` objects."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.clock: Clock = SystemClock()
        self.asked: list[tuple[int, int]] = []

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        if key.endswith(".log"):
            self.asked.append((self.clock.monotonic_ms(), size_bytes))
        return super().get_range(key, start_position, size_bytes)

    def check_windows(self, limit: int, units: int = 1) -> None:
        """No window held more than the quota allows and the requests in flight."""
        largest = max(size_bytes for _, size_bytes in self.asked)
        for end_ms, _ in self.asked:
            first_s = end_ms // 1000 - WINDOW_S + 1
            inside = sum(size for at, size in self.asked if first_s * 1000 <= at <= end_ms)
            assert inside <= limit * WINDOW_S + units * largest


class TimedTier(Tier):
    store: TimedStore


@pytest.fixture
def tier(tmp_path: Path) -> TimedTier:
    """19 MB in two segments, in a store that lets readers wait."""
    made = TimedTier(tmp_path)
    for first in (0, BATCHES):
        made.add([made_batch(first + row, size=16_000) for row in range(BATCHES)])
    made.store = TimedStore(tmp_path / "store")
    made.storage = ObjectStorageManager(made.store)
    made.store.is_served = True
    made.store.before_read = lambda _key: threading.Event().wait(0.005)
    return made


class Host:
    def __init__(self, tier: TimedTier) -> None:
        self._tier = tier

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return tier_only(self._tier, 2 * BATCHES) if partition == PARTITION else None


def opened(tier: TimedTier, **properties: object) -> Fetcher:
    config = Config.from_properties({name: str(value) for name, value in properties.items()})
    return tierlog.open_fetcher(Host(tier), tier.storage, tier.metadata, config=config)


def limited(tier: TimedTier, mode: QuotaMode) -> Fetcher:
    limit = "remote.log.manager.fetch.max.bytes.per.second"
    return opened(tier, **{limit: LIMIT, "tierlog.fetch.quota.mode": mode.value})


def asked_bytes(tier: TimedTier) -> int:
    """What the store was asked for of `.log` objects."""
    return sum(size for _, size in tier.store.asked)


def fetch(fetcher: Fetcher, offset: int, client_id: str = "") -> PartitionData:
    asked = FetchPartition(partition=PARTITION, fetch_offset=offset)
    request = FetchRequest(partitions=(asked,), max_wait_ms=0, client_id=client_id)
    (data,) = fetcher.fetch_sync(request).partitions
    return data


def fetch_until_throttled(fetcher: Fetcher) -> tuple[int, int]:
    """A sequential reader's bytes, and where it goes on."""
    offset = got_bytes = refusals = 0
    while refusals < 20:
        data = fetch(fetcher, offset)
        assert data.error is FetchError.NONE, data.text
        refusals = refusals + 1 if data.source is FetchSource.THROTTLED else 0
        if data.size_bytes:
            got_bytes += data.size_bytes
            offset = int(tierlog.decode_records(data.records).offset[-1]) + 1
    return got_bytes, offset


@MODES
def test_the_store_sees_no_more_than_the_quota_and_one_unit(
    tier: TimedTier, mode: QuotaMode
) -> None:
    with limited(tier, mode) as fetcher:
        got_bytes, offset = fetch_until_throttled(fetcher)
        asked = asked_bytes(tier)
        assert asked > LIMIT * WINDOW_S / 2
        tier.store.check_windows(LIMIT)
        assert fetcher.quotas.broker.snapshot().total_bytes == asked
        # What was read ahead was handed out, although the quota was used up by then.
        assert got_bytes > 0.9 * asked
        fetcher.quotas.broker.set_limit(None)
        assert fetch(fetcher, offset).size_bytes > 0


@MODES
@pytest.mark.parametrize("timestamp", [FIRST_TIMESTAMP_MS + 2 * BATCHES - 1, -3])
def test_a_search_by_time_waits_for_the_quota(
    tier: TimedTier, mode: QuotaMode, timestamp: int
) -> None:
    with limited(tier, mode) as fetcher:
        fetch_until_throttled(fetcher)
        wait_for_threads_of(fetcher)
        before = asked_bytes(tier)
        late = fetcher.list_offset_sync(PARTITION, timestamp, timeout_ms=30)
        assert late.error is FetchError.REQUEST_TIMED_OUT
        assert asked_bytes(tier) == before
        answers: list[OffsetAnswer] = []
        search = threading.Thread(
            target=lambda: answers.append(fetcher.list_offset_sync(PARTITION, timestamp))
        )
        search.start()
        fetcher.quotas.broker.set_limit(None)
        search.join()
        assert answers[0].offset == 2 * BATCHES - 1
        assert fetcher.quotas.broker.snapshot().total_bytes == asked_bytes(tier)
        assert asked_bytes(tier) - before <= 2 * MIB, "it begins near the record"


def wait_for_threads_of(fetcher: Fetcher) -> None:
    """Until nothing is under way any more: a throttled fetch begins nothing."""
    assert fetch(fetcher, 0).source is FetchSource.THROTTLED


@MODES
def test_a_walk_asks_step_by_step_and_goes_on_where_it_was_stopped(
    tier: TimedTier, mode: QuotaMode
) -> None:
    clock = tier.store.clock = ManualClock()
    quotas = FetchQuotas(
        QuotaConfig(fetch_max_bytes_per_second=LIMIT // 4, fetch_quota_mode=mode), clock
    )
    for number in range(2):
        tier.store.path(tier.keys(number)[1]).unlink()
    reader = tier.reader(read_ahead=ReadAheadSettings(max_window_bytes=0), clock=clock)
    refusals = 0
    while True:
        found = tier.read(reader, BATCHES - 1, 1000, payer=quotas.payer("made", "c"))
        if not found.throttled:
            break
        refusals += 1
        clock.advance(quotas.throttle_ms("made", "c"))
    assert (found.first_offset, refusals > 3) == (BATCHES - 1, True)
    tier.store.check_windows(LIMIT // 4)
    size_bytes = tier.segments[0].segment_size_bytes
    assert quotas.broker.snapshot().total_bytes == asked_bytes(tier) < 1.2 * size_bytes


def test_a_second_request_after_damage_is_charged_and_not_refused(tier: TimedTier) -> None:
    clock = ManualClock()
    quotas = FetchQuotas(QuotaConfig(fetch_max_bytes_per_second=1), clock)
    damaged: list[str] = []

    def once(key: str, _position: int, data: bytes) -> bytes:
        if key.endswith(".log") and not damaged:
            damaged.append(key)
            return bytes(byte ^ (row % 1000 == 999) for row, byte in enumerate(data))
        return data

    tier.store.change = once
    reader = tier.reader(read_ahead=ReadAheadSettings(max_window_bytes=0), clock=clock)
    found = tier.read(reader, 300, 1000, payer=quotas.payer("made", "c"))
    assert found.first_offset == 300
    assert [key for key, _, _ in tier.store.reads].count(damaged[0]) == 2
    assert quotas.broker.snapshot().total_bytes == asked_bytes(tier)
    assert tier.read(reader, 500, 1000, payer=quotas.payer("made", "c")).throttled


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_reads_in_place_of_a_file_store_are_charged_as_the_system_counts_them(
    tier: TimedTier, limit: int | None
) -> None:
    storage = ObjectStorageManager(tierlog.open_store((tier.folder / "store").as_uri()))
    assert storage.is_local
    quotas = FetchQuotas(QuotaConfig(fetch_max_bytes_per_second=limit), ManualClock())
    reader = RemoteBatchReader(storage, tier.metadata, memory=tier.memory)
    payer = quotas.payer("made", "c")
    offsets = [(37 * row) % BATCHES for row in range(200)]
    # The first look loads the indexes.
    tier.read(reader, 1, 10_000, payer=payer)
    charged, seen = quotas.broker.snapshot().total_bytes, system_read_bytes()
    for offset in offsets:
        assert tier.read(reader, offset, 10_000, payer=payer).records
    seen = system_read_bytes() - seen
    charged = quotas.broker.snapshot().total_bytes - charged
    assert charged > 200 * 16_000
    # Reading the count is itself counted.
    assert abs(seen - charged) < 4096
    reader.close()


def system_read_bytes() -> int:
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"])


@MODES
def test_the_quota_of_a_bulk_reader_counts_what_the_store_sees(
    tier: TimedTier, mode: QuotaMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tierlog.read(fetch_quota=)`, read-ahead included."""
    clock = tier.store.clock = ManualClock()
    config = QuotaConfig(fetch_max_bytes_per_second=LIMIT, fetch_quota_mode=mode)
    quota = tierlog.QuotaManager.for_fetches(config, clock)
    monkeypatch.setattr("tierlog.remote.urls.open_store", lambda _url: tier.store)
    records = 0
    for piece in read("file:///made", "made", 0, fetch_quota=quota):
        records += len(piece.offset)
    tier.store.check_windows(LIMIT, units=2)
    wait_for_threads()
    assert records == 2 * BATCHES
    assert quota.snapshot().total_bytes == asked_bytes(tier)
    size_bytes = sum(one.segment_size_bytes for one in tier.segments)
    assert asked_bytes(tier) < 1.05 * size_bytes, "nothing twice"


CLIENTS = "tierlog.fetch.client.max.bytes.per.second"
TOPICS = "tierlog.fetch.topic.max.bytes.per.second"


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        ({CLIENTS: 1_000}, {"greedy", "other"}),
        ({f"{CLIENTS}.overrides": "greedy=1000"}, {"greedy"}),
        ({CLIENTS: 1_000, f"{CLIENTS}.overrides": "other=9223372036854775807"}, {"greedy"}),
        ({TOPICS: 1_000}, {"greedy", "other"}),
        ({f"{TOPICS}.overrides": "made=1000"}, {"greedy", "other"}),
        ({f"{TOPICS}.overrides": "another=1000"}, set()),
    ],
)
def test_limits_by_client_and_topic_are_settings(
    tier: TimedTier, settings: dict[str, object], limited: set[str]
) -> None:
    with opened(tier, **settings) as fetcher:
        for client in ("greedy", "other"):
            # The topic's limit may be used up by the first client.
            assert fetch(fetcher, 0, client).size_bytes > 0 or TOPICS in str(settings)
        throttled = {
            client
            for client in ("greedy", "other")
            if fetch(fetcher, BATCHES, client).source is FetchSource.THROTTLED
        }
        assert throttled == limited
        for client in ("greedy", "other"):
            fetcher.quotas.set_client_limit(client, None)
        fetcher.quotas.set_topic_limit("made", None)
        assert fetch(fetcher, BATCHES, "greedy").size_bytes > 0
        fetcher.quotas.set_client_limit("greedy", 0)
        assert fetch(fetcher, 0, "greedy").source is FetchSource.THROTTLED


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    wait_for_threads()

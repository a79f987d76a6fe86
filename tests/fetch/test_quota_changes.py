"""Limits that change while reads wait for them, or are under way: everything returns to zero."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.fetch.two_tiers import TwoTiers
from tests.fetch.waiting import WAIT_S, Gated, at, both, remade, size
from tests.kafka_tools.support import wait_until
from tests.proofs import usually
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.errors import RemoteStorageError
from tierlog.fetch import fetcher, quotas
from tierlog.fetch.quotas import FetchQuotas
from tierlog.metrics import RemoteLogMetrics
from tierlog.reader.types import FetchRequest, FetchResponse, FetchSource

MODES = pytest.mark.parametrize("mode", [QuotaMode.CHECK, QuotaMode.RESERVE])
KIB = 1 << 10
CLIENT = "reports"


def made(mode: QuotaMode = QuotaMode.CHECK, **settings: int) -> tuple[FetchQuotas, ManualClock]:
    clock = ManualClock(monotonic_ms=1_000_000)
    return FetchQuotas(QuotaConfig(fetch_quota_mode=mode, **settings), clock), clock  # type: ignore[arg-type]


def passes(limits: FetchQuotas, topic: str, client: str) -> bool:
    """Whether a request may go; it counts nothing."""
    return limits.throttle_ms(topic, client) == 0


# -- fetches that wait


@pytest.fixture
def tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoTiers]:
    monkeypatch.setattr(fetcher, "_QUOTA_CHECKS_MS", (1, 20))
    opened = TwoTiers(tmp_path)
    opened.gate = Gated(opened.remote)  # type: ignore[attr-defined]
    yield opened
    opened.close()


Change = Callable[[FetchQuotas, ManualClock, str], None]


def time_passes(limits: FetchQuotas, clock: ManualClock, _topic: str) -> None:
    limits.broker.set_limit(1)
    clock.advance(10**12)


CHANGES: dict[str, Change] = {
    "raised": lambda limits, _clock, _topic: limits.broker.set_limit(1 << 40),
    "lifted": lambda limits, _clock, _topic: limits.broker.set_limit(None),
    "time": time_passes,
}
NAMED: dict[str, Change] = {
    "client": lambda limits, _clock, _topic: limits.set_client_limit(CLIENT, None),
    "clients": lambda limits, _clock, _topic: limits.set_client_limit(None, 1 << 40),
    "topic": lambda limits, _clock, topic: limits.set_topic_limit(topic, None),
}


@pytest.mark.parametrize("in_loop", [False, True])
@pytest.mark.parametrize("change", [*CHANGES, *NAMED])
@MODES
def test_a_fetch_that_waits_goes_on(
    tiers: TwoTiers, mode: QuotaMode, change: str, in_loop: bool
) -> None:
    """Before its client's time is up, and although nobody tells of more."""
    tiers.quotas, clock = made(mode)
    metrics = RemoteLogMetrics()
    tiers.fetcher = remade(tiers, metrics=metrics)
    cold, hot = both(tiers)
    if change in CHANGES:
        tiers.quotas.broker.set_limit(0)
    elif change == "topic":
        tiers.quotas.set_topic_limit(cold.topic, 0)
    else:
        tiers.quotas.set_client_limit(CLIENT if change == "client" else None, 0)
    end = tiers.views[hot].log_end_offset
    request = FetchRequest(
        partitions=(at(hot, end), at(cold)), max_wait_ms=WAIT_S * 1_000, client_id=CLIENT
    )

    def fetch() -> FetchResponse:
        if in_loop:
            return asyncio.run(tiers.fetcher.fetch(request))
        return tiers.fetcher.fetch_sync(request)

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(fetch)
        wait_until(lambda: cold in tiers.fetcher._waiting, WAIT_S)
        assert not answer.done()
        {**CHANGES, **NAMED}[change](tiers.quotas, clock, cold.topic)
        local, remote = answer.result(WAIT_S).partitions
    assert (size(local), remote.source) == (0, FetchSource.REMOTE)
    assert size(remote) > 0
    assert tiers.quotas.broker.snapshot().reserved_bytes == 0
    assert tiers.fetcher._waiting == {}


def test_who_asks_while_there_is_no_room_does_not_wait_longer_than_it_says(
    tiers: TwoTiers,
) -> None:
    tiers.quotas, _clock = made()
    tiers.quotas.broker.set_limit(0)
    tiers.fetcher = remade(tiers)
    cold, _ = both(tiers)
    for wait_ms in (0, 1, 30):
        request = FetchRequest(partitions=(at(cold),), max_wait_ms=wait_ms)
        for response in (
            tiers.fetcher.fetch_sync(request),
            asyncio.run(tiers.fetcher.fetch(request)),
        ):
            (data,) = response.partitions
            assert (data.source, data.error, size(data)) == (FetchSource.THROTTLED, 0, 0)


@MODES
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("limit", [None, 0, 1, 1 << 40])
def test_a_limit_that_changes_during_a_read(
    tiers: TwoTiers, mode: QuotaMode, fails: bool, limit: int | None
) -> None:
    """The read goes on if there is still room, and leaves nothing reserved."""
    tiers.quotas, _clock = made(mode, fetch_max_bytes_per_second=1 << 30)
    tiers.quotas.set_client_limit(CLIENT, 1 << 30)
    tiers.fetcher = remade(tiers, max_remote_wait_ms=WAIT_S * 1_000)
    cold, _ = both(tiers)
    gate: Gated = tiers.gate  # type: ignore[attr-defined]
    gate.open.clear()
    if fails:
        gate.fails[cold] = RemoteStorageError("no answer")
    request = FetchRequest(partitions=(at(cold),), max_wait_ms=0, client_id=CLIENT)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(tiers.fetcher.fetch_sync, request)
        assert gate.waiting.acquire(timeout=WAIT_S)
        tiers.quotas.broker.set_limit(limit)
        tiers.quotas.set_client_limit(CLIENT, limit)
        gate.open.set()
        (data,) = answer.result(WAIT_S).partitions
    # The gate stands before the request: at a limit of 0 it never goes.
    assert (size(data) == 0) == (fails or limit == 0)
    snapshot = tiers.quotas.broker.snapshot()
    assert snapshot.reserved_bytes == 0
    assert (snapshot.total_bytes > 0) == (size(data) > 0)
    expected = limit != 0 and not (limit == 1 and not fails)
    assert passes(tiers.quotas, cold.topic, CLIENT) == expected
    tiers.quotas.broker.set_limit(None)
    tiers.quotas.set_client_limit(CLIENT, None)
    assert passes(tiers.quotas, cold.topic, CLIENT)


# -- limits alone


@MODES
def test_a_limit_that_is_removed_while_its_client_is_in_debt(mode: QuotaMode) -> None:
    limits, clock = made(mode)
    limits.set_client_limit(CLIENT, KIB)
    assert limits.try_charge("t", CLIENT, 1 << 30) == 0
    assert not passes(limits, "t", CLIENT)
    limits.set_client_limit(CLIENT, None)
    assert passes(limits, "t", CLIENT)
    # What it read is not forgotten by that.
    limits.set_client_limit(CLIENT, KIB)
    assert not passes(limits, "t", CLIENT)
    wait_ms = limits.throttle_ms("t", CLIENT)
    clock.advance(wait_ms - 1)
    assert not passes(limits, "t", CLIENT)
    clock.advance(1)
    assert passes(limits, "t", CLIENT)


@MODES
def test_a_limit_of_its_own_holds_when_all_places_are_taken(
    mode: QuotaMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_NAMES", 2)
    limits, _clock = made(mode, fetch_client_max_bytes_per_second=1 << 40)
    for number in range(5):
        assert limits.try_charge("t", f"client {number}", 1) == 0
    own = [f"own {number}" for number in range(5)]
    for name in own:
        limits.set_client_limit(name, 0)
    assert not any(passes(limits, "t", name) for name in own)
    assert passes(limits, "t", "client 7")
    for name in own:
        limits.set_client_limit(name, None)
    assert all(passes(limits, "t", name) for name in own)


def test_a_client_in_debt_is_not_forgotten_for_being_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quotas, "MAX_NAMES", 2)
    limits, clock = made(QuotaMode.RESERVE, fetch_client_max_bytes_per_second=KIB)
    assert limits.try_charge("t", "debtor", 1 << 30) == 0
    clock.advance(60_000)
    for number in range(20):
        passes(limits, "t", f"client {number}")
    assert not passes(limits, "t", "debtor")


class Model:
    """A limit as KIP-956 says it: the bytes of the last eleven whole and begun seconds."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.counted: list[tuple[int, int]] = []

    def allows(self, now_ms: int) -> bool:
        if self.limit is None:
            return True
        live = [size for at_ms, size in self.counted if at_ms // 1_000 > now_ms // 1_000 - 11]
        return self.limit > 0 and sum(live) <= self.limit * 11


@pytest.mark.parametrize("seed", range(usually(20, thorough=500)))
def test_limits_that_come_and_go_by_a_model(seed: int) -> None:
    chance = random.Random(seed)
    limits, clock = made()
    broker = Model(None)
    topics, clients = ({name: Model(None) for name in "abc"} for _ in range(2))

    def some_limit() -> int | None:
        return chance.choice((None, 0, KIB, 10 * KIB, 1 << 30))

    def count(models: list[Model], size_bytes: int) -> None:
        for one in models:
            if one is broker or one.limit is not None:
                one.counted.append((clock.monotonic_ms(), size_bytes))

    for _ in range(400):
        match chance.randrange(8):
            case 0:
                broker.limit = some_limit()
                limits.broker.set_limit(broker.limit)
            case 1:
                name = chance.choice("abc")
                topics[name].limit = some_limit()
                limits.set_topic_limit(name, topics[name].limit)
            case 2:
                name = chance.choice("abc")
                clients[name].limit = some_limit()
                limits.set_client_limit(name, clients[name].limit)
            case 3:
                clock.advance(chance.choice((1, 999, 3_000, 20_000)))
            case 4:
                # The rest of a read that has begun.
                topic, client = chance.choice("abc"), chance.choice("abc")
                size_bytes = chance.choice((0, 100, 20 * KIB, 200 * KIB))
                limits.record(topic, client, size_bytes)
                count([broker, topics[topic], clients[client]], size_bytes)
            case _:
                topic, client = chance.choice("abc"), chance.choice("abc")
                hold = [broker, topics[topic], clients[client]]
                size_bytes = chance.choice((0, 10, 10 * KIB, 100 * KIB))
                wait_ms = limits.try_charge(topic, client, size_bytes)
                assert wait_ms >= 0
                assert (wait_ms == 0) == all(one.allows(clock.monotonic_ms()) for one in hold)
                if wait_ms == 0:
                    count(hold, size_bytes)


@pytest.mark.parametrize("seed", range(usually(3, thorough=50)))
def test_limits_that_come_and_go_under_many_threads(seed: int) -> None:
    """In the end nothing is reserved, and all reads may go."""
    limits, _clock = made(QuotaMode.RESERVE)
    stop = threading.Event()

    def read(number: int) -> int:
        chance = random.Random(f"{seed}/{number}")
        total = 0
        while not stop.is_set():
            size_bytes = chance.choice((0, 100, KIB, 5 * KIB))
            if limits.try_charge(chance.choice("ab"), chance.choice("xyz"), size_bytes) == 0:
                total += size_bytes
        return total

    chance = random.Random(seed)
    with ThreadPoolExecutor(4) as threads:
        readers = [threads.submit(read, number) for number in range(4)]
        for _ in range(300):
            limit = chance.choice((None, 0, KIB, 1 << 40))
            match chance.randrange(5):
                case 0:
                    limits.broker.set_limit(limit)
                case 1:
                    limits.set_topic_limit(chance.choice("ab"), limit)
                case 2:
                    limits.set_client_limit(chance.choice("xyz"), limit)
                case 3:
                    limits.set_topic_limit(None, limit)
                case _:
                    limits.set_client_limit(None, limit)
        stop.set()
        total = sum(reader.result(WAIT_S) for reader in readers)
    snapshot = limits.broker.snapshot()
    assert (snapshot.reserved_bytes, snapshot.total_bytes) == (0, total)
    limits.broker.set_limit(None)
    for topic in "ab":
        limits.set_topic_limit(topic, None)
    for client in "xyz":
        limits.set_client_limit(client, None)
    assert all(passes(limits, topic, client) for topic in "ab" for client in "xyz")

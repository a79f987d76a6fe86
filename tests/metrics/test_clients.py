"""Bytes by client: exact for who has a place, and no more places than there are."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tierlog.clock import ManualClock
from tierlog.metrics import RemoteEvent, RemoteLogMetrics
from tierlog.metrics.clients import IDLE_MS, ClientBytes
from tierlog.metrics.collector import RemoteLogCollector

HOSTILE = ('a"} 1\ntierlog_fake 2', "back\\slash", "ünï-\N{SNOWMAN}", "half-\udc80", "x" * 70_000)


def test_nobody_is_counted_unless_somebody_wants_it() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    metrics.fetched("orders", 5, "reports")
    assert metrics.snapshot().client_fetched_bytes == {}
    metrics.count_clients(2)
    metrics.fetched("orders", 7, "reports")
    metrics.fetched("clicks", 2, "reports")
    metrics.fetched("orders", 11)
    assert metrics.snapshot().client_fetched_bytes == {"reports": 9}
    metrics.count_clients(0)
    metrics.fetched("orders", 1, "reports")
    found = metrics.snapshot()
    assert found.client_fetched_bytes == {}
    assert found.totals[RemoteEvent.FETCH_BYTES].count == 26, "the totals know everybody"


def test_invented_names_take_no_place_from_who_reads() -> None:
    clients = ClientBytes(3)
    now_ms = 0
    for number in range(10_000):
        now_ms += IDLE_MS // 100
        for name in ("reports", "search"):
            clients.add(name, 1, now_ms)
        clients.add(f"invented {number}", 1_000, now_ms)
    counts = clients.counts()
    assert (counts.pop("reports"), counts.pop("search")) == (10_000, 10_000)
    assert len(counts) == 1


def test_who_is_idle_makes_way_and_begins_anew() -> None:
    clients = ClientBytes(2)
    clients.add("a", 1, 0)
    clients.add("b", 2, 1)
    clients.add("a", 4, 2)
    clients.add("c", 8, IDLE_MS)
    assert clients.counts() == {"a": 5, "b": 2}
    clients.add("c", 8, IDLE_MS + 1)
    assert clients.counts() == {"a": 5, "c": 8}, "b was idle, a not for so long"
    clients.add("b", 16, IDLE_MS + 2)
    assert clients.counts() == {"c": 8, "b": 16}


def test_fewer_places_keep_who_read_last() -> None:
    clients = ClientBytes(3)
    for now_ms, name in enumerate("abca"):
        clients.add(name, 1, now_ms)
    clients.resize(2)
    assert clients.counts() == {"c": 1, "a": 2}


def test_hostile_names_spoil_no_scrape() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    metrics.count_clients(10)
    for place, name in enumerate(HOSTILE):
        metrics.fetched("orders", 100 + place, name)
    registry = CollectorRegistry()
    registry.register(RemoteLogCollector(metrics))
    text = generate_latest(registry).decode()
    assert "\ntierlog_fake" not in text
    shown = {
        sample.labels["client_id"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "tierlog_client_fetched_bytes_total"
    }
    assert shown == {
        HOSTILE[0]: 100,
        HOSTILE[1]: 101,
        HOSTILE[2]: 102,
        "half-?": 103,
        "x" * 255: 104,
    }

"""What a scrape shows, judged by prometheus_client's parser and by promtool."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from tests.metrics.promtool import find_promtool
from tests.metrics.support import Pool, partition, set_all
from tests.remote.index_cache.segments import stored
from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig
from tierlog.errors import ConfigError
from tierlog.metrics import LookStats, RemoteLogMetrics
from tierlog.metrics.collector import RemoteLogCollector
from tierlog.metrics.definitions import METRICS, Kind
from tierlog.metrics.markdown import metrics_markdown
from tierlog.metrics.server import MetricsServer, start_metrics_server
from tierlog.quota import QuotaManager
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore

METRICS_PAGE = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"
PROMTOOL = find_promtool()
HOSTILE = ('a"} 1\nkafka_fake 2', "back\\slash", "\\n", "new\nline", "ünï-\N{SNOWMAN}", "")
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


@dataclass
class ReadAhead:
    bytes: int = 70
    wasted_bytes: int = 30

    def stats(self) -> ReadAhead:
        return self


def in_full_use(clock: ManualClock, index_cache: RemoteIndexCache) -> RemoteLogMetrics:
    """Metrics in which every series there can be has a value."""
    metrics = RemoteLogMetrics(clock)
    set_all(metrics.partition(partition()))
    metrics.count_clients(1)
    metrics.fetched("orders", 5, "reports")
    metrics.watch_index_cache(index_cache)
    for duration_ms in (1, 40, 40, 20_000):
        metrics.fetch_took(duration_ms)
    metrics.watch_read_ahead(ReadAhead())
    metrics.copy_throttled(250)
    metrics.fetch_throttled(50)
    config = QuotaConfig(copy_max_bytes_per_second=1000, fetch_max_bytes_per_second=2000)
    metrics.watch_quota("copy", QuotaManager.for_copies(config, clock))
    metrics.watch_quota("fetch", QuotaManager.for_fetches(config, clock))
    for name in ("copy", "expiration", "follower", "reader"):
        metrics.watch_pool(name, Pool(5, 700_000))
    metrics.task_failed("copy", OSError())
    metrics.follower().set_lag(size_bytes=600, segments=6)
    metrics.set_look(
        LookStats(broker_answers=True, partitions_without_leader=2, unreadable_directories=1)
    )
    metrics.look_failed()
    metrics.index_files_failed()
    metrics.store_answered(True)
    return metrics


@pytest.fixture
def index_cache(tmp_path: Path) -> Iterator[RemoteIndexCache]:
    """Room for one segment; of two the first has come twice."""
    store = LocalStore(tmp_path / "store")
    first, second = stored(store, "a", 1_000), stored(store, "b", 2_000)
    with RemoteIndexCache(
        ObjectStorageManager(store),
        tmp_path / "indexes",
        total_size_bytes=first.size_bytes,
        clock=ManualClock(),
        record_stats=True,
    ) as cache:
        for one in (first, first, second, first):
            cache.get(one.metadata)
        yield cache


@pytest.fixture
def metrics(index_cache: RemoteIndexCache) -> RemoteLogMetrics:
    return in_full_use(ManualClock(), index_cache)


def exposed(metrics: RemoteLogMetrics) -> str:
    registry = CollectorRegistry()
    registry.register(RemoteLogCollector(metrics))
    return generate_latest(registry).decode()


def values(found: Iterable[Family]) -> dict[tuple[str, ...], float]:
    """Every series by name and label values; a series twice is an error."""
    shown: dict[tuple[str, ...], float] = {}
    for family in found:
        for sample in family.samples:
            key = (sample.name, *sample.labels.values())
            assert key not in shown
            shown[key] = sample.value
    return shown


def test_every_definition_has_a_series_and_every_series_a_definition(
    metrics: RemoteLogMetrics,
) -> None:
    by_name = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in families(exposed(metrics))
    }
    assert sorted(by_name) == sorted(metric.name for metric in METRICS)
    for metric in METRICS:
        family = by_name[metric.name]
        assert (family.type, family.documentation) == (metric.kind.value, metric.doc)
        assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels - {"le"} == set(metric.labels)
        assert metric.doc.endswith(".")


def test_the_values_are_those_recorded(
    metrics: RemoteLogMetrics, index_cache: RemoteIndexCache
) -> None:
    found = values(families(exposed(metrics)))
    server, manager = "kafka_server_brokertopicmetrics_", "kafka_log_remote_remotelogmanager_"
    for name, value in (
        ("remotecopybytes_total", 10),
        ("remotecopyrequests_total", 1),
        ("remotecopyerrors_total", 0),
        ("remotefetchbytes_total", 5),
        ("remotecopylagbytes", 900),
        ("remotecopylagsegments", 9),
        ("remotedeletelagbytes", 800),
        ("remotedeletelagsegments", 8),
        ("remotelogsizebytes", 700),
        ("remotelogmetadatacount", 7),
        ("remotelogsizecomputationtime", 6),
    ):
        assert found[server + name,] == value
        assert found["tierlog_topic_" + name, "orders"] == value
    assert found[manager + "retentionsizeinpercent", "0", "orders"] == 50
    assert found[manager + "localretentionsizeinpercent", "0", "orders"] == 40
    assert found[manager + "remotelogmanagertasksavgidlepercent",] == 0.25
    assert found["kafka_server_remotelogmanager_remote_copy_throttle_time_max",] == 250
    assert found["kafka_server_remotelogmanager_remote_fetch_throttle_time_avg",] == 50
    assert found["kafka_server_rlmcopy_byte_rate",] == 0
    assert found["tierlog_quota_limit_bytes_per_second", "fetch"] == 2000
    assert found["tierlog_tasks_stuck", "expiration"] == 1
    assert found["tierlog_task_longest_run_seconds", "expiration"] == 700
    assert (found["tierlog_broker_up",], found["tierlog_store_up",]) == (1, 1)
    assert found["tierlog_partitions_without_leader",] == 2
    assert found["tierlog_log_directories_unreadable",] == 1
    assert found["tierlog_partitions_followed",] == 1
    assert found["tierlog_follower_lag_bytes",] == 600
    assert found["tierlog_follower_lag_segments",] == 6
    assert found["tierlog_look_failures_total",] == 1
    assert found["tierlog_index_file_errors_total",] == 1
    assert found["tierlog_task_failures_total", "OSError", "copy"] == 1
    assert found["tierlog_client_fetched_bytes_total", "reports"] == 5
    assert found["tierlog_read_ahead_bytes_total",] == 70
    assert found["tierlog_read_ahead_wasted_bytes_total",] == 30
    size_bytes, cache = index_cache.size_bytes, "tierlog_index_cache_"
    assert (found[cache + "entries",], found[cache + "size_bytes",]) == (1, size_bytes)
    assert found[cache + "fetched_bytes_total",] == 3 * size_bytes
    assert found[cache + "refetched_bytes_total", "size"] == size_bytes
    assert found[cache + "refetched_bytes_total", "expired"] == 0
    assert (found[cache + "hits_total",], found[cache + "misses_total",]) == (1, 3)
    assert found[cache + "disk_errors_total",] == 0


def test_a_sum_over_a_name_counts_nothing_twice(metrics: RemoteLogMetrics) -> None:
    """Totals and the series by topic are different metrics, so each has one set of labels."""
    metrics.partition(partition("clicks")).copied(90)
    labels: dict[str, set[tuple[str, ...]]] = {}
    sums: dict[str, float] = {}
    for family in families(exposed(metrics)):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).add(tuple(sorted(sample.labels)))
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    assert {name: found for name, found in labels.items() if len(found) > 1} == {}
    assert sums["kafka_server_brokertopicmetrics_remotecopybytes_total"] == 100
    assert sums["tierlog_topic_remotecopybytes_total"] == 100


def test_fetch_latency_is_a_histogram(metrics: RemoteLogMetrics) -> None:
    found = values(families(exposed(metrics)))
    name = "tierlog_fetch_seconds"
    assert found[f"{name}_count",] == found[f"{name}_bucket", "+Inf"] == 4
    assert found[f"{name}_sum",] == pytest.approx(20.081)
    assert found[f"{name}_bucket", "0.001"] == found[f"{name}_bucket", "0.025"] == 1
    assert found[f"{name}_bucket", "0.05"] == found[f"{name}_bucket", "10.0"] == 3


def test_a_quota_tells_how_long_it_held_up() -> None:
    clock, metrics = ManualClock(), RemoteLogMetrics()
    quota = QuotaManager.for_copies(QuotaConfig(copy_max_bytes_per_second=1000), clock)
    metrics.watch_quota("copy", quota)
    quota.record(122_000)
    waited_ms = quota.wait()
    assert waited_ms > 1_000
    found = values(families(exposed(metrics)))
    assert found["tierlog_quota_throttled_seconds_total", "copy"] == waited_ms / 1000
    assert (
        found["tierlog_quota_rate_bytes_per_second", "copy"]
        == found["kafka_server_rlmcopy_byte_rate",]
    )


def test_what_is_unknown_or_not_there_has_no_series() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    metrics.partition(partition())
    metrics.watch_quota("copy", QuotaManager.for_copies(QuotaConfig(), ManualClock()))
    found = {key[0] for key in values(families(exposed(metrics)))}
    assert not any("lag" in name and name.startswith("kafka") for name in found)
    assert not any("throttle_time" in name or "percent" in name for name in found)
    assert not any("fetch_seconds" in name for name in found)
    assert not any("limit" in name or "rlmfetch" in name for name in found)
    assert not any(
        word in name for word in ("client", "index_cache", "read_ahead") for name in found
    )
    assert "kafka_server_brokertopicmetrics_remotefetcherrors_total" in found


def test_what_a_cache_does_not_count_has_no_series(tmp_path: Path) -> None:
    metrics = RemoteLogMetrics(ManualClock())
    storage = ObjectStorageManager(LocalStore(tmp_path))
    with RemoteIndexCache(storage, tmp_path / "indexes") as cache:
        metrics.watch_index_cache(cache)
        found = {key[0] for key in values(families(exposed(metrics)))}
    assert "tierlog_index_cache_refetched_bytes_total" in found
    assert not any("hits" in name or "misses" in name for name in found)


def test_a_store_that_does_not_answer_in_time_is_down() -> None:
    clock = ManualClock()
    metrics = RemoteLogMetrics(clock)
    store_up = ("tierlog_store_up",)
    assert store_up not in values(families(exposed(metrics)))
    metrics.store_answered(True)
    metrics.ask_store()
    clock.advance(10_000)
    assert values(families(exposed(metrics)))[store_up] == 1
    clock.advance(1)
    assert values(families(exposed(metrics)))[store_up] == 0
    metrics.store_answered(True)
    assert values(families(exposed(metrics)))[store_up] == 1


def test_follower_lag_is_that_of_present_followers_and_unknown_at_first() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    one, two = metrics.follower(), metrics.follower()
    lag = ("tierlog_follower_lag_bytes",)
    assert lag not in values(families(exposed(metrics)))
    one.set_lag(size_bytes=5, segments=1)
    two.set_lag(size_bytes=7, segments=1)
    assert values(families(exposed(metrics)))[lag] == 12
    one.close()
    assert values(families(exposed(metrics)))[lag] == 7
    two.close()
    assert values(families(exposed(metrics)))[lag] == 0


def test_gone_partitions_are_gone_from_the_scrape() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    handle = metrics.partition(partition())
    set_all(handle)
    assert '"orders"' in exposed(metrics)
    handle.close()
    set_all(handle)
    assert '"orders"' not in exposed(metrics)
    assert (
        values(families(exposed(metrics)))["kafka_server_brokertopicmetrics_remotecopylagbytes",]
        == 0
    )


def test_hostile_topic_names_stay_in_their_label() -> None:
    metrics = RemoteLogMetrics(ManualClock())
    for place, topic in enumerate(HOSTILE):
        metrics.fetched(topic, 100 + place)
    text = exposed(metrics)
    assert "\nkafka_fake" not in text
    found = values(families(text))
    for place, topic in enumerate(HOSTILE[:-1]):
        assert found["tierlog_topic_remotefetchbytes_total", topic] == 100 + place


@pytest.mark.parametrize("promtool", [PROMTOOL] if PROMTOOL else [])
def test_promtool_finds_nothing(metrics: RemoteLogMetrics, promtool: str) -> None:
    command = [promtool, "check", "metrics"]
    done = subprocess.run(command, input=exposed(metrics), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_page_is_up_to_date() -> None:
    """If not: ``python -m tierlog.metrics > docs/METRICS.md``."""
    command = [sys.executable, "-m", "tierlog.metrics"]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert written == metrics_markdown() == METRICS_PAGE.read_text(encoding="utf-8")
    for metric in METRICS:
        assert f"### {metric.name}\n" in written


# -- over HTTP


def get(url: str, **headers: str) -> tuple[str, str]:
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_scrapes_over_http(metrics: RemoteLogMetrics) -> None:
    with start_metrics_server(metrics) as server:
        assert server.host == "127.0.0.1"
        kind, text = get(server.url)
        assert kind.startswith("text/plain")
        found = values(families(text))
        assert found["tierlog_topic_remotecopybytes_total", "orders"] == 10
        assert found["process_open_fds",] > 0
        kind, text = get(server.url, Accept=OPEN_METRICS)
        assert kind.startswith("application/openmetrics-text")
        parsed = list(open_families(text))  # type: ignore[no-untyped-call]
        assert values(parsed)["tierlog_partitions_led",] == 1
        name = "kafka_server_brokertopicmetrics_remotecopylagbytes"
        assert set(values(families(get(f"{server.url}?name[]={name}")[1]))) == {(name,)}
        assert "/metrics" in get(server.url.removesuffix("metrics"))[1]
        with pytest.raises(urllib.error.HTTPError, match="404") as raised:
            get(server.url + "x")
        raised.value.close()
    server.close()


def test_a_closed_server_leaves_nothing_behind(
    metrics: RemoteLogMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even when a client that says nothing is connected."""
    monkeypatch.setattr("tierlog.metrics.server.CLIENT_TIMEOUT_S", 600)
    before = set(threading.enumerate())
    server = start_metrics_server(metrics)
    closing = threading.Thread(target=server.close, daemon=True)
    with socket.create_connection((server.host, server.port)) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\n")
        get(server.url)
        closing.start()
        closing.join(timeout=30)
        assert not closing.is_alive()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), 5)


def test_an_address_that_cannot_be_had_is_an_error_of_ours(metrics: RemoteLogMetrics) -> None:
    with start_metrics_server(metrics) as server:
        for host, port in ((server.host, server.port), ("no.such.host.invalid", 0), ("", 70_000)):
            with pytest.raises(ConfigError, match="cannot show metrics at"):
                start_metrics_server(metrics, host, port)


def test_the_extra_is_named_when_it_is_missing(
    metrics: RemoteLogMetrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'tierlog\[metrics\]'"):
        start_metrics_server(metrics)


def scrape(server: MetricsServer, into: list[dict[tuple[str, ...], float]], times: int) -> None:
    into.extend(values(families(get(server.url)[1])) for _ in range(times))


def test_scrapes_while_others_write() -> None:
    """Counters never go back, sums fit their parts, and the last scrape sees everything."""
    metrics = RemoteLogMetrics()
    handles = [metrics.partition(partition(f"topic-{number}")) for number in range(4)]
    copied = "kafka_server_brokertopicmetrics_remotecopybytes_total"
    seen: list[dict[tuple[str, ...], float]] = []
    rounds = 3_000

    def write(number: int) -> None:
        for _ in range(rounds):
            handles[number].copied(number + 1)
            handles[number].set_copy_lag(size_bytes=5, segments=1)

    with start_metrics_server(metrics) as server:
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        threads.append(threading.Thread(target=scrape, args=(server, seen, 10)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        scrape(server, seen, 1)
    for earlier, later in pairwise(seen):
        assert earlier[copied,] <= later[copied,]
    by_topic = "tierlog_topic_remotecopybytes_total"
    for found in seen:
        assert found[copied,] == sum(found[by_topic, f"topic-{number}"] for number in range(4))
    assert seen[-1][copied,] == rounds * (1 + 2 + 3 + 4)
    assert seen[-1]["kafka_server_brokertopicmetrics_remotecopylagbytes",] == 20

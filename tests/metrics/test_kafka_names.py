"""Our names beside those of a real broker with tiered storage, behind the real JMX exporter."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kafka_tools import KafkaBroker, wait_until
from tests.kafka_tools.classpath import HERE, classpath
from tests.kafka_tools.support import LOOPBACK, free_ports
from tierlog.metrics.definitions import KAFKA_METRICS, Metric

pytestmark = pytest.mark.integration

TOPIC = "orders"
# What the exporter's example rules for a KRaft broker come to for the MBeans in question, and the
# same for the domain that they leave out.
RULES = r"""
lowercaseOutputName: true
rules:
- pattern: 'kafka\.server<type=(\w+)><>([a-z-]+)'
  name: kafka_server_$1_$2
  type: GAUGE
- pattern: 'kafka\.server<type=(\w+), name=(\w+)PerSec, topic=(.+)><>Count'
  name: kafka_server_$1_$2_total
  type: COUNTER
  labels:
    topic: "$3"
- pattern: 'kafka\.server<type=(\w+), name=(\w+)PerSec><>Count'
  name: kafka_server_$1_$2_total
  type: COUNTER
- pattern: 'kafka\.server<type=(\w+), name=(\w+), topic=(.+)><>Value'
  name: kafka_server_$1_$2
  type: GAUGE
  labels:
    topic: "$3"
- pattern: 'kafka\.server<type=(\w+), name=(\w+)><>Value'
  name: kafka_server_$1_$2
  type: GAUGE
- pattern: 'kafka\.log\.remote<type=(\w+), name=(\w+), (\w+)=(.+), (\w+)=(.+)><>Value'
  name: kafka_log_remote_$1_$2
  type: GAUGE
  labels:
    "$3": "$4"
    "$5": "$6"
- pattern: 'kafka\.log\.remote<type=(\w+), name=(\w+)><>Value'
  name: kafka_log_remote_$1_$2
  type: GAUGE
"""
# Slow enough that both quotas keep somebody waiting.
PROPERTIES = {
    "remote.log.manager.copy.max.bytes.per.second": 20_000,
    "remote.log.manager.fetch.max.bytes.per.second": 20_000,
}
TOPIC_SETTINGS = {
    "remote.storage.enable": "true",
    "internal.segment.bytes": 16_384,
    "local.retention.ms": 1_000,
    "retention.bytes": 1_000_000,
}

NEVER_HAPPENED = re.compile("Errors|DeleteRequests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One family of the broker's scrape."""

    kind: str
    labels: frozenset[tuple[str, ...]]
    mbean: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Shown]]:
    folder = tmp_path_factory.mktemp("kafka")
    rules = folder / "rules.yml"
    rules.write_text(RULES)
    (port,) = free_ports(1)
    agent = classpath(pom=HERE / "exporter_pom.xml")
    url = f"http://{LOOPBACK}:{port}/metrics"
    with KafkaBroker(
        folder / "broker",
        tiered_dir=folder / "tier",
        properties=PROPERTIES,
        jvm_flags=[f"-javaagent:{agent}={LOOPBACK}:{port}:{rules}"],
    ) as running:
        yield throttled(running, url)
        # Its own metadata consumer would hold up a clean stop for half a minute.
        running.kill()


def throttled(broker: KafkaBroker, url: str) -> dict[str, Shown]:
    """What the broker shows once it has copied, and served remote reads, under quotas."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    broker.create_topic(TOPIC, partitions=2, config=TOPIC_SETTINGS)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for _ in range(150):
        producer.produce(TOPIC, bytes(1_000), partition=0)
        producer.flush()
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "readers"})
    shown: dict[str, Shown] = {}

    def missing() -> list[str]:
        """A name may be there for the sum before it is for the topic."""
        return sorted(
            metric.name
            for metric in KAFKA_METRICS
            if metric.name not in shown or not all_series(metric, shown[metric.name])
        )

    def complete() -> bool:
        # Again from the start, which sooner or later is in the tier only.
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        consumer.poll(0.5)
        shown.clear()
        shown.update(scrape(url))
        return not missing()

    try:
        wait_until(complete, 120, what="all MBeans")
    except TimeoutError:
        pytest.fail(f"the broker shows no {missing()}")
    finally:
        consumer.close()
    return shown


def all_series(metric: Metric, shown: Shown) -> bool:
    return bool(NEVER_HAPPENED.search(metric.mbean)) or tuple(sorted(metric.labels)) in shown.labels


def scrape(url: str) -> dict[str, Shown]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        family.name + ("_total" if family.type == "counter" else ""): Shown(
            kind=family.type,
            labels=frozenset(tuple(sorted(sample.labels)) for sample in family.samples),
            mbean=family.documentation.rpartition(" ")[2],
        )
        for family in text_string_to_metric_families(text)
    }


@pytest.mark.parametrize("metric", KAFKA_METRICS, ids=lambda metric: metric.name)
def test_the_broker_has_it_too(broker: dict[str, Shown], metric: Metric) -> None:
    shown = broker[metric.name]
    assert shown.kind == metric.kind.value
    # Kafka's exporter gives the series by topic the same name.
    assert shown.labels <= {(), ("topic",), tuple(sorted(metric.labels))}
    assert all_series(metric, shown)


def test_the_mbeans_are_those_that_the_page_names(broker: dict[str, Shown]) -> None:
    """The exporter says which MBean a family is, with the keys in its own order."""
    for metric in KAFKA_METRICS:
        domain, _, keys = broker[metric.name].mbean.partition(":")
        found = dict(key.split("=", 1) for key in keys.split(","))
        if found.get("attribute", "") in ("Count", "Value"):
            ours_domain, _, ours = metric.mbean.partition(":")
            expected = dict(key.split("=", 1) for key in ours.split(","))
            expected["attribute"] = metric.attribute
            assert domain == ours_domain
            assert {k: v for k, v in found.items() if k not in ("topic", "partition")} == expected
        else:
            assert re.sub(r"\W", "_", metric.attribute) in metric.name

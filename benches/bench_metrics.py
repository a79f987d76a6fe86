"""Measures the time that a task takes to count an event, and that a process takes for a scrape."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import repeat

from prometheus_client import CollectorRegistry, Counter, generate_latest

from tierlog.metrics import PartitionMetrics, RemoteEvent, RemoteLogMetrics
from tierlog.metrics.collector import RemoteLogCollector
from tierlog.types import TopicIdPartition, random_kafka_uuid

from .frame import Answer, Bench, Benchmark, Case, Limit, Sides, run_side

# The number of partitions in KIP-405's test cluster.
PARTITIONS = 6_300
PARTITIONS_OF_A_TOPIC = 10
EVENTS = 100_000
SCRAPES = 9
AMOUNT = 1_000


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [counting(bench), scrape(bench), stopped(bench)]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def led(metrics: RemoteLogMetrics, partitions: int) -> list[PartitionMetrics]:
    """Return handles of partitions whose values are all known."""
    topic_id = random_kafka_uuid()
    handles = []
    for number in range(partitions):
        topic, partition = divmod(number, PARTITIONS_OF_A_TOPIC)
        name = TopicIdPartition(topic_id=topic_id, topic=f"topic-{topic}", partition=partition)
        handle = metrics.partition(name)
        handle.copied(AMOUNT)
        handle.set_copy_lag(size_bytes=AMOUNT, segments=1)
        handle.set_delete_lag(size_bytes=0, segments=0)
        handle.set_remote_log(size_bytes=10 * AMOUNT, metadata_count=10, computation_ms=1)
        handle.set_retention_percent(total_percent=50, local_percent=100)
        handles.append(handle)
    return handles


def counting(bench: Bench) -> Case:
    """Count a copied segment for its topic and for all topics together. tierlog does more than the
    peer: it updates the rates of its meters, counts the segment, and allows the topic to be deleted
    at any moment."""
    events = EVENTS // 100 if bench.corpora.quick else EVENTS

    def prepare(_stack: ExitStack) -> Sides:
        def ours() -> RemoteLogMetrics:
            metrics = RemoteLogMetrics()
            (handle,) = led(metrics, 1)
            for _ in repeat(None, events):
                handle.copied(AMOUNT)
            return metrics

        def peer() -> Answer:
            registry = CollectorRegistry()
            total = Counter("copied_bytes", "Copied.", registry=registry)
            of_topics = Counter("topic_copied_bytes", "Copied.", ["topic"], registry=registry)
            for _ in repeat(None, events):
                total.inc(AMOUNT)
                of_topics.labels("topic-0").inc(AMOUNT)
            found = registry.get_sample_value("topic_copied_bytes_total", {"topic": "topic-0"})
            return {"bytes": found}

        def answer(metrics: RemoteLogMetrics) -> Answer:
            found = metrics.meter(RemoteEvent.COPY_BYTES, "topic-0")
            # `led` has also counted one copy.
            return {"bytes": None if found is None else float(found.count - AMOUNT)}

        return Sides(
            amount=events / 1e6, ours=ours, peers={"prometheus_client": peer}, answer=answer
        )

    return Case(
        operation="metrics, count a copied segment",
        shape="total and topic",
        unit="M events",
        peers={"prometheus_client": 1.0},
        prepare=prepare,
    )


def timed_ms(bench: Bench, prepare: Callable[[RemoteLogMetrics], Callable[[], object]]) -> float:
    """Return the median milliseconds of one call with the partitions of the whole cluster."""
    metrics = RemoteLogMetrics()
    kept = led(metrics, PARTITIONS // 100 if bench.corpora.quick else PARTITIONS)
    run = prepare(metrics)
    taken = []
    for _ in range(SCRAPES):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    kept.clear()
    return statistics.median(taken) * 1000


def scrape(bench: Bench) -> Limit:
    def prepare(metrics: RemoteLogMetrics) -> Callable[[], object]:
        registry = CollectorRegistry()
        registry.register(RemoteLogCollector(metrics))
        return lambda: generate_latest(registry)

    return Limit(
        operation="metrics, a scrape's text",
        shape=f"{PARTITIONS:,} partitions, {PARTITIONS // PARTITIONS_OF_A_TOPIC} topics",
        unit="ms",
        at_most=500,
        measure=lambda: timed_ms(bench, prepare),
    )


def stopped(bench: Bench) -> Limit:
    return Limit(
        operation="metrics, a scrape's values",
        shape=f"{PARTITIONS:,} partitions, {PARTITIONS // PARTITIONS_OF_A_TOPIC} topics",
        unit="ms",
        at_most=50,
        measure=lambda: timed_ms(bench, lambda metrics: metrics.snapshot),
    )

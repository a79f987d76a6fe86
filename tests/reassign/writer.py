"""A producer that writes at a steady rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.kafka_tools.clusters import Cluster

VALUE = bytes(2_000)


@contextmanager
def writing(
    cluster: Cluster, topic: str, *, partitions: int, bytes_per_second: float
) -> Iterator[None]:
    """Write at that rate while inside, evenly over time and partitions; nothing at a rate of 0."""
    if not bytes_per_second:
        yield
        return
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "1", "log_level": 0})
    done = threading.Event()

    def write() -> None:
        number = 0
        started = time.monotonic()
        while not done.wait(0.05):
            while number * len(VALUE) < (time.monotonic() - started) * bytes_per_second:
                producer.produce(topic, VALUE, partition=number % partitions)
                number += 1
            producer.poll(0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        assert producer.flush(60) == 0

"""The time to the first byte of a cold read through a node, beyond that of its store."""

from __future__ import annotations

import random
import time
from pathlib import Path

from tests.node.running import RawClient
from tierlog.testing import NodeForTests

from .serving import PRODUCE_VERSION, TOPIC, fetch_request, produce_error, produce_request

__all__ = ["ROUND_TRIP_MS", "first_byte_beyond_ms"]

ROUND_TRIP_MS = 20
FETCH_BYTES = 64 << 10
FETCH_VERSION = 11
SEGMENTS = 20
RECORDS_OF_BATCH = 15
BATCHES_OF_SEGMENT = 60


def first_byte_beyond_ms(folder: Path, batch: bytes, count: int) -> float:
    """Return the p99 of `count` reads at random offsets of a store whose every request takes
    `ROUND_TRIP_MS`, less that time. The index of each segment was read before."""
    random_ = random.Random(1)
    per_segment = RECORDS_OF_BATCH * BATCHES_OF_SEGMENT
    with NodeForTests(folder) as node:
        host, _, port = node.bootstrap_servers.rpartition(":")
        node.create_topic(TOPIC, settings={"retention.ms": "-1"})
        with RawClient((host, int(port))) as client:
            for _ in range(SEGMENTS):
                for _ in range(BATCHES_OF_SEGMENT):
                    client.request(produce_request(batch), PRODUCE_VERSION)
                    if produce_error(client.read_frame()):
                        raise RuntimeError("a batch was refused")
                node.tier_now()
            for number in range(SEGMENTS):
                _first_byte_s(client, number * per_segment)
            with node.store.fault("slow", delay_ms=ROUND_TRIP_MS):
                offsets = [random_.randrange(SEGMENTS * per_segment) for _ in range(count)]
                took = sorted(_first_byte_s(client, offset) for offset in offsets)
                if node.store.struck < count // 2:
                    raise RuntimeError("most reads asked nothing of the store")
    return took[int(0.99 * count)] * 1000 - ROUND_TRIP_MS


def _first_byte_s(client: RawClient, offset: int) -> float:
    began = time.perf_counter()
    client.request(fetch_request(offset, FETCH_BYTES), FETCH_VERSION)
    first = client.socket.recv(1)
    took = time.perf_counter() - began
    rest = first + _exactly(client, 3)
    _exactly(client, int.from_bytes(rest, "big"))
    return took


def _exactly(client: RawClient, size_bytes: int) -> bytes:
    found = b""
    while len(found) < size_bytes:
        found += client.socket.recv(size_bytes - len(found))
    return found

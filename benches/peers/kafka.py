"""Runs Kafka's own Java classes as peers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benches.frame import Bench, Timed

from .java import KAFKA_SCAN, KAFKA_SENSOR, java_peer


def kafka_peer(
    stack: ExitStack, bench: Bench, operation: str, segment: Path
) -> Callable[[], Timed]:
    """Return a run of `operation` (see KafkaScan.java) on `segment`."""
    return java_peer(stack, bench, KAFKA_SCAN, operation, str(segment.absolute()))


def kafka_sensor(
    stack: ExitStack, bench: Bench, operation: str, records: int, *, threads: int = 1
) -> Callable[[], Timed]:
    """Return a run in which each thread makes this many records and checks on one Sensor (see
    KafkaSensor.java)."""
    return java_peer(stack, bench, KAFKA_SENSOR, operation, str(threads), str(records))

"""What settings of a topic change in a node: they are changed, and then the same is done."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.oracle import build
from tests.oracle.model import Record
from tests.settings.observing import Place, files_of
from tierlog.clock import Clock, ManualClock, SystemClock
from tierlog.config import Config
from tierlog.errors import ConfigError
from tierlog.log.writer.refusal import AppendRefusedError
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.local.cluster import LocalCluster
from tierlog.node.settings import Operation, SettingChange

__all__ = ["NOW_MS", "change", "kept_log", "open_cluster", "refused_change", "tiered_log"]

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
_CONFIG = {"tierlog.retention.max.deleted.ratio": "1"}


def _batch(at_ms: int, size_bytes: int = 1000) -> bytes:
    record = Record(offset=0, timestamp_ms=at_ms, key=b"k", value=bytes(size_bytes))
    return build.batch([record])


def change(cluster: LocalCluster, settings: Mapping[str, str]) -> None:
    changes = [SettingChange(name, Operation.SET, value) for name, value in settings.items()]
    cluster.alter_topic("orders", changes, validate_only=False)


def open_cluster(folder: Path, clock: Clock, store: Path | None) -> LocalCluster:
    return LocalCluster(
        str(folder),
        None if store is None else store.as_uri(),
        config=Config.from_properties(_CONFIG),
        clock=clock,
        metrics=RemoteLogMetrics(clock),
        report=lambda text: None,
    )


def _files(place: Place) -> dict[str, str]:
    """Files of the partition that hold records, or once did."""
    found = files_of(place.folder / "data" / "logs" / "orders-0")
    return {name: text for name, text in found.items() if name.startswith("0")}


def kept_log(place: Place) -> Any:
    """The log of a topic that is not tiered, after appends of all kinds and a week of retention."""
    clock = ManualClock(NOW_MS)
    cluster = open_cluster(place.folder / "data", clock, None)
    try:
        cluster.create_topic("orders", 1, {})
        change(cluster, place.properties)
        (partition,) = (one.stored_as for one in cluster.cluster_view().topics[0].partitions)
        writer = cluster.logs.writer("orders", 0)
        refused = []
        for at_ms, size_bytes in (
            (NOW_MS, 10),
            (NOW_MS - 30 * 24 * HOUR_MS, 10),
            (NOW_MS + 2 * HOUR_MS, 10),
            (NOW_MS, 1_200_000),
        ):
            try:
                cluster.append(partition, _batch(at_ms, size_bytes))
            except AppendRefusedError as error:
                refused.append((at_ms - NOW_MS, size_bytes, error.code.name))
        for _ in range(1200):
            clock.advance(HOUR_MS // 60)
            cluster.append(partition, _batch(clock.now_ms()))
        facts = [refused, writer.recovery_point, _files(place)]
        cluster.keep_up()
        facts.append(writer.log_start_offset)
        clock.advance(8 * 24 * HOUR_MS)
        cluster.keep_up()
        facts += [writer.log_start_offset, sorted(_files(place))]
        return facts
    finally:
        cluster.close()


def tiered_log(place: Place) -> Any:
    """What is stored and what is kept of a topic that has a store, when nothing is left to do."""
    clock = SystemClock()
    cluster = open_cluster(place.folder / "data", clock, place.store)
    try:
        cluster.create_topic("orders", 1, {"internal.segment.bytes": "5000"})
        (partition,) = (one.stored_as for one in cluster.cluster_view().topics[0].partitions)
        change(cluster, place.properties)
        for number in range(40):
            cluster.append(partition, _batch(clock.now_ms() - HOUR_MS + number))
        assert cluster.tier.manager is not None
        writer = cluster.logs.writer("orders", 0)
        for _ in range(5):
            cluster.tier.manager.hurry()
            assert cluster.tier.manager.wait_until_idle(30_000)
            cluster.keep_up()
        stored = len(list(place.store.glob("orders-*/0/*.log")))
        return stored, writer.log_start_offset, writer.local_log_start_offset
    finally:
        cluster.close()


def refused_change(place: Place) -> str:
    """Whether tiering of a topic can be switched off, or what is expected for it."""
    cluster = open_cluster(place.folder / "data", SystemClock(), place.store)
    try:
        cluster.create_topic("orders", 1, {"remote.storage.enable": "true"})
        change(cluster, place.properties)
        change(cluster, {"remote.storage.enable": "false"})
    except ConfigError as error:
        return str(error)
    finally:
        cluster.close()
    return "switched off"

"""Transactions over an unclean change of leaders: what both leaders left on their disks.

Broker 2 leads, broker 3 follows and goes down; 2 writes on, ends transactions in its own way and
tiers all of that. Then 2 is killed, 3 becomes the leader without it and ends the same transactions
otherwise. Its segments are smaller, so that those of 2 are not replaced in the tier.
"""

from __future__ import annotations

import gzip
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.kafka_wire import KafkaWire
from tests.kafka_tools import KafkaBroker, wait_until
from tierlog.log.log_dir import open_log_dir

from . import consuming, workloads

__all__ = ["make_deposed"]

TOPIC = "orders"
DEPOSED, LEADER = 2, 3
PROPERTIES = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3_000,
    "auto.leader.rebalance.enable": "false",
    "remote.log.manager.task.interval.ms": 300,
    "log.initial.task.delay.ms": 300,
    "log.index.size.max.bytes": 4_096,
    "producer.id.expiration.ms": 2_000_000_000,
}
# A full index ends a segment.
SMALLER = PROPERTIES | {"log.index.size.max.bytes": 40}
CONFIG = workloads.KEEP_FOR_EVER | {
    "internal.segment.bytes": 6_144,
    "index.interval.bytes": 512,
    "remote.storage.enable": "true",
    "unclean.leader.election.enable": "true",
    "min.insync.replicas": 1,
}
LATEST, LATEST_TIERED = -1, -5
PATIENCE_S = 90


def make_deposed(root: Path, target: Path) -> None:
    """Run three brokers below `root` and fill `target`: disk2, disk3 and truth."""
    with ExitStack() as stack:

        def broker(number: int, properties: dict[str, Any], first: KafkaBroker | None) -> Any:
            made = KafkaBroker(
                root / f"broker{number}",
                properties=properties | {"node.id": number},
                tiered_dir=root / "tier",
                join=first,
            )
            stack.callback(made.kill)
            made.start()
            return made

        # The internal topics are on the first one alone, which is never down.
        controller = broker(1, PROPERTIES, None)
        admin = AdminClient({"bootstrap.servers": controller.bootstrap_servers, "log_level": 0})
        stage = workloads.Stage(broker=controller, now_ms=int(time.time() * 1000))
        script = workloads.TransactionScript(
            stage, workloads.Topic(name=TOPIC, exercises=(), phases=())
        )
        script.producer("first")
        internal = {"__transaction_state", "__remote_log_metadata"}
        _wait(lambda: internal <= set(admin.list_topics(timeout=10).topics), "internal topics")
        deposed = broker(DEPOSED, PROPERTIES, controller)
        leader = broker(LEADER, SMALLER, controller)
        _wait(lambda: len(admin.list_topics(timeout=10).brokers) == 3, "three brokers")
        settings = {key: str(value) for key, value in CONFIG.items()}
        wanted = NewTopic(TOPIC, 1, replica_assignment=[[DEPOSED, LEADER]], config=settings)
        admin.create_topics([wanted])[TOPIC].result(30)

        def partition() -> Any:
            return admin.list_topics(timeout=10).topics[TOPIC].partitions[0]

        _wait(lambda: len(partition().isrs) == 2, "both in sync")
        producers = _shared(script)
        leader.stop()
        _wait(lambda: list(partition().isrs) == [DEPOSED], "the follower out of sync")
        _cut_off(script, producers)
        with KafkaWire(deposed.bootstrap_servers) as wire:
            _wait_for_copies(wire, deposed)
        deposed.kill()
        leader.start()
        _wait(lambda: int(partition().leader) == LEADER, "the unclean leader")
        _ended_otherwise(script)
        with KafkaWire(leader.bootstrap_servers) as wire:
            _wait(
                lambda: (
                    wire.list_offset(TOPIC, LATEST, isolation=1) == wire.list_offset(TOPIC, LATEST)
                ),
                "nothing left open",
            )
        rows = consuming.consume(controller, TOPIC, 0)
        leader.stop()
        shutil.rmtree(target, ignore_errors=True)
        _copy(deposed, target / f"disk{DEPOSED}")
        _copy(leader, target / f"disk{LEADER}")
    truth = target / "truth" / f"{TOPIC}-0.records.jsonl.gz"
    truth.parent.mkdir()
    truth.write_bytes(gzip.compress(consuming.as_lines(rows).encode(), 9, mtime=0))


def _shared(script: workloads.TransactionScript) -> dict[str, Any]:
    """What both leaders have: whole transactions, and the begin of some."""
    whole = script.producer("whole")
    for turn in range(5):
        script.whole(whole, 2, commit=turn % 2 == 0)
    producers = {}
    for name in ("lost-abort", "lost-commit", "lost-both", "abort", "commit"):
        producers[name] = script.producer(name)
        producers[name].begin()
        script.batch(producers[name], 3)
    script.whole(whole, 1, commit=False)
    return producers | {"whole": whole}


def _cut_off(script: workloads.TransactionScript, producers: dict[str, Any]) -> None:
    """What the deposed leader alone has: those end, and others begin."""
    producers["lost-abort"].abort()
    producers["lost-commit"].commit()
    script.batch(producers["lost-both"], 2)
    producers["lost-both"].abort()
    for turn in range(8):
        script.whole(producers["whole"], 2, commit=turn % 3 == 0)
    script.whole(producers["lost-abort"], 1, commit=True)
    script.whole(producers["whole"], 3, commit=False)
    producers["abort"].abort()
    producers["commit"].commit()
    for turn in range(6):
        script.whole(producers["whole"], 2, commit=turn % 2 == 0)


def _ended_otherwise(script: workloads.TransactionScript) -> None:
    """The next leader knows none of those ends: with what the producers write now, anew since it
    does not know where they were, their transactions go on."""
    whole = script.producer("whole")
    for turn in range(2):
        script.whole(whole, 1, commit=turn % 2 == 0)
    script.whole(script.producer("lost-abort"), 1, commit=True)
    script.whole(script.producer("lost-commit"), 1, commit=False)
    script.whole(script.producer("lost-both"), 1, commit=False)
    script.whole(script.producer("abort"), 1, commit=True)
    script.whole(script.producer("commit"), 2, commit=False)
    for turn in range(12):
        script.whole(whole, 2, commit=turn % 2 == 0)


def _wait_for_copies(wire: KafkaWire, broker: KafkaBroker) -> None:
    log = open_log_dir(*broker.log_dirs).partition(TOPIC, 0)
    end = log.segments[-1].base_offset
    _wait(lambda: wire.list_offset(TOPIC, LATEST_TIERED).offset == end - 1, f"copies up to {end}")


def _copy(broker: KafkaBroker, target: Path) -> None:
    (log_dir,) = broker.log_dirs
    shutil.copytree(log_dir / f"{TOPIC}-0", target / f"{TOPIC}-0")
    shutil.copy(log_dir / "meta.properties", target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def _wait(predicate: Callable[[], bool], what: str) -> None:
    wait_until(predicate, PATIENCE_S, what=what)

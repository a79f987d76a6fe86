"""Runs ``tierlog`` and Kafka's tool on clusters, and reads what they set."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from tests.kafka_tools import wait_until
from tierlog.admin import ClusterAdmin, Resource, ResourceKind, SettingsChange
from tierlog.cli import main
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.throttles import BROKER_RATES, REPLICA_LISTS

VALUE = bytes(20_000)
BATCH_BYTES = len(VALUE) + 72

Placed = dict[str, dict[int, list[int]]]
"""The replicas of each partition of topics."""


@dataclass(frozen=True)
class Ran:
    """What a command returned and printed."""

    code: int
    out: str
    err: str


def run_tierlog(*args: str) -> Ran:
    """Run the command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(args)
    return Ran(code, out.getvalue(), err.getvalue())


def create_topics(bootstrap: str, placed: Placed, batches: int) -> None:
    """Create topics with `batches` batches in each partition."""
    from confluent_kafka import Producer
    from kafka.admin import KafkaAdminClient, NewTopic

    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.create_topics([NewTopic(name, replica_assignments=p) for name, p in placed.items()])
    client.close()
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for name, partitions in placed.items():
        for number in partitions:
            for _ in range(batches):
                producer.produce(name, VALUE, partition=number)
                assert producer.flush(30) == 0


def remove_topics(bootstrap: str, admin: ClusterAdmin, names: Collection[str]) -> None:
    """End all moves, delete the topics and clear the rates of all brokers."""
    from kafka.admin import KafkaAdminClient

    admin.reassign(dict.fromkeys(admin.reassignments()))
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    client.delete_topics(list(set(names) & {one.topic for one in admin.partitions()}))
    client.close()
    admin.change_settings(
        SettingsChange(resource=Resource(ResourceKind.BROKER, n), set={}, remove=BROKER_RATES)
        for n in "123"
    )
    wait_until(lambda: not admin.partitions(names), 60, what="topics deleted")


def move_back(admin: ClusterAdmin, placed: Placed) -> None:
    """Give the partitions these replicas again, in this order."""
    admin.reassign(
        {
            TopicPartition(topic, number): tuple(replicas)
            for topic, some in placed.items()
            for number, replicas in some.items()
        }
    )
    wait_until(lambda: not admin.reassignments(), 60, what="the old order")


def write_plan(
    path: Path, placed: Placed, log_dirs: dict[str, list[str]] | None = None
) -> tuple[str, str]:
    """Write a plan; return the flag and its file."""
    partitions = [
        {"topic": topic, "partition": number, "replicas": replicas}
        | ({"log_dirs": log_dirs[topic]} if log_dirs and topic in log_dirs else {})
        for topic, some in placed.items()
        for number, replicas in some.items()
    ]
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return "--reassignment-json-file", str(path)


def throttles(admin: ClusterAdmin, *topics: str) -> dict[str, dict[str, str]]:
    """What is set of KIP-73, by resource."""
    resources = [Resource(ResourceKind.BROKER, n) for n in "123"]
    resources += [Resource(ResourceKind.TOPIC, topic) for topic in topics]
    names = {*BROKER_RATES, *REPLICA_LISTS}
    found = {
        str(resource): {name: value for name, value in settings.items() if name in names}
        for resource, settings in admin.settings(resources).items()
    }
    return {resource: settings for resource, settings in found.items() if settings}


def is_clear(admin: ClusterAdmin, *topics: str) -> bool:
    """Brokers apply a little later what the controller has confirmed."""
    wait_until(lambda: not throttles(admin, *topics), 60, what="no throttle left")
    return True


def lines(text: str) -> list[str]:
    """Kafka's tool leaves out a line's end, writes blanks at another's and empty lines, and names
    the topics of throttles in any order."""
    text = text.replace("active.Clearing", "active.\nClearing")
    text = re.sub(r"(?<=on topics )\S+", lambda match: ",".join(sorted(match[0].split(","))), text)
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def wait_for_line(tool: Callable[..., str], part: str, file: tuple[str, str]) -> str:
    """The output of ``--verify`` once it has `part`."""
    out = ""

    def has_part() -> bool:
        nonlocal out
        out = tool("--verify", *file)
        return part in out

    wait_until(has_part, 60, what=part)
    return out

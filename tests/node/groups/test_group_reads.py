"""Groups of three client libraries read a served archive, and go on from their commits."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.kafka_tools import run_tool
from tests.node.golden_archive import golden_archive, records_of
from tests.node.running import PATIENCE_S, Running, serving
from tierlog.config import Config, GroupConfig

# All clients open these without further packages.
TOPICS = ["epochs", "idempotent", "codec-none"]
QUICK = Config(group=GroupConfig(initial_rebalance_delay_ms=0))
GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

REBALANCING = (
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return golden_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def truth(archive: str) -> set[tuple[str, int]]:
    """Topic and offset of each record."""
    return {
        (topic, row[0]) for topic in TOPICS for row in records_of(archive, topic, 0, committed=True)
    }


@pytest.fixture
def server(archive: str) -> Iterator[Running]:
    with serving(archive, config=QUICK) as found:
        yield found


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "g",
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 100,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "log_level": 0,
        **more,
    }


def read_committing(members: list[Consumer], wanted: set[tuple[str, int]]) -> None:
    """Read until all of `wanted` has come, and commit each record; no other record may come.

    A record whose commit a rebalance refused comes again, to one member or the other.
    """
    left = set(wanted)
    while left:
        for member in members:
            message = member.poll(0.02)
            if message is None:
                continue
            assert message.error() is None
            try:
                member.commit(message, asynchronous=False)
            except KafkaException as error:
                if error.args[0].code() not in REBALANCING:
                    raise
            else:
                left.remove((message.topic(), message.offset()))


def test_three_consumers_of_librdkafka_share_an_archive(
    server: Running, truth: set[tuple[str, int]]
) -> None:
    more = {"partition.assignment.strategy": "roundrobin"}
    members = [Consumer(settings(server.bootstrap, **more)) for _ in range(3)]
    for one in members:
        one.subscribe(TOPICS)
    read_committing(members, truth)
    while sorted(len(one.assignment()) for one in members) != [1, 1, 1]:
        for one in members:
            assert one.poll(0.02) is None
    ends = {topic: max(at for name, at in truth if name == topic) + 1 for topic in TOPICS}
    found = members[0].committed([TopicPartition(topic, 0) for topic in TOPICS], PATIENCE_S)
    assert {one.topic: one.offset for one in found} == ends
    for one in members:
        one.close()


def test_a_group_of_kafka_python(server: Running, truth: set[tuple[str, int]]) -> None:
    consumer = kafka.KafkaConsumer(
        *TOPICS,
        bootstrap_servers=server.bootstrap,
        group_id="g",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    found: set[tuple[str, int]] = set()
    while len(found) < len(truth):
        for records in consumer.poll(timeout_ms=200).values():
            found |= {(one.topic, one.offset) for one in records}
    assert found == truth
    consumer.commit()
    at = {topic: consumer.committed(kafka.TopicPartition(topic, 0)) for topic in TOPICS}
    assert at == {topic: max(n for name, n in truth if name == topic) + 1 for topic in TOPICS}
    consumer.close()


def test_a_group_of_aiokafka(server: Running, truth: set[tuple[str, int]]) -> None:
    async def read() -> None:
        members = [
            aiokafka.AIOKafkaConsumer(
                *TOPICS,
                bootstrap_servers=server.bootstrap,
                group_id="g",
                auto_offset_reset="earliest",
                isolation_level="read_committed",
                enable_auto_commit=False,
                heartbeat_interval_ms=100,
                session_timeout_ms=6_000,
            )
            for _ in range(2)
        ]
        await asyncio.gather(*(one.start() for one in members))
        found: set[tuple[str, int]] = set()
        while len(found) < len(truth):
            for member in members:
                batches = await member.getmany(timeout_ms=100)
                found |= {(one.topic, one.offset) for rows in batches.values() for one in rows}
        assert found == truth
        for member in members:
            await member.stop()

    asyncio.run(asyncio.wait_for(read(), PATIENCE_S * 2))


# -- a server that dies


@contextmanager
def serve(archive: str, home: Path, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tierlog serve` without a state directory, and the address that it prints."""
    command = [sys.executable, "-m", "tierlog", "serve", archive, "--listen", f"127.0.0.1:{port}"]
    environment = os.environ | {
        "XDG_STATE_HOME": str(home),
        "TIERLOG_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "")
            address = next(line for line in lines if "bootstrap.servers=" in line)
            groups = next(line for line in lines if line.startswith("  groups "))
            assert groups.split()[2].startswith(str(home / "tierlog"))
            yield process, address.split("=")[1].strip()
        finally:
            process.kill()


def test_a_group_goes_on_after_the_server_was_killed(
    archive: str, truth: set[tuple[str, int]], tmp_path: Path
) -> None:
    """The same consumers join again by themselves; what was committed does not come again."""
    rows = sorted(at for topic, at in truth if topic == "epochs")
    half = len(rows) // 2
    with serve(archive, tmp_path) as (process, bootstrap):
        consumer = Consumer(settings(bootstrap, **{"reconnect.backoff.max.ms": 200}))
        consumer.subscribe(["epochs"])
        read_committing([consumer], {("epochs", at) for at in rows[:half]})
        process.send_signal(signal.SIGKILL)
        process.wait()
    port = int(bootstrap.rpartition(":")[2])
    with serve(archive, tmp_path, port) as (_, again):
        assert again == bootstrap
        other = Consumer(settings(bootstrap))
        (found,) = other.committed([TopicPartition("epochs", 0)], PATIENCE_S)
        assert found.offset == rows[half - 1] + 1
        other.close()
        come: list[int] = []
        while not come or come[-1] != rows[-1]:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                come.append(message.offset())
        assert come == rows[half:]
        consumer.close()


# -- Kafka's own tool


@pytest.mark.integration
def test_kafka_consumer_groups_lists_describes_resets_and_deletes(server: Running) -> None:
    def groups(*arguments: str) -> list[list[str]]:
        output = run_tool(GROUP_COMMAND, "--bootstrap-server", server.bootstrap, *arguments)
        return [line.split() for line in output.splitlines() if line.strip()]

    consumer = Consumer(settings(server.bootstrap, **{"client.id": "reader"}))
    consumer.subscribe(["epochs"])
    message = None
    while message is None:
        message = consumer.poll(0.1)
    consumer.commit(message, asynchronous=False)
    low, high = consumer.get_watermark_offsets(TopicPartition("epochs", 0), PATIENCE_S)
    assert groups("--list") == [["g"]]
    (row,) = [one for one in groups("--describe", "--group", "g") if one[0] == "g"]
    assert row[:6] == ["g", "epochs", "0", str(low + 1), str(high), str(high - low - 1)]
    assert row[6].startswith("reader-")
    (row,) = [one for one in groups("--describe", "--group", "g", "--members") if one[0] == "g"]
    assert row[-2:] == ["reader", "1"]
    state = [one for one in groups("--describe", "--group", "g", "--state") if one[0] == "g"]
    assert "Stable" in state[0]
    consumer.close()
    for target, offset in (("--to-latest", high), ("--to-earliest", low)):
        rows = groups("--reset-offsets", "--group", "g", "--topic", "epochs", target, "--execute")
        assert rows[-1] == ["g", "epochs", "0", str(offset)]
        (row,) = [one for one in groups("--describe", "--group", "g") if one[0] == "g"]
        assert row[3] == str(offset)
    groups("--delete-offsets", "--group", "g", "--topic", "epochs")
    groups("--delete", "--group", "g")
    assert groups("--list") == []

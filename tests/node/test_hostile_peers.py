"""64 hostile connections at a node with little memory: it stays, and honest traffic is exact."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.kafka_tools import wait_until
from tests.node.hostile_frames import ATTACKS, TARGET
from tests.node.node_clients import PRODUCER, create
from tests.node.nodes import NodeProcess, running_node
from tests.pages import ROOT

MIB = 1 << 20
LIMIT_BYTES = 512 * MIB
# More in a longer run: ATTACKS=20000.
COUNT = int(os.environ.get("ATTACKS", "640"))
# What the server may have open for clients that are gone.
SETTINGS = {"tierlog.serve.connection.stall.ms": 2000}


def peak_bytes(node: NodeProcess) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def descriptors(node: NodeProcess) -> int:
    return len(list(Path(f"/proc/{node.process.pid}/fd").iterdir()))


class HonestPair:
    """A producer of numbered records, and a consumer that has to get each once, in order."""

    def __init__(self, node: NodeProcess) -> None:
        servers = {"bootstrap.servers": node.bootstrap_servers}
        self._producer = Producer({**servers, **PRODUCER})
        self._consumer = Consumer({**servers, "group.id": "honest", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition("orders", 0, 0)])
        self.sent = 0
        self.offsets: list[int] = []
        self.received: list[tuple[int, bytes]] = []

    def go_on(self, *, writes: bool) -> bool:
        """Write some records and read some; whether all of them are read."""
        while writes and self.sent - len(self.received) < 100:
            self._producer.produce(
                "orders", b"%08d" % self.sent, partition=0, on_delivery=self._delivered
            )
            self.sent += 1
        self._producer.poll(0)
        for message in self._consumer.consume(100, 0.05):
            assert message.error() is None, message.error()
            self.received.append((message.offset(), message.value()))
        return len(self.received) == self.sent

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.offsets.append(message.offset())

    def close(self) -> None:
        assert self._producer.flush(60) == 0
        self._consumer.close()


def test_honest_traffic_is_exact_under_attack(tmp_path: Path) -> None:
    with running_node(tmp_path, SETTINGS, data_limit_bytes=LIMIT_BYTES) as node:
        create(node, "orders")
        create(node, TARGET)
        pair = HonestPair(node)
        before = descriptors(node)
        host, _, port = node.bootstrap_servers.rpartition(":")
        command = [sys.executable, "-m", "tests.node.hostile_frames", host, port, str(COUNT)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as attackers:
            while attackers.poll() is None:
                pair.go_on(writes=True)
            assert attackers.stdout is not None
            done = json.loads(attackers.stdout.read())
        wait_until(lambda: pair.go_on(writes=False), 60, what="the last records")
        pair.close()
        assert set(done) == set(ATTACKS), done
        assert sum(done.values()) >= COUNT
        assert pair.sent > 100
        assert pair.offsets == list(range(pair.sent))
        assert pair.received == [(number, b"%08d" % number) for number in range(pair.sent)]
        assert node.process.poll() is None
        figures = f"{pair.sent} records, peak {peak_bytes(node) // MIB} MiB"
        print(f"{sum(done.values())} attacks, {figures}: {done}")
        assert peak_bytes(node) < LIMIT_BYTES
        wait_until(lambda: descriptors(node) <= before + 2, 60, what="closed connections")
        assert node.stop() == 0
    # One address: at most one line a second about it.
    times = [line[:19] for line in node.errors.read_text().splitlines() if "127.0.0.1: " in line]
    assert times
    assert len(times) <= 2 * len(set(times))

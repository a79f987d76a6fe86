"""A copy quota that a running broker is given holds for its sidecar."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.support import wait_until

pytestmark = pytest.mark.integration

_PATIENCE_S = 120
LIMIT = "remote.log.manager.copy.max.bytes.per.second"


def alter(broker: KafkaBroker, value: str | None) -> None:
    """Give the broker a limit, or take it back."""
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
    )

    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(LIMIT, value, incremental_operation=kind)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def produce(broker: KafkaBroker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": 10})
    for _ in range(60):
        producer.produce("orders", bytes(1_000), partition=0)
    assert producer.flush(30) == 0


def said(process: subprocess.Popen[str], text: str) -> str:
    """Read stderr on until a line has `text` in it; that line behind its time."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line.rstrip("\n").partition(" ")[2]
    raise AssertionError(f"ended without {text!r}")


def test_a_running_brokers_copy_limit_is_followed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with KafkaBroker(tmp_path / "kafka") as broker:
        broker.create_topic("orders", config={"internal.segment.bytes": "16384"})
        produce(broker)
        command = [str(Path(sys.executable).with_name("tierlog")), "tier"]
        command += [*map(str, broker.log_dirs), "--to", store.as_uri(), "--interval", "0.3"]
        command += ["--state-dir", str(tmp_path / "state")]
        command += ["--bootstrap", broker.bootstrap_servers]
        # A segment would take hours.
        command += ["--copy-quota", "1", "--copy-quota-mode", "pace"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            # A limit that is not followed is never said: the end of the process fails the test.
            watchdog = threading.Timer(_PATIENCE_S, process.kill)
            watchdog.start()
            try:
                said(process, "lag")
                alter(broker, "100000000")
                assert said(process, LIMIT) == (
                    f"{LIMIT}: 1 -> 100000000; dynamic setting of broker 1"
                )
                folder = broker.partition_dir("orders", 0)
                rolled = sorted(path.name[:20] for path in folder.glob("*.log"))[:-1]
                wait_until(
                    lambda: sorted(path.name[:20] for path in store.rglob("*.indexes")) == rolled,
                    60,
                    what="all rolled segments in the store",
                )
                alter(broker, None)
                assert said(process, LIMIT) == (
                    f"{LIMIT}: 100000000 -> 1; no dynamic setting any more of broker 1"
                )
            finally:
                watchdog.cancel()
                process.terminate()
                process.wait(60)

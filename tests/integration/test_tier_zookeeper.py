"""A copy quota that Kafka 3.9's own tool gives a broker reaches its running sidecar at once."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.kafka_tools.old_kafka import old_broker, run_old_tool, zookeeper

pytestmark = pytest.mark.integration

LIMIT = "remote.log.manager.copy.max.bytes.per.second"
PATIENCE_S = 120


def alter(bootstrap: str, *change: str) -> None:
    run_old_tool(
        "3.9",
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", bootstrap, "--alter"),
        *("--entity-type", "brokers", "--entity-name", "0", *change),
    )


def test_a_quota_in_zookeeper_is_followed_within_a_second(tmp_path: Path) -> None:
    """The sidecar itself looks every 30 seconds."""
    with (
        zookeeper("3.9", tmp_path) as servers,
        old_broker("3.9", tmp_path, servers) as bootstrap,
    ):
        command = [str(Path(sys.executable).with_name("tierlog")), "tier", str(tmp_path / "disk")]
        command += ["--to", (tmp_path / "store").as_uri(), "--state-dir", str(tmp_path / "state")]
        command += ["--zookeeper", servers, "--copy-quota", "5000"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            # A limit that is not followed is never said: the end of the process fails the test.
            watchdog = threading.Timer(PATIENCE_S, process.kill)
            watchdog.start()
            changes: list[tuple[float, str]] = []
            reader = threading.Thread(
                target=lambda lines=process.stderr: changes.extend(
                    (time.monotonic(), line) for line in lines if LIMIT in line
                )
            )
            reader.start()
            try:
                alter(bootstrap, "--add-config", f"{LIMIT}=123456")
                set_at = time.monotonic()
                alter(bootstrap, "--delete-config", LIMIT)
                removed_at = time.monotonic()
                while len(changes) < 2 and process.poll() is None:
                    reader.join(0.05)
            finally:
                process.terminate()
                reader.join()
                watchdog.cancel()
    assert [line.split(" ", 1)[1].strip() for _, line in changes] == [
        f"{LIMIT}: 5000 -> 123456; dynamic setting of broker 0",
        f"{LIMIT}: 123456 -> 5000; no dynamic setting any more of broker 0",
    ]
    assert changes[0][0] < set_at + 1
    assert changes[1][0] < removed_at + 1

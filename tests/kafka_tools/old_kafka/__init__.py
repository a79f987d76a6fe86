"""Brokers from before KRaft, each beside a ZooKeeper, with the tools of their version.

with zookeeper("2.4", tmp_path) as servers:
    with old_broker("2.4", tmp_path, servers) as bootstrap:
        ...                      # any client; the log directory is tmp_path / "disk"
    with old_broker("2.8", tmp_path, servers) as bootstrap:
        ...                      # a later version on the same disk and the same cluster
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kafka_tools.broker import answers
from tests.kafka_tools.classpath import classpath
from tests.kafka_tools.support import LOOPBACK, find_program, free_ports, wait_until

__all__ = ["old_broker", "old_broker_process", "run_old_tool", "zookeeper"]

POMS = Path(__file__).resolve().parent
PATIENCE_S = 60


@contextmanager
def zookeeper(version: str, root: Path) -> Iterator[str]:
    """A ZooKeeper of that Kafka below `root`; its address."""
    (port,) = free_ports(1)
    settings = {
        "dataDir": root / "zookeeper",
        "clientPort": port,
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": 0,
        "admin.enableServer": "false",
    }
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    path = root / "zookeeper.properties"
    with _running(version, main, settings, path, lambda: _serves(port)):
        yield f"{LOOPBACK}:{port}"


@contextmanager
def old_broker(
    version: str,
    root: Path,
    zookeeper_servers: str,
    properties: Mapping[str, object] | None = None,
) -> Iterator[str]:
    """A broker with its logs in `root`/disk; its address, from when it answers clients."""
    with old_broker_process(version, root, zookeeper_servers, properties) as (address, _):
        yield address


@contextmanager
def old_broker_process(
    version: str,
    root: Path,
    zookeeper_servers: str,
    properties: Mapping[str, object] | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same, with its process, which may be killed."""
    (port,) = free_ports(1)
    (root / "disk").mkdir(exist_ok=True)
    settings = {
        "broker.id": 0,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "log.dirs": root / "disk",
        "zookeeper.connect": zookeeper_servers,
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 1,
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.index.size.max.bytes": 4_096,
        "num.network.threads": 1,
        "num.io.threads": 2,
        **(properties or {}),
    }
    path = root / f"broker-{version}.properties"
    with _running(version, "kafka.Kafka", settings, path, lambda: answers(port)) as process:
        yield f"{LOOPBACK}:{port}", process


def run_old_tool(version: str, main: str, *args: str, input_text: str = "") -> str:
    """The output of a tool of that version; CalledProcessError when it fails."""
    return subprocess.run(
        _java(version, main, *args),
        input=input_text,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout


@contextmanager
def _running(
    version: str,
    main: str,
    settings: Mapping[str, object],
    path: Path,
    is_up: Callable[[], bool],
) -> Iterator[subprocess.Popen[bytes]]:
    """A server of that version, from when it is up until it was stopped in good order."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with path.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            _java(version, main, str(path)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )

    def up() -> bool:
        if process.poll() is not None:
            raise RuntimeError(
                f"{main} {version} ended with {process.returncode}:\n"
                f"{path.with_suffix('.log').read_text()[-2000:]}"
            )
        return is_up()

    try:
        wait_until(up, PATIENCE_S, what=f"{main} {version} is up")
        yield process
        process.terminate()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def _serves(port: int) -> bool:
    """Whether the ZooKeeper at `port` serves clients: it listens a little earlier."""
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=5) as connection:
        connection.sendall(b"srvr")
        return b"Mode: " in connection.makefile("rb").read()
    return False


def _java(version: str, main: str, *args: str) -> list[str]:
    """The command line of a main class of that version."""
    jars = classpath(pom=POMS / f"kafka-{version}.xml")
    log4j = f"-Dlog4j.configuration=file:{POMS / 'log4j.properties'}"
    return [
        find_program("java", "default-jre-headless"),
        "-Xmx256m",
        log4j,
        "-cp",
        jars,
        main,
        *args,
    ]

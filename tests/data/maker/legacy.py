"""Two logs that old brokers wrote: Kafka 0.10.2 with ZooKeeper, and Kafka 2.4 on the same disk.

The 0.10 broker writes one topic in message format 0 and one in format 1, without leader epochs,
topic ids or a cluster id. The 2.4 broker then goes on: with format 0 in the first topic, and with
format 2, so with leader epochs, in the second.
"""

from __future__ import annotations

import gzip
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kafka_tools.classpath import classpath
from tests.kafka_tools.support import LOOPBACK, find_program, free_ports, wait_until

__all__ = ["make_legacy"]

POMS = Path(__file__).resolve().parent / "old_brokers"
OLD, LATER = "0.10", "2.4"
# The message format that each topic is given, in the words of the 0.10 broker.
TOPICS = {"magic0": "0.9.0", "magic1": "0.10.2"}
RECORDS = {OLD: 150, LATER: 230}
PATIENCE_S = 60


def make_legacy(root: Path, target: Path) -> None:
    """Run both brokers below `root` and fill `target`: one log directory each, with dumps."""
    zookeeper_port, broker_port = free_ports(2)
    (root / "disk").mkdir()
    zookeeper = {
        "dataDir": root / "zookeeper",
        "clientPort": zookeeper_port,
        "clientPortAddress": LOOPBACK,
        "maxClientCnxns": 0,
    }
    broker = {
        "broker.id": 0,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{broker_port}",
        "log.dirs": root / "disk",
        "zookeeper.connect": f"{LOOPBACK}:{zookeeper_port}",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": 4 << 20,
        "log.index.size.max.bytes": 4_096,
        "num.network.threads": 1,
        "num.io.threads": 2,
    }
    shutil.rmtree(target, ignore_errors=True)
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    address = ("--zookeeper", f"{LOOPBACK}:{zookeeper_port}")
    with running(OLD, main, zookeeper, zookeeper_port, root / "zookeeper.properties"):
        with running(OLD, "kafka.Kafka", broker, broker_port, root / "old.properties"):
            for topic, message_format in TOPICS.items():
                settings = (
                    f"message.format.version={message_format}",
                    "segment.bytes=1500",
                    "index.interval.bytes=300",
                    "retention.ms=-1",
                )
                run(
                    OLD,
                    "kafka.admin.TopicCommand",
                    *address,
                    *("--create", "--topic", topic, "--partitions", "1"),
                    *("--replication-factor", "1"),
                    *(word for setting in settings for word in ("--config", setting)),
                )
                produce(OLD, broker_port, topic, range(60), "none")
                produce(OLD, broker_port, topic, range(60, 90), "gzip")
                produce(OLD, broker_port, topic, range(90, 120), "snappy")
                produce(OLD, broker_port, topic, range(120, 150), "lz4")
        keep(OLD, root / "disk", target)
        with running(LATER, "kafka.Kafka", broker, broker_port, root / "later.properties"):
            run(
                LATER,
                "kafka.admin.ConfigCommand",
                *address,
                *("--alter", "--entity-type", "topics", "--entity-name", "magic1"),
                *("--delete-config", "message.format.version"),
            )
            for topic in TOPICS:
                produce(LATER, broker_port, topic, range(150, 180), "none")
                produce(LATER, broker_port, topic, range(180, 230), "gzip")
        keep(LATER, root / "disk", target)


def produce(version: str, port: int, topic: str, numbers: range, codec: str) -> None:
    """Write one record per number with the console producer of that version."""
    lines = "".join(f"key-{number}:value {number} {'.' * (number % 40)}\n" for number in numbers)
    run(
        version,
        "kafka.tools.ConsoleProducer",
        *("--broker-list", f"{LOOPBACK}:{port}", "--topic", topic, "--compression-codec", codec),
        *("--property", "parse.key=true", "--property", "key.separator=:"),
        *("--max-partition-memory-bytes", "400", "--request-required-acks", "all"),
        *("--message-send-max-retries", "50", "--retry-backoff-ms", "200"),
        input_text=lines,
    )


def keep(version: str, disk: Path, target: Path) -> None:
    """Copy what a stopped broker left, and what its own tool prints of the logs."""
    copied = target / f"kafka-{version}"
    shutil.copytree(disk, copied, ignore=shutil.ignore_patterns(".lock", "__consumer_offsets-*"))
    for directory in sorted(path for path in copied.iterdir() if path.is_dir()):
        logs = sorted(directory.glob("*.log"))
        text = run(
            version,
            "kafka.tools.DumpLogSegments",
            *("--files", ",".join(str(path) for path in logs)),
            *("--deep-iteration", "--print-data-log"),
        ).replace(f"{directory}/", "")
        if text.count("payload: value") != RECORDS[version]:
            raise RuntimeError(f"{directory}: expected {RECORDS[version]} records, found others")
        dump = target / "dumps" / f"kafka-{version}-{directory.name}.txt.gz"
        dump.parent.mkdir(exist_ok=True)
        dump.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


@contextmanager
def running(
    version: str, main: str, settings: dict[str, object], port: int, path: Path
) -> Iterator[None]:
    """A server of that version, from when it listens until it was stopped in good order."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with path.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            java(version, main, str(path)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        wait_until(lambda: listens(port, process), PATIENCE_S, what=f"{main} {version} to listen")
        yield
        process.terminate()
        process.wait(PATIENCE_S)
    finally:
        process.kill()
        process.wait()


def listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether the server accepts connections; RuntimeError when it has ended."""
    if process.poll() is not None:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    with suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False


def run(version: str, main: str, *args: str, input_text: str = "") -> str:
    """The output of a tool of that version; CalledProcessError when it fails."""
    return subprocess.run(
        java(version, main, *args),
        input=input_text,
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout


def java(version: str, main: str, *args: str) -> list[str]:
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

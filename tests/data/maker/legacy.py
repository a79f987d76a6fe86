"""Two logs that old brokers wrote: Kafka 0.10.2 with ZooKeeper, and Kafka 2.4 on the same disk.

The 0.10 broker writes one topic in message format 0 and one in format 1, without leader epochs,
topic ids or a cluster id. The 2.4 broker then goes on: with format 0 in the first topic, and with
format 2, so with leader epochs, in the second.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from tests.kafka_tools.old_kafka import old_broker, run_old_tool, zookeeper

__all__ = ["make_legacy"]

OLD, LATER = "0.10", "2.4"
# The message format that each topic is given, in the words of the 0.10 broker.
TOPICS = {"magic0": "0.9.0", "magic1": "0.10.2"}
RECORDS = {OLD: 150, LATER: 230}


def make_legacy(root: Path, target: Path) -> None:
    """Run both brokers below `root` and fill `target`: one log directory each, with dumps."""
    shutil.rmtree(target, ignore_errors=True)
    with zookeeper(OLD, root) as servers:
        address = ("--zookeeper", servers)
        with old_broker(OLD, root, servers) as bootstrap:
            for topic, message_format in TOPICS.items():
                settings = (
                    f"message.format.version={message_format}",
                    "segment.bytes=1500",
                    "index.interval.bytes=300",
                    "retention.ms=-1",
                )
                run_old_tool(
                    OLD,
                    "kafka.admin.TopicCommand",
                    *address,
                    *("--create", "--topic", topic, "--partitions", "1"),
                    *("--replication-factor", "1"),
                    *(word for setting in settings for word in ("--config", setting)),
                )
                produce(OLD, bootstrap, topic, range(60), "none")
                produce(OLD, bootstrap, topic, range(60, 90), "gzip")
                produce(OLD, bootstrap, topic, range(90, 120), "snappy")
                produce(OLD, bootstrap, topic, range(120, 150), "lz4")
        keep(OLD, root / "disk", target)
        with old_broker(LATER, root, servers) as bootstrap:
            run_old_tool(
                LATER,
                "kafka.admin.ConfigCommand",
                *address,
                *("--alter", "--entity-type", "topics", "--entity-name", "magic1"),
                *("--delete-config", "message.format.version"),
            )
            for topic in TOPICS:
                produce(LATER, bootstrap, topic, range(150, 180), "none")
                produce(LATER, bootstrap, topic, range(180, 230), "gzip")
        keep(LATER, root / "disk", target)


def produce(version: str, bootstrap: str, topic: str, numbers: range, codec: str) -> None:
    """Write one record per number with the console producer of that version."""
    lines = "".join(f"key-{number}:value {number} {'.' * (number % 40)}\n" for number in numbers)
    run_old_tool(
        version,
        "kafka.tools.ConsoleProducer",
        *("--broker-list", bootstrap, "--topic", topic, "--compression-codec", codec),
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
        text = run_old_tool(
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

"""The logs of old brokers in tests/data/legacy: copies to work with, and Kafka's dumps."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR

__all__ = ["TOPICS", "VERSIONS", "Record", "copy_old_log", "dumped_records", "set_topic_id"]

LEGACY = DATA_DIR / "legacy"
VERSIONS = ("0.10", "2.4")
TOPICS = ("magic0", "magic1")
# Offset, timestamp, key and value.
Record = tuple[int, int, bytes, bytes]
_RECORD = re.compile(
    r"(?:\| )?offset: (\d+) .*?(?:CreateTime|NoTimestampType): (-?\d+) .*?key: (\S+) payload: (.*)"
)


def copy_old_log(folder: Path, version: str) -> Path:
    """A copy of the log directory that the broker of `version` left."""
    copied = folder / f"kafka-{version}"
    shutil.copytree(LEGACY / f"kafka-{version}", copied)
    return copied


def set_topic_id(log_dir: Path, topic: str, topic_id: str, partition: int = 0) -> None:
    """Write the topic id into the partition's directory, as brokers from 2.8 on do."""
    path = log_dir / f"{topic}-{partition}" / "partition.metadata"
    path.write_text(f"version: 0\ntopic_id: {topic_id}")


def set_cluster_id(log_dir: Path, cluster_id: str) -> None:
    """Write the cluster id into meta.properties, as brokers from 2.4 on do."""
    path = log_dir / "meta.properties"
    lines = [line for line in path.read_text().splitlines() if "cluster.id" not in line]
    path.write_text("\n".join([*lines, f"cluster.id={cluster_id}", ""]))


def dumped_records(version: str, topic: str) -> list[Record]:
    """The records as the DumpLogSegments of that version prints them."""
    path = LEGACY / "dumps" / f"kafka-{version}-{topic}-0.txt.gz"
    found = map(_RECORD.fullmatch, gzip.decompress(path.read_bytes()).decode().splitlines())
    return [(int(one[1]), int(one[2]), one[3].encode(), one[4].encode()) for one in found if one]

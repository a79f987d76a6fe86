"""Copies a stopped broker's log directories and writes Kafka's own account of them beside."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.kafka_tools.golden import dump_as_stored

from .workloads import Topic

DUMPED_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
LEFT_OUT = (".lock", "*.tmp")
# The controller's own log: in a log directory like the others, but no topic a client can ask for.
CONTROLLER_LOG = "__cluster_metadata"
PARTITION_NAME = re.compile(r".+-\d+$")
PACK_ABOVE_BYTES = 16_384
BATCH_LINE = re.compile(
    r"^baseOffset: (?P<base>\d+) lastOffset: (?P<last>\d+) count: (?P<count>\d+) .*"
    r"partitionLeaderEpoch: (?P<epoch>-?\d+) .*isControl: (?P<control>\w+) .*"
    r"compresscodec: (?P<codec>\w+) ",
    re.MULTILINE,
)


def copy_log_dirs(log_dirs: Iterable[Path], target: Path, *, controller_log: bool) -> None:
    """Copy whole log directories, without locks and, where unwanted, the controller's own log."""
    shutil.rmtree(target, ignore_errors=True)
    left_out = LEFT_OUT if controller_log else (*LEFT_OUT, f"{CONTROLLER_LOG}-*")
    for log_dir in log_dirs:
        copied = target / log_dir.name
        shutil.copytree(log_dir, copied, ignore=shutil.ignore_patterns(*left_out))
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def write_text(path: Path, text: str) -> None:
    """Plain, or gzip without a time stamp where large: the same text gives the same file."""
    data = text.encode("utf-8")
    if len(data) <= PACK_ABOVE_BYTES:
        path.write_bytes(data)
    else:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(data, 9, mtime=0))


def dump_partition(directory: Path) -> dict[str, str]:
    """Dump every file of a partition directory and store the texts; maps file name to text."""
    paths = sorted(path for path in directory.iterdir() if path.suffix in DUMPED_SUFFIXES)
    texts = dump_as_stored([path for path in paths if path.stat().st_size > 0])
    texts |= {path.name: f"Dumping {path.name}\n" for path in paths if path.name not in texts}
    for name, text in texts.items():
        write_text(directory / f"{name}.dump.txt", text)
    return texts


def partition_dirs(data_set_dir: Path) -> list[Path]:
    """Directories of partitions in use; `-delete` ones are copied, but not described."""
    return sorted(path for path in data_set_dir.glob("disk*/*") if PARTITION_NAME.match(path.name))


def split_name(directory: Path) -> tuple[str, int]:
    topic, _, partition = directory.name.rpartition("-")
    return topic, int(partition)


def segment_rows(
    directory: Path, texts: Mapping[str, str], topic: Topic, end_offset: int | None
) -> list[dict[str, Any]]:
    """The manifest's rows about the segments of one partition.

    `end_offset` is the log end offset; None if there is no one to ask, then the dump tells.
    """
    logs = sorted(directory.glob("*.log"))
    bases = [int(path.stem) for path in logs]
    if end_offset is None:
        end_offset = batch_facts(texts[logs[-1].name])["last_offset"] + 1
    rows = []
    for path, next_base in zip(logs, [*bases[1:], end_offset], strict=True):
        row = {
            "topic": split_name(directory)[0],
            "partition": split_name(directory)[1],
            "log_dir": directory.parent.name,
            "path": str(path.relative_to(directory.parents[2])),
            "base_offset": int(path.stem),
            "next_base_offset": next_base,
            "rolled": path != logs[-1],
            "exercises": list(topic.exercises),
            "index_interval_bytes": int(str(topic.config.get("index.interval.bytes", 4096))),
            "files": {other.name: file_facts(other) for other in _files_of(path)},
        }
        rows.append(row | batch_facts(texts[path.name]) | file_facts(path))
    return rows


def _files_of(log: Path) -> list[Path]:
    beside = sorted(log.parent.glob(f"{log.stem}.*"))
    return [path for path in beside if path.suffix in DUMPED_SUFFIXES and path != log]


def file_facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def batch_facts(text: str) -> dict[str, Any]:
    """Counts, codecs and epochs as the dump text tells them."""
    batches = list(BATCH_LINE.finditer(text))
    codecs = {batch["codec"] for batch in batches if batch["control"] == "false"}
    return {
        "last_offset": int(batches[-1]["last"]) if batches else -1,
        "batch_count": len(batches),
        "record_count": sum(int(batch["count"]) for batch in batches),
        "codecs": sorted(codecs),
        "leader_epochs": sorted({int(batch["epoch"]) for batch in batches}),
    }


def data_offsets(text: str) -> list[int]:
    """Offsets of the records an application may see, in the order of the dump."""
    offsets: list[int] = []
    control = False
    for line in text.splitlines():
        batch = BATCH_LINE.match(line)
        if batch:
            control = batch["control"] == "true"
        elif line.startswith("| offset: ") and not control:
            offsets.append(int(line.split(" ", 3)[2]))
    return offsets

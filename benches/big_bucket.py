"""A bucket of very many segments, and an archive server that starts on it.

One partition has sound `.indexes` objects. All others have the names of theirs and no bytes: the
server must not read them before a client asks for their partitions.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tierlog.types import kafka_uuid

from .bench_audit import fill
from .metadata import OFFSETS, Store
from .serving import WAIT_S, Served

__all__ = ["BucketStart", "start_on_bucket"]

MIB = 1 << 20
PARTITIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStart:
    """Seconds until clients may connect, and for the first look at a partition; the memory after
    it."""

    ready_s: float
    first_look_s: float
    resident_mib: float


def start_on_bucket(segments: int, per_partition: int) -> BucketStart:
    """Start an archive server on a bucket with `segments` segments, and ask for the end offset of
    one partition."""
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        bucket = Path(scratch, "bucket")
        bucket.mkdir()
        fill(bucket, Store(partitions=1, segments=per_partition))
        fill_with_names(bucket, segments - per_partition, per_partition)
        began = time.perf_counter()
        server, topics = serve_archive(stack, bucket, Path(scratch, "state"))
        ready_s = time.perf_counter() - began
        wanted = 1 + -(-(segments - per_partition) // (PARTITIONS * per_partition))
        if topics != wanted:
            raise RuntimeError(f"expected {wanted} topics, found {topics}")
        began = time.perf_counter()
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        latest = {TopicPartition("orders", 0): OffsetSpec.latest()}
        (found,) = admin.list_offsets(latest, request_timeout=WAIT_S).values()
        if found.result(WAIT_S).offset != per_partition * OFFSETS:
            raise RuntimeError("the first partition is not whole")
        first_look_s = time.perf_counter() - began
        resident_mib = server.resident_bytes() / MIB
        return BucketStart(ready_s=ready_s, first_look_s=first_look_s, resident_mib=resident_mib)


def fill_with_names(bucket: Path, segments: int, per_partition: int) -> None:
    """Create empty objects for `segments` segments, with `per_partition` segments in each
    partition."""
    for first in range(0, segments, per_partition):
        topic, partition = divmod(first // per_partition, PARTITIONS)
        folder = bucket / f"topic{topic}-{uuid_of(topic)}" / str(partition)
        folder.mkdir(parents=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        for number in range(min(per_partition, segments - first)):
            stem = f"{number * OFFSETS:020d}-{uuid_of(first + number)}"
            for suffix in (".log", ".indexes"):
                os.mknod(stem + suffix, 0o644, dir_fd=descriptor)
        os.close(descriptor)


def uuid_of(number: int) -> str:
    return kafka_uuid(hashlib.sha256(b"%d" % number).digest()[:16])


def serve_archive(stack: ExitStack, bucket: Path, state_dir: Path) -> tuple[Served, int]:
    """Start `tierlog serve` on the bucket; return it and the number of topics that it shows."""
    command = [sys.executable, "-m", "tierlog", "serve", bucket.as_uri()]
    command += ["--listen", "127.0.0.1:0", "--state-dir", str(state_dir)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    assert process.stdout is not None
    bootstrap, topics = "", 0
    for line in process.stdout:
        if line.startswith("Serving "):
            topics = int(line.split()[1])
        if "bootstrap.servers=" in line:
            bootstrap = line.partition("=")[2].strip()
            break
    return Served(bootstrap=bootstrap, pid=process.pid), topics

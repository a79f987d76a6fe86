"""A cluster that exists on disk only: brokers' directories with real segments, and the truth.

Replicas lag behind their leader, leaders change, followers cut what the new leader lacks, topics
are deleted and created again. A record below the high watermark is committed: it never changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle import build
from tests.oracle.model import Record
from tierlog.log.checkpoint import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    META_PROPERTIES,
    PARTITION_METADATA,
    EpochEntry,
    LeaderEpochs,
)
from tierlog.types import kafka_uuid

__all__ = ["CLUSTER_ID", "Batch", "Cluster", "Partition", "Replica"]

CLUSTER_ID = "simulated-cluster-id-1"


@dataclass(frozen=True)
class Batch:
    """A batch as it lies in a log."""

    base_offset: int
    last_offset: int
    data: bytes


@dataclass
class Replica:
    """The log of a partition on one broker: files below `folder` and what they hold."""

    folder: Path
    batches: list[Batch] = field(default_factory=list)
    bases: list[int] = field(default_factory=lambda: [0])
    epochs: list[tuple[int, int]] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def create(self, topic_id: str) -> None:
        self.folder.mkdir()
        (self.folder / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {topic_id}\n")
        self.log(0).touch()
        self.write_epochs()

    def log(self, base: int) -> Path:
        return self.folder / f"{base:020}.log"

    def write_epochs(self) -> None:
        epochs = LeaderEpochs(tuple(EpochEntry(*one) for one in self.epochs))
        path = self.folder / LEADER_EPOCHS
        path.with_suffix(".tmp").write_bytes(epochs.encode())
        path.with_suffix(".tmp").replace(path)

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        with self.log(self.bases[-1]).open("ab") as file:
            file.write(batch.data)

    def roll(self) -> None:
        """Begin a segment, unless the active one is empty."""
        if self.bases[-1] < self.end:
            self.bases.append(self.end)
            self.log(self.end).touch()

    def cut(self, end: int) -> None:
        """Truncate the log to `end`, as a follower whose leader lacks the rest."""
        while self.bases[-1] > end or (self.bases[-1] == end and len(self.bases) > 1):
            self.log(self.bases.pop()).unlink()
        self.batches = [one for one in self.batches if one.last_offset < end]
        kept = sum(len(b.data) for b in self.batches if b.base_offset >= self.bases[-1])
        if self.log(self.bases[-1]).stat().st_size != kept:
            os.truncate(self.log(self.bases[-1]), kept)
        self.epochs = [one for one in self.epochs if one[1] < end]
        self.write_epochs()

    def drop_first_segment(self) -> None:
        """Local retention."""
        self.log(self.bases.pop(0)).unlink()
        self.start = self.bases[0]


@dataclass
class Partition:
    """A partition of a topic and its replicas by broker."""

    topic: str
    topic_id: str
    number: int
    replicas: dict[int, Replica]
    leader: int
    epoch: int = 0
    high_watermark: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def lead(self) -> Replica:
        return self.replicas[self.leader]

    def advance(self) -> None:
        """A batch that all replicas share with the leader is committed."""
        leader = self.lead()
        shared = min(shared_batches(leader, one) for one in self.replicas.values())
        end = leader.batches[shared - 1].last_offset + 1 if shared else 0
        self.high_watermark = max(self.high_watermark, end)


def shared_batches(one: Replica, other: Replica) -> int:
    """The number of batches that both logs begin with."""
    pairs = zip(one.batches, other.batches, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(map(len, (one.batches, other.batches)))
    )


class Cluster:
    """Brokers 1 to `count` below `root`; ``draw(n)`` is its source of chance."""

    def __init__(self, root: Path, count: int, draw: Callable[[int], int]) -> None:
        self.root = root
        self.draw = draw
        self.now_ms = 1_700_000_000_000
        self.dirs = {number: root / f"broker{number}" for number in range(1, count + 1)}
        self.partitions: dict[str, Partition] = {}
        self.committed: dict[tuple[str, int], dict[int, Batch]] = {}
        self._ids = 0
        for number, folder in self.dirs.items():
            folder.mkdir(parents=True)
            (folder / META_PROPERTIES).write_text(
                f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={number}\n"
            )

    def create_topic(self, topic: str, partitions: int) -> None:
        self._ids += 1
        topic_id = kafka_uuid(self._ids.to_bytes(16, "big"))
        for number in range(partitions):
            leader = 1 + self.draw(len(self.dirs))
            one = Partition(
                topic,
                topic_id,
                number,
                {n: Replica(folder / f"{topic}-{number}") for n, folder in self.dirs.items()},
                leader,
            )
            for replica in one.replicas.values():
                replica.epochs = [(0, 0)]
                replica.create(topic_id)
            self.partitions[one.name] = one
            self.committed[topic_id, number] = {}
        self.write_checkpoints()

    def delete_topic(self, topic: str) -> None:
        for name in [name for name, one in self.partitions.items() if one.topic == topic]:
            for replica in self.partitions.pop(name).replicas.values():
                shutil.rmtree(replica.folder)
        self.write_checkpoints()

    def append(self, one: Partition) -> None:
        leader = one.lead()
        base, count = leader.end, 1 + self.draw(4)
        records = [
            Record(
                offset=base + n,
                timestamp_ms=self.now_ms,
                key=None,
                value=f"{one.topic_id}/{one.number}/{base + n}/{one.epoch}".encode(),
            )
            for n in range(count)
        ]
        data = build.batch(records, leader_epoch=one.epoch)
        leader.append(Batch(base, base + count - 1, data))

    def replicate(self, one: Partition, broker_id: int) -> None:
        """Let a follower catch up: it cuts what its leader does not have, and copies the rest."""
        leader, follower = one.lead(), one.replicas[broker_id]
        if leader is follower:
            return
        same = shared_batches(leader, follower)
        if same < len(follower.batches):
            follower.cut(follower.batches[same].base_offset)
        for batch in leader.batches[same:]:
            if batch.base_offset in leader.bases and batch.base_offset > follower.bases[-1]:
                follower.roll()
            follower.append(batch)
        if leader.bases[-1] == leader.end:
            follower.roll()
        follower.epochs = list(leader.epochs)
        follower.write_epochs()
        self.commit(one)

    def commit(self, one: Partition) -> None:
        one.advance()
        committed = self.committed[one.topic_id, one.number]
        for batch in reversed(one.lead().batches):
            if batch.last_offset < one.high_watermark:
                if batch.base_offset in committed:
                    break
                committed[batch.base_offset] = batch

    def change_leader(self, one: Partition) -> None:
        one.leader = 1 + self.draw(len(self.dirs))
        one.epoch += 1
        leader = one.lead()
        leader.epochs.append((one.epoch, leader.end))
        leader.epochs = _without_empty(leader.epochs)
        leader.write_epochs()

    def write_checkpoints(self) -> None:
        for number, folder in self.dirs.items():
            rows = [
                f"{one.topic} {one.number} {min(one.high_watermark, one.replicas[number].end)}\n"
                for one in self.partitions.values()
            ]
            (folder / HIGH_WATERMARKS).write_text(f"0\n{len(rows)}\n{''.join(rows)}")


def _without_empty(epochs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """An epoch in which nothing was written has no entry once a later one starts there."""
    return [
        one for n, one in enumerate(epochs) if n + 1 == len(epochs) or epochs[n + 1][1] > one[1]
    ]

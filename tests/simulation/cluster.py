"""A cluster that exists on disk only: brokers' directories with real segments, and the truth.

Replicas lag behind their leader, leaders change, followers cut what the new leader lacks, topics
are deleted and created again, directories vanish, records are deleted, transactions are committed
or aborted. A record below the high watermark is committed: it never changes.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.oracle import build
from tests.oracle.model import Record
from tests.oracle.producer_state import SnapshotEntry, encode_snapshot
from tests.simulation.truth import Batch, Kind, Truth
from tierlog.log.checkpoint import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    EpochEntry,
    LeaderEpochs,
)
from tierlog.types import kafka_uuid

__all__ = ["CLUSTER_ID", "Cluster", "Disk", "Partition", "Replica"]

CLUSTER_ID = "simulated-cluster-id-1"
NO_LEADER = -1
PRODUCERS = (1000, 1001)


class Disk:
    """The times and inodes of directories and of checkpoints that are replaced, by path.

    Those of the machine follow its own clock. Two changes within a millisecond have one time, as on
    a file system with coarse times.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._inodes = itertools.count(1)
        self._known: dict[str, tuple[int, int]] = {}

    def made(self, path: str) -> None:
        """A directory was created, or a file replaced."""
        self._known[path] = next(self._inodes), self._now_ms()

    def changed(self, folder: str) -> None:
        """A name in a directory was added or removed."""
        self._known[folder] = self._known[folder][0], self._now_ms()

    def moved(self, path: str, target: str) -> None:
        for known in [one for one in self._known if one == path or one.startswith(f"{path}/")]:
            self._known[target + known.removeprefix(path)] = self._known.pop(known)

    def removed(self, path: str) -> None:
        for known in [one for one in self._known if one == path or one.startswith(f"{path}/")]:
            del self._known[known]

    def identity(self, path: str) -> tuple[int, ...] | None:
        """What takes the place of `tierlog.log.listing_memory._identity`."""
        known = self._known.get(path)
        return None if known is None else (known[0], known[1] * 1_000_000)


@dataclass
class Replica:
    """The log of a partition on one broker: all that it ever held and did not cut, and the files
    from `bases[0]` on that are still on its disk."""

    folder: Path
    disk: Disk
    batches: list[Batch] = field(default_factory=list)
    bases: list[int] = field(default_factory=lambda: [0])
    epochs: list[tuple[int, int]] = field(default_factory=list)
    log_start: int = 0
    in_sync: bool = True
    is_online: bool = True
    # Original bytes of damaged files, by base offset.
    damaged: dict[int, bytes] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.bases[0]

    def create(self, topic_id: str, start: int) -> None:
        self.bases, self.log_start = [start], start
        self.damaged.clear()
        os.mkdir(self.folder)
        self.disk.made(str(self.folder))
        _write(self.folder / PARTITION_METADATA, f"version: 0\ntopic_id: {topic_id}\n".encode())
        if self.batches:
            self._write_snapshot(start)
        self._touch(start)
        self.write_epochs()

    @property
    def exists(self) -> bool:
        """Whether the directory is in its place."""
        return self.is_online and self.folder.exists()

    def remove(self) -> None:
        if not self.is_online:
            shutil.rmtree(self.hidden)
        elif self.folder.exists():
            shutil.rmtree(self.folder)
            self.disk.removed(str(self.folder))

    @property
    def hidden(self) -> Path:
        """Where the directory lies while its volume is away."""
        return self.folder.parent.parent / f"away-{self.folder.parent.name}-{self.folder.name}"

    def go_away(self) -> None:
        self.is_online = False
        os.rename(self.folder, self.hidden)
        self.disk.moved(str(self.folder), str(self.hidden))

    def come_back(self) -> None:
        self.is_online = True
        os.rename(self.hidden, self.folder)
        self.disk.moved(str(self.hidden), str(self.folder))

    def log(self, base: int) -> str:
        return f"{self.folder}/{base:020}.log"

    def _touch(self, base: int) -> None:
        _write(self.log(base), b"")
        self.disk.changed(str(self.folder))

    def _unlink(self, base: int) -> None:
        self.damaged.pop(base, None)
        os.unlink(self.log(base))
        with suppress(FileNotFoundError):
            os.unlink(f"{self.folder}/{base:020}.snapshot")
        self.disk.changed(str(self.folder))

    def write_epochs(self) -> None:
        epochs = LeaderEpochs(tuple(EpochEntry(*one) for one in self.epochs))
        path = f"{self.folder}/{LEADER_EPOCHS}"
        _write(f"{path}.tmp", epochs.encode())
        os.replace(f"{path}.tmp", path)
        self.disk.made(path)
        self.disk.changed(str(self.folder))

    def append(self, batch: Batch) -> None:
        self.batches.append(batch)
        with open(self.log(self.bases[-1]), "ab", buffering=0) as file:
            file.write(batch.data)

    def roll(self) -> None:
        """Begin a segment, unless the active one is empty."""
        if self.bases[-1] < self.end:
            self.bases.append(self.end)
            self._write_snapshot(self.end)
            self._touch(self.end)

    def _write_snapshot(self, base: int) -> None:
        """The state of the producers before `base`, as brokers write it when they roll."""
        last = {one.producer_id: one for one in self.batches if one.values}
        if last.keys() == {-1}:
            return
        opened = open_transactions(self.batches)
        entries = [
            SnapshotEntry(
                producer_id=producer_id,
                producer_epoch=0,
                last_sequence=sequence(self.batches, producer_id) - 1,
                last_offset=one.last_offset,
                offset_delta=one.last_offset - one.base_offset,
                timestamp_ms=one.written_ms,
                coordinator_epoch=0,
                current_txn_first_offset=opened.get(producer_id, -1),
            )
            for producer_id, one in last.items()
            if producer_id >= 0
        ]
        _write(f"{self.folder}/{base:020}.snapshot", encode_snapshot(entries))

    def cut(self, end: int) -> None:
        """Truncate the log to `end`, as a follower whose leader lacks the rest."""
        while self.bases[-1] > end or (self.bases[-1] == end and len(self.bases) > 1):
            self._unlink(self.bases.pop())
        self.heal()
        while self.batches and self.batches[-1].last_offset >= end:
            self.batches.pop()
        os.truncate(self.log(self.bases[-1]), len(self.bytes_of(self.bases[-1])))
        self.epochs = [one for one in self.epochs if one[1] < end]
        self.write_epochs()

    def bytes_of(self, base: int) -> bytes:
        """What the segment's file should hold."""
        later = [one for one in self.bases if one > base]
        end = later[0] if later else self.end
        found = []
        for batch in reversed(self.batches):
            if batch.base_offset < base:
                break
            if batch.base_offset < end:
                found.append(batch.data)
        return b"".join(reversed(found))

    def rolled_end(self) -> int:
        return self.bases[-1]

    def clean(self, upto: int) -> None:
        """Delete the rolled segments that end at or below `upto`; the log starts behind them."""
        while len(self.bases) > 1 and self.bases[1] <= upto:
            self._unlink(self.bases.pop(0))
        self.start_at(self.bases[0])

    def start_at(self, log_start: int) -> None:
        """Move the log start offset; the epochs follow at once, the segments later."""
        if log_start <= self.log_start:
            return
        self.log_start = log_start
        later = [one for one in self.epochs if one[1] > log_start]
        before = [one for one in self.epochs if one[1] <= log_start]
        self.epochs = [(before[-1][0], log_start), *later] if before else later
        self.write_epochs()

    # -- damage of rolled segments, which the operator mends later

    def damage(self, base: int, *, cut: bool, draw: Callable[[int], int]) -> None:
        data = self.bytes_of(base)
        if base in self.damaged or not data:
            return
        self.damaged[base] = data
        whole = [one.data for one in self.batches if one.base_offset >= base]
        if cut:
            # At the border of two batches, if there are two.
            first = len(whole[0])
            worse = data[:first] if first < len(data) else data[: len(data) // 2]
        else:
            place = draw(len(data))
            worse = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]
        self._rewrite(base, worse)

    def heal(self) -> None:
        for base, data in self.damaged.items():
            self._rewrite(base, data)
        self.damaged.clear()

    def _rewrite(self, base: int, data: bytes) -> None:
        path = self.log(base)
        with open(path, "r+b", buffering=0) as file:
            file.write(data)
            file.truncate(len(data))
        # Whole seconds, so that runs do not differ by the times of the machine.
        before = os.stat(path).st_mtime_ns // 1_000_000_000
        os.utime(path, ns=((before + 1) * 1_000_000_000,) * 2)


def _write(path: str | Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(data)


@dataclass
class Partition:
    """A partition of a topic and its replicas by broker."""

    topic: str
    topic_id: str
    number: int
    replicas: dict[int, Replica]
    leader: int
    truth: Truth
    epoch: int = 0
    high_watermark: int = 0

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    def lead(self) -> Replica:
        return self.replicas[self.leader]

    def advance(self) -> None:
        """A batch that all in-sync replicas share with the leader is committed."""
        leader = self.lead()
        shared = min(shared_batches(leader, one) for one in self.replicas.values() if one.in_sync)
        end = leader.batches[shared - 1].last_offset + 1 if shared else 0
        if end <= self.high_watermark:
            return
        self.high_watermark = end
        self.truth.commit(batch for batch in leader.batches[:shared])

    def last_stable_offset(self) -> int | None:
        """The first offset of the oldest open transaction below the high watermark, else that."""
        if not self.has_leader:
            return None
        opened = open_transactions(self.lead().batches)
        return min([self.high_watermark, *opened.values()])


def open_transactions(batches: list[Batch]) -> dict[int, int]:
    """First offsets of the transactions without an end, by producer."""
    opened: dict[int, int] = {}
    for batch in batches:
        if batch.kind is Kind.TRANSACTIONAL:
            opened.setdefault(batch.producer_id, batch.base_offset)
        elif batch.kind in (Kind.COMMIT, Kind.ABORT):
            opened.pop(batch.producer_id, None)
    return opened


def sequence(batches: list[Batch], producer_id: int) -> int:
    """The sequence number of the producer's next record."""
    return sum(len(batch.values) for batch in batches if batch.producer_id == producer_id)


def shared_batches(one: Replica, other: Replica) -> int:
    """The number of batches that both logs begin with."""
    if one is other:
        return len(one.batches)
    pairs = zip(one.batches, other.batches, strict=False)
    count = min(len(one.batches), len(other.batches))
    return next((n for n, (a, b) in enumerate(pairs) if a is not b), count)


class Cluster:
    """Brokers 1 to `count` below `root`; ``draw(n)`` is its source of chance."""

    def __init__(
        self, root: Path, count: int, draw: Callable[[int], int], now_ms: Callable[[], int]
    ) -> None:
        self.draw = draw
        self.now_ms = now_ms
        self.disk = Disk(now_ms)
        self.dirs = {number: root / f"broker{number}" for number in range(1, count + 1)}
        self.partitions: dict[str, Partition] = {}
        # Of every partition there ever was, by topic id and number.
        self.truths: dict[tuple[str, int], Truth] = {}
        self.topic_ids: dict[str, str] = {}
        self._ids = 0
        self._checkpoints: dict[tuple[int, str], bytes] = {}
        for number, folder in self.dirs.items():
            folder.mkdir(parents=True)
            text = f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={number}\n"
            _write(folder / META_PROPERTIES, text.encode())

    # -- topics

    def create_topic(self, topic: str, partitions: int) -> None:
        self._ids += 1
        topic_id = kafka_uuid(self._ids.to_bytes(16, "big"))
        self.topic_ids[topic] = topic_id
        for number in range(partitions):
            truth = Truth(topic, topic_id, number)
            one = Partition(
                topic,
                topic_id,
                number,
                {
                    n: Replica(folder / f"{topic}-{number}", self.disk)
                    for n, folder in self.dirs.items()
                },
                1 + self.draw(len(self.dirs)),
                truth,
            )
            for replica in one.replicas.values():
                replica.epochs = [(0, 0)]
                replica.create(topic_id, 0)
            self.partitions[one.name] = one
            self.truths[topic_id, number] = truth
        self.write_checkpoints()

    def delete_topic(self, topic: str) -> None:
        del self.topic_ids[topic]
        for name in [name for name, one in self.partitions.items() if one.topic == topic]:
            one = self.partitions.pop(name)
            one.truth.deleted_ms = self.now_ms()
            for replica in one.replicas.values():
                replica.remove()
        self.write_checkpoints()

    # -- records

    def append(self, one: Partition) -> None:
        if not one.has_leader:
            return
        base, count = one.lead().end, 1 + self.draw(4)
        self._append(one, base, count, Kind.PLAIN, -1)

    def transact(self, one: Partition) -> None:
        """End an open transaction, or write into one."""
        if not one.has_leader:
            return
        leader = one.lead()
        opened = sorted(open_transactions(leader.batches))
        if opened and self.draw(2):
            kind = Kind.COMMIT if self.draw(2) else Kind.ABORT
            self._append(one, leader.end, 1, kind, opened[self.draw(len(opened))])
        else:
            producer_id = PRODUCERS[self.draw(len(PRODUCERS))]
            self._append(one, leader.end, 1 + self.draw(3), Kind.TRANSACTIONAL, producer_id)

    def end_transactions(self, one: Partition) -> None:
        """What the coordinator does when their producers stay away."""
        for producer_id in sorted(open_transactions(one.lead().batches)):
            self._append(one, one.lead().end, 1, Kind.ABORT, producer_id)

    def _append(self, one: Partition, base: int, count: int, kind: Kind, producer_id: int) -> None:
        now_ms = self.now_ms()
        if kind in (Kind.COMMIT, Kind.ABORT):
            values: tuple[bytes, ...] = ()
            data = build.end_transaction_marker(
                offset=base,
                timestamp_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                commit=kind is Kind.COMMIT,
                leader_epoch=one.epoch,
            )
        else:
            values = tuple(
                b"%s/%d/%d/%d" % (one.topic_id.encode(), one.number, base + n, one.epoch)
                for n in range(count)
            )
            records = [
                Record(offset=base + n, timestamp_ms=now_ms, key=None, value=value)
                for n, value in enumerate(values)
            ]
            is_plain = kind is Kind.PLAIN
            data = build.batch(
                records,
                leader_epoch=one.epoch,
                producer_id=producer_id,
                producer_epoch=-1 if is_plain else 0,
                base_sequence=-1 if is_plain else sequence(one.lead().batches, producer_id),
                transactional=not is_plain,
            )
        one.lead().append(Batch(base, base + count - 1, data, values, kind, producer_id, now_ms))

    # -- replicas

    def replicate(self, one: Partition, broker_id: int) -> None:
        """Let a follower catch up: it cuts what its leader does not have, and copies the rest."""
        if not one.has_leader:
            return
        leader, follower = one.lead(), one.replicas[broker_id]
        if leader is follower or not follower.is_online:
            return
        if not follower.exists:
            before = [b for b in leader.batches if b.base_offset < leader.bases[0]]
            follower.batches = before
            follower.epochs = [(0, leader.bases[0])]
            follower.create(one.topic_id, leader.bases[0])
        same = shared_batches(leader, follower)
        if same < len(follower.batches):
            cut = follower.batches[same].base_offset
            if cut < follower.bases[0]:
                self._start_anew(one, follower)
                self.replicate(one, broker_id)
                return
            follower.cut(cut)
        for batch in leader.batches[same:]:
            if batch.base_offset in leader.bases and batch.base_offset > follower.bases[-1]:
                follower.roll()
            follower.append(batch)
        if leader.bases[-1] == leader.end:
            follower.roll()
        if follower.epochs != leader.epochs:
            follower.epochs = list(leader.epochs)
            follower.write_epochs()
        follower.start_at(leader.log_start)
        follower.in_sync = True
        one.advance()

    def _start_anew(self, one: Partition, replica: Replica) -> None:
        replica.remove()
        replica.batches, replica.in_sync, replica.is_online = [], False, True
        replica.damaged.clear()

    def change_leader(self, one: Partition) -> None:
        able = [n for n, replica in one.replicas.items() if replica.in_sync and replica.is_online]
        if not able:
            one.leader = NO_LEADER
            return
        one.leader = able[self.draw(len(able))]
        one.epoch += 1
        leader = one.lead()
        leader.epochs.append((one.epoch, leader.end))
        leader.epochs = _without_empty(leader.epochs)
        leader.write_epochs()

    def take_away(self, one: Partition, broker_id: int, *, for_good: bool) -> None:
        """The directory vanishes; another replica leads. The last copy is never lost for good."""
        replica = one.replicas[broker_id]
        others = [
            n for n, r in one.replicas.items() if n != broker_id and r.in_sync and r.is_online
        ]
        if not replica.exists or (for_good and not others):
            return
        if others:
            replica.in_sync = False
        if for_good:
            self._start_anew(one, replica)
        else:
            replica.heal()
            replica.go_away()
        if one.leader == broker_id:
            self.change_leader(one)

    def bring_back(self, one: Partition, broker_id: int) -> None:
        replica = one.replicas[broker_id]
        if not replica.is_online:
            replica.come_back()
            if not one.has_leader:
                self.change_leader(one)

    def write_checkpoints(self) -> None:
        for number, folder in self.dirs.items():
            marks, starts = [], []
            for one in self.partitions.values():
                replica = one.replicas[number]
                if replica.exists:
                    mark = min(one.high_watermark, replica.end)
                    marks.append(f"{one.topic} {one.number} {mark}\n")
                    if replica.log_start > replica.bases[0]:
                        starts.append(f"{one.topic} {one.number} {replica.log_start}\n")
            for name, rows in ((HIGH_WATERMARKS, marks), (LOG_START_OFFSETS, starts)):
                data = f"0\n{len(rows)}\n{''.join(rows)}".encode()
                if self._checkpoints.get((number, name)) != data:
                    self._checkpoints[number, name] = data
                    _write(folder / name, data)


def _without_empty(epochs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """An epoch in which nothing was written has no entry once a later one starts there."""
    return [
        one for n, one in enumerate(epochs) if n + 1 == len(epochs) or epochs[n + 1][1] > one[1]
    ]

"""A host of partitions that owns its files: Kafka's format, real appends, rolls and deletions.

    <root>/logs/meta.properties, replication-offset-checkpoint, log-start-offset-checkpoint
    <root>/logs/<topic>-<partition>/<base>.log, .snapshot, leader-epoch-checkpoint ...
    <root>/state/<topic>-<partition>.json       log start offset, settings, deletion begun

Whatever moment its process dies at, opening it again finds what was synced, cuts what was torn
and goes on with a deletion that was begun. Every promise it makes is in the ledger.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.oracle import batches as oracle
from tests.oracle.model import Batch
from tests.oracle.producer_state import ProducerStateManager, decode_snapshot
from tests.oracle.rebuild import rebuild
from tests.reliability.ledger import Ledger, Row, row_digest
from tests.reliability.points import reach
from tierlog.log.checkpoint import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    PARTITION_METADATA,
    EpochEntry,
    LeaderEpochs,
)
from tierlog.log.eligibility import StableOffset, StableSource
from tierlog.log.log_dir import open_log_dir
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.types import TopicIdPartition

__all__ = ["Host", "OwnedLog"]

CLUSTER_ID = "reliability-cluster"
NODE_ID = 1
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """All of it or nothing, whatever happens meanwhile."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, _APPEND | os.O_TRUNC, 0o644)
    try:
        os.write(descriptor, text.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(path)
    sync_folder(path.parent)


class Host:
    """The partitions below `root`, found again after a crash; `topic` makes a new one."""

    def __init__(self, root: Path, ledger: Ledger) -> None:
        self.root = root
        self.logs_dir = root / "logs"
        self.state_dir = root / "state"
        self.ledger = ledger
        self._lock = threading.RLock()
        for folder in (self.logs_dir, self.state_dir):
            folder.mkdir(parents=True, exist_ok=True)
        meta = self.logs_dir / META_PROPERTIES
        if not meta.exists():
            write_durably(meta, f"version=1\ncluster.id={CLUSTER_ID}\nnode.id={NODE_ID}\n")
        for left in (*self.logs_dir.glob("*-delete"), *self.logs_dir.rglob("*.tmp")):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
        self.logs = {
            path.stem: OwnedLog(self, path.stem) for path in sorted(self.state_dir.glob("*.json"))
        }
        self.write_checkpoints()

    def topic(self, partition: TopicIdPartition, settings: TopicSettings) -> OwnedLog:
        """A new partition with an empty log."""
        name = f"{partition.topic}-{partition.partition}"
        self.ledger.write("topic", **asdict(partition))
        folder = self.logs_dir / name
        folder.mkdir()
        text = f"version: 0\ntopic_id: {partition.topic_id}\n"
        write_durably(folder / PARTITION_METADATA, text)
        write_durably(folder / LEADER_EPOCHS, LeaderEpochs().encode().decode())
        (folder / f"{0:020}.log").touch()
        sync_folder(folder)
        sync_folder(self.logs_dir)
        state = {
            "partition": asdict(partition),
            "log_start_offset": 0,
            "local_start_offset": 0,
            "settings": {},
            "leader_epoch": -1,
            "deletion_begun": False,
        }
        write_durably(self.state_dir / f"{name}.json", json.dumps(state))
        self.logs[name] = OwnedLog(self, name)
        self.logs[name].configure(settings)
        return self.logs[name]

    def write_checkpoints(self) -> None:
        """The high watermarks and the local log start offsets, as a broker does now and then."""
        with self._lock:
            alive = [log for log in self.logs.values() if log.alive]
            for file, values in (
                (HIGH_WATERMARKS, [(log, log.high_watermark) for log in alive]),
                (LOG_START_OFFSETS, [(log, log.local_start_offset) for log in alive]),
            ):
                rows = [f"{log.topic} {log.number} {offset}\n" for log, offset in values]
                write_durably(self.logs_dir / file, f"0\n{len(rows)}\n{''.join(rows)}")

    def close(self) -> None:
        for log in self.logs.values():
            log.close()


class OwnedLog:
    """One partition as a `LocalLog`, on disk below `host`."""

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        self.folder = host.logs_dir / name
        self._state_path = host.state_dir / f"{name}.json"
        self._lock = threading.RLock()
        self._view: LogView | None = None
        self._descriptor = -1
        state = json.loads(self._state_path.read_text())
        self.partition = TopicIdPartition(**state["partition"])
        self.settings = TopicSettings(**state["settings"])
        self.log_start_offset: int = state["log_start_offset"]
        self.local_start_offset: int = state["local_start_offset"]
        self.leader_epoch: int = state["leader_epoch"]
        self.deletion_begun: bool = state["deletion_begun"]
        self.highest_remote_offset = -1
        self.high_watermark = 0
        self.epochs = LeaderEpochs()
        self.producers = ProducerStateManager()
        self.bases: list[int] = []
        if self.alive:
            self._recover()

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def number(self) -> int:
        return self.partition.partition

    @property
    def alive(self) -> bool:
        """Whether there is a local log."""
        return self.folder.is_dir()

    @property
    def log_end_offset(self) -> int:
        return self.producers.end_offset

    # -- opening after whatever happened

    def _recover(self) -> None:
        for left in self.folder.glob("*.tmp"):
            left.unlink()
        self.bases = sorted(int(path.stem) for path in self.folder.glob("*.log"))
        self._remove_segments()
        self._replay()
        text = (self.folder / LEADER_EPOCHS).read_text().split("\n")[2:-1]
        entries = [EpochEntry(*map(int, line.split())) for line in text]
        self.epochs = LeaderEpochs(tuple(one for one in entries if one[1] < self.log_end_offset))
        self._write_epochs()
        self.high_watermark = self.log_end_offset
        self._descriptor = os.open(self._log_path(self.bases[-1]), os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def _replay(self) -> None:
        """Producer state from the last snapshot on; the active segment loses its torn tail."""
        base = self.bases[-1]
        snapshot = self.folder / f"{base:020}.snapshot"
        entries = decode_snapshot(snapshot.read_bytes()) if snapshot.exists() else []
        self.producers = ProducerStateManager(entries)
        self.producers.end_offset = base
        found, _, end = oracle.scan(self._log_path(base).read_bytes())
        for batch in found:
            self.producers.append(batch)
        os.truncate(self._log_path(base), end)

    def _log_path(self, base_offset: int) -> Path:
        return self.folder / f"{base_offset:020}.log"

    def _save(self) -> None:
        state = {
            "partition": asdict(self.partition),
            "log_start_offset": self.log_start_offset,
            "local_start_offset": self.local_start_offset,
            "settings": asdict(self.settings),
            "leader_epoch": self.leader_epoch,
            "deletion_begun": self.deletion_begun,
        }
        write_durably(self._state_path, json.dumps(state))

    # -- what a leader does

    def configure(self, settings: TopicSettings) -> None:
        """Other settings of the topic."""
        with self._lock:
            self.host.ledger.write(
                "retention",
                name=self.name,
                retention_ms=settings.retention_ms,
                retention_bytes=settings.retention_bytes,
            )
            self.settings = settings
            self._save()
            self._view = None

    def begin_epoch(self) -> int:
        """Elected once more: what is appended from now on is of the epoch that this returns."""
        with self._lock:
            self.leader_epoch += 1
            self._save()
            kept = [one for one in self.epochs if one.start_offset < self.log_end_offset]
            entry = EpochEntry(self.leader_epoch, self.log_end_offset)
            self.epochs = LeaderEpochs((*kept, entry))
            self._write_epochs()
            self._view = None
            return self.leader_epoch

    def append(self, data: bytes, rows: Sequence[Row]) -> None:
        """One batch at the log's end: planned, appended, synced, promised."""
        with self._lock:
            batch = oracle.parse(data)
            assert batch.base_offset == self.log_end_offset
            self._plan(batch, rows)
            reach("host.append.before")
            middle = len(data) // 2
            os.write(self._descriptor, data[:middle])
            reach("host.append.half_written")
            os.write(self._descriptor, data[middle:])
            reach("host.append.written")
            os.fsync(self._descriptor)
            reach("host.append.synced")
            self.host.ledger.write("durable", name=self.name, first_offset=batch.base_offset)
            self.producers.append(batch)
            self.high_watermark = self.log_end_offset
            self._view = None

    def _plan(self, batch: Batch, rows: Sequence[Row]) -> None:
        self.host.ledger.write(
            "plan",
            name=self.name,
            first_offset=batch.base_offset,
            last_offset=batch.last_offset,
            sha256=hashlib.sha256(batch.data).hexdigest(),
            rows=[row_digest(row) for row in rows],
            size_bytes=batch.size_bytes,
            max_timestamp_ms=batch.max_timestamp_ms,
        )

    def roll(self) -> None:
        """A new active segment, unless the one there is empty."""
        with self._lock:
            base = self.log_end_offset
            if base == self.bases[-1]:
                return
            reach("host.roll.before_snapshot")
            self._write_beside_log(base, "snapshot", self.producers.snapshot())
            self._write_indexes(self.bases[-1])
            reach("host.roll.before_file")
            os.close(self._descriptor)
            self._descriptor = os.open(self._log_path(base), _APPEND, 0o644)
            sync_folder(self.folder)
            self.bases.append(base)
            self.host.write_checkpoints()
            reach("host.roll.after")
            self._view = None

    def _write_beside_log(self, base_offset: int, suffix: str, data: bytes) -> None:
        path = self.folder / f"{base_offset:020}.{suffix}"
        path.write_bytes(data)
        with path.open("rb") as written:
            os.fsync(written.fileno())

    def _write_indexes(self, base_offset: int) -> None:
        before = self.folder / f"{base_offset:020}.snapshot"
        rebuilt = rebuild(
            self._log_path(base_offset).read_bytes(),
            base_offset=base_offset,
            producer_snapshot=before.read_bytes() if before.exists() else None,
        )
        self._write_beside_log(base_offset, "index", rebuilt.offset_index)
        self._write_beside_log(base_offset, "timeindex", rebuilt.time_index)
        if rebuilt.transaction_index:
            self._write_beside_log(base_offset, "txnindex", rebuilt.transaction_index)

    def truncate_to(self, offset: int) -> None:
        """Cuts the log at a batch's base offset, as an unclean leader does that knows less."""
        with self._lock:
            assert max(self.log_start_offset, self.bases[0]) <= offset <= self.log_end_offset
            self.host.ledger.write("truncating", name=self.name, offset=offset)
            self.high_watermark = min(self.high_watermark, offset)
            self.host.write_checkpoints()
            self.close()
            reach("host.truncate.before")
            while self.bases[-1] > offset:
                for path in sorted(self.folder.glob(f"{self.bases.pop():020}.*")):
                    path.unlink()
                    reach("host.truncate.segment_gone")
            path = self._log_path(self.bases[-1])
            found, _, _ = oracle.scan(path.read_bytes())
            kept = sum(batch.size_bytes for batch in found if batch.last_offset < offset)
            os.truncate(path, kept)
            sync_folder(self.folder)
            self._recover()
            reach("host.truncate.after")
            self.host.ledger.write("truncated", name=self.name, offset=offset)
            self._view = None

    def delete_records(self, offset: int) -> None:
        """What an administrator asks for: nothing below `offset` is needed any more."""
        self.host.ledger.write("delete_records", name=self.name, offset=offset)
        self.advance_log_start_offset(min(offset, self.high_watermark))

    def begin_deletion(self) -> None:
        """The topic is to go; durable before anything of it is touched."""
        with self._lock:
            self.host.ledger.write("deleting_topic", name=self.name)
            reach("host.begin_deletion.before")
            self.deletion_begun = True
            self._save()
            reach("host.begin_deletion.after")

    def delete(self) -> None:
        """The local log goes."""
        with self._lock:
            reach("host.delete_topic.before")
            self.close()
            if self.alive:
                gone = self.folder.with_name(f"{self.name}.{'0' * 32}-delete")
                self.folder.rename(gone)
                sync_folder(self.host.logs_dir)
                reach("host.delete_topic.renamed")
                shutil.rmtree(gone)
            self._view = None
            reach("host.delete_topic.after")

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    # -- LocalLog

    def view(self) -> LogView | None:
        with self._lock:
            if not self.alive:
                return None
            if self._view is None:
                log = open_log_dir(self.host.logs_dir).partition(self.topic, self.number)
                self._view = LogView(
                    log=replace(
                        log,
                        leader_epochs=self.epochs,
                        log_start_offset=max(self.local_start_offset, self.log_start_offset),
                        high_watermark=self.high_watermark,
                    ),
                    stable=StableOffset(
                        value=min(self.producers.last_stable_offset, self.high_watermark),
                        source=StableSource.BROKER,
                    ),
                    log_start_offset=self.log_start_offset,
                    topic=self.settings,
                )
            return self._view

    def forget_view(self) -> None:
        """The next view is made from the disk."""
        with self._lock:
            self._view = None

    def advance_log_start_offset(self, offset: int) -> None:
        with self._lock:
            assert offset <= self.high_watermark, f"{self.name}: {offset} is above the watermark"
            if offset <= self.log_start_offset:
                return
            reach("host.advance_log_start.before")
            self.log_start_offset = offset
            self._save()
            reach("host.advance_log_start.after")
            self.host.ledger.write("log_start", name=self.name, offset=offset)
            self._cut_epochs_below(offset)
            self._view = None

    def _cut_epochs_below(self, offset: int) -> None:
        """As Kafka: what lies below the log start belongs to no epoch any more."""
        entries = list(self.epochs)
        while len(entries) > 1 and entries[1].start_offset <= offset:
            entries.pop(0)
        if entries and entries[0].start_offset < offset:
            entries[0] = EpochEntry(entries[0].epoch, offset)
        self.epochs = LeaderEpochs(tuple(entries))
        self._write_epochs()

    def _write_epochs(self) -> None:
        reach("host.write_epochs.before")
        write_durably(self.folder / LEADER_EPOCHS, self.epochs.encode().decode())
        reach("host.write_epochs.after")

    def raise_highest_remote_offset(self, offset: int) -> None:
        with self._lock:
            self.highest_remote_offset = max(self.highest_remote_offset, offset)

    def delete_local_segments(self, local_log_start_offset: int) -> None:
        with self._lock:
            assert local_log_start_offset <= self.high_watermark
            if local_log_start_offset > self.local_start_offset:
                reach("host.raise_local_start.before")
                self.local_start_offset = local_log_start_offset
                self._save()
                self.host.write_checkpoints()
                reach("host.raise_local_start.after")
            self._view = None
            self._remove_segments()

    def _remove_segments(self) -> None:
        """Those wholly below the local log start offset, never the active one."""
        while len(self.bases) > 1 and self.bases[1] <= self.local_start_offset:
            base = self.bases.pop(0)
            for path in sorted(self.folder.glob(f"{base:020}.*")):
                reach("host.unlink_segment.before")
                path.unlink()
                reach("host.unlink_segment.after")
        sync_folder(self.folder)

    def batch_offsets(self) -> list[int]:
        """The base offsets of the batches on this disk."""
        return [
            batch.base_offset
            for base in self.bases
            for batch in oracle.scan(self._log_path(base).read_bytes())[0]
        ]

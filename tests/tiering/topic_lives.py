"""A topic that is deleted and created again under its name, as a broker's directory shows it.

Both lives have segments of the same base offsets and sizes: nothing but the topic id tells them
apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tests.oracle.build import batch
from tests.oracle.model import Record
from tierlog.clock import ManualClock
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.reader.producer_states import ProducerStates
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.layout import claim_cluster
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.testing.segments import uuid_of
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

__all__ = ["NAME", "Life", "Lives", "RecordRow"]

NAME = "orders"
BASES, END = (0, 20, 40), 60
RecordRow = tuple[int, bytes | None]


@dataclass(frozen=True)
class Life:
    """One of the topics that had the name; its records are (offset, value)."""

    word: str
    first_ms: int

    @property
    def partition(self) -> TopicIdPartition:
        return TopicIdPartition(topic_id=uuid_of(self.word), topic=NAME, partition=0)

    @property
    def rows(self) -> list[RecordRow]:
        return [(offset, b"%s %04d" % (self.word.encode(), offset)) for offset in range(END)]

    def batches(self) -> list[bytes]:
        """One for each record."""
        return [
            batch([Record(offset=at, timestamp_ms=self.first_ms + at, key=None, value=value)])
            for at, value in self.rows
        ]


OLD, NEW = Life("old", 5_000), Life("new", 1_000)


class Lives:
    """A log directory whose only topic is `live`, and a store."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir()
        (self.logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=a-cluster\n")
        (folder / "store").mkdir()
        self.url = (folder / "store").as_uri()
        store = open_store(self.url)
        claim_cluster(store, "a-cluster")
        self.storage = ObjectStorageManager(store)
        self.live = OLD
        self._create(OLD)

    @property
    def directory(self) -> Path:
        return self.logs / f"{NAME}-0"

    @property
    def log(self) -> PartitionLog:
        """With a start that is known, as a broker knows it."""
        return replace(open_log_dir(self.logs).partition(NAME, 0), log_start_offset=0)

    def delete(self) -> None:
        """As a broker does it: the directory gets another name, and is emptied later."""
        self.directory.rename(self.logs / f"{NAME}-0.{self.live.word:0<32.3}-delete")

    def recreate(self) -> None:
        """The name is another topic's from now on."""
        self.delete()
        self.live = NEW
        self._create(NEW)

    def copy(self, metadata: RemoteLogMetadataManager, begin: int = 0, end: int = END) -> None:
        """The rolled segments between these offsets, of the topic that there is now, into the
        store."""
        log = self.log
        copier = SegmentCopier(self.storage, metadata, clock=ManualClock(), broker_id=1)
        for segment in log.rolled_segments:
            if not begin <= segment.base_offset < end:
                continue
            with segment.open() as handle:
                snapshot = ProducerStates(log).before(segment)
                ready = prepare(log, segment, handle, producer_snapshot=snapshot)
                copier.copy(ready, handle)

    def delete_below(self, offset: int) -> None:
        """Local retention."""
        for base in BASES:
            if base < offset:
                (self.directory / f"{base:020d}.log").unlink(missing_ok=True)

    def _create(self, life: Life) -> None:
        self.directory.mkdir()
        batches = life.batches()
        for base, after in zip(BASES, (*BASES[1:], END), strict=True):
            path = self.directory / f"{base:020d}.log"
            path.write_bytes(b"".join(batches[base:after]))
        (self.directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        path = self.directory / "partition.metadata"
        path.write_text(f"version: 0\ntopic_id: {life.partition.topic_id}")

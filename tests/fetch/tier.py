"""A tier for tests of remote reads: logs made to order, a store that counts, and the truth."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.oracle import batches as oracle
from tests.oracle.build import batch
from tests.oracle.model import Record
from tierlog.clock import ManualClock
from tierlog.errors import TierlogError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.memory import FetchMemory
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.remote_read import RemoteRead
from tierlog.reader.types import FetchView
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.layout import indexes_key, log_key, parse_key
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore
from tierlog.testing.segments import uuid_of
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

PARTITION = TopicIdPartition(topic_id=uuid_of("topic made"), topic="made", partition=0)
FIRST_TIMESTAMP_MS = 1_700_000_000_000
BUDGET_BYTES = 64 << 20
# Seconds after which a test that waits for another thread is considered hanging.
PATIENCE = 30


@dataclass(frozen=True)
class Truth:
    """One batch of the log and the segment it is in."""

    base_offset: int
    last_offset: int
    data: bytes
    segment: int


class TestStore(LocalStore):
    """A store on files that notes every read and lets a test stand in the way."""

    __test__ = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.reads: list[tuple[str, int, int]] = []
        self.before_read: Callable[[str], object] = lambda _key: None
        self.change: Callable[[str, int, bytes], bytes] | None = None
        self.is_served = False

    @property
    def is_local(self) -> bool:
        return not self.is_served

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        self.reads.append((key, start_position, size_bytes))
        self.before_read(key)
        data = super().get_range(key, start_position, size_bytes)
        return data if self.change is None else self.change(key, start_position, bytes(data))

    def count(self) -> tuple[int, int]:
        """How often `.indexes` and `.log` objects were asked for since the last look."""
        suffixes = [parse_key(key).suffix for key, _, _ in self.reads]
        self.reads.clear()
        return suffixes.count(".indexes"), suffixes.count(".log")

    def path(self, key: str) -> Path:
        return self.root / key

    def damage(self, key: str, position: int, mask: int = 0x01) -> None:
        """Flip bits of a stored object, for good."""
        data = bytearray(self.path(key).read_bytes())
        data[position] ^= mask
        self.path(key).write_bytes(data)


def made_batch(
    base_offset: int, *, size: int = 100, records: int = 1, epoch: int = 0, last: int | None = None
) -> bytes:
    """A batch of `records` records with values of `size` bytes."""
    return batch(
        [
            Record(
                offset=base_offset + number,
                timestamp_ms=FIRST_TIMESTAMP_MS + base_offset + number,
                key=None,
                value=(b"%019d." % (base_offset + number) * (size // 20 + 1))[:size],
                headers=(),
            )
            for number in range(records)
        ],
        base_offset=base_offset,
        last_offset=last,
        leader_epoch=epoch,
    )


@dataclass
class Tier:
    """Segments copied into a folder, and what a reader of them needs."""

    folder: Path
    remote_index_interval_bytes: int = 256 << 10
    lineage: LeaderEpochs = field(default_factory=lambda: LeaderEpochs(((0, 0),)))  # type: ignore[arg-type]
    partition: TopicIdPartition = PARTITION

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clock = ManualClock()
        self.store = TestStore(self.folder / "store")
        self.storage = ObjectStorageManager(self.store)
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.memory = FetchMemory(BUDGET_BYTES)
        self.alarms: list[Exception] = []
        self.truth: list[Truth] = []
        self.segments: list[RemoteLogSegmentMetadata] = []
        self._copier = SegmentCopier(
            self.storage,
            self.metadata,
            clock=self.clock,
            broker_id=1,
            remote_index_interval_bytes=self.remote_index_interval_bytes,
        )

    def add(
        self,
        batches: Sequence[bytes],
        *,
        base_offset: int | None = None,
        next_base: int | None = None,
        lineage: LeaderEpochs | None = None,
        producer_snapshot: bytes | None = None,
    ) -> RemoteLogSegmentMetadata:
        """Copy a segment of these batches, which end before `next_base` (their own end if None)."""
        parsed = [oracle.parse(one) for one in batches]
        base = parsed[0].base_offset if base_offset is None else base_offset
        following = parsed[-1].last_offset + 1 if next_base is None else next_base
        folder = self.folder / "logs" / str(len(self.segments))
        folder.mkdir(parents=True)
        path = folder / f"{base:020d}.log"
        path.write_bytes(b"".join(batches))
        segment = SegmentFiles(
            base_offset=base,
            next_base_offset=following,
            log_path=str(path),
            size_bytes=path.stat().st_size,
        )
        log = PartitionLog(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self.partition.topic_id,
            directory=str(folder),
            segments=(segment,),
            leader_epochs=lineage or self.lineage,
            log_start_offset=0,
            high_watermark=following,
        )
        with segment.open() as handle:
            prepared = prepare(
                log, segment, handle, producer_snapshot=producer_snapshot, allow_gaps=True
            )
            metadata = self._copier.copy(prepared, handle).metadata
        number = len(self.segments)
        self.segments.append(metadata)
        self.truth += [
            Truth(one.base_offset, one.last_offset, data, number)
            for one, data in zip(parsed, batches, strict=True)
        ]
        return metadata

    def reader(self, **settings: Any) -> RemoteBatchReader:
        values: dict[str, Any] = {"memory": self.memory, "alarm": self.alarms.append, **settings}
        return RemoteBatchReader(self.storage, self.metadata, **values)

    def read(
        self,
        reader: RemoteBatchReader,
        offset: int,
        max_bytes: int = 1 << 20,
        upper_offset: int = 2**60,
        *,
        minimum_one: bool = True,
        **more: Any,
    ) -> RemoteRead:
        return reader.read_batches(
            self.partition,
            self.lineage,
            offset,
            max_bytes,
            upper_offset,
            minimum_one=minimum_one,
            **more,
        )

    def keys(self, number: int = 0) -> tuple[str, str]:
        """The keys of a segment's `.log` and `.indexes` objects."""
        return log_key(self.segments[number]), indexes_key(self.segments[number])


def tier_only(tier: Tier, end: int) -> FetchView:
    """What a host knows of a log up to `end`, all committed, of which its disk has nothing left."""
    return FetchView(
        log=PartitionLog(
            topic=PARTITION.topic,
            partition=PARTITION.partition,
            topic_id=PARTITION.topic_id,
            directory="",
            segments=(),
            leader_epochs=tier.lineage,
            log_start_offset=0,
            high_watermark=end,
        ),
        log_start_offset=0,
        local_log_start_offset=end,
        high_watermark=end,
        last_stable_offset=end,
        log_end_offset=end,
    )


def expected(
    truth: Sequence[Truth], offset: int, max_bytes: int, upper_offset: int, minimum_one: bool
) -> list[Truth]:
    """The batches that a read must bring: those of one segment from the right one on."""
    row = bisect_left(truth, offset, key=lambda one: one.last_offset)
    found: list[Truth] = []
    size = 0
    for one in truth[row:]:
        size += len(one.data)
        fits = size <= max_bytes or (minimum_one and not found)
        same = not found or one.segment == found[0].segment
        if not (fits and same and one.last_offset < upper_offset):
            break
        found.append(one)
    return found


def check(read: RemoteRead, wanted: Sequence[Truth]) -> None:
    """The read brought exactly these batches and says so."""
    assert bytes(read.records) == b"".join(one.data for one in wanted)
    if wanted:
        assert read.segment is not None
        assert read.first_offset == wanted[0].base_offset
        assert read.next_offset == wanted[-1].last_offset + 1
        assert read.end_position - read.start_position == memoryview(read.records).nbytes
    else:
        assert (read.first_offset, read.segment) == (-1, None)


def wait_for_threads() -> None:
    """Until the threads of closed readers have dropped what they were fetching."""
    for thread in threading.enumerate():
        if thread.name == "tier-read-ahead":
            thread.join(PATIENCE)


class Later:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.value: object = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except (TierlogError, OSError, AssertionError) as error:
            self.error = error

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "it hangs"
        if self.error is not None:
            raise self.error
        return self.value

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

"""Everything one process sees: a host, a store, metadata, a manager, on the disk state of `root`.

<root>/host, store, index, meta/metadata.sqlite, ledger/facts.jsonl
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.oracle import batches as oracle
from tests.reliability.host import CLUSTER_ID, NODE_ID, Host, OwnedLog
from tests.reliability.ledger import Ledger, Truth
from tests.reliability.seams import SeamedDraftStore, SeamedMetadata, SeamedStore
from tierlog.clock import ManualClock, SystemClock
from tierlog.config.sections import RemoteIndexConfig, RemoteLogConfig
from tierlog.errors import RemoteResourceNotFoundError
from tierlog.quota import QuotaManager
from tierlog.remote.index_files.family import RemoteIndexFiles
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.layout import log_key, partition_prefix
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectStore
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import Happened, ManagerListener, SegmentEvent
from tierlog.tiering.task_pool import TaskFailure
from tierlog.types import TopicIdPartition

__all__ = ["BEGIN_MS", "World"]

BEGIN_MS = 1_700_000_000_000
INTERVAL_MS = 30_000
IDLE_MS = 20_000
# Longer than any script takes.
SLACK_MS = 60_000


class RunningClock(ManualClock):
    """Goes on by itself, and can be moved as well."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._real = SystemClock()
        self._began_ms = self._real.monotonic_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._real.monotonic_ms() - self._began_ms

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._real.monotonic_ms() - self._began_ms

    def sleep(self, duration_ms: int) -> None:
        self._real.sleep(duration_ms)

    def wait(self, condition: threading.Condition, duration_ms: int) -> None:
        self._real.wait(condition, duration_ms)


class World:
    """Opens what is at `root`; `lead` makes this process the leader of all that is there."""

    def __init__(
        self,
        root: Path,
        *,
        make_storage: Callable[[ObjectStore], RemoteStorageManager] = ObjectStorageManager,
        make_metadata: Callable[[Path], RemoteLogMetadataManager] = SeamedMetadata,
        store: ObjectStore | None = None,
        store_dir: Path | None = None,
        copy_quota: QuotaManager | None = None,
    ) -> None:
        self.root = root
        self.store_dir = store_dir or root / "store"
        self.index_dir = root / "index"
        self.ledger_path = root / "ledger" / "facts.jsonl"
        for folder in (self.store_dir, self.index_dir, self.ledger_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.in_threads = (root / "threads").exists()
        begin_ms = max(Truth.read(self.ledger_path).now_ms, BEGIN_MS)
        self.clock = RunningClock(begin_ms) if self.in_threads else ManualClock(begin_ms)
        self.ledger = Ledger(self.ledger_path)
        self.host = Host(root / "host", self.ledger)
        seamed = SeamedDraftStore if (root / "drafts").exists() else SeamedStore
        self.store = store or seamed(LocalStore(self.store_dir, clock=self.clock))
        self.storage = make_storage(self.store)
        self.metadata = make_metadata(root / "meta" / "metadata.sqlite")
        self.failures = Failures()
        self.manager = RemoteLogManager(
            self.storage,
            self.metadata,
            broker_id=NODE_ID,
            clock=self.clock,
            options=ManagerOptions(
                config=RemoteLogConfig(
                    manager_task_interval_ms=INTERVAL_MS,
                    # Whole archives expire here: time passes by hours.
                    retention_max_deleted_ratio=1,
                ),
                # Several entries of each segment, several segments in a file, several files.
                index_config=RemoteIndexConfig(
                    interval_bytes=700, rotate_bytes=2_000, dir=str(self.index_dir)
                ),
                cluster_id=CLUSTER_ID,
                copy_quota=copy_quota,
                listener=self.failures,
            ),
        )

    def close(self) -> None:
        self.manager.close()
        self.metadata.close()
        self.host.close()
        self.ledger.close()

    # -- steps

    def pass_time(self, duration_ms: int) -> None:
        """Both clocks go on; written down first, since things may expire by it. A clock that runs
        goes on by itself until the next time."""
        running_ms = SLACK_MS if self.in_threads else 0
        self.ledger.write("clock", now_ms=self.clock.now_ms() + duration_ms + running_ms)
        self.clock.advance(duration_ms)

    def lead(self, log: OwnedLog) -> None:
        """Elected for one more epoch."""
        self.manager.become_leader(log.partition, log.begin_epoch(), log)

    def lead_all(self) -> None:
        """After a start: leader of every log; deletions go on, or are asked for again where the
        local log tells that they were."""
        self.manager.resume_deletions()
        for log in self.host.logs.values():
            if not log.deletion_begun:
                self.lead(log)
            elif log.alive:
                self.delete_topic(log)

    def delete_topic(self, log: OwnedLog) -> None:
        if not log.deletion_begun:
            log.begin_deletion()
        self.manager.stop_partition(log.partition, delete_remote=True)
        log.delete()

    def run(self, *, clock_is_right: bool = True) -> None:
        """One interval later, until nothing is due."""
        if clock_is_right:
            self.pass_time(INTERVAL_MS)
        else:
            self.clock.advance(INTERVAL_MS)
        if not self.in_threads:
            self.manager.run_until_idle()
            return
        self.manager.start()
        pools = (
            self.manager.copy_pool,
            self.manager.expiration_pool,
            self.manager.follower_pool,
        )
        for pool in pools:
            pool.hurry()
        assert self.manager.wait_until_idle(IDLE_MS), "still at work"

    def doomed(self) -> set[TopicIdPartition]:
        """The partitions whose deletion was begun."""
        return {log.partition for log in self.host.logs.values() if log.deletion_begun}

    # -- index files

    def index_files(self, partition: TopicIdPartition) -> Iterator[Path]:
        """What lies in the folder of the partition's remote indexes."""
        folder = self.index_dir / partition_prefix(partition)
        yield from sorted(folder.iterdir()) if folder.is_dir() else ()

    def index_differences(
        self, partition: TopicIdPartition, served: dict[int, str], first_offset: int
    ) -> Iterator[str]:
        """Where the partition's remote index files are not sound, which of the offsets from
        `first_offset` on that the tier serves (batches by base offset, with their hashes) they do
        not lead to, and where they lead to what is not served."""
        self.manager.close()
        files = RemoteIndexFiles(self.index_dir, partition, rotate_bytes=1 << 20, rotate_ms=-1)
        yield from (f"index files: {finding}" for finding in files.findings)
        objects: dict[str, bytes] = {}
        for offset, sha256 in sorted(served.items()):
            if offset < first_offset:
                continue
            entry = files.lookup_offset(offset)
            if entry is None or not entry.first_offset <= offset <= entry.last_offset:
                yield f"index files: nothing for offset {offset}"
                continue
            key = str(entry.log_key)
            if key not in objects:
                objects[key] = read_whole(self.store, key)
            data = objects[key][entry.log_position : entry.log_position + entry.data_length]
            hashes = [hashlib.sha256(one.data).hexdigest() for one in oracle.scan(data)[0]]
            if sha256 not in hashes:
                yield f"index files: offset {offset} is not where they say, in {key}"
        ends = {log_key(one): one.served_end_offset for one in self.metadata.list(partition)}
        for entry in files.entries():
            end_offset = ends.get(str(entry.log_key), first_offset - 1)
            if entry.last_offset > max(end_offset, first_offset - 1):
                yield f"index files: offset {entry.last_offset} of {entry.log_key} is not served"
        files.close()


def read_whole(store: ObjectStore, key: str) -> bytes:
    """An object's bytes; none when there is no such object."""
    try:
        return bytes(store.get_range(key, 0, store.head(key).size_bytes))
    except RemoteResourceNotFoundError:
        return b""


class Failures(ManagerListener):
    """Keeps what went wrong in a run of a task: nothing should, over a store that works."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.errors: list[BaseException] = []
        self.refused: list[SegmentEvent] = []

    def on_segment(self, event: SegmentEvent) -> None:
        if event.happened in (Happened.COPY_FAILED, Happened.DELETE_FAILED):
            self.refused.append(event)

    def on_index_failure(self, partition: TopicIdPartition, error: Exception) -> None:
        self.errors.append(error)
        self.told.append(f"index files of {partition}: {error!r}")

    def on_task_failure(self, failure: TaskFailure) -> None:
        self.errors.append(failure.error)
        self.told.append(f"{failure.pool} of {failure.key}: {failure.error!r}")

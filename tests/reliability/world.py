"""Everything one process sees: a host, a store, metadata, a manager, on the disk state of `root`.

<root>/host, store, index, meta/metadata.sqlite, ledger/facts.jsonl
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.reliability.host import CLUSTER_ID, NODE_ID, Host, OwnedLog
from tests.reliability.ledger import Ledger, Truth
from tests.reliability.seams import SeamedMetadata, SeamedStore
from tierlog.clock import ManualClock
from tierlog.config.sections import RemoteLogConfig
from tierlog.quota import QuotaManager
from tierlog.remote.local_store import LocalStore
from tierlog.remote.metadata import RemoteLogMetadataManager
from tierlog.remote.object_store import ObjectStore
from tierlog.remote.storage import RemoteStorageManager
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.types import TopicIdPartition

__all__ = ["BEGIN_MS", "World"]

BEGIN_MS = 1_700_000_000_000
INTERVAL_MS = 30_000


class World:
    """Opens what is at `root`; `lead` makes this process the leader of all that is there."""

    def __init__(
        self,
        root: Path,
        *,
        make_storage: Callable[[ObjectStore], RemoteStorageManager] = RemoteStorageManager,
        make_metadata: Callable[[Path], RemoteLogMetadataManager] = SeamedMetadata,
        store_dir: Path | None = None,
        copy_quota: QuotaManager | None = None,
    ) -> None:
        self.root = root
        self.store_dir = store_dir or root / "store"
        self.index_dir = root / "index"
        self.ledger_path = root / "ledger" / "facts.jsonl"
        for folder in (self.store_dir, self.index_dir, self.ledger_path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        truth = Truth.read(self.ledger_path)
        self.clock = ManualClock(now_ms=max(truth.now_ms, BEGIN_MS))
        self.ledger = Ledger(self.ledger_path)
        self.host = Host(root / "host", self.ledger)
        self.store: ObjectStore = SeamedStore(LocalStore(self.store_dir, clock=self.clock))
        self.storage = make_storage(self.store)
        self.metadata = make_metadata(root / "meta" / "metadata.sqlite")
        self.manager = RemoteLogManager(
            self.storage,
            self.metadata,
            broker_id=NODE_ID,
            clock=self.clock,
            options=ManagerOptions(
                config=RemoteLogConfig(manager_task_interval_ms=INTERVAL_MS),
                cluster_id=CLUSTER_ID,
                copy_quota=copy_quota,
                index_dir=str(self.index_dir),
            ),
        )

    def close(self) -> None:
        self.manager.close()
        self.metadata.close()
        self.host.close()
        self.ledger.close()

    # -- steps

    def pass_time(self, duration_ms: int) -> None:
        """Both clocks go on; written down first, since things may expire by it."""
        self.ledger.write("clock", now_ms=self.clock.now_ms() + duration_ms)
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

    def run(self) -> None:
        """One interval later, until nothing is due."""
        self.pass_time(INTERVAL_MS)
        self.manager.run_until_idle()

    def doomed(self) -> set[TopicIdPartition]:
        """The partitions whose deletion was begun."""
        return {log.partition for log in self.host.logs.values() if log.deletion_begun}

    # -- index files

    def index_files(self, partition: TopicIdPartition) -> Iterator[Path]:
        """What lies in the folder of the partition's remote indexes."""
        yield from sorted(self.index_dir.rglob(f"*{partition.topic_id}*/*"))

    def index_differences(self, partition: TopicIdPartition) -> Iterator[str]:
        """Where the partition's remote index files are not what a rebuild would make."""
        return iter(())

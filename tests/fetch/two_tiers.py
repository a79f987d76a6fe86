"""A fetcher over a golden partition in two tiers, and the truth about its records."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fetch.views import GOLDEN, golden_view
from tierlog.clock import ManualClock
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.pool import ReaderPool
from tierlog.fetch.quotas import FetchQuotas
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.memory import FetchMemory
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import (
    FetchPartition,
    FetchRequest,
    FetchView,
    PartitionData,
)
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

# Long enough for a busy machine; a test of late answers passes a shorter time.
PATIENCE_MS = 30_000


@dataclass
class TwoTiers:
    """A host of golden partitions whose rolled segments are in a store as well."""

    folder: Path
    views: dict[TopicIdPartition, FetchView] = field(default_factory=dict)
    quotas: FetchQuotas = field(default_factory=FetchQuotas)
    # What the first looks see, whatever they look at.
    before: list[FetchView] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "store").mkdir(parents=True)
        self.storage = ObjectStorageManager(open_store((self.folder / "store").as_uri()))
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.cache = RemoteIndexCache(self.storage, self.folder / "indexes")
        self.pool = ReaderPool(4, 100)
        self.remote = RemoteBatchReader(
            self.storage,
            self.metadata,
            index_cache=self.cache,
            memory=FetchMemory(64 << 20),
        )
        self.fetcher = self.make()

    def make(self, **options: object) -> Fetcher:
        return Fetcher(
            self,
            self.remote,
            pool=self.pool,
            quotas=self.quotas,
            transactions=TransactionReader(self.storage, self.metadata, index_cache=self.cache),
            **{"max_remote_wait_ms": PATIENCE_MS, **options},  # type: ignore[arg-type]
        )

    def close(self) -> None:
        assert self.pool.close()
        self.remote.close()
        self.cache.close()

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return self.before.pop(0) if self.before else self.views.get(partition)

    def add(self, data_set: str, name: str) -> TopicIdPartition:
        """A golden partition, all of whose rolled segments are copied, and all still local."""
        view = golden_view(data_set, name)
        log = view.log
        if log.leader_epochs is None or log.topic_id is None:
            pytest.fail(f"{name}: no leader epochs or topic id")
        partition = TopicIdPartition(
            topic_id=log.topic_id, topic=log.topic, partition=log.partition
        )
        copier = SegmentCopier(self.storage, self.metadata, clock=ManualClock(), broker_id=1)
        producers = ProducerStates(log)
        for segment in log.rolled_segments:
            with segment.open() as handle:
                ready = prepare(
                    log,
                    segment,
                    handle,
                    producer_snapshot=producers.before(segment),
                    allow_gaps=True,
                )
                copier.copy(ready, handle)
        self.views[partition] = view
        return partition

    def drop_local(self, partition: TopicIdPartition, local_log_start_offset: int) -> None:
        """Below that offset only the tier has the log."""
        view = self.views[partition]
        kept = tuple(
            one
            for one in view.log.segments
            if one.next_base_offset is None or one.next_base_offset > local_log_start_offset
        )
        self.views[partition] = replace(
            view,
            log=replace(view.log, segments=kept),
            local_log_start_offset=local_log_start_offset,
        )

    def fetch_one(
        self, partition: TopicIdPartition, offset: int, **request: object
    ) -> PartitionData:
        return self.fetch([FetchPartition(partition=partition, fetch_offset=offset)], **request)[0]

    def fetch(self, asked: list[FetchPartition], **request: object) -> tuple[PartitionData, ...]:
        made = FetchRequest(partitions=tuple(asked), max_wait_ms=0, **request)  # type: ignore[arg-type]
        return self.fetcher.fetch_sync(made).partitions


def boundaries(view: FetchView) -> list[int]:
    return [one.base_offset for one in view.log.segments]


TIERED = [
    (data_set, name)
    for data_set, name in GOLDEN
    if data_set == "clean" and not name.startswith(("empty", "__"))
]

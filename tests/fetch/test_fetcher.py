"""A fetch over two tiers, by real segments of a broker, a store and the fetch path as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fetch.views import GOLDEN, Row, consumed, golden_view, oracle_batches, truth
from tierlog.clock import ManualClock
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.pool import ReaderPool
from tierlog.fetch.quotas import FetchQuotas
from tierlog.reader.aborted import TransactionReader
from tierlog.reader.memory import FetchMemory
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.remote_batches import RemoteBatchReader
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

# No answer is late because the machine is busy; whoever tests lateness says so.
PATIENCE_MS = 30_000
COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


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


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    yield made
    made.close()


def boundaries(view: FetchView) -> list[int]:
    return [one.base_offset for one in view.log.segments]


TIERED = [
    (data_set, name)
    for data_set, name in GOLDEN
    if data_set == "clean" and not name.startswith(("empty", "__"))
]


@pytest.mark.parametrize(("data_set", "name"), TIERED)
def test_every_offset_across_the_border_sees_what_the_log_holds(
    tiers: TwoTiers, data_set: str, name: str
) -> None:
    """With the border at every segment, for both isolation levels: no record lost, none twice."""
    partition = tiers.add(data_set, name)
    whole = tiers.views[partition]
    expected = {
        UNCOMMITTED: truth(whole.log, committed=False),
        COMMITTED: truth(whole.log, committed=True),
    }
    for number, border in enumerate(boundaries(whole)):
        tiers.views[partition] = whole
        tiers.drop_local(partition, max(border, whole.log_start_offset))
        for offset in range(whole.log_start_offset + number, whole.log_end_offset, 5 + number):
            isolation = COMMITTED if offset % 2 else UNCOMMITTED
            answer = tiers.fetch_one(partition, offset, isolation_level=isolation)
            assert answer.error is FetchError.NONE, answer
            local = offset >= tiers.views[partition].local_log_start_offset
            assert local == (answer.source is FetchSource.LOCAL) or answer.records == b""
            check(answer, offset, expected[isolation])
        assert consume(tiers, partition, COMMITTED) == [
            row for row in expected[COMMITTED] if row[0] >= whole.log_start_offset
        ]


def test_what_has_ended_behind_the_last_stable_offset_counts(tiers: TwoTiers) -> None:
    """An older transaction of somebody else keeps that offset back, not the abort."""
    partition = tiers.add("clean", "transactions-0")
    whole = tiers.views[partition]
    rows = truth(whole.log, committed=True)
    for border in (0, boundaries(whole)[2]):
        tiers.views[partition] = whole
        tiers.drop_local(partition, border)
        view = tiers.views[partition]
        ends = [batch.base_offset for _, batch in oracle_batches(whole.log)]
        for stable in [one for one in ends if one <= whole.last_stable_offset][1::5]:
            tiers.views[partition] = replace(view, last_stable_offset=stable)
            expected = [row for row in rows if row[0] < stable]
            assert consume(tiers, partition, COMMITTED) == expected, (border, stable)


def test_what_leaves_the_directory_while_it_is_read_comes_from_the_tier(tiers: TwoTiers) -> None:
    """The border moves between the look and the read: that is no error, and no hole."""
    partition = tiers.add("clean", "codec-none-0")
    whole = tiers.views[partition]
    first, second, *_ = boundaries(whole)
    gone = replace(whole.log.segments[0], log_path=whole.log.segments[0].log_path + ".gone")
    for segments in ((gone, *whole.log.segments[1:]), whole.log.segments[1:]):
        tiers.views[partition] = whole
        tiers.drop_local(partition, second)
        tiers.before = [replace(whole, log=replace(whole.log, segments=segments))]
        answer = tiers.fetch_one(partition, first)
        assert (answer.error, answer.source) == (FetchError.NONE, FetchSource.REMOTE), answer
        check(answer, first, truth(whole.log, committed=False))
        assert answer.size_bytes


def test_a_directory_that_never_agrees_with_its_border_is_an_error(tiers: TwoTiers) -> None:
    partition = tiers.add("clean", "codec-none-0")
    whole = tiers.views[partition]
    tiers.views[partition] = replace(whole, log=replace(whole.log, segments=whole.log.segments[1:]))
    answer = tiers.fetch_one(partition, 0)
    assert answer.error is FetchError.KAFKA_STORAGE_ERROR
    assert "lies below" in answer.text


def check(answer: PartitionData, offset: int, rows: list[Row]) -> None:
    """What is seen are the next records of the log, without a hole."""
    seen = consumed(answer.records, offset, answer.aborted_transactions)
    left = [row for row in rows if row[0] >= offset]
    assert seen == left[: len(seen)]


def next_offset(records: object) -> int:
    from tests.oracle import batches as oracle

    found, _, _ = oracle.scan(bytes(records))  # type: ignore[call-overload]
    return found[-1].last_offset + 1


def consume(tiers: TwoTiers, partition: TopicIdPartition, isolation: IsolationLevel) -> list[Row]:
    """As a consumer from the log start to the end, 8 KiB at a time."""
    view = tiers.views[partition]
    offset, rows = view.log_start_offset, []
    while offset < view.high_watermark:
        asked = FetchPartition(partition=partition, fetch_offset=offset, max_bytes=8 << 10)
        (answer,) = tiers.fetch([asked], isolation_level=isolation)
        assert answer.error is FetchError.NONE, answer
        if not memoryview(answer.records).nbytes:
            break
        rows += consumed(answer.records, offset, answer.aborted_transactions)
        offset = next_offset(answer.records)
    return rows

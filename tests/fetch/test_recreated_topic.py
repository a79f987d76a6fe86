"""Fetches of a topic that is deleted, and created again under its name, by the topic's id: from
both tiers at once, with all that readers keep between reads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.waiting import PromptPool
from tests.kafka_tools.support import wait_until
from tests.oracle import batches as oracle
from tests.tiering.topic_lives import END, NEW, OLD, Life, Lives, RecordRow
from tierlog.clock import ManualClock
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.setup import open_fetcher
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
from tierlog.tiering.copy import SegmentCopier
from tierlog.types import TopicIdPartition

WAIT_S = 30
BORDER = 40
BOTH = pytest.mark.parametrize("isolation", list(IsolationLevel))


@dataclass
class Host:
    """Shows the directory by name; `stale`: as it was at an earlier look."""

    lives: Lives
    border: int = BORDER
    stale: FetchView | None = None
    looks: int = 0

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        self.looks += 1
        return self.stale or self.now()

    def now(self) -> FetchView:
        log = self.lives.log
        kept = tuple(one for one in log.segments if one.base_offset >= self.border)
        return FetchView(
            log=replace(log, segments=kept),
            log_start_offset=0,
            local_log_start_offset=self.border,
            high_watermark=END,
            last_stable_offset=END,
            log_end_offset=END,
        )


class Tiers:
    """Both tiers of both lives."""

    def __init__(self, folder: Path) -> None:
        self.lives = Lives(folder)
        self.host = Host(self.lives)
        self.metadata = InMemoryRemoteLogMetadataManager()
        self.cache = RemoteIndexCache(self.lives.storage, folder / "indexes")
        self.fetcher: Fetcher = open_fetcher(
            self.host, self.lives.storage, self.metadata, index_cache=self.cache
        )
        self.fetcher.max_remote_wait_ms = WAIT_S * 1_000
        self.lives.copy(self.metadata)

    def close(self) -> None:
        self.fetcher.close()
        self.cache.close()

    def recreate(self) -> None:
        self.lives.recreate()
        self.lives.copy(self.metadata)

    def ask(self, life: Life, offset: int, isolation: IsolationLevel) -> PartitionData:
        request = FetchRequest(
            partitions=(
                FetchPartition(partition=life.partition, fetch_offset=offset, max_bytes=300),
            ),
            isolation_level=isolation,
            max_wait_ms=0,
        )
        return self.fetcher.fetch_sync(request).partitions[0]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(tmp_path)
    yield made
    made.close()


def rows_of(data: PartitionData, offset: int) -> list[RecordRow]:
    batches, reason, _ = oracle.scan(bytes(data.records))
    assert reason == "end"
    return [
        (one.offset, one.value)
        for batch in batches
        for one in oracle.records(batch)
        if one.offset >= offset
    ]


def check(tiers: Tiers, life: Life, isolation: IsolationLevel) -> None:
    """A sequential reader, from the tier on into the directory, and each offset by itself."""
    offset, rows = 0, list[RecordRow]()
    while offset < END:
        data = tiers.ask(life, offset, isolation)
        assert data.error is FetchError.NONE, data.text
        rows += rows_of(data, offset)
        offset = rows[-1][0] + 1
    assert rows == life.rows
    for at in range(END):
        found = rows_of(tiers.ask(life, at, isolation), at)
        assert found == life.rows[at : at + len(found)]
        assert found
    for at in (7, 52):
        found_at = tiers.fetcher.list_offset_sync(
            life.partition, life.first_ms + at, isolation_level=isolation
        )
        assert (found_at.offset, found_at.timestamp_ms) == (at, life.first_ms + at)


@BOTH
@pytest.mark.parametrize("border", [0, 20, 40])
def test_each_by_its_id(tiers: Tiers, isolation: IsolationLevel, border: int) -> None:
    """Whatever was kept of the old topic - streams, indexes, places - is not the new one's."""
    tiers.host.border = border
    check(tiers, OLD, isolation)
    begun = tiers.ask(OLD, 0, isolation)
    tiers.recreate()
    for offset in range(0, END + 1, 7):
        data = tiers.ask(OLD, offset, isolation)
        assert (data.error, bytes(data.records)) == (FetchError.UNKNOWN_TOPIC_OR_PARTITION, b"")
    for timestamp in (-1, -2, -3, -4, -5, -6, 0):
        found = tiers.fetcher.list_offset_sync(OLD.partition, timestamp)
        assert found.error is FetchError.UNKNOWN_TOPIC_OR_PARTITION
    check(tiers, NEW, isolation)
    assert rows_of(begun, 0) == OLD.rows[: len(rows_of(begun, 0))]


@BOTH
@pytest.mark.parametrize("offset", [0, 15, 20, 39, 40, 55])
def test_a_host_that_has_not_noticed_yet(
    tiers: Tiers, isolation: IsolationLevel, offset: int
) -> None:
    """Its view leads to files of the new topic under the old one's names."""
    tiers.host.border = 0
    tiers.host.stale = tiers.host.now()
    assert rows_of(tiers.ask(OLD, offset, isolation), offset)[0] == OLD.rows[offset]
    tiers.recreate()
    data = tiers.ask(OLD, offset, isolation)
    assert (data.error, bytes(data.records)) == (FetchError.KAFKA_STORAGE_ERROR, b"")
    assert NEW.partition.topic_id in data.text
    # Of that time the new one has nothing.
    found = tiers.fetcher.list_offset_sync(OLD.partition, OLD.first_ms + offset)
    assert found.error is FetchError.KAFKA_STORAGE_ERROR
    tiers.host.stale = None
    assert tiers.ask(OLD, offset, isolation).error is FetchError.UNKNOWN_TOPIC_OR_PARTITION
    check(tiers, NEW, isolation)


def test_how_its_transactions_ended_is_not_asked_of_the_new_one(tiers: Tiers) -> None:
    """What comes from the tier is the old one's; which of it was aborted may stand in files that
    are another topic's by now."""
    tiers.host.stale = tiers.host.now()
    tiers.recreate()
    data = tiers.ask(OLD, 5, IsolationLevel.READ_UNCOMMITTED)
    assert rows_of(data, 5)[0] == OLD.rows[5]
    data = tiers.ask(OLD, 5, IsolationLevel.READ_COMMITTED)
    assert (data.error, bytes(data.records)) == (FetchError.KAFKA_STORAGE_ERROR, b"")


@BOTH
def test_a_deleted_topic_is_not_looked_at_for_ever(tiers: Tiers, isolation: IsolationLevel) -> None:
    tiers.host.stale = tiers.host.now()
    tiers.lives.delete()
    tiers.host.looks = 0
    data = tiers.ask(OLD, BORDER, isolation)
    assert (data.error, bytes(data.records)) == (FetchError.KAFKA_STORAGE_ERROR, b"")
    assert tiers.host.looks == 3
    # What the tier has is there until somebody deletes it.
    assert rows_of(tiers.ask(OLD, 0, IsolationLevel.READ_UNCOMMITTED), 0)[0] == OLD.rows[0]


def test_what_comes_late_is_not_the_new_ones(tiers: Tiers) -> None:
    """A read of the old topic that hangs, is given up and ends when there is a new one."""
    isolation = IsolationLevel.READ_UNCOMMITTED
    store = tiers.lives.storage
    reading, go_on = threading.Event(), threading.Event()
    fetch_log_segment = store.fetch_log_segment

    def held(*place: Any) -> object:
        reading.set()
        assert go_on.wait(WAIT_S)
        return fetch_log_segment(*place)

    tiers.fetcher._pool.close()
    pool = tiers.fetcher._pool = PromptPool(1, 0)
    tiers.fetcher.max_remote_wait_ms = 1
    store.open_file = lambda key: None  # type: ignore[method-assign]
    store.fetch_log_segment = held  # type: ignore[method-assign,assignment]
    empty = tiers.ask(OLD, 0, isolation)
    assert (empty.source, bytes(empty.records)) == (FetchSource.REMOTE, b"")
    assert reading.wait(WAIT_S)
    tiers.recreate()
    go_on.set()
    wait_until(lambda: not pool.running(), WAIT_S)
    tiers.fetcher.max_remote_wait_ms = WAIT_S * 1_000
    check(tiers, NEW, isolation)
    assert tiers.ask(OLD, 0, isolation).error is FetchError.UNKNOWN_TOPIC_OR_PARTITION
    pool.close()


def test_an_old_topic_whose_segments_go_while_it_is_read(tiers: Tiers) -> None:
    isolation = IsolationLevel.READ_COMMITTED
    tiers.host.stale = tiers.host.now()
    assert rows_of(tiers.ask(OLD, 0, isolation), 0)
    tiers.recreate()
    copier = SegmentCopier(tiers.lives.storage, tiers.metadata, clock=ManualClock(), broker_id=1)
    for segment in tiers.metadata.list(OLD.partition):
        copier.delete(segment)
    for offset in (0, 5, 20, 39):
        data = tiers.ask(OLD, offset, isolation)
        # The view that the host still shows has these offsets: a client asks again, skips nothing.
        assert (data.error, bytes(data.records)) == (FetchError.KAFKA_STORAGE_ERROR, b"")
    tiers.host.stale = None
    check(tiers, NEW, isolation)

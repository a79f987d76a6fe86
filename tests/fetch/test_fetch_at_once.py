"""Fetches that an event loop answers itself, and those that it leaves to a thread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fetch.two_tiers import TwoTiers
from tests.fetch.views import oracle_batches
from tests.fetch.waiting import NAME, WAIT_S, at, size
from tierlog.reader.types import (
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.types import TopicIdPartition

BYTES = 5_000


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    made.fetcher.view_at_once = made.view
    yield made
    made.close()


class Threads(ThreadPoolExecutor):
    """The threads of an event loop, which counts what they are given."""

    def __init__(self) -> None:
        super().__init__(2)
        self.calls = 0

    def submit(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return super().submit(*args, **options)


def fetches(
    tiers: TwoTiers, *requests: Sequence[FetchPartition], **options: Any
) -> list[tuple[int, list[PartitionData]]]:
    """Return for each request the calls of threads, and the answers."""

    async def run() -> list[tuple[int, list[PartitionData]]]:
        threads = Threads()
        asyncio.get_running_loop().set_default_executor(threads)
        found = []
        for asked in requests:
            before = threads.calls
            request = FetchRequest(partitions=tuple(asked), **{"max_wait_ms": 0, **options})
            response = await asyncio.wait_for(tiers.fetcher.fetch(request), WAIT_S)
            found.append((threads.calls - before, list(response.partitions)))
        return found

    return asyncio.run(run())


def ends(tiers: TwoTiers, partition: TopicIdPartition) -> list[int]:
    """The offsets after each batch of a partition."""
    return [one.last_offset + 1 for _, one in oracle_batches(tiers.views[partition].log)]


def test_a_consumer_that_reads_on_is_answered_at_once(tiers: TwoTiers) -> None:
    """Only the position of its first offset is looked up in an index, by a thread."""
    hot = tiers.add("clean", NAME)
    start, end = ends(tiers, hot)[0], tiers.views[hot].log_end_offset
    offset, records, calls = start, b"", []
    while offset < end:
        ((called, (answer,)),) = fetches(tiers, [at(hot, offset, max_bytes=BYTES)])
        calls.append(called)
        assert answer.source is FetchSource.LOCAL
        found = bytes(answer.records)
        records += found
        offset = next(
            one.last_offset + 1
            for _, one in oracle_batches(tiers.views[hot].log)
            if found.endswith(one.data)
        )
    expected = [one for _, one in oracle_batches(tiers.views[hot].log) if one.base_offset >= start]
    assert records == b"".join(one.data for one in expected)
    assert calls[0] == 1
    assert set(calls[1:]) == {0}, calls


def test_the_begin_and_the_end_of_a_log_need_no_index(tiers: TwoTiers) -> None:
    hot = tiers.add("clean", NAME)
    end = tiers.views[hot].log_end_offset
    found = fetches(tiers, [at(hot, 0, max_bytes=BYTES)], [at(hot, end, max_bytes=BYTES)])
    assert [(called, size(answer) > 0) for called, (answer,) in found] == [(0, True), (0, False)]


def evict(path: str) -> None:
    """Drop a file from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def test_what_is_not_in_memory_is_read_by_a_thread(tiers: TwoTiers, tmp_path: Path) -> None:
    hot = tiers.add("clean", NAME)
    copied = own_copy(tiers, hot, tmp_path)
    evict(copied)
    (cold, warm) = fetches(tiers, *[[at(hot, 0, max_bytes=BYTES)]] * 2)
    assert (cold[0], warm[0]) == (1, 0)
    assert bytes(cold[1][0].records) == bytes(warm[1][0].records) != b""


def own_copy(tiers: TwoTiers, partition: TopicIdPartition, folder: Path) -> str:
    """Put the partition's first segment into a file of the test's own and return its path."""
    view = tiers.views[partition]
    first = view.log.segments[0]
    path = folder / Path(first.log_path).name
    path.write_bytes(Path(first.log_path).read_bytes())
    copied = replace(first, log_path=str(path), identity=None)
    segments = (copied, *view.log.segments[1:])
    tiers.views[partition] = replace(view, log=replace(view.log, segments=segments))
    return str(path)


def test_a_large_fetch_is_read_by_a_thread(tiers: TwoTiers) -> None:
    hot = tiers.add("clean", NAME)
    many = [at(hot, 0, max_bytes=1 << 20)] * 3
    (large, small) = fetches(tiers, many, many[:2])
    assert (large[0], small[0]) == (1, 0)
    (few,) = fetches(tiers, many, max_bytes=1 << 20)
    assert few[0] == 0, "the request's own limit counts, too"


def test_a_log_that_is_changing_is_looked_at_by_a_thread(tiers: TwoTiers) -> None:
    hot = tiers.add("clean", NAME)

    def changing(_: TopicIdPartition) -> FetchView | None:
        raise BlockingIOError

    tiers.fetcher.view_at_once = changing
    ((called, (answer,)),) = fetches(tiers, [at(hot, 0, max_bytes=BYTES)])
    assert (called, answer.source, size(answer) > 0) == (1, FetchSource.LOCAL, True)


def test_aborted_transactions_are_read_by_a_thread(tiers: TwoTiers) -> None:
    """Those of a log without any need no file."""
    level = IsolationLevel.READ_COMMITTED
    plain = tiers.add("clean", NAME)
    ((called, (answer,)),) = fetches(tiers, [at(plain, 0, max_bytes=BYTES)], isolation_level=level)
    assert (called, answer.aborted_transactions) == (0, ())
    mixed = tiers.add("clean", "transactions-0")
    ((called, (answer,)),) = fetches(tiers, [at(mixed)], isolation_level=level)
    assert called == 1
    (expected,) = tiers.fetch([at(mixed)], isolation_level=level)
    assert answer.aborted_transactions == expected.aborted_transactions != ()

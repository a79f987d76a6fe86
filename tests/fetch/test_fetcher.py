"""A fetch over two tiers, by real segments of a broker, a store and the fetch path as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fetch.two_tiers import TIERED, TwoTiers, boundaries
from tests.fetch.views import Row, consumed, oracle_batches, truth
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchSource,
    IsolationLevel,
    PartitionData,
)
from tierlog.types import TopicIdPartition

COMMITTED = IsolationLevel.READ_COMMITTED
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[TwoTiers]:
    made = TwoTiers(tmp_path)
    yield made
    made.close()


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

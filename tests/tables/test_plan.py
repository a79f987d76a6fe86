"""How reads are cut into tasks, and where they start and end: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.errors import ConfigError, OutOfRangeError
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.segment_files import SegmentFiles
from tierlog.tables.filters import Wanted
from tierlog.tables.options import parse_options
from tierlog.tables.plan import (
    Finding,
    Mark,
    Partition,
    ReadRange,
    chosen_partitions,
    pack,
    partition_offsets,
    plan_tasks,
    split,
)

ORDERS = Partition("orders", "lZ6vvmajTWKDBUTV6SQAtQ", 0)
SEGMENT = SegmentFiles(
    base_offset=0, next_base_offset=1000, log_path="/no/0.log", size_bytes=10_000
)


def range_of(start: int, end: int, size_bytes: int = 10_000) -> ReadRange:
    return ReadRange(
        partition=ORDERS, segment=SEGMENT, start_offset=start, end_offset=end, size_bytes=size_bytes
    )


class Shelf:
    """A catalog of plain values: partitions with offsets 10 to 109, record n of time 1000 + n."""

    def __init__(self, *partitions: Partition) -> None:
        self._partitions = list(partitions)

    def partitions(self) -> list[Partition]:
        return self._partitions

    def bounds(self, partition: Partition) -> tuple[int, int]:
        return 10, 110

    def check_end(self, partition: Partition) -> None:
        pass

    def offset_for_timestamp(self, partition: Partition, timestamp_ms: int) -> int | None:
        return None if timestamp_ms > 1109 else max(10, timestamp_ms - 1000)

    def ranges(
        self, partition: Partition, start_offset: int, end_offset: int, wanted: Wanted
    ) -> list[ReadRange]:
        found = range_of(start_offset, end_offset, 100 * (end_offset - start_offset))
        return [replace(found, partition=partition)]

    def marks(self, ranges: Sequence[ReadRange]) -> Iterable[Sequence[Mark]]:
        return [[Mark(offset, 100 * offset) for offset in range(0, 1000, 10)] for _ in ranges]

    def findings(self) -> list[Finding]:
        return []


@given(data=st.data())
def test_parts_have_every_offset_once(data: st.DataObject) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 999), max_size=40)))
    marks = [Mark(offset, 10 * offset) for offset in offsets]
    start = data.draw(st.integers(0, 998))
    end = data.draw(st.integers(start + 1, 1000))
    whole = range_of(start, end, data.draw(st.integers(1, 10_000)))
    parts = split(whole, marks, data.draw(st.integers(1, 20_000)))
    assert (parts[0].start_offset, parts[-1].end_offset) == (start, end)
    assert all(one.end_offset == after.start_offset for one, after in pairwise(parts))
    assert all(one.start_offset < one.end_offset and one.size_bytes > 0 for one in parts)


def test_parts_are_even() -> None:
    marks = [Mark(offset, 10 * offset) for offset in range(0, 1000, 3)]
    parts = split(range_of(0, 1000), marks, 2_500)
    assert len(parts) == 4
    assert all(abs(one.size_bytes - 2_500) <= 60 for one in parts)


def test_a_part_leaves_out_only_what_it_may_have() -> None:
    aborted = (AbortedTransaction(1, 0, 300, 0), AbortedTransaction(2, 700, 800, 0))
    parts = split(range_of(0, 1000).leaving_out(aborted), [Mark(500, 5_000)], 5_000)
    assert [one.aborted for one in parts] == [aborted[:1], aborted[1:]]


def test_tasks_are_filled_in_order() -> None:
    ranges = [range_of(n, n + 1, size) for n, size in enumerate([5, 4, 3, 20, 1, 1])]
    tasks = pack(ranges, 10)
    assert [[one.size_bytes for one in task] for task in tasks] == [[5, 4], [3], [20], [1, 1]]
    assert [one for task in tasks for one in task] == ranges
    assert max(map(len, pack([range_of(0, 1, 1)] * 10_000, 1 << 30))) == 4096


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (10, 110)),
        ({"startingOffsets": '{"orders": {"0": 20}}'}, (20, 110)),
        ({"startingOffsets": '{"orders": {"0": -2}}'}, (10, 110)),
        ({"startingOffsets": '{"lZ6vvmajTWKDBUTV6SQAtQ": {"0": 20}}'}, (20, 110)),
        ({"endingOffsets": '{"orders": {"0": 20}}'}, (10, 20)),
        ({"endingOffsets": '{"orders": {"0": -1}}'}, (10, 110)),
        ({"startingTimestamp": "1050"}, (50, 110)),
        ({"startingTimestamp": "1050", "endingTimestamp": "1060"}, (50, 60)),
        ({"startingTimestamp": "1060", "endingTimestamp": "1050"}, (60, 60)),
        ({"endingTimestamp": "5000"}, (10, 110)),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 1030}}'}, (10, 30)),
        (
            {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"},
            (110, 110),
        ),
        ({"startingOffsets": '{"orders": {"0": 3}}', "failOnDataLoss": "false"}, (10, 110)),
        ({"endingOffsets": '{"orders": {"0": 300}}', "failOnDataLoss": "false"}, (10, 110)),
    ],
)
def test_where_a_read_starts_and_ends(given: dict[str, str], expected: tuple[int, int]) -> None:
    options = parse_options({"path": "/logs", "subscribe": "orders", **given})
    ((_, start, end),) = partition_offsets(options, Shelf(ORDERS))
    assert (start, end) == expected


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"startingOffsets": '{"orders": {"0": 3}}'}, OutOfRangeError, "expected offsets 3 to 109"),
        ({"endingOffsets": '{"orders": {"0": 111}}'}, OutOfRangeError, "found 10 to 109"),
        ({"startingTimestamp": "5000"}, OutOfRangeError, "no record of 5000 ms or later"),
        ({"startingOffsets": '{"orders": {"1": 20}}'}, ConfigError, "found orders-1"),
        ({"startingOffsets": "{}"}, ConfigError, "found none for orders-0"),
    ],
)
def test_what_cannot_be_read_is_said(
    given: dict[str, str], error: type[Exception], message: str
) -> None:
    options = parse_options({"path": "/logs", "subscribe": "orders", **given})
    with pytest.raises(error, match=message):
        partition_offsets(options, Shelf(ORDERS))


def test_only_what_is_asked_for() -> None:
    other = Partition("refunds", "adh9f8BMS4anaUnD8KWfWg", 0)
    again = ORDERS._replace(topic_id="adh9f8BMS4anaUnD8KWfWg")
    found = [other, ORDERS, ORDERS._replace(partition=1)]

    def chosen(*partitions: Partition, **given: str) -> list[Partition]:
        return chosen_partitions(parse_options({"path": "/logs", **given}), partitions)

    assert chosen(*found, subscribe="orders") == [ORDERS, ORDERS._replace(partition=1)]
    assert chosen(*found, subscribe="adh9f8BMS4anaUnD8KWfWg") == [other]
    assert chosen(*found, subscribePattern=".*s") == [*found[1:], other]
    assert chosen(*found, assign='{"orders": [1]}') == found[2:]
    assert chosen(*found, subscribePattern="nothing") == []
    assert chosen(again, ORDERS, subscribe=again[1] or "") == [again]
    with pytest.raises(OutOfRangeError, match="expected topic 'order', found no such topic"):
        chosen(*found, subscribe="orders,order")
    with pytest.raises(OutOfRangeError, match="no such partition"):
        chosen(*found, assign='{"orders": [1, 2]}')
    with pytest.raises(OutOfRangeError, match="subscribe to one of the ids"):
        chosen(again, ORDERS, subscribe="orders")


def test_tasks_have_their_size_and_what_is_wanted() -> None:
    def tasks(wanted: Wanted | None = None, **given: str) -> list[tuple[ReadRange, ...]]:
        options = parse_options({"path": "/logs", "subscribe": "orders", **given})
        catalog = Shelf(ORDERS, ORDERS._replace(partition=1))
        return plan_tasks(options, catalog, partition_offsets(options, catalog), wanted)

    assert [len(task) for task in tasks()] == [2]
    assert [len(task) for task in tasks(minPartitions="2")] == [1, 1]
    assert len(tasks(taskBytes="2500")) == 8
    ((one,),) = tasks(Wanted(partitions=frozenset({1}), start_offset=40, end_offset=41))
    assert (one.partition.partition, one.start_offset, one.end_offset) == (1, 40, 41)
    assert tasks(Wanted(start_offset=110)) == []

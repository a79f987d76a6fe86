"""The options of the data source, and what filters leave: pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tierlog.errors import ConfigError
from tierlog.tables.filters import Wanted, wanted_by
from tierlog.tables.options import EARLIEST, LATEST, View, parse_options

PLACE = {"path": "/logs", "subscribe": "orders"}


def test_the_defaults_are_those_of_the_kafka_source() -> None:
    found = parse_options(PLACE)
    assert (found.start.everywhere, found.end.everywhere) == (EARLIEST, LATEST)
    assert found.fail_on_data_loss
    assert not found.read_committed
    assert not found.include_headers
    assert found.view is View.RECORDS
    stream = parse_options(PLACE, streaming=True)
    assert stream.start.everywhere == LATEST


def test_names_in_any_case() -> None:
    found = parse_options(
        {"PATH": "/logs", "SUBSCRIBEpattern": "o.*", "ISOLATION.level": "READ_COMMITTED"}
    )
    assert found.read_committed
    assert found.topics.wants("orders", None, 7)
    assert not found.topics.wants("borders", None, 7)


def test_a_pattern_does_not_mean_internal_topics() -> None:
    topics = parse_options({"path": "/logs", "subscribePattern": ".*"}).topics
    assert topics.wants("a", None, 0)
    assert not topics.wants("__consumer_offsets", None, 0)


def test_offsets_by_partition() -> None:
    bounds = parse_options({**PLACE, "startingOffsets": '{"orders": {"0": 23, "1": -2}}'}).start
    assert bounds.of("orders", None, 0) == 23
    assert bounds.of("orders", "an-id", 1) == EARLIEST
    with pytest.raises(ConfigError, match="found none for orders-2"):
        bounds.of("orders", None, 2)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1709208000000", 1_709_208_000_000),
        ("2024-02-29", 1_709_164_800_000),
        ("2024-02-29T12:00:00Z", 1_709_208_000_000),
        ("2024-02-29 13:00:00.5+01:00", 1_709_208_000_500),
    ],
)
def test_a_time_may_be_a_date(text: str, expected_ms: int) -> None:
    found = parse_options({**PLACE, "startingTimestamp": text, "endingTimestamp": text})
    assert (found.start.everywhere, found.end.everywhere) == (expected_ms, expected_ms)
    times = f'{{"orders": {{"0": "{text}"}}}}'
    found = parse_options({**PLACE, "startingOffsetsByTimestamp": times})
    assert found.start.by_partition == {("orders", 0): expected_ms}


def test_the_more_particular_start_counts() -> None:
    given = {
        **PLACE,
        "startingOffsets": "earliest",
        "startingOffsetsByTimestamp": '{"orders": {"0": 7}}',
    }
    assert parse_options(given).start.by_partition == {("orders", 0): 7}
    found = parse_options({**given, "startingTimestamp": "9"}).start
    assert (found.is_time, found.everywhere) == (True, 9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "a"}, "path: expected a store URL"),
        ({"path": "/logs"}, "expected one of subscribe, subscribePattern, assign, found none"),
        ({**PLACE, "assign": '{"a": [0]}'}, "found subscribe and assign"),
        ({**PLACE, "subscribe": " , "}, "names of topics"),
        ({"path": "/logs", "subscribePattern": "("}, "a regular expression"),
        ({"path": "/logs", "assign": "[]"}, "assign: expected"),
        ({"path": "/logs", "assign": "[" * 100_000}, "assign: expected"),
        ({"path": "/logs", "assign": "{}"}, "assign: expected"),
        ({"path": "/logs", "assign": '{"a": [-1]}'}, "assign: expected"),
        ({"path": "/logs", "assign": '{"a": [true]}'}, "assign: expected"),
        ({**PLACE, "startingOffsets": "latest"}, "expected earliest or offsets as JSON"),
        ({**PLACE, "endingOffsets": "earliest"}, "expected latest or offsets as JSON"),
        ({**PLACE, "startingOffsets": '{"orders": {"0": -1}}'}, "offsets other than -1"),
        ({**PLACE, "endingOffsets": '{"orders": {"0": -2}}'}, "offsets other than -2"),
        ({**PLACE, "startingOffsets": '{"orders": {"0": -3}}'}, "startingOffsets: expected"),
        ({**PLACE, "startingOffsets": '{"orders": {"0": 1.5}}'}, "startingOffsets: expected"),
        ({**PLACE, "startingOffsets": '{"orders": {"x": 1}}'}, "startingOffsets: expected"),
        ({**PLACE, "startingOffsets": '{"orders": 1}'}, "startingOffsets: expected"),
        ({**PLACE, "startingOffsets": f'{{"orders": {{"0": {2**63}}}}}'}, "startingOffsets: exp"),
        ({**PLACE, "startingTimestamp": "yesterday"}, "expected milliseconds"),
        ({**PLACE, "startingTimestamp": "-5"}, "or a time as in 2024-02-29T12:00:00Z, found '-5'"),
        ({**PLACE, "startingTimestamp": "2024-02-30"}, "or a time as in 2024-02-29T12:00:00Z"),
        (
            {**PLACE, "endingOffsetsByTimestamp": '{"orders": {"0": "noon"}}'},
            "or times as in .2024-02-29T12:00:00Z",
        ),
        ({**PLACE, "startingOffsets": '{"orders": {"0": "2024-02-29"}}'}, "startingOffsets: exp"),
        ({**PLACE, "isolation.level": "serializable"}, "read_uncommitted or read_committed"),
        (
            {**PLACE, "isolation.level": "read_committed", "isolationLevel": "read_uncommitted"},
            "expected one isolation level, found two",
        ),
        ({**PLACE, "includeHeaders": "yes"}, "expected true or false"),
        ({**PLACE, "taskBytes": "0"}, "a whole number above 0"),
        ({**PLACE, "view": "rows"}, "records or batches or segments or quarantine"),
        ({**PLACE, "maxOffsetsPerTrigger": "0"}, "expected a whole number above 0"),
        ({**PLACE, "minOffsetsPerTrigger": "-1"}, "expected a whole number above 0"),
        (
            {**PLACE, "minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "7"},
            "minOffsetsPerTrigger: expected at most maxOffsetsPerTrigger, 7, found '8'",
        ),
        ({**PLACE, "maxTriggerDelay": "-1s"}, "expected a number and one of ms, s, m, min, h, d"),
        ({**PLACE, "maxTriggerDelay": "1.5h"}, "expected a number and one of"),
        ({**PLACE, "maxTriggerDelay": "3 weeks"}, "expected a number and one of"),
        ({**PLACE, "maxTriggerDelay": "m"}, "expected a number and one of"),
        ({**PLACE, "startingOfsets": "earliest"}, "did you mean startingOffsets"),
        ({**PLACE, "kafka.bootstrap.servers": "a:1"}, "no broker is asked"),
        # All that Spark tells a source of the options of CREATE TABLE.
        ({"location": "file:/warehouse/t"}, "location: no such option; .*CREATE TEMPORARY VIEW"),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        parse_options(given)


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [
        (None, 900_000),
        ("0", 0),
        ("250", 250),
        ("250ms", 250),
        (" 90S ", 90_000),
        ("2m", 120_000),
        ("2min", 120_000),
        ("3h", 10_800_000),
        ("1d", 86_400_000),
    ],
)
def test_how_long_a_trigger_waits(text: str | None, delay_ms: int) -> None:
    given = PLACE if text is None else {**PLACE, "maxTriggerDelay": text}
    size = parse_options({**given, "MINOFFSETSPERTRIGGER": "7"}, streaming=True).triggers
    assert (size.min_offsets, size.max_offsets, size.max_delay_ms) == (7, None, delay_ms)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="a stream has no end"):
        parse_options({**PLACE, "endingOffsets": "latest"}, streaming=True)
    with pytest.raises(ConfigError, match="expected records for a stream"):
        parse_options({**PLACE, "view": "segments"}, streaming=True)


# -- filters

OFFSET, TIME = ("offset",), ("timestamp",)
NOON = datetime(2026, 1, 2, 12, 0, 0, 500, tzinfo=UTC)
NOON_MS = 1_767_355_200_000


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], Wanted()),
        ([IsNotNull(OFFSET), Not(EqualTo(OFFSET, 3))], Wanted()),
        ([EqualTo(OFFSET, 3)], Wanted(start_offset=3, end_offset=4)),
        ([In(OFFSET, (9, 3, 5))], Wanted(start_offset=3, end_offset=10)),
        ([GreaterThan(OFFSET, 3), LessThan(OFFSET, 9)], Wanted(start_offset=4, end_offset=9)),
        (
            [GreaterThanOrEqual(OFFSET, 3), LessThanOrEqual(OFFSET, 9)],
            Wanted(start_offset=3, end_offset=10),
        ),
        ([GreaterThan(OFFSET, "3")], Wanted()),
        ([EqualTo(("headers", "offset"), 3)], Wanted()),
        ([EqualTo(("PARTITION",), 2)], Wanted(partitions=frozenset({2}))),
        (
            [In(("partition",), (1, 2)), In(("partition",), (2, 3))],
            Wanted(partitions=frozenset({2})),
        ),
        ([In(("topic",), ("a", None))], Wanted(topics=frozenset({"a"}))),
        ([GreaterThan(("partition",), 2)], Wanted()),
        ([GreaterThanOrEqual(TIME, NOON)], Wanted(min_timestamp_ms=NOON_MS)),
        ([GreaterThan(TIME, NOON), EqualTo(TIME, NOON)], Wanted(min_timestamp_ms=NOON_MS)),
        ([LessThan(TIME, NOON)], Wanted()),
        ([GreaterThan(TIME, NOON.replace(tzinfo=None))], Wanted()),
    ],
)
def test_what_filters_leave(filters: list[Any], expected: Wanted) -> None:
    assert wanted_by(filters) == expected

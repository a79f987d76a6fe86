"""Offset forms of kcat and rpk, as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.reader.offset_range import (
    AtOffset,
    AtTime,
    Bound,
    FromEnd,
    FromStart,
    OffsetRange,
    parse_offsets,
)

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
LEAP_NOON_MS = 1_709_208_000_000
START, END = FromStart(0), FromEnd(0)

FORMS: list[tuple[str, Bound, Bound]] = [
    ("beginning", START, END),
    ("start", START, END),
    ("oldest", START, END),
    ("earliest", START, END),
    ("end", END, END),
    ("newest", END, END),
    ("latest", END, END),
    ("0", AtOffset(0), END),
    ("47", AtOffset(47), END),
    ("47:", AtOffset(47), END),
    ("47-", AtOffset(47), END),
    ("47:end", AtOffset(47), END),
    ("9223372036854775807", AtOffset(2**63 - 1), END),
    ("-1", FromEnd(1), END),
    ("-0", FromEnd(0), END),
    ("+12", FromStart(12), END),
    (":90", START, AtOffset(90)),
    (":end", START, END),
    ("47:90", AtOffset(47), AtOffset(90)),
    ("47-90", AtOffset(47), AtOffset(90)),
    ("47:47", AtOffset(47), AtOffset(47)),
    ("s@0", AtTime(0), END),
    ("s@123456789", AtTime(123_456_789), END),
    ("e@1709208000000", START, AtTime(LEAP_NOON_MS)),
    ("s@-1h", AtTime(NOW_MS - HOUR_MS), END),
    ("s@2024-02-29T12:00:00Z", AtTime(LEAP_NOON_MS), END),
    ("@1709208000000", AtTime(LEAP_NOON_MS), END),
    ("@1709208000", AtTime(LEAP_NOON_MS), END),
    ("@999999999", AtTime(999_999_999_000), END),
    ("@2024-02-29", AtTime(LEAP_NOON_MS - 12 * HOUR_MS), END),
    ("@2024-02-29T12:00", AtTime(LEAP_NOON_MS), END),
    ("@2024-02-29 12:00:00", AtTime(LEAP_NOON_MS), END),
    ("@2024-02-29T12:00:00.25Z", AtTime(LEAP_NOON_MS + 250), END),
    ("@2024-02-29T13:00+01:00", AtTime(LEAP_NOON_MS), END),
    ("@2024-02-29T07:00:00-05:00:1h", AtTime(LEAP_NOON_MS), AtTime(LEAP_NOON_MS + 3_600_000)),
    ("@2024-02-29T12:00:00Z:", AtTime(LEAP_NOON_MS), END),
    ("@2024-02-29T12:00:00Z:end", AtTime(LEAP_NOON_MS), END),
    ("@2024-02-29T12:00:00Z:1h", AtTime(LEAP_NOON_MS), AtTime(LEAP_NOON_MS + HOUR_MS)),
    ("@2024-02-29T12:00:00Z:2024-03-01", AtTime(LEAP_NOON_MS), AtTime(LEAP_NOON_MS + DAY_MS // 2)),
    ("@-2h:end", AtTime(NOW_MS - 2 * HOUR_MS), END),
    ("@-48h:-24h", AtTime(NOW_MS - 2 * DAY_MS), AtTime(NOW_MS - DAY_MS)),
    ("@-1d:1m3ms", AtTime(NOW_MS - DAY_MS), AtTime(NOW_MS - DAY_MS + 60_003)),
    ("@-1.5h", AtTime(NOW_MS - HOUR_MS * 3 // 2), END),
    ("@:-1hr", START, AtTime(NOW_MS - HOUR_MS)),
    ("@-99999w", AtTime(0), END),
]

REFUSED = [
    ("", "is no offset; expected one of beginning"),
    ("foo", "'foo' is no offset"),
    (":", "is no offset"),
    ("@", "is no offset"),
    ("@:", "is no offset"),
    ("-", "is no offset"),
    ("1:-2", "is no offset"),
    ("1.5", "is no offset"),
    ("1:2:3", "is no offset"),
    ("@-2h:soon", "is no offset"),
    ("@yesterday", "is no offset"),
    ("9223372036854775808", "above 9223372036854775807"),
    ("s@99999999999999999999", "expected milliseconds after s@"),
    ("s@x", "expected milliseconds after s@, as in s@1709208000000"),
    ("e@", "expected milliseconds after e@"),
    ("@12345", "a time of 5 digits; 13 are milliseconds"),
    ("@:1h", "a duration needs a start, as in @-2h:1h"),
    ("@2024-02-30", "no such time"),
    ("90:47", "the end lies before the start"),
    ("@-1h:-2h", "the end lies before the start"),
    ("stored", "there are no consumer groups here"),
    ("1\n", "is no offset"),
    ("١", "is no offset"),
]


@pytest.mark.parametrize(("text", "start", "end"), FORMS)
def test_forms(text: str, start: Bound, end: Bound) -> None:
    parsed = parse_offsets([text], NOW_MS)
    assert (parsed.start, parsed.end) == (start, end)
    assert type(parsed.start) is type(start)
    assert type(parsed.end) is type(end)


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refused_with_a_way_on(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_offsets([text], NOW_MS)
    assert message in str(caught.value)


def test_several_arguments_make_one_range() -> None:
    both = parse_offsets(["s@5", "e@9"], NOW_MS)
    assert (both.start, both.end) == (AtTime(5), AtTime(9))
    assert parse_offsets(["e@9", "-3"], NOW_MS) == OffsetRange(start=FromEnd(3), end=AtTime(9))
    assert parse_offsets([], NOW_MS) == OffsetRange(start=START, end=END)


@pytest.mark.parametrize("texts", [["1", "s@5"], ["1:2", "e@5"], ["beginning", "end"]])
def test_given_twice(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="given twice"):
        parse_offsets(texts, NOW_MS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", (100, 200)),
        ("end", (200, 200)),
        ("-5", (195, 200)),
        ("-500", (100, 200)),
        ("+5", (105, 200)),
        ("+500", (200, 200)),
        ("150", (150, 200)),
        ("7", (100, 200)),
        ("700", (200, 200)),
        ("7:120", (100, 120)),
        ("150:9999", (150, 200)),
        ("7:8", (100, 100)),
        ("s@1000", (130, 200)),
        ("s@9999", (200, 200)),
        ("e@1000", (100, 130)),
        ("e@9999", (100, 200)),
    ],
)
def test_resolved_within_the_log(text: str, expected: tuple[int, int]) -> None:
    known = {1000: 130}
    assert parse_offsets([text], NOW_MS).resolve(100, 200, known.get) == expected


def test_a_start_time_after_the_end_time_reads_nothing() -> None:
    """Timestamps need not ascend with offsets, so the later moment may stand first."""
    found = {5: 180, 9: 120}
    assert parse_offsets(["s@5", "e@9"], NOW_MS).resolve(100, 200, found.get) == (180, 180)


@given(st.text(alphabet="0123456789-+:@sehmd. TZ", max_size=24))
def test_anything_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_offsets([text], NOW_MS)
    except ValueError:
        return
    start, end = parsed.resolve(100, 200, lambda _: None)
    assert 100 <= start <= end <= 200

"""Which local segments may go: never one that is not in the tier."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.log.eligibility import Coverage, StableOffset, StableSource
from tierlog.log.log_dir import PartitionLog
from tierlog.log.names import Skipped, SkipReason
from tierlog.log.segment_files import SegmentFiles
from tierlog.tiering.local_log import LogView, TopicSettings
from tierlog.tiering.local_retention import LocalRetentionFacts, expired_local_segments

SIZES = (1000, 2000, 3000, 4000)
ALL = Coverage([(0, 299)])


def view(
    *,
    high_watermark: int | None = 1000,
    log_start_offset: int | None = 0,
    sizes: tuple[int, ...] = SIZES,
    **topic: Any,
) -> LogView:
    """Segments of 100 offsets each, the last one active."""
    segments = tuple(
        SegmentFiles(
            base_offset=100 * row,
            next_base_offset=None if row == len(sizes) - 1 else 100 * (row + 1),
            log_path=f"{100 * row:020d}.log",
            size_bytes=size_bytes,
        )
        for row, size_bytes in enumerate(sizes)
    )
    log = PartitionLog(
        topic="orders",
        partition=0,
        topic_id=None,
        directory="/nowhere",
        segments=segments,
        leader_epochs=None,
        log_start_offset=0,
        high_watermark=high_watermark,
    )
    return LogView(
        log=log,
        stable=StableOffset(value=high_watermark, source=StableSource.BROKER),
        log_start_offset=log_start_offset,
        topic=TopicSettings(**topic),
    )


FACTS = LocalRetentionFacts(
    view=view(local_retention_bytes=0),
    copied=ALL,
    now_ms=10_000,
    largest_timestamp_ms={0: 1_000, 100: 2_000, 200: 3_000},
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, [0, 100, 200]),
        ({"view": view()}, []),
        ({"copied": None}, []),
        ({"copied": Coverage()}, []),
        ({"copied": Coverage([(0, 198)])}, [0]),
        ({"copied": Coverage([(100, 299)])}, []),
        ({"view": view(local_retention_bytes=0, high_watermark=None)}, []),
        ({"view": view(local_retention_bytes=0, high_watermark=199)}, [0]),
        ({"view": view(local_retention_bytes=4000)}, [0, 100, 200]),
        ({"view": view(local_retention_bytes=4001)}, [0, 100]),
        ({"view": view(local_retention_bytes=9001)}, []),
        ({"view": view(local_retention_ms=8_000)}, [0]),
        ({"view": view(local_retention_ms=7_999)}, [0, 100]),
        ({"view": view(local_retention_ms=9_000)}, []),
        ({"view": view(local_retention_ms=0), "clock_trusted": False}, []),
        ({"view": view(local_retention_ms=0), "largest_timestamp_ms": {100: 0}}, []),
        # Below the log start nobody needs it, whether it was ever copied or not.
        ({"view": view(log_start_offset=200), "copied": Coverage()}, [0, 100]),
        ({"view": view(log_start_offset=199), "copied": Coverage()}, [0]),
        (
            {
                "view": view(log_start_offset=150, local_retention_bytes=0),
                "copied": Coverage([(150, 250)]),
            },
            [0, 100],
        ),
    ],
)
def test_cases(change: dict[str, Any], expected: list[int]) -> None:
    going = expired_local_segments(replace(FACTS, **change))
    assert [segment.base_offset for segment in going] == expected


@given(
    sizes=st.lists(st.integers(0, 5_000), min_size=1, max_size=6).map(tuple),
    covered=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600)), max_size=4),
    start=st.none() | st.integers(0, 700),
    high_watermark=st.none() | st.integers(0, 700),
    limit_bytes=st.none() | st.integers(0, 20_000),
    limit_ms=st.none() | st.integers(0, 20_000),
)
def test_what_goes_is_in_the_tier_committed_and_more_than_is_to_stay(
    sizes: tuple[int, ...],
    covered: list[tuple[int, int]],
    start: int | None,
    high_watermark: int | None,
    limit_bytes: int | None,
    limit_ms: int | None,
) -> None:
    known = replace(
        FACTS,
        view=view(
            sizes=sizes,
            high_watermark=high_watermark,
            log_start_offset=start,
            local_retention_bytes=limit_bytes,
            local_retention_ms=limit_ms,
        ),
        copied=Coverage(covered),
    )
    going = expired_local_segments(known)
    in_tier = {offset for first, last in covered for offset in range(first, last + 1)}
    segments = known.view.log.segments
    assert going == segments[: len(going)], "from the front, without a hole"
    left_bytes = sum(sizes)
    for segment in going:
        end = segment.next_base_offset
        assert end is not None, "never the active one"
        assert high_watermark is not None
        assert end <= high_watermark
        below_start = start is not None and end <= start
        assert below_start or set(range(max(segment.base_offset, start or 0), end)) <= in_tier
        left_bytes -= segment.size_bytes
        by_time = limit_ms is not None and (
            10_000 - known.largest_timestamp_ms.get(segment.base_offset, 10_000) > limit_ms
        )
        by_size = limit_bytes is not None and left_bytes >= limit_bytes
        assert below_start or by_time or by_size


def test_nothing_goes_while_a_file_of_the_log_cannot_be_read() -> None:
    """It may be an older segment that is in no tier: a host deletes all below an offset."""
    for reason, expected in ((SkipReason.UNREADABLE, []), (SkipReason.DELETED, [100, 200])):
        seen = view(local_retention_bytes=0)
        skipped = (Skipped(path="/nowhere/00000000000000000000.log", reason=reason),)
        log = replace(seen.log, segments=seen.log.segments[1:], skipped=skipped)
        facts = replace(FACTS, view=replace(seen, log=log))
        assert [one.base_offset for one in expired_local_segments(facts)] == expected

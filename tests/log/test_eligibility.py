"""Which segments may be copied: a table of cases, and what must hold for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.log.eligibility import (
    INTERNAL_TOPICS,
    CopyFacts,
    CopyLag,
    Coverage,
    Ineligible,
    StableOffset,
    StableSource,
    copy_facts,
    decide_segments,
    last_stable_offset,
)
from tierlog.log.log_dir import PartitionLog
from tierlog.log.segment_files import SegmentFiles

TOPIC_ID = "pVRw-_3fQ7mA1bqkRvT0EQ"


def segment(base: int, next_base: int | None, size_bytes: int = 1000) -> SegmentFiles:
    name = f"{base:020d}.log"
    return SegmentFiles(
        base_offset=base, next_base_offset=next_base, log_path=name, size_bytes=size_bytes
    )


SEGMENTS = (segment(0, 100), segment(100, 200), segment(200, 300), segment(300, None))


def stable(value: int | None) -> StableOffset:
    if value is None:
        return StableOffset(value=None, source=StableSource.UNKNOWN, why_unknown="nobody said")
    return StableOffset(value=value, source=StableSource.BROKER)


FACTS = CopyFacts(
    topic="orders",
    topic_id=TOPIC_ID,
    leader_epochs_known=True,
    stable=stable(1000),
    log_start_offset=0,
    compacted=False,
    copied=Coverage(),
)
R = Ineligible


def lag(lag_ms: int | None, lag_bytes: int | None, *written_ms: int) -> CopyLag:
    """At 10,000 ms, with segments at 0, 100 ... that were last written at the times given."""
    times = {100 * row: written for row, written in enumerate(written_ms)}
    return CopyLag(lag_ms=lag_ms, lag_bytes=lag_bytes, now_ms=10_000, largest_timestamp_ms=times)


# What differs from FACTS, and the reasons for the four segments (None: may be copied).
CASES: list[tuple[str, dict[str, Any], list[Ineligible | None]]] = [
    ("all that is rolled", {}, [None, None, None, R.ACTIVE]),
    (
        "stable up to a segment's end",
        {"stable": stable(200)},
        [None, None, R.NOT_STABLE, R.ACTIVE],
    ),
    (
        "one offset short of it",
        {"stable": stable(199)},
        [None, R.NOT_STABLE, R.NOT_STABLE, R.ACTIVE],
    ),
    ("nothing stable", {"stable": stable(0)}, [*[R.NOT_STABLE] * 3, R.ACTIVE]),
    ("not known", {"stable": stable(None)}, [*[R.STABLE_OFFSET_UNKNOWN] * 3, R.ACTIVE]),
    ("log start at a base", {"log_start_offset": 100}, [R.BELOW_LOG_START, None, None, R.ACTIVE]),
    ("log start inside", {"log_start_offset": 99}, [None, None, None, R.ACTIVE]),
    ("log start above all", {"log_start_offset": 300}, [*[R.BELOW_LOG_START] * 3, R.ACTIVE]),
    ("log start in the tier", {"log_start_offset": -1}, [None, None, None, R.ACTIVE]),
    ("log start not known", {"log_start_offset": None}, [R.LOG_START_UNKNOWN] * 4),
    ("one copied", {"copied": Coverage([(100, 199)])}, [None, R.COPIED, None, R.ACTIVE]),
    (
        "copied in pieces",
        {"copied": Coverage([(150, 250), (90, 149)])},
        [None, R.COPIED, None, R.ACTIVE],
    ),
    (
        "not wholly copied",
        {"copied": Coverage([(100, 198), (200, 299)])},
        [None, None, R.COPIED, R.ACTIVE],
    ),
    (
        "copied from the log start on",
        {"copied": Coverage([(150, 199)]), "log_start_offset": 150},
        [R.BELOW_LOG_START, R.COPIED, None, R.ACTIVE],
    ),
    (
        "copied, told also where nothing is stable",
        {"copied": Coverage([(0, 99)]), "stable": stable(None)},
        [R.COPIED, R.STABLE_OFFSET_UNKNOWN, R.STABLE_OFFSET_UNKNOWN, R.ACTIVE],
    ),
    ("metadata not loaded", {"copied": None}, [R.COPIES_UNKNOWN] * 4),
    ("compacted", {"compacted": True}, [R.COMPACTED] * 4),
    ("perhaps compacted", {"compacted": None}, [R.COMPACTION_UNKNOWN] * 4),
    (
        "compacted, told to",
        {"compacted": True, "include_compacted": True},
        [None, None, None, R.ACTIVE],
    ),
    ("internal", {"topic": "__consumer_offsets"}, [R.INTERNAL_TOPIC] * 4),
    (
        "internal, told to",
        {"topic": "__consumer_offsets", "include_internal": True},
        [None, None, None, R.ACTIVE],
    ),
    (
        "KRaft's log, even when told to",
        {"topic": "__cluster_metadata", "include_internal": True},
        [R.CLUSTER_METADATA] * 4,
    ),
    ("no topic id", {"topic_id": None}, [R.TOPIC_ID_UNKNOWN] * 4),
    ("no leader epochs", {"leader_epochs_known": False}, [R.LEADER_EPOCHS_UNKNOWN] * 4),
    ("swaps wait", {"pending_swaps": (100,)}, [R.SWAP_PENDING] * 4),
    ("led by another broker", {"led_by": 2}, [R.NOT_LEADER] * 4),
    ("no lag", {"lag": lag(0, None, 9999, 9999, 9999)}, [None, None, None, R.ACTIVE]),
    ("no lag in bytes", {"lag": lag(5000, 0, 9999, 9999, 9999)}, [None, None, None, R.ACTIVE]),
    (
        "held back until old enough, and all behind it",
        {"lag": lag(1000, None, 9000, 9001, 0)},
        [None, R.COPY_LAG, R.COPY_LAG, R.ACTIVE],
    ),
    (
        "times from the future hold nothing back",
        {"lag": lag(1000, None, 99_999, 99_999, 99_999)},
        [None, None, None, R.ACTIVE],
    ),
    (
        "held back until enough lies behind it",
        {"lag": lag(None, 2000)},
        [None, None, R.COPY_LAG, R.ACTIVE],
    ),
    (
        "whichever comes first",
        {"lag": lag(1000, 3000, 9999, 0, 9999)},
        [None, None, R.COPY_LAG, R.ACTIVE],
    ),
    (
        "neither ever",
        {"lag": lag(None, None, 0, 0, 0)},
        [R.COPY_LAG, R.COPY_LAG, R.COPY_LAG, R.ACTIVE],
    ),
]


@pytest.mark.parametrize(
    ("change", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_reasons(change: dict[str, Any], expected: list[Ineligible | None]) -> None:
    decisions = decide_segments(SEGMENTS, replace(FACTS, **change))
    assert [decision.reason for decision in decisions] == expected
    assert [decision.segment for decision in decisions] == list(SEGMENTS)
    assert all(bool(decision.text) != decision.eligible for decision in decisions)


def test_every_reason_has_a_case() -> None:
    told = {reason for _, _, reasons in CASES for reason in reasons if reason}
    # The sidecar's watch decides about unknown leaders and paused copies.
    assert told | {R.EMPTY, R.LEADER_UNKNOWN, R.COPY_DISABLED} == set(Ineligible)


def test_an_empty_rolled_segment() -> None:
    (decision,) = decide_segments([segment(0, 100, size_bytes=0)], FACTS)
    assert decision.reason is R.EMPTY


def test_texts_say_which_offsets() -> None:
    facts = replace(FACTS, stable=stable(150))
    texts = [decision.text for decision in decide_segments(SEGMENTS, facts)]
    assert texts[1] == (
        "last offset 199 is not below the last stable offset 150 (from the broker's answer)"
    )


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_internal_topics(topic: str) -> None:
    assert eligible_segments(SEGMENTS, replace(FACTS, topic=topic)) == ()


# broker, high watermark, transactions known, first open -> value, source
STABLE_CASES = [
    (500, 400, False, None, 500, StableSource.BROKER),
    (0, 400, True, None, 0, StableSource.BROKER),
    (-1, 400, True, None, 400, StableSource.CHECKPOINT),
    (None, 400, True, None, 400, StableSource.CHECKPOINT),
    (None, 400, True, 300, 300, StableSource.TRANSACTIONS),
    (None, 400, True, 400, 400, StableSource.CHECKPOINT),
    (None, 400, True, 0, 0, StableSource.TRANSACTIONS),
    (None, 0, True, None, 0, StableSource.CHECKPOINT),
    (None, None, True, None, None, StableSource.UNKNOWN),
    (None, -1, True, None, None, StableSource.UNKNOWN),
    (None, 400, False, None, None, StableSource.UNKNOWN),
    (None, 400, False, 300, None, StableSource.UNKNOWN),
]


@pytest.mark.parametrize(("broker", "high", "known", "first", "value", "source"), STABLE_CASES)
def test_last_stable_offset(
    broker: int | None,
    high: int | None,
    known: bool,
    first: int | None,
    value: int | None,
    source: StableSource,
) -> None:
    answer = last_stable_offset(
        broker_last_stable_offset=broker,
        high_watermark=high,
        transactions_known=known,
        first_open_transaction_offset=first,
    )
    assert (answer.value, answer.source) == (value, source)
    assert bool(answer.why_unknown) == (value is None)


def test_facts_of_a_listed_partition() -> None:
    log = PartitionLog(
        topic="orders",
        partition=0,
        topic_id=TOPIC_ID,
        directory="orders-0",
        segments=SEGMENTS,
        leader_epochs=LeaderEpochs((EpochEntry(0, 0),)),
        log_start_offset=0,
        high_watermark=None,
        compacted=True,
        pending_swaps=(),
    )
    assert copy_facts(log, stable(1000), copied=Coverage(), compacted=False) == FACTS
    assert copy_facts(log, stable(1000), copied=Coverage()) == replace(FACTS, compacted=True)
    unknown = replace(log, leader_epochs=None, compacted=None)
    facts = copy_facts(unknown, stable(1000), copied=None)
    assert (facts.leader_epochs_known, facts.compacted, facts.copied) == (False, None, None)
    empty = copy_facts(replace(log, leader_epochs=LeaderEpochs()), stable(1000), copied=Coverage())
    assert not empty.leader_epochs_known, "a log that has rolled has epochs"


offsets = st.integers(0, 60)


@st.composite
def logs(draw: st.DrawFn) -> tuple[SegmentFiles, ...]:
    bases = sorted(draw(st.sets(offsets, min_size=1, max_size=8)))
    ends = [*bases[1:], None]
    sizes = draw(st.lists(st.sampled_from([0, 10, 10]), min_size=len(bases), max_size=len(bases)))
    return tuple(
        segment(base, end, size) for base, end, size in zip(bases, ends, sizes, strict=True)
    )


ranges = st.lists(st.tuples(offsets, offsets).map(lambda pair: (min(pair), max(pair))), max_size=4)


@st.composite
def facts(draw: st.DrawFn) -> CopyFacts:
    return replace(
        FACTS,
        topic=draw(st.sampled_from(["orders", "orders", "orders", *sorted(INTERNAL_TOPICS)])),
        topic_id=draw(st.sampled_from([TOPIC_ID, TOPIC_ID, None])),
        leader_epochs_known=draw(st.sampled_from([True, True, False])),
        stable=stable(draw(st.none() | offsets)),
        log_start_offset=draw(st.none() | offsets),
        compacted=draw(st.sampled_from([False, False, True, None])),
        copied=draw(st.none() | ranges.map(Coverage)),
        pending_swaps=draw(st.sampled_from([(), (), (3,)])),
        include_internal=draw(st.booleans()),
        include_compacted=draw(st.booleans()),
    )


def eligible_segments(
    segments: Iterable[SegmentFiles], given_facts: CopyFacts
) -> tuple[SegmentFiles, ...]:
    return tuple(d.segment for d in decide_segments(segments, given_facts) if d.eligible)


def bases(segments: tuple[SegmentFiles, ...], given_facts: CopyFacts) -> set[int]:
    return {chosen.base_offset for chosen in eligible_segments(segments, given_facts)}


@given(logs(), facts())
def test_no_eligible_segment_reaches_what_is_not_stable(
    segments: tuple[SegmentFiles, ...], known: CopyFacts
) -> None:
    for chosen in eligible_segments(segments, known):
        assert chosen.next_base_offset is not None
        assert known.stable.value is not None
        assert chosen.next_base_offset <= known.stable.value
        assert known.log_start_offset is not None
        assert chosen.next_base_offset > known.log_start_offset
        assert chosen.size_bytes > 0
        assert known.copied is not None
        start = max(chosen.base_offset, known.log_start_offset)
        assert not all(known.copied.holds(at, at) for at in range(start, chosen.next_base_offset))


@given(logs(), facts(), offsets, offsets)
def test_more_stable_never_takes_a_segment_away(
    segments: tuple[SegmentFiles, ...], known: CopyFacts, first: int, second: int
) -> None:
    less = replace(known, stable=stable(min(first, second)))
    more = replace(known, stable=stable(max(first, second)))
    assert bases(segments, less) <= bases(segments, more)


@given(logs(), facts(), ranges, ranges, offsets, offsets)
def test_more_copied_or_deleted_never_adds_a_segment(
    segments: tuple[SegmentFiles, ...],
    known: CopyFacts,
    copied: list[tuple[int, int]],
    further: list[tuple[int, int]],
    first: int,
    second: int,
) -> None:
    before = replace(known, copied=Coverage(copied), log_start_offset=min(first, second))
    after = replace(before, copied=Coverage(copied + further), log_start_offset=max(first, second))
    assert bases(segments, after) <= bases(segments, before)


@given(logs(), facts())
def test_not_knowing_never_adds_a_segment(
    segments: tuple[SegmentFiles, ...], known: CopyFacts
) -> None:
    whole = bases(segments, known)
    for change in (
        {"stable": stable(None)},
        {"log_start_offset": None},
        {"copied": None},
        {"topic_id": None},
        {"leader_epochs_known": False},
    ):
        assert bases(segments, replace(known, **change)) == set()
    assert bases(segments, replace(known, compacted=None, include_compacted=False)) == set()
    assert bases(segments, replace(known, include_internal=True, include_compacted=True)) >= whole


@given(logs(), facts())
def test_decisions_are_the_same_one_by_one(
    segments: tuple[SegmentFiles, ...], known: CopyFacts
) -> None:
    together = decide_segments(segments, known)
    assert together == tuple(decide_segments([s], known)[0] for s in segments)


@given(ranges, offsets, offsets)
def test_coverage_is_the_set_of_its_offsets(
    covered: list[tuple[int, int]], first: int, last: int
) -> None:
    coverage = Coverage()
    offsets_covered: set[int] = set()
    for pair in covered:  # in the order given, not sorted
        coverage.add(*pair)
        offsets_covered |= set(range(pair[0], pair[1] + 1))
    assert coverage == Coverage(covered)
    assert coverage.highest == max(offsets_covered, default=None)
    if first <= last:
        assert coverage.holds(first, last) == set(range(first, last + 1)).issubset(offsets_covered)
    reached = coverage.reaches(first)
    assert (reached is None) == (first not in offsets_covered)
    if reached is not None:
        assert set(range(first, reached + 1)) <= offsets_covered
        assert reached + 1 not in offsets_covered

"""Retention against a log that is known record by record, and against Kafka's old mistakes.

The model holds every record with its size, time and epoch, so it can say what a deletion really
takes away. Each known bug is put back into a copy of the decision, and must be found out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.tiering.world import (
    COPIED_MS,
    NOW_MS,
    Record,
    World,
    copy_of,
    overlaps,
    st_world,
)
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.testing.segments import FINISHED
from tierlog.tiering import retention
from tierlog.tiering.retention import (
    DeleteReason,
    HeldBack,
    LocalSegment,
    RetentionFacts,
    RetentionPlan,
    decide_retention,
)

Decide = Callable[[RetentionFacts], RetentionPlan]


def check(world: World, decide: Decide) -> None:
    """Everything that must hold of a plan, in words of single records."""
    facts, plan = world.facts, decide(world.facts)
    assert facts.log_start_offset <= plan.log_start_offset <= facts.high_watermark
    deleted = {one.segment.segment_id.id for one in plan.deletions}
    check_log_start(world, plan)
    for one in facts.segments:
        name = one.segment_id.id
        if name in facts.being_copied:
            assert name not in deleted, "deletes what is being copied"
        elif one.state is not FINISHED:
            assert name in deleted, "leaves what was interrupted"
        elif one.end_offset < plan.log_start_offset:
            assert name in deleted, "leaks a segment below the log start offset"
        elif name in deleted:
            earliest = min(entry.epoch for entry in facts.lineage)
            assert one.leader_epochs[-1][0] < earliest, "deletes a segment that is still read"


def check_log_start(world: World, plan: RetentionPlan) -> None:
    """The log start offset moved as far as a rule says, and no further."""
    facts = world.facts
    gone = [
        world.records[offset]
        for offset in world.held(facts.log_start_offset)
        if offset < plan.log_start_offset
    ]
    cutoff_ms = NOW_MS - facts.retention_ms if facts.retention_ms is not None else -1
    by_time = facts.clock_trusted and all(one.timestamp_ms < cutoff_ms for one in gone)
    known = facts.retention_bytes is not None and facts.highest_remote_offset is not None
    left = world.size_bytes(plan.log_start_offset)
    by_size = known and left >= (facts.retention_bytes or 0)
    assert plan.log_start_offset == facts.log_start_offset or by_time or by_size, "too much"
    if plan.size_bytes is not None:
        assert plan.size_bytes <= world.size_bytes(facts.log_start_offset), "counts too much"
    first = first_served(world, plan.log_start_offset)
    if first is None or first.end_offset >= facts.high_watermark:
        return
    too_old = facts.retention_ms is not None and first.max_timestamp_ms < cutoff_ms
    assert not (too_old and facts.clock_trusted), "keeps a segment that is too old"
    if known and not overlaps(facts):
        left = world.size_bytes(first.end_offset + 1)
        assert left < (facts.retention_bytes or 0), "keeps more than it must"


def first_served(world: World, start_offset: int) -> RemoteLogSegmentMetadata | None:
    """The finished copy that a reader at the start of the log would need first."""
    served = [
        one
        for one in world.facts.segments
        if one.state is FINISHED
        and one.end_offset >= start_offset
        and one.leader_epochs[0][0] % 2 == 0
    ]
    return min(served, key=lambda one: (one.start_offset, one.end_offset), default=None)


@given(st_world())
@settings(max_examples=600)
def test_retention_takes_what_it_must_and_nothing_else(world: World) -> None:
    check(world, decide_retention)


MISTAKES = {
    "KAFKA-20732: nothing known to be remote counts as nothing remote": (
        "if highest_remote_offset is None or local_segments is None:\n        return None",
        "highest_remote_offset = -1 if highest_remote_offset is None else highest_remote_offset",
    ),
    "KAFKA-15479: a segment counts once for each of its epochs": (
        "return segment.segment_size_bytes",
        "return segment.segment_size_bytes * len(segment.leader_epochs)",
    ),
    "KAFKA-17062: uploads that failed count": (
        "if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:",
        "if segment.state is RemoteLogSegmentState.DELETE_SEGMENT_STARTED:",
    ),
    "KAFKA-16511, KAFKA-16890: overlapping segments below the log start stay": (
        "if segment.end_offset < start_offset:",
        "if segment.end_offset < start_offset and ranges_in_lineage(segment, facts.lineage):",
    ),
    "a clock that jumped is believed": ("if facts.clock_trusted:", "if True:"),
    "overlapping segments count twice": (
        "self._heaviest[max(after, row + 1)]",
        "self._heaviest[row + 1]",
    ),
    "what this process is copying is deleted": (
        "if reason is not None and segment.segment_id.id not in facts.being_copied:",
        "if reason is not None:",
    ),
    "the log start offset passes the high watermark": (
        "min(max(by_time, by_size), facts.high_watermark)",
        "max(by_time, by_size)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_known_mistake_is_found(mistake: str) -> None:
    right, wrong = MISTAKES[mistake]
    source = Path(retention.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1
    module = ModuleType("mistaken_retention")
    sys.modules[module.__name__] = module
    try:
        exec(compile(source.replace(right, wrong), mistake, "exec"), module.__dict__)

        @given(st_world())
        @settings(
            max_examples=3_000,
            phases=[Phase.generate],
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        def caught(world: World) -> None:
            check(world, module.decide_retention)

        with pytest.raises((AssertionError, ExceptionGroup)):
            caught()
    finally:
        del sys.modules[module.__name__]


# -- single cases, in plain numbers

TEN = tuple(Record(0, 10, timestamp_ms) for timestamp_ms in range(100, 110))


def facts_of(*segments: RemoteLogSegmentMetadata, **fields: Any) -> RetentionFacts:
    values: dict[str, Any] = {
        "segments": segments,
        "lineage": LeaderEpochs((EpochEntry(0, 0),)),
        "leader_epoch": 0,
        "log_start_offset": 0,
        "high_watermark": 100,
        "highest_remote_offset": 9,
        "local_segments": (LocalSegment(base_offset=10, size_bytes=7),),
        "now_ms": NOW_MS,
        "retention_ms": None,
        "retention_bytes": None,
        **fields,
    }
    return RetentionFacts(**values)


HALVES = (copy_of(TEN, "low", 0, 4), copy_of(TEN, "high", 5, 9))


@pytest.mark.parametrize(
    ("retention_bytes", "start_offset"),
    [(58, 0), (57, 5), (8, 5), (7, 10), (0, 10)],
)
def test_size_retention_never_leaves_less_than_its_limit(
    retention_bytes: int, start_offset: int
) -> None:
    plan = decide_retention(facts_of(*HALVES, retention_bytes=retention_bytes))
    assert plan.log_start_offset == start_offset
    assert plan.size_bytes == 107
    assert {one.reason for one in plan.deletions} <= {DeleteReason.RETENTION_SIZE}


def test_time_retention_ends_at_the_first_segment_with_a_young_record() -> None:
    plan = decide_retention(facts_of(*HALVES, retention_ms=NOW_MS - 105))
    assert plan.log_start_offset == 5
    assert [one.reason for one in plan.deletions] == [DeleteReason.RETENTION_TIME]


@pytest.mark.parametrize("timestamp_ms", [-1, -(2**63), COPIED_MS + 1, 2**63 - 1])
def test_a_segment_whose_times_mean_nothing_is_as_old_as_its_copy(timestamp_ms: int) -> None:
    strange = replace(HALVES[0], max_timestamp_ms=timestamp_ms)
    kept = decide_retention(facts_of(strange, retention_ms=NOW_MS - COPIED_MS))
    assert kept.deletions == ()
    gone = decide_retention(facts_of(strange, retention_ms=NOW_MS - COPIED_MS - 1))
    assert [one.segment for one in gone.deletions] == [strange]


def test_ten_years_forward_delete_nothing_while_the_clock_is_suspect() -> None:
    ten_years_ms = 10 * 365 * 86_400_000
    facts = facts_of(*HALVES, retention_ms=1_000, now_ms=NOW_MS + ten_years_ms)
    assert len(decide_retention(facts).deletions) == 2
    plan = decide_retention(replace(facts, clock_trusted=False))
    assert (plan.deletions, plan.held_back) == ((), (HeldBack.CLOCK_SUSPECT,))
    past = decide_retention(replace(facts, now_ms=NOW_MS - ten_years_ms))
    assert past.deletions == ()


def test_unknown_is_not_empty() -> None:
    for unknown in ({"highest_remote_offset": None}, {"local_segments": None}):
        plan = decide_retention(facts_of(*HALVES, retention_bytes=0, **unknown))
        assert (plan.deletions, plan.size_bytes) == ((), None)
        assert plan.held_back == (HeldBack.SIZE_UNKNOWN,)


def test_a_deposed_leader_deletes_nothing() -> None:
    newer = copy_of((*TEN, Record(4, 10, 110)), "newer", 5, 10)
    plan = decide_retention(facts_of(HALVES[0], newer, retention_bytes=0, retention_ms=0))
    assert (plan.deletions, plan.held_back) == ((), (HeldBack.DEPOSED,))
    assert plan.log_start_offset == 0


def test_segments_of_epochs_below_the_lineage_go() -> None:
    lineage = LeaderEpochs((EpochEntry(2, 0),))
    plan = decide_retention(facts_of(HALVES[1], lineage=lineage, leader_epoch=2))
    assert [one.reason for one in plan.deletions] == [DeleteReason.UNREFERENCED_EPOCHS]


def test_size_counts_only_what_somebody_counted_where_the_lineage_cuts() -> None:
    records = (*TEN[:5], *(Record(3, 10, 200) for _ in range(5)))
    cut = copy_of(records, "cut", 0, 9)
    lineage = LeaderEpochs((EpochEntry(0, 0), EpochEntry(4, 5)))
    known = facts_of(cut, lineage=lineage, leader_epoch=4, retention_bytes=1_000)
    assert decide_retention(known).size_bytes == 57
    uncounted = replace(known, segments=(replace(cut, bytes_per_epoch=None),))
    assert decide_retention(uncounted).size_bytes == 7

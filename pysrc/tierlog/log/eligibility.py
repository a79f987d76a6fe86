"""Decides which segments may be copied to the remote tier, and why other segments may not.

A segment may be copied when it is rolled and all its offsets lie below the last stable offset. Then
every record is committed, no transaction in the segment is open, and no truncation can follow. The
last stable offset is the broker's answer if there is one. Otherwise it is computed from the
checkpointed high watermark and the open transactions in the log. The checkpoint may be behind the
real high watermark, but never ahead of it.

All functions are pure. If a fact is unknown, the segment is not eligible, with a reason that names
the fact.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from tierlog.log.log_dir import CLUSTER_METADATA_TOPIC, PartitionLog
from tierlog.log.segment_files import SegmentFiles

__all__ = [
    "INTERNAL_TOPICS",
    "CopyFacts",
    "Coverage",
    "Decision",
    "Ineligible",
    "StableOffset",
    "StableSource",
    "copy_facts",
    "decide_segments",
    "gap_start_offset",
    "last_stable_offset",
]

INTERNAL_TOPICS = frozenset(
    {
        "__consumer_offsets",
        "__transaction_state",
        "__share_group_state",
        "__remote_log_metadata",
        CLUSTER_METADATA_TOPIC,
    }
)


class StableSource(StrEnum):
    """The source of a last stable offset."""

    BROKER = "the broker's answer"
    CHECKPOINT = "the high watermark checkpoint"
    TRANSACTIONS = "the first open transaction in the log"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class StableOffset:
    """A last stable offset (exclusive), or None with the reason why it is unknown."""

    value: int | None
    source: StableSource
    why_unknown: str = ""


def last_stable_offset(
    *,
    broker_last_stable_offset: int | None,
    high_watermark: int | None,
    transactions_known: bool,
    first_open_transaction_offset: int | None = None,
) -> StableOffset:
    """Return the last stable offset. Every transaction below it has ended.

    ``broker_last_stable_offset`` is the answer to ListOffsets (latest, read committed) of the
    broker that owns the log and leads the partition; None or negative if there is no answer. The
    other arguments are used only without an answer: ``high_watermark`` is the checkpointed high
    watermark, and ``first_open_transaction_offset`` is that of the log up to it (None: no open
    transaction). ``transactions_known`` says whether the whole log up to the high watermark was
    read without a finding.
    """
    if broker_last_stable_offset is not None and broker_last_stable_offset >= 0:
        return StableOffset(value=broker_last_stable_offset, source=StableSource.BROKER)
    if high_watermark is None or high_watermark < 0:
        why = "no broker answered and no checkpoint has a high watermark"
        return StableOffset(value=None, source=StableSource.UNKNOWN, why_unknown=why)
    if not transactions_known:
        why = "no broker answered and the log could not be searched for open transactions"
        return StableOffset(value=None, source=StableSource.UNKNOWN, why_unknown=why)
    first_open = first_open_transaction_offset
    if first_open is not None and first_open < high_watermark:
        return StableOffset(value=first_open, source=StableSource.TRANSACTIONS)
    return StableOffset(value=high_watermark, source=StableSource.CHECKPOINT)


class Ineligible(StrEnum):
    """Why a segment may not be copied."""

    NOT_LEADER = "not_leader"
    LEADER_UNKNOWN = "leader_unknown"
    CLUSTER_METADATA = "cluster_metadata"
    INTERNAL_TOPIC = "internal_topic"
    COMPACTED = "compacted"
    COMPACTION_UNKNOWN = "compaction_unknown"
    TOPIC_ID_UNKNOWN = "topic_id_unknown"
    LEADER_EPOCHS_UNKNOWN = "leader_epochs_unknown"
    SWAP_PENDING = "swap_pending"
    ACTIVE = "active"
    EMPTY = "empty"
    LOG_START_UNKNOWN = "log_start_unknown"
    BELOW_LOG_START = "below_log_start"
    COPIES_UNKNOWN = "copies_unknown"
    COPIED = "copied"
    STABLE_OFFSET_UNKNOWN = "stable_offset_unknown"
    NOT_STABLE = "not_stable"
    COPY_LAG = "copy_lag"
    COPY_DISABLED = "copy_disabled"


class Coverage:
    """A set of offsets, stored as (first, last) pairs. Not for concurrent use."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for first, last in sorted(ranges):
            if first > last:
                continue
            if self._ends and first <= self._ends[-1] + 1:
                self._ends[-1] = max(last, self._ends[-1])
            else:
                self._starts.append(first)
                self._ends.append(last)

    def __repr__(self) -> str:
        return f"Coverage({list(zip(self._starts, self._ends, strict=True))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Coverage):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment]  # it changes

    def add(self, first: int, last: int) -> None:
        """Add the offsets ``first`` to ``last``. Adds none when ``last`` is below ``first``."""
        if first > last:
            return
        # The new pair replaces every pair that it touches.
        begin = bisect_left(self._ends, first - 1)
        end = bisect_right(self._starts, last + 1)
        if begin < end:
            first = min(first, self._starts[begin])
            last = max(last, self._ends[end - 1])
        self._starts[begin:end] = [first]
        self._ends[begin:end] = [last]

    def holds(self, first: int, last: int) -> bool:
        """Return whether every offset from ``first`` to ``last`` is covered."""
        end = self.reaches(first)
        return end is not None and end >= last

    def reaches(self, first: int) -> int | None:
        """Return the last offset of the covered offsets that follow ``first`` without a gap; None
        when ``first`` is not covered."""
        index = bisect_right(self._starts, first) - 1
        if index < 0 or self._ends[index] < first:
            return None
        return self._ends[index]

    @property
    def highest(self) -> int | None:
        """The highest covered offset; None if no offset is covered."""
        return self._ends[-1] if self._ends else None

    def highest_below(self, offset: int) -> int | None:
        """Return the highest covered offset below `offset`; None if there is none."""
        index = bisect_left(self._starts, offset) - 1
        return None if index < 0 else min(self._ends[index], offset - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLag:
    """The copy lag (KIP-1241). A segment is copied when it is ``lag_ms`` old or when ``lag_bytes``
    of the log follow it. None disables the condition.

    ``largest_timestamp_ms`` has the largest timestamp of each segment, by base offset. A segment
    without an entry counts as old.
    """

    lag_ms: int | None
    lag_bytes: int | None
    now_ms: int
    largest_timestamp_ms: Mapping[int, int]

    def holds(self, segment: SegmentFiles, following_bytes: int) -> bool:
        """Return whether the lag still holds ``segment`` back, if ``following_bytes`` of the log
        follow it."""
        if self.lag_ms == 0 or self.lag_bytes == 0:
            return False
        if self.lag_ms is not None:
            written_ms = self.largest_timestamp_ms.get(segment.base_offset, -1)
            # As in Kafka, a segment with a timestamp in the future has no age.
            if not 0 <= self.now_ms - written_ms < self.lag_ms:
                return False
        return self.lag_bytes is None or following_bytes < self.lag_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """The facts about a partition for `decide_segments`. None always means unknown.

    ``copied`` has the offsets of the finished remote segments of this topic id that lie in this
    log's lineage; None while the metadata is not loaded. ``pending_swaps`` has the base offsets of
    unfinished cleaner output. ``led_by`` is the broker that leads the partition if it is not the
    broker that owns this log.
    """

    topic: str
    topic_id: str | None
    leader_epochs_known: bool
    stable: StableOffset
    log_start_offset: int | None
    compacted: bool | None
    copied: Coverage | None
    pending_swaps: Sequence[int] = ()
    led_by: int | None = None
    include_internal: bool = False
    include_compacted: bool = False
    lag: CopyLag | None = None


def copy_facts(
    log: PartitionLog,
    stable: StableOffset,
    *,
    copied: Coverage | None,
    compacted: bool | None = None,
    led_by: int | None = None,
    include_internal: bool = False,
    include_compacted: bool = False,
    lag: CopyLag | None = None,
    log_start_offset: int | None = None,
) -> CopyFacts:
    """Return the facts of a listed partition. If ``compacted`` is None, the log directory says
    whether the topic is compacted.

    ``log_start_offset`` is the start of the whole log, which may be above the start in the log
    directory.
    """
    lineage = log.lineage
    known_start = log.log_start_offset
    if known_start is not None and log_start_offset is not None:
        known_start = max(known_start, log_start_offset)
    return CopyFacts(
        topic=log.topic,
        topic_id=log.archive_id,
        # A log with several segments must have epochs.
        leader_epochs_known=lineage is not None and (bool(lineage) or len(log.segments) < 2),
        stable=stable,
        log_start_offset=known_start,
        compacted=log.compacted if compacted is None else compacted,
        copied=copied,
        pending_swaps=log.pending_swaps,
        led_by=led_by,
        include_internal=include_internal,
        include_compacted=include_compacted,
        lag=lag,
    )


class Decision(NamedTuple):
    """The decision about one segment. ``reason`` is None when the segment may be copied. ``text``
    explains a refusal."""

    segment: SegmentFiles
    reason: Ineligible | None
    text: str = ""

    @property
    def eligible(self) -> bool:
        """Whether the segment may be copied now."""
        return self.reason is None


def decide_segments(segments: Iterable[SegmentFiles], facts: CopyFacts) -> tuple[Decision, ...]:
    """Return one decision per segment, in the given order. A refusal has the first reason that
    applies."""
    whole = _partition_reason(facts)
    covered = facts.copied or Coverage()
    decisions: list[Decision] = []
    for segment in segments:
        reason = whole or _segment_reason(segment, facts, covered)
        decisions.append(Decision(segment, *reason) if reason else Decision(segment, None))
    if facts.lag is not None:
        _hold_back(decisions, facts.lag)
    return tuple(decisions)


def _hold_back(decisions: list[Decision], lag: CopyLag) -> None:
    """Hold back the first segment that the copy lag holds back, and all segments after it, so that
    copies keep their order."""
    following_bytes = sum(decision.segment.size_bytes for decision in decisions)
    held = False
    for row, decision in enumerate(decisions):
        segment = decision.segment
        following_bytes -= segment.size_bytes
        if not decision.eligible:
            continue
        held = held or lag.holds(segment, following_bytes)
        if held:
            text = "held back: not old enough, and too few bytes of log follow it (remote.copy.lag)"
            decisions[row] = Decision(segment=segment, reason=Ineligible.COPY_LAG, text=text)


def gap_start_offset(
    segment: SegmentFiles, log: PartitionLog, copied: Coverage | None
) -> int | None:
    """Return the first offset of the gap right before `segment` if its offsets were deleted before
    their copy; otherwise None.

    Retention or DeleteRecords deleted such offsets, or compaction left an empty segment. If a
    segment still has bytes, for example a damaged one, its offsets are not deleted.
    """
    before = None if copied is None else copied.highest_below(segment.base_offset)
    if before is None or before + 1 == segment.base_offset or log.log_start_offset is None:
        return None
    offset = max(before + 1, log.log_start_offset, log.segments[0].base_offset)
    for one in log.segments:
        if one.size_bytes == 0 and one.base_offset <= offset and one.next_base_offset is not None:
            offset = max(offset, one.next_base_offset)
    return before + 1 if offset >= segment.base_offset else None


def _partition_reason(facts: CopyFacts) -> tuple[Ineligible, str] | None:
    if facts.led_by is not None:
        return Ineligible.NOT_LEADER, f"broker {facts.led_by} leads this partition and tiers it"
    if facts.topic == CLUSTER_METADATA_TOPIC:
        return Ineligible.CLUSTER_METADATA, "KRaft's own log is never tiered"
    if facts.topic in INTERNAL_TOPICS and not facts.include_internal:
        return Ineligible.INTERNAL_TOPIC, f"{facts.topic} is one of Kafka's internal topics"
    if facts.compacted and not facts.include_compacted:
        return Ineligible.COMPACTED, "compacted: the cleaner may still rewrite its segments"
    if facts.compacted is None and not facts.include_compacted:
        return Ineligible.COMPACTION_UNKNOWN, "cannot tell whether the topic is compacted"
    if facts.topic_id is None:
        return Ineligible.TOPIC_ID_UNKNOWN, "no topic id: partition.metadata is missing or damaged"
    if not facts.leader_epochs_known:
        return (
            Ineligible.LEADER_EPOCHS_UNKNOWN,
            "leader-epoch-checkpoint is missing, empty or damaged",
        )
    if facts.pending_swaps:
        bases = ", ".join(map(str, facts.pending_swaps))
        return Ineligible.SWAP_PENDING, f".swap files will replace segments (base offsets {bases})"
    if facts.copied is None:
        return (
            Ineligible.COPIES_UNKNOWN,
            "the metadata is not loaded: cannot tell which segments are copied already",
        )
    if facts.log_start_offset is None:
        return Ineligible.LOG_START_UNKNOWN, "log-start-offset-checkpoint is damaged"
    return None


def _segment_reason(
    segment: SegmentFiles, facts: CopyFacts, covered: Coverage
) -> tuple[Ineligible, str] | None:
    start = facts.log_start_offset or 0
    end = segment.next_base_offset
    if end is None:
        return Ineligible.ACTIVE, "the active segment: records are still appended to it"
    if segment.size_bytes == 0:
        return Ineligible.EMPTY, "empty: there is nothing to copy"
    if end <= start:
        return Ineligible.BELOW_LOG_START, f"deleted: all offsets lie below the log start {start}"
    if covered.holds(max(segment.base_offset, start), end - 1):
        return Ineligible.COPIED, "copied already"
    if facts.stable.value is None:
        return Ineligible.STABLE_OFFSET_UNKNOWN, facts.stable.why_unknown
    if end > facts.stable.value:
        text = (
            f"last offset {end - 1} is not below the last stable offset {facts.stable.value} "
            f"(from {facts.stable.source.value})"
        )
        return Ineligible.NOT_STABLE, text
    return None

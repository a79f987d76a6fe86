"""A log known record by record, for tests of retention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.testing.segments import DELETING, FINISHED, STARTED, segment
from tierlog.tiering.retention import (
    LocalSegment,
    RetentionFacts,
)

NOW_MS = 1_000


COPIED_MS = 900


LEADER_EPOCH = 9


@dataclass(frozen=True)
class Record:
    epoch: int
    size_bytes: int
    timestamp_ms: int


@dataclass(frozen=True)
class World:
    """The true log from offset 0, and what a leader knows of it."""

    records: tuple[Record, ...]
    facts: RetentionFacts

    def held(self, start_offset: int) -> set[int]:
        """The offsets from there on that are in the tier or on disk alone."""
        facts = self.facts
        remote = {
            offset
            for one in facts.segments
            if one.state is FINISHED
            for epoch, first, last in one.epoch_ranges()
            for offset in range(first, last + 1)
            if offset < len(self.records) and self.records[offset].epoch == epoch
        }
        copied_to = max(
            (one.end_offset for one in facts.segments if one.state is FINISHED), default=-1
        )
        bases = sorted(one.base_offset for one in facts.local_segments or ())
        local = {
            offset
            for base, after in zip(bases, [*bases[1:], len(self.records)], strict=True)
            if base > copied_to
            for offset in range(base, after)
        }
        return {offset for offset in remote | local if offset >= start_offset}

    def size_bytes(self, start_offset: int) -> int:
        return sum(self.records[offset].size_bytes for offset in self.held(start_offset))


def st_records() -> st.SearchStrategy[tuple[Record, ...]]:
    """5 to 30 records in up to four ascending epochs, times in any order."""
    rows = st.tuples(st.booleans(), st.integers(1, 9), st.integers(0, 800))

    def build(found: list[tuple[bool, int, int]]) -> tuple[Record, ...]:
        epoch = 0
        records: list[Record] = []
        for new_epoch, size_bytes, timestamp_ms in found:
            epoch = min(epoch + 2, 6) if new_epoch and records else epoch
            records.append(Record(epoch, size_bytes, timestamp_ms))
        return tuple(records)

    return st.lists(rows, min_size=5, max_size=30).map(build)


def lineage_of(records: tuple[Record, ...]) -> LeaderEpochs:
    starts: dict[int, int] = {}
    for offset, record in enumerate(records):
        starts.setdefault(record.epoch, offset)
    return LeaderEpochs(tuple(EpochEntry(*entry) for entry in starts.items()))


def copy_of(
    records: tuple[Record, ...], name: str, first: int, last: int, **fields: Any
) -> RemoteLogSegmentMetadata:
    """Those records as the segment that their leader copied."""
    sizes: dict[int, int] = {}
    for record in records[first : last + 1]:
        sizes[record.epoch] = sizes.get(record.epoch, 0) + record.size_bytes
    return segment(
        name,
        first,
        last,
        epochs=tuple(
            (e.epoch, e.start_offset) for e in lineage_of(records).clipped(first, last + 1)
        ),
        size_bytes=sum(sizes.values()),
        bytes_per_epoch=tuple(sizes.items()),
        max_timestamp_ms=max(record.timestamp_ms for record in records[first : last + 1]),
        **{"event_timestamp_ms": COPIED_MS, "state": FINISHED, **fields},
    )


@st.composite
def st_world(draw: st.DrawFn) -> World:
    records = draw(st_records())
    end = len(records)
    segments = []
    for number in range(draw(st.integers(0, 6))):
        first = draw(st.integers(0, end - 2))
        last = draw(st.integers(first, end - 2))
        state = draw(st.sampled_from([FINISHED, FINISHED, FINISHED, STARTED, DELETING]))
        segments.append(copy_of(records, f"copy {number}", first, last, state=state))
    for number in range(draw(st.integers(0, 2))):
        # A deposed leader's: epochs that this lineage does not know.
        first = draw(st.integers(0, end - 2))
        segments.append(
            segment(
                f"stray {number}",
                first,
                draw(st.integers(first, end - 2)),
                epochs=((draw(st.sampled_from([1, 3, 5])), first),),
                event_timestamp_ms=COPIED_MS,
                max_timestamp_ms=draw(st.integers(0, 800)),
                state=FINISHED,
            )
        )
    start = draw(st.integers(0, end - 1))
    bases = sorted({*draw(st.sets(st.integers(0, end - 1), max_size=5)), end - 1})
    finished = [one.end_offset for one in segments if one.state is FINISHED]
    lineage = lineage_of(records)
    facts = RetentionFacts(
        segments=tuple(draw(st.permutations(segments))),
        lineage=lineage.clipped(start, end) if draw(st.booleans()) else lineage,
        leader_epoch=LEADER_EPOCH,
        log_start_offset=start,
        high_watermark=draw(st.integers(start, end)),
        highest_remote_offset=draw(st.sampled_from([max(finished, default=-1)] * 4 + [None])),
        local_segments=tuple(
            LocalSegment(
                base_offset=base,
                size_bytes=sum(one.size_bytes for one in records[base:after]),
            )
            for base, after in zip(bases, [*bases[1:], end], strict=True)
        ),
        now_ms=NOW_MS,
        retention_ms=draw(st.sampled_from([None, 0, 300, 600, 2_000])),
        retention_bytes=draw(st.none() | st.integers(0, 120)),
        being_copied=frozenset(
            draw(st.sets(st.sampled_from([one.segment_id.id for one in segments])))
            if segments
            else ()
        ),
        clock_trusted=draw(st.sampled_from([True, True, True, False])),
    )
    return World(records, facts)


def overlaps(facts: RetentionFacts) -> bool:
    """Whether offsets lie in two copies, or in one that the log start offset cuts."""
    end = facts.log_start_offset - 1
    for one in sorted(facts.segments, key=lambda one: one.start_offset):
        if one.state is FINISHED and one.leader_epochs[0][0] % 2 == 0:
            if one.end_offset >= facts.log_start_offset and one.start_offset <= end:
                return True
            end = max(end, one.end_offset)
    return False

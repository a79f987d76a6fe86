"""Computes what retention would delete, and why, from a bucket and its metadata.

The decision is made by the same code as in the expiration task (`tierlog.tiering.retention`). A
bucket does not show the bytes that only the disk of a broker holds. So the log looks smaller here,
and the size rule deletes at most as much as on the leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.lineage import ranges_in_lineage
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.segment.layout import log_key
from tierlog.tiering.retention import Deletion, RetentionFacts, decide_retention
from tierlog.tools.audit.rows import (
    UNDER_WAY_MS,
    AuditedSegment,
    AuditRules,
    DeletionRow,
    RetentionRow,
)

__all__ = ["what_if"]

_LINEAGE_UNKNOWN = "the leader epochs are unknown: no segment describes them"


def what_if(
    rows: Sequence[AuditedSegment], lineage: LeaderEpochs | None, rules: AuditRules
) -> tuple[tuple[RetentionRow, ...], tuple[DeletionRow, ...]]:
    """Return what retention would do to one partition, and which segments it would delete. `rows`
    has all segments of the partition.

    Segments without metadata are left out. There is no result for a partition whose segments all
    lack metadata.
    """
    known = [row for row in rows if row.state is not None]
    if not known:
        return (), ()
    facts = _facts(known, lineage, rules)
    if facts is None:
        start = _log_start(known, rules)
        return (_row(known[0], start, start, None, (), (_LINEAGE_UNKNOWN,)),), ()
    plan = decide_retention(facts)
    deletions = tuple(_deletion(one) for one in plan.deletions)
    held_back = tuple(one.value for one in plan.held_back)
    start, after = facts.log_start_offset, plan.log_start_offset
    return (_row(known[0], start, after, plan.size_bytes, deletions, held_back),), deletions


def _facts(
    known: Sequence[AuditedSegment], lineage: LeaderEpochs | None, rules: AuditRules
) -> RetentionFacts | None:
    """Return the facts that the leader of the partition would know; None if the lineage is
    unknown."""
    if lineage is None:
        return None
    segments = [row.metadata() for row in known]
    ends = [
        last
        for segment in segments
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        for _, last in ranges_in_lineage(segment, lineage)
    ]
    highest = max(ends, default=-1)
    epochs = [segment.leader_epochs[-1][0] for segment in segments]
    return RetentionFacts(
        segments=segments,
        lineage=lineage,
        leader_epoch=max(lineage.entries[-1].epoch, *epochs),
        log_start_offset=_log_start(known, rules),
        # Only committed records are ever copied.
        high_watermark=highest + 1,
        highest_remote_offset=highest,
        local_segments=(),
        now_ms=rules.now_ms,
        retention_ms=rules.retention_ms,
        retention_bytes=rules.retention_bytes,
        being_copied=frozenset(
            segment.segment_id.id
            for segment in segments
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
            and rules.now_ms - segment.event_timestamp_ms < UNDER_WAY_MS
        ),
    )


def _log_start(known: Sequence[AuditedSegment], rules: AuditRules) -> int:
    if rules.log_start_offset is not None:
        return rules.log_start_offset
    told = [row.log_start_offset for row in known if row.log_start_offset is not None]
    return told[0] if told else min(row.base_offset for row in known)


def _row(
    segment: AuditedSegment,
    log_start_offset: int,
    new_log_start_offset: int,
    size_bytes: int | None,
    deletions: Sequence[DeletionRow],
    held_back: tuple[str, ...],
) -> RetentionRow:
    return RetentionRow(
        topic=segment.topic,
        partition=segment.partition,
        log_start_offset=log_start_offset,
        new_log_start_offset=new_log_start_offset,
        size_bytes=size_bytes,
        deleted_segments=len(deletions),
        deleted_bytes=sum(one.size_bytes for one in deletions),
        held_back=held_back,
        topic_id=segment.topic_id,
    )


def _deletion(deletion: Deletion) -> DeletionRow:
    segment = deletion.segment
    partition = segment.topic_id_partition
    return DeletionRow(
        topic=partition.topic,
        partition=partition.partition,
        base_offset=segment.start_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.segment_size_bytes,
        max_timestamp_ms=segment.max_timestamp_ms,
        reason=deletion.reason.value,
        path=log_key(segment),
        topic_id=partition.topic_id,
        segment_id=segment.segment_id.id,
    )

"""The facts that the expiration task reads from the metadata manager for its decision.

Usually these facts are the outline of the archive and its oldest segments. The time to read them
grows with the number of leader epochs and of expired segments, not with the archive (KIP-852).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tierlog.log.checkpoint import LeaderEpochs
from tierlog.log.eligibility import Coverage
from tierlog.remote.metadata.manager import ArchiveOutline, RemoteLogSegmentMetadata
from tierlog.tiering.deletion_guard import PlannedDeletion, planned_deletion
from tierlog.tiering.local_log import LogView
from tierlog.tiering.partition_work import PartitionWork
from tierlog.tiering.retention import LocalSegment, LogFacts, RetentionFacts, decide_retention
from tierlog.tiering.retention_outline import (
    OutlineFacts,
    facts_of_front,
    may_be_cut,
    take_front,
)

__all__ = [
    "Look",
    "facts_from_front",
    "facts_of_all",
    "look_at_archive",
    "plan_deletion",
    "plan_of",
    "remote_log_size",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The data that a run reads first.

    ``change``: the partition's `changes` before the run. ``near``: the finished segments that
    overlap the local log. ``copied``: the offsets of these segments. ``facts``: None while the log
    start offset or the high watermark is unknown.
    """

    change: int
    outline: ArchiveOutline
    remote_bytes: int
    near: Sequence[RemoteLogSegmentMetadata]
    copied: Coverage
    facts: OutlineFacts | None


def look_at_archive(work: PartitionWork, view: LogView, lineage: LeaderEpochs) -> Look:
    """Read the facts that do not take longer with more segments."""
    change = work.tier.metadata.changes(work.partition)
    outline, being_copied = work.outline()
    remote_bytes = remote_log_size(work, lineage, outline)
    local = view.log.segments
    near = work.tier.metadata.segments_from(work.partition, local[0].base_offset) if local else ()
    copied = work.copied_offsets(near, lineage)
    look = Look(
        change=change,
        outline=outline,
        remote_bytes=remote_bytes,
        near=near,
        copied=copied,
        facts=None,
    )
    facts = _outline_facts(work, view, look, being_copied)
    return replace(look, facts=facts)


def remote_log_size(work: PartitionWork, lineage: LeaderEpochs, outline: ArchiveOutline) -> int:
    """Return the bytes of finished segments in the epochs of the lineage."""
    size_of = work.tier.metadata.remote_log_size
    epochs = {entry.epoch for entry in lineage.entries}.intersection(outline.epochs)
    return sum(size_of(work.partition, epoch) for epoch in epochs)


def facts_from_front(work: PartitionWork, look: Look) -> RetentionFacts | None:
    """Read the segments that may have expired. Return None when all segments must be read, because
    some may have to be truncated first or the metadata has changed since `look`."""
    if look.facts is None or may_be_cut(look.facts):
        return None
    metadata = work.tier.metadata
    front = take_front(look.facts, metadata.segments_by_offset(work.partition))
    overlapping = metadata.overlapping_segments(work.partition)
    facts = replace(look.facts, being_copied=work.list_active_copies())
    if metadata.changes(work.partition) != look.change:
        return None
    return facts_of_front(facts, front, overlapping)


def facts_of_all(
    work: PartitionWork,
    view: LogView,
    segments: Sequence[RemoteLogSegmentMetadata],
    being_copied: frozenset[str],
    copied: Coverage,
) -> RetentionFacts | None:
    """Return the facts, with all segments. None while the log start offset or the high watermark is
    unknown."""
    facts = _log_facts(work, view, copied, being_copied)
    return None if facts is None else RetentionFacts.of(facts, segments=segments)


def plan_deletion(work: PartitionWork) -> PlannedDeletion | None:
    """Return which segments retention would delete now from a led partition; None if unknown."""
    view = work.log.view()
    if view is None or view.log.lineage is None or not work.tier.metadata.is_ready(work.partition):
        return None
    lineage = view.log.lineage
    facts = facts_from_front(work, look_at_archive(work, view, lineage))
    if facts is None:
        segments = work.tier.metadata.list(work.partition)
        copied = work.copied_offsets(segments, lineage)
        facts = facts_of_all(work, view, segments, frozenset(), copied)
    return None if facts is None else plan_of(work, facts)


def plan_of(work: PartitionWork, facts: RetentionFacts) -> PlannedDeletion:
    """Return what the retention rules would delete, including copies that have just ended."""
    outline = work.tier.metadata.outline(work.partition)
    size_of = work.tier.metadata.remote_log_size
    return planned_deletion(
        work.partition,
        outline.segment_count - len(outline.unfinished),
        sum(size_of(work.partition, epoch) for epoch in outline.epochs),
        decide_retention(replace(facts, being_copied=frozenset())),
    )


def _outline_facts(
    work: PartitionWork, view: LogView, look: Look, being_copied: frozenset[str]
) -> OutlineFacts | None:
    facts = _log_facts(work, view, look.copied, being_copied)
    if facts is None or not facts.lineage.entries:
        return None
    metadata, entries = work.tier.metadata, facts.lineage.entries
    highest_offsets = {
        epoch: metadata.highest_offset_for_epoch(work.partition, epoch)
        for epoch in look.outline.epochs
        if entries[0].epoch <= epoch < entries[-1].epoch
    }
    return OutlineFacts.of(
        facts,
        outline=look.outline,
        remote_bytes=look.remote_bytes,
        highest_offsets={
            epoch: offset for epoch, offset in highest_offsets.items() if offset is not None
        },
        unreferenced=_list_unreferenced(work, look.outline, entries[0].epoch),
    )


def _log_facts(
    work: PartitionWork, view: LogView, copied: Coverage, being_copied: frozenset[str]
) -> LogFacts | None:
    """Return the facts about the log; None while one of them is unknown."""
    lineage, start_offset = view.log.lineage, view.log_start_offset
    if start_offset is None or view.log.high_watermark is None or lineage is None:
        return None
    return LogFacts(
        lineage=lineage,
        leader_epoch=work.leader_epoch,
        log_start_offset=start_offset,
        high_watermark=max(view.log.high_watermark, view.stable.value or 0),
        highest_remote_offset=-1 if copied.highest is None else copied.highest,
        local_segments=[LocalSegment(one.base_offset, one.size_bytes) for one in view.log.segments],
        now_ms=work.tier.clock.now_ms(),
        retention_ms=view.topic.retention_ms,
        retention_bytes=view.topic.retention_bytes,
        being_copied=being_copied,
        clock_trusted=work.tier.clock_watch.jumped_ms() == 0,
    )


def _list_unreferenced(
    work: PartitionWork, outline: ArchiveOutline, earliest: int
) -> list[RemoteLogSegmentMetadata]:
    """Return the segments whose last epoch is older than the lineage."""
    return [
        one
        for epoch in outline.epochs
        if epoch < earliest
        for one in work.tier.metadata.list(work.partition, epoch)
        if one.leader_epochs[-1][0] < earliest
    ]

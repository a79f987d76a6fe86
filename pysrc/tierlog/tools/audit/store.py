"""Audits a store on one machine: lists the store, checks each segment, and checks each partition.

    audit = audit_store("s3://bucket/kafka", AuditRules(now_ms=..., retention_ms=...))

`audit_store` calls `plan_audit`, `look_at_segment` and `audit_partition` in threads.
`spark_udfs.audit` calls the same functions on a cluster. The results are equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tierlog.arguments import TEXT, having, instance_of, optional, takes
from tierlog.remote.parallel import PARALLEL_READS, map_in_parallel
from tierlog.remote.store.object_store import ObjectStore
from tierlog.remote.urls import open_store
from tierlog.tools.audit.partition import audit_partition
from tierlog.tools.audit.plan import plan_audit
from tierlog.tools.audit.rows import (
    AuditedSegment,
    AuditRules,
    DeletionRow,
    EpochSizeRow,
    RetentionRow,
)
from tierlog.tools.audit.segment import SegmentLook, SegmentTask, look_at_segment
from tierlog.tools.findings import Finding
from tierlog.tools.progress import Progress, QuietProgress

__all__ = ["StoreAudit", "audit_store", "look_at_segments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAudit:
    """The result of an audit.

    ``findings`` are ordered by object, position and kind. All other rows are ordered by folder and
    offset. The order does not depend on the threads.
    """

    url: str
    segments: tuple[AuditedSegment, ...]
    findings: tuple[Finding, ...]
    epoch_sizes: tuple[EpochSizeRow, ...]
    retention: tuple[RetentionRow, ...]
    deletions: tuple[DeletionRow, ...]


@takes(
    url=TEXT,
    rules=instance_of("AuditRules", AuditRules),
    metadata=optional(TEXT),
    progress=optional(having("a Progress", "start", "advance")),
)
def audit_store(
    url: str,
    rules: AuditRules,
    *,
    metadata: str | None = None,
    progress: Progress | None = None,
) -> StoreAudit:
    """Audit a store, and the metadata file `metadata` (a path or ``file:`` URL) against it.

    Changes nothing. Raises the errors of ``open_store`` and `plan_audit`, and an error when the
    store cannot be read. Damage is a finding.
    """
    watching = progress or QuietProgress()
    store = open_store(url)
    plan = plan_audit(store, now_ms=rules.now_ms, metadata=metadata)
    watching.start(plan.size_bytes)
    findings = list(plan.findings)
    folders: defaultdict[str, list[AuditedSegment]] = defaultdict(list)
    for task, look in look_at_segments(store, plan.tasks(), rules, cluster_id=plan.cluster_id):
        findings += look.findings
        if look.segment is not None:
            folders[look.folder].append(look.segment)
        watching.advance(task.size_bytes, look.folder)
    audits = [audit_partition(folders[folder], rules) for folder in sorted(folders)]
    findings += [found for audit in audits for found in audit.findings]
    return StoreAudit(
        url=store.url,
        segments=tuple(row for folder in sorted(folders) for row in folders[folder]),
        findings=tuple(sorted(findings, key=_by_object)),
        epoch_sizes=tuple(row for audit in audits for row in audit.epoch_sizes),
        retention=tuple(row for audit in audits for row in audit.retention),
        deletions=tuple(row for audit in audits for row in audit.deletions),
    )


def look_at_segments(
    store: ObjectStore,
    tasks: Iterable[SegmentTask],
    rules: AuditRules,
    *,
    cluster_id: str | None,
    parallel_reads: int = PARALLEL_READS,
) -> Iterator[tuple[SegmentTask, SegmentLook]]:
    """Yield each task with its result, in order. ``parallel_reads`` segments are read at a time."""

    def look(task: SegmentTask) -> tuple[SegmentTask, SegmentLook]:
        return task, look_at_segment(store, task, rules, cluster_id=cluster_id)

    return map_in_parallel(look, tasks, parallel_reads)


def _by_object(found: Finding) -> tuple[str, int, str, str]:
    return found.path, -1 if found.position is None else found.position, found.what, found.expected

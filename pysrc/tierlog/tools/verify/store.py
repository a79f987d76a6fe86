"""Checks a store. It reads and changes nothing.

It always checks the cluster marker; that `.log` and `.indexes` objects belong together; every
section's checksum; sizes; that the sections agree; that no offsets are missing between segments;
and that transactions and leader epochs continue from one to the next.
``deep`` reads every `.log` object: its checksum, batches and records, and the indexes against them.
``metadata`` is a file to compare the bucket with.

A store that does not answer is an error, not a finding.
"""

from __future__ import annotations

from tierlog.log.records import MAX_DECOMPRESSED_BYTES
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.findings import Report, Tally
from tierlog.tools.progress import Progress

__all__ = ["verify_store"]


def verify_store(
    url: str,
    *,
    now_ms: int,
    deep: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    metadata: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a store; return the findings of `audit_store` and the amount of data checked.

    ``now_ms`` separates active copies from abandoned ones.
    """
    rules = AuditRules(now_ms=now_ms, deep=deep, max_decompressed_bytes=max_decompressed_bytes)
    audit = audit_store(url, rules, metadata=metadata, progress=progress)
    tally = Tally(findings=list(audit.findings))
    stored = [row for row in audit.segments if row.stored]
    tally.partitions = len({row.folder for row in stored})
    for row in stored:
        tally.add_segment(row.size_bytes)
        tally.batches += row.batches or 0
        tally.records += row.records or 0
    return tally.report(audit.url, deep=deep)

"""Checks a log directory or a store. A check reads everything and changes nothing.

In a store, a check always covers

* the cluster marker, the sizes of objects and the checksum of every section;
* that each `.log` object has its `.indexes` object, and that the sections agree;
* that no offsets are missing between segments;
* that transactions and leader epochs continue from one segment to the next.

With ``deep``, a check also reads every `.log` object. It then checks the checksum of the object,
the batches and the records, and compares the indexes with the batches. ``metadata`` is a metadata
file with which the bucket is compared.

If the store does not answer, the check raises an error and adds no finding.
"""

from __future__ import annotations

from tierlog.errors import ConfigError
from tierlog.log.files import printable
from tierlog.log.records import MAX_DECOMPRESSED_BYTES
from tierlog.reader.sources import Source
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import audit_store
from tierlog.tools.findings import Report, Tally
from tierlog.tools.progress import Progress
from tierlog.tools.verify.log_dir import verify_log_dir

__all__ = ["verify", "verify_store"]


def verify(
    source: Source,
    *,
    now_ms: int,
    deep: bool = False,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
    metadata: str | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a log directory or a store; see `verify_log_dir` and `verify_store`.

    Damage is a finding. Raises an error only when the source cannot be opened. Raises ConfigError
    if ``metadata`` is given for a log directory, which has no metadata.
    """
    if source.is_store:
        return verify_store(
            source.location,
            now_ms=now_ms,
            deep=deep,
            max_decompressed_bytes=max_decompressed_bytes,
            metadata=metadata,
            progress=progress,
        )
    if metadata is not None:
        raise ConfigError(
            f"{printable(source.location)}: a log directory has no remote metadata; give the URL "
            "of the store that the metadata describes"
        )
    return verify_log_dir(
        source.location,
        deep=deep,
        max_decompressed_bytes=max_decompressed_bytes,
        progress=progress,
    )


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

    ``now_ms`` is the current time, which decides whether an unfinished copy is active or abandoned.
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

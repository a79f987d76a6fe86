"""Makes Arrow tables of the report of a rebuild, and its two Parquet files.

``segments.parquet`` has a row for each segment with its findings (``SEGMENTS``).
``findings.parquet`` has a row for every finding (``FINDINGS``), also for those about no segment.
The same report makes the same bytes. Needs pyarrow (the extra ``arrow``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq

from tierlog.tools.findings import Finding
from tierlog.tools.rebuild.index import RebuildReport
from tierlog.tools.rebuild.segment import SegmentOutcome

__all__ = [
    "FINDINGS",
    "FINDINGS_FILE",
    "SEGMENTS",
    "SEGMENTS_FILE",
    "finding_table",
    "report_outcomes",
    "segment_table",
    "write_report",
]

SEGMENTS_FILE = "segments.parquet"
FINDINGS_FILE = "findings.parquet"

_FINDING_TYPES = {
    "severity": pa.string(),
    "path": pa.string(),
    "position": pa.int64(),
    "what": pa.string(),
    "expected": pa.string(),
    "found": pa.string(),
    "action": pa.string(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "first_offset": pa.int64(),
    "last_offset": pa.int64(),
}
_EPOCH = pa.struct({"leader_epoch": pa.int32(), "size_bytes": pa.int64()})

# The fields of `Finding`.
FINDINGS = pa.schema(_FINDING_TYPES)
# The fields of `SegmentRow`; ``findings`` has the whole findings in place of their kinds.
SEGMENTS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "base_offset": pa.int64(),
        "end_offset": pa.int64(),
        "size_bytes": pa.int64(),
        "batches": pa.int64(),
        "records": pa.int64(),
        "first_timestamp_ms": pa.int64(),
        "max_timestamp_ms": pa.int64(),
        "crc": pa.string(),
        "codecs": pa.list_(pa.string()),
        "outcome": pa.string(),
        "bytes_per_epoch": pa.list_(_EPOCH),
        "log_crc32c": pa.int64(),
        "path": pa.string(),
        "findings": pa.list_(pa.struct(_FINDING_TYPES)),
    }
)
_FINDING_NAMES = tuple(one.name for one in fields(Finding))


def segment_table(outcomes: Iterable[SegmentOutcome]) -> pa.Table:
    """Return ``SEGMENTS`` with one row for each outcome, in their order."""
    found = list(outcomes)
    columns = {name: [getattr(one.row, name) for one in found] for name in SEGMENTS.names}
    columns["findings"] = [[_values(each) for each in one.findings] for one in found]
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in SEGMENTS], schema=SEGMENTS
    )


def finding_table(findings: Iterable[Finding]) -> pa.Table:
    """Return ``FINDINGS`` with one row for each finding, in their order."""
    rows = [_values(one) for one in findings]
    return pa.Table.from_pylist(rows, FINDINGS)


def report_outcomes(report: RebuildReport) -> Iterator[SegmentOutcome]:
    """Return the outcomes that a report was made from, in its order."""
    # The findings of segments come last, in the order of the rows; each row has a word for each.
    first = len(report.findings) - sum(len(row.findings) for row in report.segments)
    for row in report.segments:
        end = first + len(row.findings)
        yield SegmentOutcome(row=row, findings=report.findings[first:end])
        first = end


def write_report(folder: str, segments: pa.Table, findings: pa.Table) -> None:
    """Write both files and replace those of an earlier run. Each file is whole or absent."""
    os.makedirs(folder, exist_ok=True)
    for name, table in ((SEGMENTS_FILE, segments), (FINDINGS_FILE, findings)):
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as file:
            try:
                pq.write_table(table, file, compression="zstd")
                os.replace(file.name, os.path.join(folder, name))
            except BaseException:
                os.unlink(file.name)
                raise


def _values(found: Finding) -> dict[str, object]:
    return {name: getattr(found, name) for name in _FINDING_NAMES}

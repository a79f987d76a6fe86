"""Converts the report of a rebuild to Arrow tables, and writes its two Parquet files.

``segments.parquet`` has a row for each segment, with its findings (``SEGMENTS``).
``findings.parquet`` has a row for every finding (``FINDINGS``), also for findings that belong to no
segment. The files of equal reports have equal bytes. Needs pyarrow (the extra ``arrow``).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from tierlog.tools.arrow_rows import row_schema, row_table, row_values
from tierlog.tools.findings import Finding
from tierlog.tools.rebuild.index import RebuildReport
from tierlog.tools.rebuild.segment import SegmentOutcome, SegmentRow

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

_EPOCH = pa.struct({"leader_epoch": pa.int32(), "size_bytes": pa.int64()})

# The fields of `Finding`.
FINDINGS = row_schema(Finding)
# The fields of `SegmentRow`, but ``findings`` has every field of the findings, not only the kind.
SEGMENTS = row_schema(
    SegmentRow,
    bytes_per_epoch=pa.list_(_EPOCH),
    findings=pa.list_(pa.struct(list(FINDINGS))),
)


def segment_table(outcomes: Iterable[SegmentOutcome]) -> pa.Table:
    """Return ``SEGMENTS`` with one row for each outcome, in their order."""
    found = list(outcomes)
    columns = {name: [getattr(one.row, name) for one in found] for name in SEGMENTS.names}
    columns["findings"] = [row_values(one.findings, FINDINGS) for one in found]
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in SEGMENTS], schema=SEGMENTS
    )


def finding_table(findings: Iterable[Finding]) -> pa.Table:
    """Return ``FINDINGS`` with one row for each finding, in their order."""
    return row_table(findings, FINDINGS)


def report_outcomes(report: RebuildReport) -> Iterator[SegmentOutcome]:
    """Return the outcomes from which a report was made, in the order of the report."""
    # In the report, the findings of segments come last, in the order of the rows. The row of a
    # segment has one word for each of its findings.
    first = len(report.findings) - sum(len(row.findings) for row in report.segments)
    for row in report.segments:
        end = first + len(row.findings)
        yield SegmentOutcome(row=row, findings=report.findings[first:end])
        first = end


def write_report(folder: str, segments: pa.Table, findings: pa.Table) -> None:
    """Write both files, which replace the files of an earlier run. Each file is whole or absent."""
    os.makedirs(folder, exist_ok=True)
    for name, table in ((SEGMENTS_FILE, segments), (FINDINGS_FILE, findings)):
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as file:
            try:
                pq.write_table(table, file, compression="zstd")
                os.replace(file.name, os.path.join(folder, name))
            except BaseException:
                os.unlink(file.name)
                raise

"""Audits on Spark, compared with the audit on one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_udfs.store_audit import AuditTables
from tierlog.tools.audit.rows import (
    AuditedSegment,
    DeletionRow,
    EpochSizeRow,
    RetentionRow,
)
from tierlog.tools.audit.store import StoreAudit
from tierlog.tools.findings import Finding

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import DataFrame

LATER_MS = 1 << 42


ROWS: dict[str, type[DataclassInstance]] = {
    "segments": AuditedSegment,
    "findings": Finding,
    "epoch_sizes": EpochSizeRow,
    "retention": RetentionRow,
    "deletions": DeletionRow,
}


TABLES = tuple(ROWS)


def plain(value: Any) -> Any:
    """A value as Spark has it."""
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return in_order([row.asDict(recursive=True) for row in frame.collect()])


def agree(tables: AuditTables, local: StoreAudit) -> None:
    """All five, row for row."""
    for name in TABLES:
        frame: DataFrame = getattr(tables, name)
        rows = [
            {column: plain(getattr(row, column)) for column in frame.columns}
            for row in getattr(local, name)
        ]
        assert rows_of(frame) == in_order(rows), name

"""Reads of the data source without Spark, planned and worked off in this process, and the truth."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_udfs.schemas import arrow_schema, schema_of
from tests.kafka_tools.golden import truth_records
from tierlog.tables.catalog import open_catalog
from tierlog.tables.filters import Wanted
from tierlog.tables.options import parse_options
from tierlog.tables.plan import Finding, ReadRange, plan_read
from tierlog.tables.read import read_task

# Above this the stored truth has size and digest only.
LARGE_BYTES = 1024
Task = tuple[ReadRange, ...] | tuple[Finding, ...]


def tasks_of(options: dict[str, str], wanted: Wanted | None = None) -> list[Task]:
    """The plan of a read."""
    parsed = parse_options(options)
    return plan_read(parsed, open_catalog(parsed), wanted)


def batches_of(
    options: dict[str, str], tasks: Iterable[Task], wanted: Wanted | None = None
) -> list[pa.RecordBatch]:
    """What tasks give, in their order."""
    parsed = parse_options(options)
    schema = arrow_schema(schema_of(parsed))
    return [batch for task in tasks for batch in read_task(task, schema, parsed, wanted)]


def rows_of(options: dict[str, str], wanted: Wanted | None = None) -> list[dict[str, Any]]:
    """The rows of a read."""
    found = batches_of(options, tasks_of(options, wanted), wanted)
    return [row for batch in found for row in batch.to_pylist()]


def stored(data: bytes | None) -> str | dict[str, Any] | None:
    """Bytes in the form of the stored truth: large ones as size and digest."""
    if data is None:
        return None
    if len(data) > LARGE_BYTES:
        return {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return base64.b64encode(data).decode()


def as_truth(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the source in the form of the stored truth."""
    headers = [[one["key"], stored(one["value"])] for one in row["headers"] or ()]
    return {
        "offset": row["offset"],
        "timestamp_ms": round(row["timestamp"].timestamp() * 1000),
        "key": stored(row["key"]),
        "value": stored(row["value"]),
        "headers": headers,
    }


def truth(topic: str, partition: int) -> list[dict[str, Any]]:
    """What a consumer got, in the same form."""
    names = ("offset", "timestamp_ms", "key", "value", "headers")
    return [{name: row[name] for name in names} for row in truth_records("clean", topic, partition)]

"""Run a task of a read, for every view.

This module does not depend on Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tierlog.remote.segment.storage import RemoteStorageManager
from tierlog.tables.catalog import open_storage
from tierlog.tables.filters import Wanted
from tierlog.tables.options import SourceOptions, View
from tierlog.tables.plan import Finding, ReadRange
from tierlog.tables.rows import RecordRows
from tierlog.tables.segments import read_range
from tierlog.tables.views import batch_rows, finding_row, segment_row, table_rows

__all__ = ["read_task"]

_log = logging.getLogger(__name__)


def read_task(
    task: Sequence[ReadRange] | Sequence[Finding],
    schema: pa.Schema,
    options: SourceOptions,
    wanted: Wanted | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in the columns of `schema`."""
    storage = open_storage(options.path) if task else None
    shape = RecordRows(schema)
    for one in task:
        if isinstance(one, Finding):
            yield table_rows(schema, [finding_row(one)])
        elif options.view is View.SEGMENTS:
            yield table_rows(schema, [segment_row(one)])
        elif options.view is View.BATCHES:
            yield from batch_rows(one, storage, schema)
        else:
            yield from _record_rows(one, storage, shape, options, wanted)


def _record_rows(
    one: ReadRange,
    storage: RemoteStorageManager | None,
    shape: RecordRows,
    options: SourceOptions,
    wanted: Wanted | None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range or, for the quarantine view, its damage."""
    quarantine = options.view is View.QUARANTINE
    for found in read_range(
        one,
        storage,
        min_timestamp_ms=None if wanted is None else wanted.min_timestamp_ms,
        fail_on_corrupt=options.fail_on_corrupt,
        rows_of=() if quarantine else shape.rows_of,
        config=options.config,
    ):
        if not isinstance(found, Finding):
            if not quarantine:
                yield from shape.of(one.partition, found)
        elif quarantine:
            yield table_rows(shape.schema, [finding_row(found)])
        else:
            _log.warning("left out: %s", found)

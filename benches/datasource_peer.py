"""A data source whose rows exist already. This source shows how long Spark takes to fetch rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_udfs.schemas import arrow_schema, schema_of
from spark_udfs.worker import freeze_once
from tierlog.tables.catalog import open_catalog
from tierlog.tables.options import parse_options
from tierlog.tables.plan import Finding, ReadRange, plan_read
from tierlog.tables.read import read_task

if TYPE_CHECKING:
    import pyarrow as pa

# Larger than a core's cache, so the rows come from memory.
_KEPT_BYTES = 64 << 20

Task = tuple[ReadRange, ...] | tuple[Finding, ...]


@cache
def _kept(path: str, columns: str) -> list[pa.RecordBatch]:
    """Return the first batches of the first task. Each worker keeps them."""
    options = parse_options({"path": path, "subscribePattern": ".*"})
    task = plan_read(options, open_catalog(options))[0]
    schema = arrow_schema(StructType.fromJson(json.loads(columns)))
    kept: list[pa.RecordBatch] = []
    for batch in read_task(task, schema, options):
        kept.append(batch)
        if sum(one.nbytes for one in kept) >= _KEPT_BYTES:
            break
    return kept


class KeptDataSource(DataSource):  # type: ignore[misc]
    """The data source ``format("kept")``. For a path, it has as many tasks as
    ``format("tierlog")``, with as many rows. The rows are in batches that were made before."""

    @classmethod
    def name(cls) -> str:
        return "kept"

    def schema(self) -> StructType:
        return schema_of(parse_options({"path": "/", "subscribePattern": ".*"}))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options["path"], schema.json())


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, path: str, columns: str) -> None:
        self._path = path
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        options = parse_options({"path": self._path, "subscribePattern": ".*"})
        tasks = plan_read(options, open_catalog(options))
        return [InputPartition(sum(map(_rows, task))) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_once()
        left: int = partition.value
        while left:
            for batch in _kept(self._path, self._columns):
                part = batch.slice(0, left)
                yield part
                left -= part.num_rows
                if not left:
                    return


def _rows(one: ReadRange | Finding) -> int:
    assert isinstance(one, ReadRange)
    return one.end_offset - one.start_offset

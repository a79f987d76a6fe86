"""``spark.read.format("tierlog")``: tiered topics and log directories as tables.

    spark.dataSource.register(TierlogDataSource)          `spark_udfs.register` does this, too
    spark.read.format("tierlog").option("subscribe", "orders").load("s3://bucket/kafka")

The options are in `tierlog.tables.options`. Rows have the columns of Spark's Kafka source, then the
leader epoch and the producer of their batch. A schema that the user gives selects columns, and only
these columns are decoded.

Spark may load this module in any process to list the data sources. If one such module fails to
load, Spark finds no data source at all. So this module imports no native code before a read begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from spark_udfs.brief_errors import briefly
from spark_udfs.schemas import arrow_schema, check_columns, schema_of

if TYPE_CHECKING:
    import pyarrow as pa

    from tierlog.tables.filters import Wanted
    from tierlog.tables.options import SourceOptions

__all__ = ["TierlogDataSource"]


class TierlogDataSource(DataSource):  # type: ignore[misc]
    """The data source ``format("tierlog")``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "tierlog"

    @briefly
    def schema(self) -> types.StructType:
        """Return the columns. The path is not read."""
        return schema_of(_parse(self.options, streaming=None))

    @briefly
    def reader(self, schema: types.StructType) -> DataSourceReader:
        """Return a reader of the records that exist when the query is planned."""
        options = _parse(self.options)
        check_columns(schema, options.view.value)
        return _Reader(options, schema)

    @briefly
    def streamReader(self, schema: types.StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a reader that gives each trigger the records that were added since the trigger
        before."""
        from spark_udfs.stream import TierlogStreamReader

        options = _parse(self.options, streaming=True)
        check_columns(schema, "records")
        return TierlogStreamReader(options, schema)


def _parse(options: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    from tierlog.config import environment_name
    from tierlog.tables.options import BATCH_LIMIT, parse_options

    given = dict(options)
    variable = os.environ.get(environment_name(BATCH_LIMIT))
    if variable is not None and BATCH_LIMIT not in map(str.lower, given):
        given[BATCH_LIMIT] = variable
    return parse_options(given, streaming=streaming)


class _Reader(DataSourceReader):  # type: ignore[misc]
    """One read. Spark's filters make the plan smaller. Spark applies all filters again to the
    rows."""

    def __init__(self, options: SourceOptions, schema: types.StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted: Wanted | None = None
        if options.push_down:
            # Spark refuses a reader that overrides `pushFilters`, unless
            # spark.sql.python.filterPushdown.enabled is on. It checks this attribute.
            self.pushFilters = _PushFilters(self)

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state, which has only the values that a task needs."""
        return {name: value for name, value in vars(self).items() if name != "pushFilters"}

    def narrow(self, filters: list[Any]) -> list[Any]:
        """Store the filters, and return all of them to Spark."""
        from tierlog.tables.filters import wanted_by

        self._wanted = wanted_by(filters)
        return filters

    @briefly
    def partitions(self) -> list[InputPartition]:
        """Return the tasks for the records that exist now."""
        from tierlog.tables.catalog import open_catalog
        from tierlog.tables.plan import plan_read

        catalog = open_catalog(self._options)
        return [InputPartition(task) for task in plan_read(self._options, catalog, self._wanted)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task. If a plan has no tasks, Spark runs one task, which yields no
        rows."""
        from spark_udfs.worker import freeze_once
        from tierlog.tables.read import read_task

        freeze_once()
        # For that task, PySpark 4.1 passes None, and later versions pass an empty partition.
        task = () if partition is None else partition.value or ()
        yield from read_task(task, arrow_schema(self._schema), self._options, self._wanted)


class _PushFilters:
    """The `pushFilters` of one reader. To Spark, this object looks like the inherited
    `DataSourceReader.pushFilters`."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        # The function is stored in the instance, since a function in the class would become a
        # method.
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> list[Any]:
        return self._reader.narrow(filters)

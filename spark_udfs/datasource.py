"""``spark.read.format("tierlog")``: tiered topics and log directories as tables.

    spark.dataSource.register(TierlogDataSource)          what `spark_udfs.register` does, too
    spark.read.format("tierlog").option("subscribe", "orders").load("s3://bucket/kafka")

The options are in `tierlog.tables.options`. Rows have the columns of Spark's Kafka source and
then the leader epoch and producer of their batch; a schema given by the user takes some of them,
and only those are made.

Spark may load this module in any process to see what sources there are, and one that fails takes
all of them with it: nothing native is imported before there is something to read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tierlog.tables.filters import Wanted
    from tierlog.tables.options import SourceOptions

__all__ = ["TierlogDataSource", "arrow_schema", "briefly", "schema_of"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def briefly(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Of an error that says what is wrong Spark is shown no stack: it would print all of it, and
    what is said behind it."""

    @wraps(method)
    def call(*given: _P.args, **named: _P.kwargs) -> _T:
        from tierlog.errors import TierlogError

        try:
            return method(*given, **named)
        except (TierlogError, OSError) as error:
            raise error.with_traceback(None) from None

    return call


def _schema(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


_LONG, _INT, _TEXT = types.LongType(), types.IntegerType(), types.StringType()
_BYTES, _SHORT = types.BinaryType(), types.ShortType()
_HEADERS = types.ArrayType(_schema(key=_TEXT, value=_BYTES))

# As `KafkaRecordToRowConverter` of Spark's Kafka source has them, then our own.
_KAFKA = _schema(
    key=_BYTES,
    value=_BYTES,
    topic=_TEXT,
    partition=_INT,
    offset=_LONG,
    timestamp=types.TimestampType(),
    timestampType=_INT,
)
_OURS = _schema(leader_epoch=_INT, producer_id=_LONG, producer_epoch=_SHORT, base_sequence=_INT)
_RECORDS = types.StructType([*_KAFKA, *_schema(headers=_HEADERS), *_OURS])
_BATCHES = _schema(
    topic=_TEXT,
    partition=_INT,
    path=_TEXT,
    position=_LONG,
    base_offset=_LONG,
    last_offset=_LONG,
    size_bytes=_INT,
    base_timestamp_ms=_LONG,
    max_timestamp_ms=_LONG,
    leader_epoch=_INT,
    producer_id=_LONG,
    producer_epoch=_SHORT,
    base_sequence=_INT,
    attributes=_SHORT,
    record_count=_INT,
)
# Of the segments themselves; end_offset is the last one, null for the segment that is written to.
_SEGMENTS = _schema(
    topic=_TEXT,
    topic_id=_TEXT,
    partition=_INT,
    path=_TEXT,
    base_offset=_LONG,
    end_offset=_LONG,
    size_bytes=_LONG,
)
# Bytes that are not read, and the offsets [start_offset, end_offset) that are missing for that.
_QUARANTINE = _schema(
    topic=_TEXT,
    partition=_INT,
    path=_TEXT,
    reason=_TEXT,
    position=_LONG,
    expected=_TEXT,
    found=_TEXT,
    start_offset=_LONG,
    end_offset=_LONG,
)
_VIEWS = {
    "records": _RECORDS,
    "batches": _BATCHES,
    "segments": _SEGMENTS,
    "quarantine": _QUARANTINE,
}


def schema_of(options: SourceOptions) -> types.StructType:
    """The columns of a read."""
    view = _VIEWS[options.view.value]
    if options.include_headers:
        return view
    return types.StructType([one for one in view if one.name != "headers"])


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """The same in Arrow, as Spark compares it with what comes."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # PySpark 4.1 has no such argument, and takes UTC always.
        return to_arrow_schema(schema)


def _check_columns(schema: types.StructType, known: types.StructType) -> None:
    """A schema of the user names some of the columns that there are, each with its type."""
    from tierlog.errors import ConfigError

    kinds = {field.name.lower(): field.dataType for field in known}
    names = [field.name.lower() for field in schema]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"schema: expected each column once, found {', '.join(twice)} twice")
    for field in schema:
        kind = kinds.get(field.name.lower())
        if kind is None or kind.simpleString() != field.dataType.simpleString():
            expected = ", ".join(f"{one.name} {one.dataType.simpleString()}" for one in known)
            raise ConfigError(
                f"schema: expected some of {expected}; "
                f"found {field.name} {field.dataType.simpleString()}"
            )


class TierlogDataSource(DataSource):  # type: ignore[misc]
    """``format("tierlog")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "tierlog"

    @briefly
    def schema(self) -> types.StructType:
        """The columns, without looking at the path."""
        return schema_of(_parse(self.options, streaming=None))

    @briefly
    def reader(self, schema: types.StructType) -> DataSourceReader:
        """A read of what is there when the query is planned."""
        options = _parse(self.options)
        _check_columns(schema, _VIEWS[options.view.value])
        return _Reader(options, schema)

    @briefly
    def streamReader(self, schema: types.StructType) -> DataSourceStreamReader:  # noqa: N802
        """A read of what is added, trigger by trigger."""
        from spark_udfs.stream import TierlogStreamReader

        options = _parse(self.options, streaming=True)
        _check_columns(schema, _RECORDS)
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
    """One read. Filters that it is handed narrow the plan; Spark applies all of them again."""

    def __init__(self, options: SourceOptions, schema: types.StructType) -> None:
        self._options = options
        self._schema = schema
        self._wanted: Wanted | None = None
        if options.push_down:
            # Spark refuses a reader with a `pushFilters` of its own unless
            # spark.sql.python.filterPushdown.enabled is on, and tells them apart by this attribute.
            self.pushFilters = _PushFilters(self)

    def __getstate__(self) -> dict[str, Any]:
        """What a task needs."""
        return {name: value for name, value in vars(self).items() if name != "pushFilters"}

    def narrow(self, filters: list[Any]) -> list[Any]:
        """Takes note of the filters, and leaves all of them to Spark."""
        from tierlog.tables.filters import wanted_by

        self._wanted = wanted_by(filters)
        return filters

    @briefly
    def partitions(self) -> list[InputPartition]:
        """The tasks, planned by what is there now."""
        from tierlog.tables.catalog import open_catalog
        from tierlog.tables.plan import plan_read

        catalog = open_catalog(self._options)
        return [InputPartition(task) for task in plan_read(self._options, catalog, self._wanted)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of one task; none of a plan without tasks, for which Spark makes one up."""
        from spark_udfs.worker import freeze_once
        from tierlog.tables.read import read_task

        freeze_once()
        # PySpark 4.1 has no partition there, later ones have an empty one.
        task = () if partition is None else partition.value or ()
        yield from read_task(task, arrow_schema(self._schema), self._options, self._wanted)


class _PushFilters:
    """`DataSourceReader.pushFilters` of one reader, which Spark takes for the inherited one."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        # Of the instance: as an attribute of the class it would become a method.
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Any]) -> list[Any]:
        return self._reader.narrow(filters)

"""The columns of each view of a source, for Spark and for Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import types

if TYPE_CHECKING:
    import pyarrow as pa

    from tierlog.tables.options import SourceOptions

__all__ = ["arrow_schema", "check_columns", "schema_of"]


def _schema(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


_LONG, _INT, _TEXT = types.LongType(), types.IntegerType(), types.StringType()
_BYTES, _SHORT = types.BinaryType(), types.ShortType()
_HEADERS = types.ArrayType(_schema(key=_TEXT, value=_BYTES))

# The columns of Spark's Kafka source (`KafkaRecordToRowConverter`), then tierlog's own.
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
# A row for each segment. end_offset is its last offset; null for the active segment.
_SEGMENTS = _schema(
    topic=_TEXT,
    topic_id=_TEXT,
    partition=_INT,
    path=_TEXT,
    base_offset=_LONG,
    end_offset=_LONG,
    size_bytes=_LONG,
)
# A row for each range of bytes that was not read. The offsets [start_offset, end_offset) are
# missing for this reason.
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
    """Return the columns of a read."""
    view = _VIEWS[options.view.value]
    if options.include_headers:
        return view
    return types.StructType([one for one in view if one.name != "headers"])


def arrow_schema(schema: types.StructType) -> pa.Schema:
    """Return the columns as the Arrow schema with which Spark compares the rows."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        # PySpark 4.1 does not have this argument and always takes UTC.
        return to_arrow_schema(schema)


def check_columns(schema: types.StructType, view: str) -> None:
    """Check a schema of the user: each column must exist and have its type."""
    from tierlog.errors import ConfigError

    known = _VIEWS[view]
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

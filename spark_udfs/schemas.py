"""The columns of each view of a source, as Spark and as Arrow know them."""

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


def check_columns(schema: types.StructType, view: str) -> None:
    """A schema of the user names some of the columns that there are, each with its type."""
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

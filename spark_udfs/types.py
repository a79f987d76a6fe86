"""Converts Arrow types to Spark types. No session is needed, unlike for parsing types from text."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types

__all__ = ["spark_schema", "spark_type"]

_TYPES: dict[pa.DataType, types.DataType] = {
    pa.bool_(): types.BooleanType(),
    pa.int16(): types.ShortType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
}


def spark_type(kind: pa.DataType) -> types.DataType:
    """Return the Spark type of an Arrow type. Raises KeyError for a type that no column has."""
    if pa.types.is_list(kind):
        return types.ArrayType(spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        return spark_schema(kind)
    return _TYPES[kind]


def spark_schema(fields: pa.Schema | pa.StructType) -> types.StructType:
    """Return the columns of a frame. Every column may be null."""
    return types.StructType(
        [types.StructField(field.name, spark_type(field.type)) for field in fields]
    )

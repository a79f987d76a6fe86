"""The codec as functions of Spark, for frames and for SQL. Needs PySpark 4.1 or newer.

    register(spark)
    spark.sql("SELECT path, inline(tierlog_scan(path).batches) FROM segments")
    frame.select("path", verify_udf("path").quarantine)

| SQL | Python | Takes | Gives (`spark_udfs.codec`) |
|---|---|---|---|
| ``tierlog_scan`` | `scan_udf` | segment: binary, or path | ``SCAN_TYPE`` |
| ``tierlog_records`` | `records_udf` | segment: binary, or path | ``RECORDS_TYPE`` |
| ``tierlog_verify`` | `verify_udf` | segment: binary, or path | ``VERIFY_TYPE`` |
| ``tierlog_index_decode`` | `decode_udf` | remoteLogIndex: binary | ``DECODE_TYPE`` |
| ``tierlog_index_encode`` | `encode_udf` | array of entries | ``ENCODE_TYPE`` |

All are vectorised over Arrow: one call of Python for a batch of rows, nothing per record. No bytes,
however broken, make a job fail: see ``quarantine``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.functions import arrow_udf

from spark_udfs import codec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["decode_udf", "encode_udf", "records_udf", "register", "scan_udf", "verify_udf"]


_TYPES: dict[pa.DataType, types.DataType] = {
    pa.bool_(): types.BooleanType(),
    pa.int16(): types.ShortType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
}


def _spark_type(kind: pa.DataType) -> types.DataType:
    """Spark's name for a type. From a text, it would need a session to make one."""
    if pa.types.is_list(kind):
        return types.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_struct(kind):
        fields = [types.StructField(field.name, _spark_type(field.type)) for field in kind]
        return types.StructType(fields)
    return _TYPES[kind]


scan_udf = arrow_udf(codec.scan_column, _spark_type(codec.SCANNED))
records_udf = arrow_udf(codec.records_column, _spark_type(codec.RECORDS))
verify_udf = arrow_udf(codec.verify_column, _spark_type(codec.VERIFIED))
decode_udf = arrow_udf(codec.decode_column, _spark_type(codec.DECODED))
encode_udf = arrow_udf(codec.encode_column, _spark_type(codec.ENCODED))


def register(spark: SparkSession) -> None:
    """Makes all of them known to the SQL of a session, under the names of the table above."""
    for name, function in {
        "tierlog_scan": scan_udf,
        "tierlog_records": records_udf,
        "tierlog_verify": verify_udf,
        "tierlog_index_decode": decode_udf,
        "tierlog_index_encode": encode_udf,
    }.items():
        spark.udf.register(name, function)

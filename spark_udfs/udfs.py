"""The functions of `spark_udfs.codec` for Spark's frames and SQL. Needs PySpark 4.1 or newer.

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

Each function works on Arrow data: Python calls the function once for a batch of rows, not for each
record. Damaged bytes never make a job fail; see ``quarantine``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.functions import arrow_udf

from spark_udfs import codec
from spark_udfs.datasource import TierlogDataSource
from spark_udfs.types import spark_type
from spark_udfs.worker import on_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "decode_remote_log_indexes",
    "decode_udf",
    "encode_udf",
    "records_udf",
    "register",
    "scan_segments",
    "scan_udf",
    "verify_udf",
]

# The functions of `spark_udfs.codec` with these names, for ``mapInArrow``. A worker excludes
# tierlog from garbage collection before it calls one of these functions.
scan_segments = on_worker(codec.__name__, codec.scan_segments.__name__)
decode_remote_log_indexes = on_worker(codec.__name__, codec.decode_remote_log_indexes.__name__)


def _udf(function: Callable[[pa.Array], pa.Array], kind: pa.DataType) -> Any:
    """Return a function of `spark_udfs.codec` for Spark."""

    def on_column(column: pa.Array) -> pa.Array:
        return work(column)

    work = on_worker(codec.__name__, function.__name__)
    on_column.__name__ = on_column.__qualname__ = function.__name__
    return arrow_udf(on_column, spark_type(kind))


scan_udf = _udf(codec.scan_column, codec.SCANNED)
records_udf = _udf(codec.records_column, codec.RECORDS)
verify_udf = _udf(codec.verify_column, codec.VERIFIED)
decode_udf = _udf(codec.decode_column, codec.DECODED)
encode_udf = _udf(codec.encode_column, codec.ENCODED)


def register(spark: SparkSession) -> None:
    """Register the functions in the SQL of a session, under the names of the table above, and the
    data source ``tierlog``."""
    for name, function in {
        "tierlog_scan": scan_udf,
        "tierlog_records": records_udf,
        "tierlog_verify": verify_udf,
        "tierlog_index_decode": decode_udf,
        "tierlog_index_encode": encode_udf,
    }.items():
        spark.udf.register(name, function)
    spark.dataSource.register(TierlogDataSource)

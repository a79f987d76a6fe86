"""tierlog in PySpark: functions for columns, for SQL and for ``mapInArrow``, and two jobs.

    register(spark)                                        tierlog_scan(...) and others in SQL
    frame.select(scan_udf("path").batches)                 the same from Python
    frame.mapInArrow(scan_segments, SCAN_SCHEMA)           whole batches of rows
    rebuild_indexes(spark, source, target)                 `tierlog index rebuild` on a cluster
    audit(spark, source, metadata)                         `tierlog verify` on a cluster, as tables
    session_config()                                       settings for the start of Spark
    ship(spark)                                            tierlog for workers without it

Needs the extra ``spark``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_udfs.codec import ENTRY_SCHEMA, SCAN_SCHEMA
    from spark_udfs.rebuild import SCHEDULING_JVM, rebuild_indexes
    from spark_udfs.session import session_config
    from spark_udfs.shipping import ship
    from spark_udfs.store_audit import audit
    from spark_udfs.udfs import (
        decode_remote_log_indexes,
        decode_udf,
        encode_udf,
        records_udf,
        register,
        scan_segments,
        scan_udf,
        verify_udf,
    )

__all__ = [
    "ENTRY_SCHEMA",
    "SCAN_SCHEMA",
    "SCHEDULING_JVM",
    "audit",
    "decode_remote_log_indexes",
    "decode_udf",
    "encode_udf",
    "rebuild_indexes",
    "records_udf",
    "register",
    "scan_segments",
    "scan_udf",
    "session_config",
    "ship",
    "verify_udf",
]

_MODULES = {
    **dict.fromkeys(("ENTRY_SCHEMA", "SCAN_SCHEMA"), "codec"),
    "audit": "store_audit",
    **dict.fromkeys(("SCHEDULING_JVM", "rebuild_indexes"), "rebuild"),
    "session_config": "session",
    "ship": "shipping",
}


def __getattr__(name: str) -> Any:
    """Load a module at its first use, so that Python can import this package without pyarrow."""
    if name not in __all__:
        raise AttributeError(f"module 'spark_udfs' has no attribute {name!r}")
    return getattr(import_module(f"spark_udfs.{_MODULES.get(name, 'udfs')}"), name)

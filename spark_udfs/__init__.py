"""PySpark over the same native core: what runs in a worker, as functions for ``mapInArrow``.

    frame.mapInArrow(scan_segments, SCAN_SCHEMA)

Needs the extra ``spark``. Nothing here starts or configures Spark.
"""

from __future__ import annotations

from spark_udfs.codec import (
    ENTRY_SCHEMA,
    SCAN_SCHEMA,
    decode_remote_log_indexes,
    scan_segments,
)

__all__ = ["ENTRY_SCHEMA", "SCAN_SCHEMA", "decode_remote_log_indexes", "scan_segments"]

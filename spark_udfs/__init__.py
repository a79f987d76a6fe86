"""PySpark over the same native core: what runs in a worker, as functions for ``mapInArrow``.

    frame.mapInArrow(scan_segments, SCAN_SCHEMA)

Needs the extra ``spark``. Nothing here starts or configures Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_udfs.codec import (
        ENTRY_SCHEMA,
        SCAN_SCHEMA,
        decode_remote_log_indexes,
        scan_segments,
    )

__all__ = ["ENTRY_SCHEMA", "SCAN_SCHEMA", "decode_remote_log_indexes", "scan_segments"]


def __getattr__(name: str) -> Any:
    """Loads the codec when first used: without pyarrow the package can still be found."""
    if name not in __all__:
        raise AttributeError(f"module 'spark_udfs' has no attribute {name!r}")
    from spark_udfs import codec

    return getattr(codec, name)

"""Makes ``spark.read.format("tierlog")`` known to Spark without a call.

When Spark looks for data sources in Python, it imports every module whose name begins with
``pyspark_`` and takes its ``DefaultSource``. One that fails takes those of all other packages with
it, so there is nothing else here, and nothing native behind it.
"""

from __future__ import annotations

from spark_udfs.datasource import TierlogDataSource as DefaultSource

__all__ = ["DefaultSource"]

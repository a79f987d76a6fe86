"""Makes two dry runs of a rebuild on Spark, and prints how many bytes the second run added to this
process.

``python -m benches.spark_memory FOLDER LOGDIR LOGDIR`` writes its reports below the folder. This
process is the Python of the driver. The peak of the process is measured as in
`benches.memory_child`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark_udfs import rebuild_indexes
from spark_udfs.session import session

from .memory_child import status_bytes
from .spark_child import MASTER, SMALL


def main(folder: str, *sources: str) -> None:
    peaks = []
    with session(MASTER, SMALL) as spark:
        for number, source in enumerate(sources):
            report = (Path(folder) / f"report-{number}").as_uri()
            assert rebuild_indexes(spark, source, dry_run=True, report_path=report).ok
            peaks.append(status_bytes("VmHWM"))
    print(peaks[-1] - peaks[0])


if __name__ == "__main__":
    main(*sys.argv[1:])

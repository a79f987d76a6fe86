"""A store with what `tierlog tier` copies of the golden logs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tierlog
from tests.kafka_tools.golden import DATA_DIR

__all__ = ["LOG_DIR", "TRANSACTIONS_LOG_DIR", "golden_archive", "records_of"]

LOG_DIR = str(DATA_DIR / "clean" / "disk1")
TRANSACTIONS_LOG_DIR = str(DATA_DIR / "clean" / "disk2")

# Offset, key, value, and time of a record.
Row = tuple[int, bytes | None, bytes | None, int]


def golden_archive(folder: Path, log_dir: str = LOG_DIR) -> str:
    """Fill a store below `folder` from the golden logs of a directory; return its URL."""
    store = folder / "store"
    store.mkdir(parents=True)
    url = store.as_uri()
    with tierlog.Sidecar([log_dir], url, state_dir=str(folder / "state")) as sidecar:
        sidecar.run_once()
    return url


def records_of(
    source: str, topic: str, partition: int, *, store: str | None = None, committed: bool = False
) -> list[Row]:
    """Every record of a partition, as `tierlog.read` reads it."""
    level: Literal["read_committed", "read_uncommitted"] = (
        "read_committed" if committed else "read_uncommitted"
    )
    return [
        (row.offset, row.key, row.value, row.timestamp_ms)
        for columns in tierlog.read(source, topic, partition, store=store, isolation_level=level)
        for row in columns.records()
    ]

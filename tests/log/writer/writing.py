"""Opens writers in a folder, and makes batches as a client sends them."""

from __future__ import annotations

from pathlib import Path

from tierlog.clock import ManualClock
from tierlog.config.topic import TopicConfig
from tierlog.log.log_dir import PartitionLog
from tierlog.log.writer.partition import PartitionWriter, WriterOptions

__all__ = ["NOW_MS", "TOPIC_ID", "open_writer"]

NOW_MS = 1_700_000_000_000
TOPIC_ID = "lZ6vvmajTWKDBUTV6SQAtQ"


def open_writer(
    folder: Path,
    topic: TopicConfig | None = None,
    *,
    topic_name: str = "orders",
    partition: int = 0,
    is_clean: bool = True,
    recovery_point: int = 0,
    log_start_offset: int | None = None,
    options: WriterOptions | None = None,
    clock: ManualClock | None = None,
) -> PartitionWriter:
    """The log in `folder`, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = PartitionLog(
        topic=topic_name,
        partition=partition,
        topic_id=None,
        directory=str(folder),
        segments=(),
        leader_epochs=None,
        log_start_offset=log_start_offset,
        high_watermark=None,
        recovery_point=recovery_point,
    )
    return PartitionWriter(
        str(folder),
        listed,
        topic or TopicConfig(),
        clock=clock or ManualClock(NOW_MS),
        options=options or WriterOptions(),
        is_clean=is_clean,
    )

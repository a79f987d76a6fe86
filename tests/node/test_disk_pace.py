"""The event loop leaves writes to threads while the disk is slow."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.oracle import build
from tests.oracle.model import Record
from tierlog.clock import ManualClock
from tierlog.config import Config
from tierlog.log.writer.files import write_all
from tierlog.metrics import RemoteLogMetrics
from tierlog.node.local.cluster import LocalCluster
from tierlog.types import TopicIdPartition

NOW_MS = 1_700_000_000_000
BATCH = build.batch([Record(offset=0, timestamp_ms=NOW_MS, key=None, value=b"a value")])


def test_a_slow_disk_is_written_by_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(NOW_MS)

    def write_slowly(fd: int, data: bytes, position: int) -> None:
        clock.advance(300)
        write_all(fd, data, position)

    metrics = RemoteLogMetrics(clock)
    cluster = LocalCluster(str(tmp_path), config=Config(), clock=clock, metrics=metrics)
    with closing(cluster):
        topic = cluster.create_topic("orders", 1, {})
        at = TopicIdPartition(topic="orders", topic_id=topic.topic_id, partition=0)
        # The first append writes the leader epoch durably.
        assert cluster.append(at, BATCH).base_offset == 0
        assert cluster.append_at_once(at, BATCH).base_offset == 1
        with monkeypatch.context() as patched:
            patched.setattr("tierlog.log.writer.segment.write_all", write_slowly)
            assert cluster.append_at_once(at, BATCH).base_offset == 2
        with pytest.raises(BlockingIOError):
            cluster.append_at_once(at, BATCH)
        assert cluster.append(at, BATCH).base_offset == 3
        clock.advance(20 * 300 - 1)
        with pytest.raises(BlockingIOError):
            cluster.append_at_once(at, BATCH)
        clock.advance(1)
        assert cluster.append_at_once(at, BATCH).base_offset == 4

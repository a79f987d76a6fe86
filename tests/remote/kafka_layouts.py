"""The golden logs as Kafka's LocalTieredStorage lays segments out.

The files are those a broker wrote; only the names and the cut of the leader epochs are made here,
and a test against a real broker shows that they are right.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.log.segment_files import SegmentFiles
from tierlog.reader.producer_states import ProducerStates
from tierlog.remote.segment.kafka_layout import KAFKA_FOLDER
from tierlog.testing.segments import uuid_of

__all__ = ["GOLDEN_DIRS", "kafka_url", "lay_out", "lay_out_golden"]

GOLDEN_DIRS = tuple(str(DATA_DIR / "clean" / disk) for disk in ("disk1", "disk2"))


def kafka_url(folder: Path) -> str:
    """The URL of the store below the folder that a broker was given."""
    return "kafka+" + (folder / KAFKA_FOLDER).as_uri()


def lay_out_golden(folder: Path) -> list[PartitionLog]:
    """Every rolled segment of the golden logs; the logs that have any."""
    logs = [one for one in open_log_dir(*GOLDEN_DIRS).listing().partitions if one.topic_id]
    tiered = [one for one in logs if one.rolled_segments]
    for log in tiered:
        for number, segment in enumerate(log.rolled_segments):
            lay_out(folder, log, segment, uuid_of(f"{log.name}/{number}"))
    return tiered


def lay_out(folder: Path, log: PartitionLog, segment: SegmentFiles, segment_id: str) -> Path:
    """One segment; the path of its `.log`."""
    place = folder / KAFKA_FOLDER / f"{log.topic}-{log.partition}-{log.topic_id}"
    place.mkdir(parents=True, exist_ok=True)
    stem = f"{segment.base_offset:020d}-{segment_id}"
    following = segment.next_base_offset
    assert following is not None
    assert log.leader_epochs is not None
    for source in (
        segment.log_path,
        segment.offset_index_path,
        segment.time_index_path,
        segment.transaction_index_path,
    ):
        if source is not None:
            shutil.copy(source, place / (stem + os.path.splitext(source)[1]))
    (place / f"{stem}.snapshot").write_bytes(_snapshot(log, following))
    epochs = log.leader_epochs.up_to(following)
    (place / f"{stem}.leader_epoch_checkpoint").write_bytes(epochs.encode())
    return place / f"{stem}.log"


def _snapshot(log: PartitionLog, following: int) -> bytes:
    after = next(one for one in log.segments if one.base_offset == following)
    found = ProducerStates(log).before(after)
    assert found is not None
    return found

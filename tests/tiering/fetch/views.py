"""Golden partitions as a fetch sees them, and what the oracle says they hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR
from tests.oracle import batches as oracle
from tests.oracle.model import Batch
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.tiering.fetch.types import FetchView

__all__ = ["GOLDEN", "golden_view", "oracle_batches", "whole_view"]

GOLDEN = sorted(
    (data_set, path.name)
    for data_set in ("clean", "unclean")
    for path in (DATA_DIR / data_set).glob("disk*/*-[0-9]")
    if not path.name.startswith("__cluster_metadata")
)


def golden_view(data_set: str, name: str) -> FetchView:
    (folder,) = {path.parent for path in (DATA_DIR / data_set).glob(f"disk*/{name}")}
    return whole_view(folder, name)


def whole_view(folder: Path, name: str) -> FetchView:
    """All of a directory's partition, all of it committed."""
    (log,) = [one for one in open_log_dir(str(folder)).partitions() if one.name == name]
    end = max([one.last_offset + 1 for _, one in oracle_batches(log)], default=0)
    start = log.log_start_offset or 0
    return FetchView(
        log=replace(log, log_start_offset=start),
        log_start_offset=start,
        local_log_start_offset=start,
        high_watermark=end,
        last_stable_offset=end,
        log_end_offset=end,
    )


def oracle_batches(log: PartitionLog) -> list[tuple[int, Batch]]:
    """(base offset of the segment, batch) of every whole batch, in order."""
    found = []
    for segment in log.segments:
        batches, _reason, _position = oracle.scan(Path(segment.log_path).read_bytes())
        found += [(segment.base_offset, batch) for batch in batches]
    return found

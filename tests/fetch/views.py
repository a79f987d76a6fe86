"""Golden partitions as a fetch sees them, and what the oracle says they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kafka_tools.golden import DATA_DIR
from tests.oracle import batches as oracle
from tests.oracle.model import COMMIT, Batch, EndTransactionMarker
from tierlog.log.index_files import AbortedTransaction
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.reader.types import FetchView

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["GOLDEN", "Row", "consumed", "golden_view", "oracle_batches", "truth", "whole_view"]

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
        last_stable_offset=min(end, _first_open_offset(log)),
        log_end_offset=end,
    )


def _first_open_offset(log: PartitionLog) -> int:
    """Where the first transaction begins that never ended."""
    first: dict[int, int] = {}
    for _, batch in oracle_batches(log):
        if batch.is_control:
            first.pop(batch.producer_id, None)
        elif batch.is_transactional:
            first.setdefault(batch.producer_id, batch.base_offset)
    return min(first.values(), default=2**63 - 1)


def oracle_batches(log: PartitionLog) -> list[tuple[int, Batch]]:
    """(base offset of the segment, batch) of every whole batch, in order."""
    found = []
    for segment in log.segments:
        batches, _reason, _position = oracle.scan(Path(segment.log_path).read_bytes())
        found += [(segment.base_offset, batch) for batch in batches]
    return found


Row = tuple[int, bytes | None, bytes | None]


def truth(log: PartitionLog, *, committed: bool) -> list[Row]:
    """Every record that a consumer of this isolation may see; the oracle reads the whole log."""
    rows: list[Row] = []
    open_rows: dict[int, list[Row]] = {}
    for _, batch in oracle_batches(log):
        if batch.is_control:
            marker = _marker(batch)
            ended = open_rows.pop(batch.producer_id, [])
            if marker is not None and (marker.type == COMMIT or not committed):
                rows += ended
            continue
        found = [(one.offset, one.key, one.value) for one in oracle.records(batch)]
        if batch.is_transactional:
            open_rows.setdefault(batch.producer_id, []).extend(found)
        else:
            rows += found
    if not committed:
        for found in open_rows.values():
            rows += found
    stable = _first_open_offset(log) if committed else 2**63 - 1
    return sorted((row for row in rows if row[0] < stable), key=lambda row: row[0])


def consumed(
    records: Buffer, offset: int, aborted: Sequence[AbortedTransaction] | None
) -> list[Row]:
    """What Kafka's consumer makes of fetched batches: from `offset` on, without aborted ones."""
    left = sorted(aborted or (), key=lambda one: one.first_offset)
    ignored: set[int] = set()
    rows: list[Row] = []
    batches, _reason, position = oracle.scan(bytes(records))
    assert position == memoryview(records).nbytes, "whole batches only"
    for batch in batches:
        if aborted is not None:
            while left and left[0].first_offset <= batch.last_offset:
                ignored.add(left.pop(0).producer_id)
        if batch.is_control:
            marker = _marker(batch)
            if marker is not None and marker.type != COMMIT:
                ignored.discard(batch.producer_id)
            continue
        if batch.is_transactional and batch.producer_id in ignored:
            continue
        rows += [
            (one.offset, one.key, one.value)
            for one in oracle.records(batch)
            if one.offset >= offset
        ]
    return rows


def _marker(batch: Batch) -> EndTransactionMarker | None:
    """None for a control batch that compaction has emptied."""
    record = oracle.first_record(batch)
    return None if record is None else oracle.end_transaction_marker(record)

"""Segments with transactions: data, markers and producer snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.fetch.tier import FIRST_TIMESTAMP_MS
from tests.oracle import batches as oracle
from tests.oracle.build import batch, end_transaction_marker
from tests.oracle.model import Record
from tierlog.log.rebuild import rebuild_indexes


def data(offset: int, producer_id: int, epoch: int) -> bytes:
    record = Record(
        offset=offset,
        timestamp_ms=FIRST_TIMESTAMP_MS + offset,
        key=None,
        value=b"of a transaction",
        headers=(),
    )
    return batch(
        [record],
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        transactional=True,
    )


def marker(offset: int, producer_id: int, epoch: int, *, commit: bool) -> bytes:
    return end_transaction_marker(
        offset=offset,
        timestamp_ms=FIRST_TIMESTAMP_MS + offset,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        commit=commit,
        leader_epoch=epoch,
    )


def snapshot_after(folder: Path, batches: Sequence[bytes]) -> bytes:
    folder.mkdir()
    path = folder / f"{oracle.parse(batches[0]).base_offset:020d}.log"
    path.write_bytes(b"".join(batches))
    return rebuild_indexes(str(path)).producer_snapshot

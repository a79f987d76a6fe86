"""Audits a bucket by its `.indexes` objects. The bench compares the time per segment in a bucket of
a thousand segments with that in a partition of ten thousand."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from tierlog._core import crc32c
from tierlog.log.checkpoint import EpochEntry, LeaderEpochs
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes
from tierlog.remote.segment.layout import claim_cluster, encode_rdi, indexes_key, log_key
from tierlog.remote.segment.log_index import encode_remote_log_index
from tierlog.remote.urls import open_store
from tierlog.tools.audit.rows import AuditRules
from tierlog.tools.audit.store import StoreAudit, audit_store

from .frame import Bench, Case, DisagreementError, Limit
from .metadata import EPOCH_SEGMENTS, OFFSETS, Store

ROUNDS = 5
RULES = AuditRules(now_ms=1 << 42, retention_bytes=1 << 40)
NO_PRODUCERS = b"\0\1" + crc32c(bytes(4)).to_bytes(4, "big") + bytes(4)


def items(bench: Bench) -> Sequence[Case | Limit]:
    few, many = (10, 20) if bench.corpora.quick else (1_000, 10_000)
    rounds = 1 if bench.corpora.quick else ROUNDS
    return [
        Limit(
            operation="audit of a store, time per segment",
            shape=f"{many:,} segments over {few:,}",
            unit="x",
            at_most=1.25,
            measure=lambda: _per_segment(many, rounds) / _per_segment(few, rounds),
        )
    ]


def _per_segment(segments: int, rounds: int) -> float:
    """Return the median seconds per segment. The files are in the page cache."""
    with TemporaryDirectory() as folder:
        fill(Path(folder), Store(partitions=1, segments=segments))
        url = Path(folder).as_uri()
        _check(audit_store(url, RULES), segments)
        return statistics.median(_seconds(url) for _ in range(rounds)) / segments


def _seconds(url: str) -> float:
    start = time.perf_counter()
    audit_store(url, RULES)
    return time.perf_counter() - start


def _check(audit: StoreAudit, segments: int) -> None:
    if audit.findings or len(audit.segments) != segments:
        raise DisagreementError(f"{len(audit.segments)} segments: {audit.findings[:1]}")


def fill(folder: Path, store: Store) -> None:
    """Write sound `.indexes` objects, and `.log` objects of the right size, which are not read."""
    claim_cluster(open_store(folder.as_uri()), "bench")
    for partition, number in product(range(store.partitions), range(store.segments)):
        made = store.segment(partition, number)
        ((epoch, _),) = made.leader_epochs
        # As the copy task writes it: the lineage ends in the segment.
        metadata = replace(made, leader_epochs=((epoch, made.start_offset),))
        path = folder / log_key(metadata)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.truncate(path, metadata.segment_size_bytes)
        (folder / indexes_key(metadata)).write_bytes(_indexes(metadata, number))


def _indexes(metadata: RemoteLogSegmentMetadata, number: int) -> bytes:
    epochs = range(number // EPOCH_SEGMENTS + 1)
    lineage = LeaderEpochs(
        tuple(EpochEntry(epoch, epoch * EPOCH_SEGMENTS * OFFSETS) for epoch in epochs)
    )
    entry = encode_remote_log_index(
        [metadata.start_offset],
        [metadata.end_offset],
        [metadata.max_timestamp_ms],
        [metadata.max_timestamp_ms],
        [metadata.segment_size_bytes],
        [encode_rdi(metadata, 0)],
    )
    return encode_indexes(
        SegmentDescription(metadata=metadata),
        {
            IndexKind.OFFSET: b"",
            IndexKind.TIME: b"",
            IndexKind.TRANSACTION: b"",
            IndexKind.PRODUCER_SNAPSHOT: NO_PRODUCERS,
            IndexKind.LEADER_EPOCH: lineage.encode(),
            IndexKind.REMOTE_LOG: entry,
        },
    )

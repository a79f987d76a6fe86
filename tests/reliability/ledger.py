"""The outside ledger: what was promised to be durable, and what may be gone by now.

One JSON object per line, each synced before the next step is taken. A batch is planned before it
is appended and called durable after the append was synced: what is planned tells what bytes may
be read at an offset, what is durable tells which ones must be. A last line that is cut was never
written.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Ledger", "PartitionTruth", "PlannedBatch", "Row", "Truth", "row_digest"]

Row = tuple[int, int, bytes | None, bytes | None]


def row_digest(row: Row) -> str:
    """A text for (offset, timestamp in ms, key, value)."""
    offset, timestamp_ms, key, value = row
    digest = hashlib.sha256(b"%d %d " % (offset, timestamp_ms))
    for part in (key, value):
        digest.update(b"-" if part is None else b"%d:%b" % (len(part), part))
    return digest.hexdigest()[:32]


class Ledger:
    """Appends facts; `path` lies outside everything that is under test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        whole = path.read_bytes() if path.exists() else b""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.ftruncate(self._descriptor, whole.rfind(b"\n") + 1)
        os.lseek(self._descriptor, 0, os.SEEK_END)

    def close(self) -> None:
        os.close(self._descriptor)

    def write(self, fact: str, **values: Any) -> None:
        """Durable when this returns."""
        line = json.dumps({"fact": fact, **values}, separators=(",", ":")).encode() + b"\n"
        os.write(self._descriptor, line)
        os.fsync(self._descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """A batch as it was about to be appended; offsets inclusive. ``rows``: a digest for each
    record, none for control records."""

    first_offset: int
    last_offset: int
    sha256: str
    rows: list[str]
    size_bytes: int
    max_timestamp_ms: int


@dataclass(slots=True, kw_only=True)
class PartitionTruth:
    """What the ledger says of one partition."""

    topic: str
    topic_id: str
    planned: dict[int, PlannedBatch] = field(default_factory=dict)
    superseded: dict[int, set[str]] = field(default_factory=dict)
    durable: dict[int, PlannedBatch] = field(default_factory=dict)
    log_start_offset: int = 0
    records_deleted_below: int = 0
    allowed_before: int = 0
    retention: list[tuple[int | None, int | None]] = field(default_factory=list)
    deletion_asked: bool = False

    def furthest_log_start(self, now_ms: int) -> int:
        """No offset from here on may have expired at `now_ms`, by whatever rule ever held."""
        bounds = [self.records_deleted_below, self.allowed_before]
        for retention_ms, retention_bytes in self.retention:
            if retention_ms is not None:
                bounds.append(self._too_old_below(now_ms - retention_ms))
            if retention_bytes is not None:
                bounds.append(self._too_much_below(retention_bytes))
        return max(bounds)

    def _too_old_below(self, cutoff_ms: int) -> int:
        end = 0
        for _, batch in sorted(self.planned.items()):
            if batch.max_timestamp_ms >= cutoff_ms:
                break
            end = batch.last_offset + 1
        return end

    def _too_much_below(self, retention_bytes: int) -> int:
        """The last offset from which on not less than the limit is in the log."""
        left = 0
        for first_offset, batch in sorted(self.planned.items(), reverse=True):
            left += batch.size_bytes
            if left >= retention_bytes:
                return first_offset
        return 0

    def required(self, log_start_offset: int) -> list[PlannedBatch]:
        """The durable batches of a log that starts there."""
        batches = sorted(self.durable.items())
        return [batch for _, batch in batches if batch.last_offset >= log_start_offset]

    def allows(self, first_offset: int, sha256: str) -> bool:
        """Whether these may be the bytes of the batch at that offset."""
        batch = self.planned.get(first_offset)
        known = self.superseded.get(first_offset, set())
        return (batch is not None and batch.sha256 == sha256) or sha256 in known


@dataclass(slots=True, kw_only=True)
class Truth:
    """The whole ledger, read."""

    partitions: dict[str, PartitionTruth] = field(default_factory=dict)
    now_ms: int = 0

    @classmethod
    def read(cls, path: Path) -> Truth:
        truth = cls()
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if line.endswith(b"\n"):
                fact = json.loads(line)
                getattr(truth, f"_take_{fact.pop('fact')}")(**fact)
        return truth

    def _take_clock(self, now_ms: int) -> None:
        self.now_ms = max(self.now_ms, now_ms)

    def _take_topic(self, topic: str, topic_id: str, partition: int) -> None:
        name = f"{topic}-{partition}"
        self.partitions.setdefault(name, PartitionTruth(topic=topic, topic_id=topic_id))

    def _take_retention(self, name: str, retention_ms: int, retention_bytes: int) -> None:
        self.partitions[name].retention.append((retention_ms, retention_bytes))

    def _take_plan(self, name: str, **batch: Any) -> None:
        planned = PlannedBatch(**batch)
        self.partitions[name].planned[planned.first_offset] = planned

    def _take_durable(self, name: str, first_offset: int) -> None:
        partition = self.partitions[name]
        partition.durable[first_offset] = partition.planned[first_offset]

    def _take_log_start(self, name: str, offset: int) -> None:
        partition = self.partitions[name]
        partition.log_start_offset = max(partition.log_start_offset, offset)

    def _take_delete_records(self, name: str, offset: int) -> None:
        partition = self.partitions[name]
        partition.records_deleted_below = max(partition.records_deleted_below, offset)

    def _take_truncating(self, name: str, offset: int) -> None:
        """Batches from `offset` on may be gone or still be there; retention counted them."""
        partition = self.partitions[name]
        partition.allowed_before = partition.furthest_log_start(self.now_ms)
        for first in [one for one in partition.planned if one >= offset]:
            gone = partition.planned.pop(first)
            partition.durable.pop(first, None)
            partition.superseded.setdefault(first, set()).add(gone.sha256)

    def _take_truncated(self, name: str, offset: int) -> None:
        superseded = self.partitions[name].superseded
        for first in [one for one in superseded if one >= offset]:
            del superseded[first]

    def _take_deleting_topic(self, name: str) -> None:
        self.partitions[name].deletion_asked = True

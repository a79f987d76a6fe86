"""What was committed in a partition, and what a reader of its archive may and must get."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

__all__ = ["Batch", "Kind", "Truth", "bits"]


class Kind(Enum):
    PLAIN = 0
    TRANSACTIONAL = 1
    COMMIT = 2
    ABORT = 3


@dataclass(eq=False, slots=True)
class Batch:
    """A batch as it lies in logs; the replicas that have it share this object."""

    base_offset: int
    last_offset: int
    data: bytes
    values: tuple[bytes, ...]
    kind: Kind
    producer_id: int
    written_ms: int


@dataclass
class Truth:
    """The committed batches of one partition, in order.

    ``stored``: offsets that the archive held at some time, as one bit each; ``present``: those that
    it holds. ``lost``: those that the store lost. ``gone_below``: the offset below which retention
    may have deleted; ``deleted_below``: below it a broker has deleted its own. ``may_be_deleted``:
    the topic's deletion may have reached the archive.
    """

    topic: str
    topic_id: str
    number: int
    batches: list[Batch] = field(default_factory=list)
    positions: list[int] = field(default_factory=lambda: [0])
    stored: int = 0
    present: int = 0
    lost: int = 0
    gone_below: int = 0
    deleted_below: int = 0
    deleted_ms: int | None = None
    may_be_deleted: bool = False

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    def commit(self, batches: Iterable[Batch]) -> None:
        end = self.end
        for batch in batches:
            if batch.base_offset >= end:
                self.batches.append(batch)
                self.positions.append(self.positions[-1] + len(batch.data))

    def between(self, first: int, last: int) -> Iterator[Batch]:
        """The batches with offsets from `first` to `last`."""
        row = bisect_right(self.batches, first, key=lambda one: one.base_offset) - 1
        for batch in self.batches[max(row, 0) :]:
            if batch.base_offset > last:
                break
            yield batch

    def expire(self, *, now_ms: int, retention_ms: int, retention_bytes: int, ahead: int) -> None:
        """Move `gone_below` to what retention allows now; ``ahead``: bytes that are not committed.
        -1 is no limit."""
        if retention_ms >= 0:
            for batch in self.batches:
                if batch.last_offset >= self.gone_below:
                    if batch.written_ms >= now_ms - retention_ms:
                        break
                    self.gone_below = batch.last_offset + 1
        if retention_bytes >= 0:
            whole = self.positions[-1] + ahead
            for row, batch in enumerate(self.batches):
                if whole - self.positions[row + 1] < retention_bytes:
                    break
                self.gone_below = max(self.gone_below, batch.last_offset + 1)

    def expected(self, stored: int, *, committed_only: bool) -> dict[int, bytes]:
        """The records that a reader of the offsets `stored` gets at most, by offset."""
        aborted: set[int] = set()
        first_open = None
        if committed_only:
            aborted, first_open = self._undecided(stored)
        found: dict[int, bytes] = {}
        for batch in self.batches:
            if first_open is not None and batch.base_offset >= first_open:
                break
            if batch.base_offset not in aborted:
                for n, value in enumerate(batch.values):
                    found[batch.base_offset + n] = value
        return found

    def may_hide_an_end(self, held: int) -> bool:
        """Whether the offsets `held` have records of a transaction, later a gap in which a reader
        must expect its end, and records behind the gap."""
        opened: set[int] = set()
        for batch in self.batches:
            is_held = held >> batch.base_offset & 1
            if not is_held and opened and held >> batch.base_offset:
                return True
            if batch.kind is Kind.TRANSACTIONAL and is_held:
                opened.add(batch.producer_id)
            elif batch.kind in (Kind.COMMIT, Kind.ABORT):
                opened.discard(batch.producer_id)
        return False

    def _undecided(self, stored: int) -> tuple[set[int], int | None]:
        """The base offsets of aborted batches, and where the oldest transaction begins whose end
        is not in `stored`."""
        opened: dict[int, list[int]] = {}
        aborted: set[int] = set()
        hidden: list[int] = []
        for batch in self.batches:
            if batch.kind is Kind.TRANSACTIONAL:
                opened.setdefault(batch.producer_id, []).append(batch.base_offset)
            elif batch.kind in (Kind.COMMIT, Kind.ABORT):
                bases = opened.pop(batch.producer_id, [])
                if batch.kind is Kind.ABORT:
                    aborted.update(bases)
                if not stored >> batch.base_offset & 1:
                    hidden += bases[:1]
        return aborted, min([*hidden, *(bases[0] for bases in opened.values())], default=None)


def bits(first: int, last: int) -> int:
    """The offsets `first` to `last` as one bit each."""
    return ((1 << (last - first + 1)) - 1) << first if last >= first else 0

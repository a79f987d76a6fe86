"""Reads a partition from both tiers: from the store up to the directory's first offset, then from
the directory.

The directory may delete segments while they are read. The records of these segments are then read
from the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tierlog.columns import RecordColumns
from tierlog.errors import GapError, OutOfRangeError
from tierlog.log.same_log import VanishedError
from tierlog.reader.committed import StableLog
from tierlog.reader.gaps import OnGap, gap_handler
from tierlog.reader.local_reader import LocalReader
from tierlog.reader.log_reader import PartitionSummary, SegmentSummary
from tierlog.reader.store_reader import StoreReader
from tierlog.reader.types import IsolationLevel
from tierlog.types import is_derived_topic_id

__all__ = ["TieredReader"]


class _Here(NamedTuple):
    """The directory at one moment: its first offset (None when it has no segment of the partition)
    and, for a reader of committed records, its last stable offset."""

    start_offset: int | None
    stable: StableLog | None


class TieredReader:
    """A `LogReader` over a directory's reader and a store's, of the same cluster.

    Offsets that neither reader has are a GapError, unless the reader skips gaps. A topic name means
    the topic of that name in the directory; the store may have other topics with the same name.
    """

    def __init__(
        self,
        local: LocalReader,
        remote: StoreReader,
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        look_again: Callable[[], StoreReader] | None = None,
        on_gap: OnGap = "fail",
        same_owner: bool = False,
    ) -> None:
        """Both readers have the same isolation level. ``look_again`` opens the store again, to find
        segments that were copied since then; None when `remote` finds these segments by itself.
        ``on_gap`` decides what happens when both lack offsets. ``same_owner``: the store is the
        broker's own tier, and its segments below the log start offset of the directory will be
        deleted. An archive, in contrast, keeps segments that its broker has deleted."""
        self._same_owner = same_owner
        self._local = local
        self._remote = remote
        self._look_again = look_again
        self._on_gap = on_gap
        self._committed = isolation_level is IsolationLevel.READ_COMMITTED

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`. A partition that is in both tiers is listed once, with the number of
        segments of both tiers."""
        known = {_identity(one): one for one in self._remote.partitions()}
        derived = {key[:2]: key for key in known if key[2] and is_derived_topic_id(key[2])}
        for one in self._local.partitions():
            key = _identity(one)
            if one.topic_id is None:
                # The topic was archived under an id that was made from its name.
                key = derived.get(key[:2], key)
            other = known.get(key)
            known[key] = one if other is None else _join_summaries(other, one)
        return sorted(known.values(), key=lambda one: (one.topic, one.partition))

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`. A segment in both tiers is listed twice, first as the store's
        segment."""
        topic = self._stable_name(topic, partition)
        found: list[SegmentSummary] = []
        if self._remote.extent(topic, partition) is not None:
            found += self._remote.segments(topic, partition)
        if self._local_bounds(topic, partition) is not None:
            found += self._local.segments(topic, partition)
        return sorted(found, key=lambda one: one.base_offset)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`."""
        topic = self._stable_name(topic, partition)
        remote: tuple[int, int] | None = None
        if self._remote.extent(topic, partition) is not None:
            remote = self._remote.bounds(topic, partition)
        local: tuple[int, int] | None
        if self._committed and self._local.start_offset(topic, partition) is not None:
            stable = self._stable_log(topic, partition)
            local = stable.start_offset, stable.last_stable_offset
        else:
            local = self._local_bounds(topic, partition)
        if remote is None:
            return self._local.bounds(topic, partition) if local is None else local
        start_offset = self._log_start(topic, partition)
        if local is None:
            return max(remote[0], start_offset), remote[1]
        return max(min(remote[0], local[0]), start_offset), max(remote[1], local[1])

    def _log_start(self, topic: str, partition: int) -> int:
        """Return the offset below which no segment of the store belongs to the log."""
        return self._local.recorded_log_start(topic, partition) if self._same_owner else 0

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """See `LogReader`. The store is read ahead; the directory is listed again only where a tier
        ends. If the topic is deleted during the read, OutOfRangeError is raised after the records
        in the store."""
        name, topic = topic, self._stable_name(topic, partition)
        held = self._remote.extent(topic, partition)
        offset = max(start_offset, self._log_start(topic, partition))
        here: _Here | None = None
        while end_offset is None or offset < end_offset:
            before, here = here, self._list_directory(topic, partition, here)
            border = here.start_offset
            is_deleted = border is None and before is not None
            if is_deleted and self._look_again is not None:
                self._remote = self._look_again()
            if border is not None and offset < border:
                # Offsets below both tiers were deleted from the log.
                offset = max(offset, border if held is None else min(held[0], border))
            try:
                if border is None or offset < border:
                    for records in self._read_remote(
                        name, topic, partition, offset, end_offset, here
                    ):
                        offset = int(records.offset[-1]) + 1
                        yield records
                    if is_deleted and end_offset is None:
                        raise OutOfRangeError(
                            f"{name}-{partition}: deleted from the directory while it was read, "
                            f"and the store has nothing of it from offset {offset} on"
                        )
                    if border is None:
                        return
                    offset = max(offset, border)
                    continue
                for records in self._local.read(
                    topic, partition, offset, end_offset, stable=here.stable
                ):
                    offset = int(records.offset[-1]) + 1
                    yield records
            except (FileNotFoundError, VanishedError):
                # A segment was deleted while it was read, so the directory now begins at a later
                # offset.
                if self._local.start_offset(topic, partition) == border:
                    raise
                continue
            return

    def _list_directory(self, topic: str, partition: int, before: _Here | None) -> _Here:
        """List the directory again. If the last stable offset was known `before`, the same last
        stable offset is kept."""
        start_offset = self._local.start_offset(topic, partition)
        if before is not None and before.start_offset == start_offset:
            return before
        if start_offset is None or not self._committed:
            return _Here(start_offset, None)
        stable = self._stable_log(topic, partition)
        return _Here(stable.start_offset, stable)

    def _stable_log(self, topic: str, partition: int) -> StableLog:
        return self._local.stable_log(
            topic,
            partition,
            lambda offset: self._remote.producer_snapshot(topic, partition, offset),
        )

    def check_end(self, topic: str, partition: int) -> None:
        """See `LogReader`. If the directory has the partition, the end of the directory decides."""
        topic = self._stable_name(topic, partition)
        if self._local.start_offset(topic, partition) is None:
            self._remote.check_end(topic, partition)

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`."""
        topic = self._stable_name(topic, partition)
        border = self._local.start_offset(topic, partition)
        if self._remote.extent(topic, partition) is not None:
            found = self._remote.offset_for_timestamp(topic, partition, timestamp_ms)
            if found is not None and found < self._log_start(topic, partition):
                return self._find_by_time(topic, partition, timestamp_ms)
            if found is not None and (border is None or found < border):
                return found
        if border is None:
            return None
        return self._local.offset_for_timestamp(topic, partition, timestamp_ms)

    def _find_by_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """Return the offset of the first record of that time or later, from the log start on."""
        for records in self.read(topic, partition, 0):
            late = np.flatnonzero(records.timestamp_ms >= timestamp_ms)
            if len(late):
                return int(records.offset[late[0]])
        return None

    def _read_remote(
        self,
        name: str,
        topic: str,
        partition: int,
        start_offset: int,
        end_offset: int | None,
        here: _Here,
    ) -> Iterator[RecordColumns]:
        """Yield the records below the directory's first offset. Missing offsets are a gap of the
        partition `name`."""
        ends = [one for one in (here.start_offset, end_offset) if one is not None]
        end = min(ends, default=None)
        # The end of a transaction may be at any offset below the directory's first offset.
        needed_end = end if here.stable is None else here.start_offset
        remote_end = self._remote_end(topic, partition, start_offset)
        if needed_end is not None and remote_end < needed_end and self._look_again is not None:
            self._remote = self._look_again()
            remote_end = self._remote_end(topic, partition, start_offset)
        if remote_end > start_offset or end is None:
            yield from self._remote.read(topic, partition, start_offset, end, beyond=here.stable)
        if end is not None and remote_end < end:
            hint = "neither the directory nor the store has them; --on-gap skip reads past them"
            error = GapError(name, partition, remote_end, end - 1, hint=hint)
            gap_handler(self._on_gap)(error)

    def _remote_end(self, topic: str, partition: int, start_offset: int) -> int:
        held = self._remote.extent(topic, partition)
        return start_offset if held is None else max(start_offset, held[1])

    def _stable_name(self, topic: str, partition: int) -> str:
        """Return the topic's id if the directory has it. A read by id still reads the same topic
        when another topic gets its name."""
        return self._local.topic_id(topic, partition) or topic

    def _local_bounds(self, topic: str, partition: int) -> tuple[int, int] | None:
        try:
            return self._local.bounds(topic, partition)
        except OutOfRangeError:
            return None


def _identity(one: PartitionSummary) -> tuple[str, int, str | None]:
    return one.topic, one.partition, one.topic_id


def _join_summaries(remote: PartitionSummary, local: PartitionSummary) -> PartitionSummary:
    starts = [one for one in (remote.log_start_offset, local.log_start_offset) if one is not None]
    return PartitionSummary(
        topic=local.topic,
        partition=local.partition,
        topic_id=remote.topic_id,
        log_start_offset=min(starts, default=None),
        log_end_offset=local.log_end_offset,
        segment_count=remote.segment_count + local.segment_count,
        size_bytes=remote.size_bytes + local.size_bytes,
    )

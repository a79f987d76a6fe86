"""Reads a partition over both tiers: a store for what the directory has no more, the directory for
the rest.

The border is where the directory begins now. It may move on while somebody reads: then what was
deleted here is read from the store.
"""

from __future__ import annotations

from collections.abc import Iterator

from tierlog.columns import RecordColumns
from tierlog.errors import OutOfRangeError
from tierlog.tiering.log_reader import LogReader, PartitionSummary, SegmentSummary

__all__ = ["TieredReader"]


class TieredReader:
    """A `LogReader` over a directory's reader and a store's, of the same cluster.

    Offsets that neither has are an OutOfRangeError that names them, never a silent hole.
    """

    def __init__(self, local: LogReader, remote: LogReader) -> None:
        self._local = local
        self._remote = remote

    def partitions(self) -> list[PartitionSummary]:
        """See `LogReader`; a partition of both is one, with the segments of both counted."""
        known = {_identity(one): one for one in self._remote.partitions()}
        for one in self._local.partitions():
            other = known.get(_identity(one))
            known[_identity(one)] = one if other is None else _joined(other, one)
        return sorted(known.values(), key=lambda one: (one.topic, one.partition))

    def segments(self, topic: str, partition: int) -> list[SegmentSummary]:
        """See `LogReader`; what lies in both is there twice, the store's first."""
        found: list[SegmentSummary] = []
        for reader in (self._remote, self._local):
            if self._bounds(reader, topic, partition) is not None:
                found += reader.segments(topic, partition)
        return sorted(found, key=lambda one: one.base_offset)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `LogReader`."""
        remote = self._bounds(self._remote, topic, partition)
        local = self._bounds(self._local, topic, partition)
        if remote is None:
            return self._local.bounds(topic, partition)
        if local is None:
            return remote
        return min(remote[0], local[0]), max(remote[1], local[1])

    def read(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None = None
    ) -> Iterator[RecordColumns]:
        """See `LogReader`."""
        offset = start_offset
        while end_offset is None or offset < end_offset:
            border = self._border(topic, partition)
            if border is None or offset < border:
                end = min((one for one in (border, end_offset) if one is not None), default=None)
                for records in self._read_remote(topic, partition, offset, end):
                    yield records
                    offset = int(records.offset[-1]) + 1
                if border is None:
                    return
                offset = max(offset, border)
                continue
            try:
                for records in self._local.read(topic, partition, offset, end_offset):
                    yield records
                    offset = int(records.offset[-1]) + 1
            except FileNotFoundError:
                # Deleted under our hands: the border has moved, look again.
                if self._border(topic, partition) == border:
                    raise
                continue
            return

    def offset_for_timestamp(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `LogReader`."""
        border = self._border(topic, partition)
        if self._bounds(self._remote, topic, partition) is not None:
            found = self._remote.offset_for_timestamp(topic, partition, timestamp_ms)
            if found is not None and (border is None or found < border):
                return found
        if border is None:
            return None
        return self._local.offset_for_timestamp(topic, partition, timestamp_ms)

    def _read_remote(
        self, topic: str, partition: int, start_offset: int, end_offset: int | None
    ) -> Iterator[RecordColumns]:
        """What only the store has, up to the border."""
        held = self._bounds(self._remote, topic, partition)
        remote_end = start_offset if held is None else max(start_offset, held[1])
        if end_offset is not None and remote_end < end_offset:
            raise OutOfRangeError(
                f"{topic}-{partition}: offsets {remote_end} to {end_offset - 1} are neither in the "
                "directory nor in the store"
            )
        yield from self._remote.read(topic, partition, start_offset, end_offset)

    def _border(self, topic: str, partition: int) -> int | None:
        """Where the directory begins; None when it has nothing of the partition."""
        try:
            segments = self._local.segments(topic, partition)
            held = self._local.bounds(topic, partition)
        except OutOfRangeError:
            return None
        if not segments:
            return None
        return max(held[0], segments[0].base_offset)

    def _bounds(self, reader: LogReader, topic: str, partition: int) -> tuple[int, int] | None:
        try:
            return reader.bounds(topic, partition)
        except OutOfRangeError:
            return None


def _identity(one: PartitionSummary) -> tuple[str, int, str | None]:
    return one.topic, one.partition, one.topic_id


def _joined(remote: PartitionSummary, local: PartitionSummary) -> PartitionSummary:
    starts = [one for one in (remote.log_start_offset, local.log_start_offset) if one is not None]
    return PartitionSummary(
        topic=local.topic,
        partition=local.partition,
        topic_id=local.topic_id,
        log_start_offset=min(starts, default=None),
        log_end_offset=local.log_end_offset,
        segment_count=remote.segment_count + local.segment_count,
        size_bytes=remote.size_bytes + local.size_bytes,
    )

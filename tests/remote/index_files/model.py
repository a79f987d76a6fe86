"""What a partition's remote index files must be, in plain Python over the oracle's codec."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from tests.oracle import remote_index as oracle
from tests.oracle.remote_index import Entry
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.testing.segments import PARTITION, segment

RUN_BYTES = 100
MOST = 2**31 - 1
NAMES = ("remoteLogIndex", "remoteOffsetIndex", "remoteTimeIndex")


def folder(index_dir: Path) -> Path:
    return index_dir / f"{PARTITION.topic}-{PARTITION.topic_id}" / str(PARTITION.partition)


def key_of(metadata: RemoteLogSegmentMetadata) -> str:
    own = metadata.segment_id
    partition = own.topic_id_partition
    top = f"{partition.topic}-{partition.topic_id}/{partition.partition}"
    return f"{top}/{metadata.start_offset:020d}-{own.id}.log"


@dataclass(frozen=True, slots=True)
class Tiered:
    """A segment in the store: its metadata and its remoteLogIndex."""

    metadata: RemoteLogSegmentMetadata
    entries: tuple[Entry, ...]

    @property
    def data(self) -> bytes:
        return oracle.encode(self.entries)

    def cut(self, offset: int) -> Tiered:
        """The same once its metadata says that the log ends before `offset`."""
        return replace(self, metadata=replace(self.metadata, truncation_offset=offset))


def tiered(
    start_offset: int,
    end_offset: int,
    *,
    per_entry: int = 10,
    name: str = "",
    timestamp_ms: Callable[[int], int] = lambda offset: 1_000_000 + offset,
) -> Tiered:
    """A segment whose entries have `per_entry` offsets each."""
    starts = range(start_offset, end_offset + 1, per_entry)
    metadata = segment(
        name or f"{start_offset}-{end_offset}",
        start_offset,
        end_offset,
        size_bytes=RUN_BYTES * len(starts),
    )
    entries = []
    for number, start in enumerate(starts):
        last = min(start + per_entry - 1, end_offset)
        entries.append(
            Entry(
                first_offset=start,
                last_offset=last,
                first_timestamp_ms=timestamp_ms(start),
                last_timestamp_ms=timestamp_ms(last),
                data_length=RUN_BYTES,
                rdi=f"{key_of(metadata)}:{number * RUN_BYTES}".encode(),
            )
        )
    return Tiered(metadata, tuple(entries))


def key_in(entry: Entry) -> str:
    return oracle.rdi_position(entry.rdi)[0]


@dataclass(slots=True)
class File:
    base_offset: int
    entries: list[Entry] = field(default_factory=list)

    @property
    def last_offset(self) -> int:
        return self.entries[-1].last_offset

    def contents(self) -> tuple[bytes, bytes, bytes]:
        return contents_of(self.base_offset, tuple(self.entries))


@lru_cache(maxsize=64)
def contents_of(base_offset: int, entries: tuple[Entry, ...]) -> tuple[bytes, bytes, bytes]:
    placed = oracle.decode(oracle.encode(entries))
    return (
        oracle.encode(entries, trailer=True),
        oracle.offset_index(placed, base_offset),
        oracle.time_index(placed, base_offset),
    )


class Model:
    """The files of a partition."""

    def __init__(self, *, rotate_bytes: int = 1 << 20, rotate_ms: int = -1) -> None:
        self.files: list[File] = []
        self.rotate_bytes = rotate_bytes
        self.rotate_ms = rotate_ms
        self.log_start_offset = 0

    def on_disk(self) -> dict[str, bytes]:
        return {
            f"{file.base_offset:020d}.{name}": content
            for file in self.files
            for name, content in zip(NAMES, file.contents(), strict=True)
        }

    @property
    def entries(self) -> list[Entry]:
        return [entry for file in self.files for entry in file.entries]

    @property
    def last_offset(self) -> int | None:
        return self.files[-1].last_offset if self.files else None

    def append(self, source: Tiered) -> int:
        low = -1 if self.last_offset is None else self.last_offset
        return self._fill(source, len(self.files), low, 2**63)

    def catch_up(self, sources: Sequence[Tiered]) -> int:
        added = 0
        ordered = sorted(sources, key=order)
        for source in ordered:
            metadata = source.metadata
            cut = metadata.truncation_offset
            if cut is None:
                continue
            at = bisect_left(
                [entry.last_offset for entry in self.entries], max(cut, metadata.start_offset)
            )
            if at < len(self.entries) and key_in(self.entries[at]) == key_of(metadata):
                self.truncate_to(cut)
        for source in ordered:
            if source.metadata.served_end_offset < self.log_start_offset:
                continue
            lasts = [-1, *(file.last_offset for file in self.files)]
            bases = [*(file.base_offset for file in self.files), 2**63]
            # From the last gap back: a new file does not move those before it.
            for index in reversed(range(len(bases))):
                if lasts[index] + 1 < bases[index]:
                    added += self._fill(source, index, lasts[index], bases[index])
        return added

    def _fill(self, source: Tiered, index: int, low: int, high: int) -> int:
        rows = shortened(source.entries, source.metadata.served_end_offset)
        rows = [row for row in rows if low < row.last_offset < high]
        count = len(rows)
        file = self.files[index - 1] if index else None
        if rows and file is not None and self._is_followed(file, source, rows):
            file = None
        while rows:
            if file is None or rows[0].last_offset - file.base_offset > MOST:
                file = File(max(rows[0].first_offset, low + 1))
                self.files.insert(index, file)
                index += 1
            file.entries.append(rows.pop(0))
            low = file.last_offset
        return count

    def _is_followed(self, file: File, source: Tiered, rows: list[Entry]) -> bool:
        if key_in(file.entries[-1]) == key_of(source.metadata):
            return False
        size = sum(row.size_bytes for row in [*file.entries, *rows])
        first = file.entries[0].last_timestamp_ms
        last = max(row.last_timestamp_ms for row in rows)
        return (
            source.metadata.start_offset > file.last_offset + 1
            or size > self.rotate_bytes
            or (self.rotate_ms >= 0 and first >= 0 and last >= 0 and last - first >= self.rotate_ms)
        )

    def truncate_to(self, offset: int) -> int:
        before = len(self.entries)
        kept = []
        low = -1
        for file in self.files:
            file.entries = [
                row for row in shortened(file.entries, offset - 1) if row.last_offset > low
            ]
            if file.base_offset < offset and file.entries:
                kept.append(file)
                low = file.last_offset
        self.files = kept
        return before - len(self.entries)

    def drop_below(self, offset: int) -> int:
        count = sum(file.last_offset < offset for file in self.files)
        self.files = self.files[count:]
        self.log_start_offset = max(self.log_start_offset, offset)
        return count

    def lookup_offset(self, offset: int) -> Entry | None:
        """Through the indexes as a reader of the formats would, and None where nobody knows."""
        for file in self.files:
            if offset > file.last_offset:
                continue
            if offset < file.base_offset:
                return None
            log, index, _ = file.contents()
            pairs = oracle.decode_offset_index(index, file.base_offset)
            entry = oracle.find_offset(log, pairs, offset)
            assert entry is not None
            row = [one.last_offset for one in file.entries].index(entry.last_offset)
            same = row and key_in(file.entries[row - 1]) == key_in(entry)
            return file.entries[row] if entry.first_offset <= offset or same else None
        return None

    def lookup_timestamp(self, timestamp_ms: int) -> Entry | None:
        return oracle.lookup_timestamp(self.entries, timestamp_ms)


def order(source: Tiered) -> tuple[int, int, str]:
    metadata = source.metadata
    return metadata.start_offset, metadata.end_offset, metadata.segment_id.id


def shortened(entries: Sequence[Entry], end_offset: int) -> list[Entry]:
    """What is left of them up to an offset."""
    left = [entry for entry in entries if entry.last_offset <= end_offset]
    after = entries[len(left) :]
    if after and after[0].first_offset <= end_offset:
        left.append(replace(after[0], last_offset=end_offset))
    return left

"""Data structures of a partition's metadata: segments by id, and their offset ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata

__all__ = ["Extents", "PlainSegment", "Ranges", "Row", "Segments"]

# A segment as a row of the SQLite file.
Row: TypeAlias = tuple[Any, ...]
# A segment with valid values, no truncation and one epoch; nearly all segments are of this kind.
# The fields are id, epoch, first and last offset, bytes, whether the segment is finished, whether
# it has a transaction index, and its row.
PlainSegment: TypeAlias = tuple[str, int, int, int, int, bool, bool, Row]


class Ranges:
    """Offset ranges of segments, ordered by (start, end, id); they may overlap."""

    __slots__ = ("_first", "_longest", "_rows")

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, str]] = []
        # Rows before this index are deleted. Retention removes the first range repeatedly; because
        # of this index, a removal need not move all other rows.
        self._first = 0
        # Length of the longest range. A range that contains an offset starts at most this far below
        # the offset.
        self._longest = 0

    def add(self, start_offset: int, end_offset: int, name: str) -> None:
        insort(self._rows, (start_offset, end_offset, name), lo=self._first)
        self._longest = max(self._longest, end_offset - start_offset)

    def extend(self, rows: Iterable[tuple[int, int, str]]) -> None:
        """Add all `rows` to an empty set at once."""
        self._rows = sorted(rows)
        self._longest = max([end - start for start, end, _ in self._rows], default=0)

    def remove(self, start_offset: int, end_offset: int, name: str) -> None:
        index = bisect_left(self._rows, (start_offset, end_offset, name), lo=self._first)
        if index > self._first:
            del self._rows[index]
            return
        self._first += 1
        if 2 * self._first >= len(self._rows):
            del self._rows[: self._first]
            self._first = 0

    def find(self, offset: int) -> str | None:
        """Return the segment whose range contains `offset`, or None. Of several ranges, the one
        that starts last counts; of equal starts, the longest."""
        index = self._first_above(offset) - 1
        while index >= self._first:
            start_offset, end_offset, name = self._rows[index]
            if end_offset >= offset:
                return name
            if offset - start_offset > self._longest:
                return None
            index -= 1
        return None

    def find_or_next(self, offset: int) -> str | None:
        """Return the result of `find`, or else the segment of the first range that starts after
        `offset`."""
        found = self.find(offset)
        if found is not None:
            return found
        index = self._first_above(offset)
        return self._rows[index][2] if index < len(self._rows) else None

    def highest_end(self, *, without: str) -> int:
        """Return the highest end offset of all ranges except those of the segment `without`; -1
        when there are no others."""
        rows = self._rows[self._first :]
        return max((end for _, end, name in rows if name != without), default=-1)

    def next_after(self, row: tuple[int, int, str] | None) -> tuple[int, int, str] | None:
        """Return the range that follows `row`, or the first range for None. Return None when there
        is no such range."""
        index = self._first if row is None else bisect_right(self._rows, row, lo=self._first)
        return self._rows[index] if index < len(self._rows) else None

    def names_from(self, offset: int) -> list[str]:
        """Return the segments whose ranges contain `offset` or start after it, in order."""
        # A range that starts further below cannot contain `offset`.
        index = bisect_left(self._rows, (offset - self._longest, -1, ""), lo=self._first)
        return [name for _, end_offset, name in self._rows[index:] if end_offset >= offset]

    def names(self) -> list[str]:
        return [name for _, _, name in self._rows[self._first :]]

    def _first_above(self, offset: int) -> int:
        return bisect_left(self._rows, (offset + 1, -1, ""), lo=self._first)


class Extents(Ranges):
    """One range per segment, and the set of segments that overlap another segment."""

    __slots__ = ("_overlapping",)

    def __init__(self) -> None:
        super().__init__()
        self._overlapping: set[str] = set()

    def add(self, start_offset: int, end_offset: int, name: str) -> None:
        super().add(start_offset, end_offset, name)
        others = self._find_overlapping(start_offset, end_offset, name)
        if others:
            self._overlapping.update((name, *(other for _, _, other in others)))

    def extend(self, rows: Iterable[tuple[int, int, str]]) -> None:
        super().extend(rows)
        # A range that overlaps any earlier range also overlaps the earlier range with the highest
        # end.
        furthest_end, furthest = -1, ""
        for start_offset, end_offset, name in self._rows:
            if start_offset <= furthest_end:
                self._overlapping.update((name, furthest))
            if end_offset > furthest_end:
                furthest_end, furthest = end_offset, name

    def remove(self, start_offset: int, end_offset: int, name: str) -> None:
        super().remove(start_offset, end_offset, name)
        if name not in self._overlapping:
            return
        self._overlapping.discard(name)
        for row in self._find_overlapping(start_offset, end_offset, name):
            if not self._find_overlapping(*row):
                self._overlapping.discard(row[2])

    def overlapping(self) -> list[str]:
        """Return the segments that share an offset with another segment."""
        return list(self._overlapping)

    def _find_overlapping(
        self, start_offset: int, end_offset: int, name: str
    ) -> list[tuple[int, int, str]]:
        """Return the ranges of other segments that share offsets with this one."""
        lowest = (start_offset - self._longest, -1, "")
        index = bisect_left(self._rows, lowest, lo=self._first)
        behind = bisect_left(self._rows, (end_offset + 1, -1, ""), lo=index)
        near = self._rows[index:behind]
        return [row for row in near if row[1] >= start_offset and row[2] != name]


class Segments:
    """Segments by id. A segment from the SQLite file is decoded only on its first use, since
    decoding a row takes several times as long as reading it."""

    __slots__ = ("_decoded", "_rows", "read_row")

    def __init__(self) -> None:
        self.read_row: Callable[[Row], RemoteLogSegmentMetadata] | None = None
        self._decoded: dict[str, RemoteLogSegmentMetadata] = {}
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._decoded) + len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._decoded or name in self._rows

    def __getitem__(self, name: str) -> RemoteLogSegmentMetadata:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> RemoteLogSegmentMetadata | None:
        found = self._decoded.get(name)
        if found is None and name in self._rows:
            assert self.read_row is not None
            found = self._decoded[name] = self.read_row(self._rows[name])
            del self._rows[name]
        return found

    def all(self) -> list[RemoteLogSegmentMetadata]:
        while self._rows:
            assert self.read_row is not None
            name, row = self._rows.popitem()
            try:
                self._decoded[name] = self.read_row(row)
            except BaseException:
                self._rows[name] = row
                raise
        return list(self._decoded.values())

    def put(self, name: str, metadata: RemoteLogSegmentMetadata) -> None:
        self._decoded[name] = metadata

    def put_row(self, name: str, row: Row) -> None:
        """Add a segment as a row; raise ValueError when the name exists."""
        if name in self._decoded or self._rows.setdefault(name, row) is not row:
            raise ValueError(f"segment {name} occurs twice")

    def pop(self, name: str) -> RemoteLogSegmentMetadata | None:
        """Remove and return the segment; None when it does not exist."""
        known = self.get(name)
        if known is not None:
            del self._decoded[name]
        return known

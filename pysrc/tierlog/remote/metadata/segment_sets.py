"""The two structures under a partition's metadata: segments by id, and ranges of their offsets."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata

__all__ = ["PlainSegment", "Ranges", "Row", "Segments"]

# How a store keeps a segment.
Row: TypeAlias = tuple[Any, ...]
# A segment that is known to be sound, was not cut and has a single epoch, as nearly all: its id,
# epoch, first and last offset, bytes, whether it is finished, whether it has a transaction index.
PlainSegment: TypeAlias = tuple[str, int, int, int, int, bool, bool, Row]


class Ranges:
    """Offset ranges of segments, ordered by (start, end, id); they may overlap."""

    __slots__ = ("_longest", "_rows")

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, str]] = []
        # The longest range ever held: how far below an offset a range that holds it can start.
        self._longest = 0

    def add(self, start_offset: int, end_offset: int, name: str) -> None:
        insort(self._rows, (start_offset, end_offset, name))
        self._longest = max(self._longest, end_offset - start_offset)

    def extend(self, rows: Iterable[tuple[int, int, str]]) -> None:
        """As `add` for each of them, in one go."""
        self._rows.extend(rows)
        self._rows.sort()
        self._longest = max((end - start for start, end, _ in self._rows), default=0)

    def remove(self, start_offset: int, end_offset: int, name: str) -> None:
        index = bisect_left(self._rows, (start_offset, end_offset, name))
        del self._rows[index]

    def find(self, offset: int) -> str | None:
        """The range that holds `offset` and starts last; of several such, the longest."""
        index = self._first_above(offset) - 1
        while index >= 0:
            start_offset, end_offset, name = self._rows[index]
            if end_offset >= offset:
                return name
            if offset - start_offset > self._longest:
                return None
            index -= 1
        return None

    def find_or_next(self, offset: int) -> str | None:
        """As `find`, else the first range that starts after `offset`."""
        found = self.find(offset)
        if found is not None:
            return found
        index = self._first_above(offset)
        return self._rows[index][2] if index < len(self._rows) else None

    def highest_end(self, *, without: str) -> int:
        """The highest offset of all ranges but those of one segment, -1 without any."""
        return max((end for _, end, name in self._rows if name != without), default=-1)

    def first(self) -> tuple[int, int, str] | None:
        """The range that starts first, of several the shortest; None without any."""
        return self._rows[0] if self._rows else None

    def names_from(self, offset: int) -> list[str]:
        """Those of the ranges that hold `offset` or begin after it."""
        # No range that starts further below reaches it.
        index = bisect_left(self._rows, (offset - self._longest, -1, ""))
        return [name for _, end_offset, name in self._rows[index:] if end_offset >= offset]

    def names(self) -> list[str]:
        return [name for _, _, name in self._rows]

    def _first_above(self, offset: int) -> int:
        return bisect_left(self._rows, (offset + 1, -1, ""))


class Segments:
    """Segments by id. Those of a store are rows until somebody asks for them: to make a segment of
    a row takes several times as long as to read it."""

    __slots__ = ("_known", "_rows", "read_row")

    def __init__(self) -> None:
        self.read_row: Callable[[Row], RemoteLogSegmentMetadata] | None = None
        self._known: dict[str, RemoteLogSegmentMetadata] = {}
        self._rows: dict[str, Row] = {}

    def __len__(self) -> int:
        return len(self._known) + len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in self._rows

    def __getitem__(self, name: str) -> RemoteLogSegmentMetadata:
        found = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def get(self, name: str) -> RemoteLogSegmentMetadata | None:
        found = self._known.get(name)
        if found is None and name in self._rows:
            assert self.read_row is not None
            found = self._known[name] = self.read_row(self._rows[name])
            del self._rows[name]
        return found

    def all(self) -> list[RemoteLogSegmentMetadata]:
        while self._rows:
            assert self.read_row is not None
            name, row = self._rows.popitem()
            try:
                self._known[name] = self.read_row(row)
            except BaseException:
                self._rows[name] = row
                raise
        return list(self._known.values())

    def put(self, name: str, metadata: RemoteLogSegmentMetadata) -> None:
        self._known[name] = metadata

    def put_row(self, name: str, row: Row) -> None:
        """ValueError for a second one of that name."""
        if name in self._rows or name in self._known:
            raise ValueError(f"segment {name} stands there twice")
        self._rows[name] = row

    def pop(self, name: str) -> RemoteLogSegmentMetadata | None:
        """Take it away if it is there."""
        known = self.get(name)
        if known is not None:
            del self._known[name]
        return known

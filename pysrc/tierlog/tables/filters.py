"""Find out which rows must be read, given a query's filters.

Filters are objects of Spark's planner. The class of a filter has a name from
``pyspark.sql.datasource``. A filter has an ``attribute`` (the column's path) and a ``value``. A
filter that is not understood is ignored, because Spark applies every filter again to the rows.

For timestamps there is only a lower bound. There is no upper bound, because records may be out of
order, and no index contains the smallest timestamp of a range.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

__all__ = ["Wanted", "wanted_by"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_OFFSET = 2**63 - 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The rows that may pass the filters. The offsets of these rows are in [``start_offset``,
    ``end_offset``), and their timestamps are ``min_timestamp_ms`` or later. None means no
    restriction."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    start_offset: int = 0
    end_offset: int = _MAX_OFFSET
    min_timestamp_ms: int | None = None

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether any row of a partition may pass."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def may_have(self, max_timestamp_ms: int) -> bool:
        """Return whether any of the rows with timestamps up to `max_timestamp_ms` may pass."""
        return self.min_timestamp_ms is None or max_timestamp_ms >= self.min_timestamp_ms


def wanted_by(filters: Iterable[Any]) -> Wanted:
    """Return the rows that may pass all `filters`. The result may include rows that do not pass."""
    wanted = Wanted()
    for one in filters:
        column: tuple[str, ...] = getattr(one, "attribute", ())
        value = getattr(one, "value", None)
        if len(column) == 1 and value is not None:
            wanted = _narrowed(wanted, column[0].lower(), type(one).__name__, value)
    return wanted


def _narrowed(wanted: Wanted, column: str, kind: str, value: Any) -> Wanted:
    match column, kind:
        case "topic", "EqualTo" | "EqualNullSafe" | "In":
            topics = _values(kind, value, str)
            return replace(wanted, topics=_both(wanted.topics, topics))
        case "partition", "EqualTo" | "EqualNullSafe" | "In":
            partitions = _values(kind, value, int)
            return replace(wanted, partitions=_both(wanted.partitions, partitions))
        case "offset", _:
            start, end = _offsets(kind, value)
            return replace(
                wanted,
                start_offset=max(wanted.start_offset, start),
                end_offset=min(wanted.end_offset, end),
            )
        case "timestamp", _:
            time_ms = _time_ms(kind, value)
            if time_ms is not None:
                known = wanted.min_timestamp_ms
                time_ms = time_ms if known is None else max(known, time_ms)
                return replace(wanted, min_timestamp_ms=time_ms)
    return wanted


def _values(kind: str, value: Any, of: type[_T]) -> frozenset[_T] | None:
    found = tuple(value) if kind == "In" else (value,)
    kept = frozenset(one for one in found if isinstance(one, of))
    # A filter whose value is null matches no row. A filter whose value has an unexpected type is
    # ignored.
    expected = sum(one is not None for one in found)
    return kept if sum(isinstance(one, of) for one in found) == expected else None


def _both(one: frozenset[_T] | None, other: frozenset[_T] | None) -> frozenset[_T] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _offsets(kind: str, value: Any) -> tuple[int, int]:
    """Return the range [start, end) of the offsets that pass."""
    values = _values(kind, value, int)
    if values is None:
        return 0, _MAX_OFFSET
    low, high = min(values, default=0), max(values, default=-1)
    match kind:
        case "EqualTo" | "EqualNullSafe" | "In":
            return low, high + 1
        case "GreaterThan":
            return low + 1, _MAX_OFFSET
        case "GreaterThanOrEqual":
            return low, _MAX_OFFSET
        case "LessThan":
            return 0, high
        case "LessThanOrEqual":
            return 0, high + 1
    return 0, _MAX_OFFSET


def _time_ms(kind: str, value: Any) -> int | None:
    """Return the lowest timestamp that passes; None when the filter sets no lower bound."""
    times = _values(kind, value, datetime)
    if not times or any(one.tzinfo is None for one in times):
        return None
    if kind not in ("EqualTo", "EqualNullSafe", "In", "GreaterThan", "GreaterThanOrEqual"):
        return None
    # Round down to whole milliseconds, so that no row is left out wrongly.
    return (min(times) - _EPOCH) // timedelta(milliseconds=1)

"""What must hold of an archive: pure comparisons of rows with a ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from tests.histories.consumers import Row

__all__ = [
    "BreachError",
    "count_twins",
    "require_acked",
    "require_none_of",
    "require_once",
    "require_same",
    "require_up_to",
]


class BreachError(AssertionError):
    """A promise is broken."""


def require_once(what: str, rows: Sequence[Row]) -> None:
    """Each offset once, in order."""
    wrong = [(one, two) for one, two in pairwise(rows) if two.offset <= one.offset]
    if wrong:
        raise BreachError(f"{what}: offsets out of order or twice: {wrong[:5]}")


def count_twins(rows: Sequence[Row]) -> int:
    """Return how many records are stored more than once: a client that gets no answer may begin a
    new producer epoch and send a batch again."""
    return sum(count > 1 for count in Counter(row.digest for row in rows).values())


def require_same(what: str, found: Sequence[Row], expected: Sequence[Row]) -> None:
    """Exactly these records at exactly these offsets."""
    if list(found) == list(expected):
        return
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    raise BreachError(
        f"{what}: {len(found)} records, expected {len(expected)}; missing {missing[:5]} "
        f"({len(missing)}), not expected {extra[:5]} ({len(extra)})"
    )


def require_up_to(what: str, found: Sequence[Row], expected: Sequence[Row], end: int) -> None:
    """At least the expected records before offset `end`; `found` begins like `expected`."""
    wanted = sum(row.offset < end for row in expected)
    if len(found) < wanted:
        last = found[-1].offset if found else -1
        raise BreachError(
            f"{what}: ends at {last} after {len(found)} records, expected {wanted} before {end}"
        )


def require_acked(what: str, rows: Sequence[Row], acked: Mapping[int, Collection[int]]) -> None:
    """Every acked record is at its offset; ``acked`` holds the digests acked at each offset."""
    at = {row.offset: row.digest for row in rows}
    lost = [offset for offset, contents in acked.items() if at.get(offset) not in contents]
    if lost:
        raise BreachError(f"{what}: {len(lost)} acked records are not there: {sorted(lost)[:10]}")


def require_none_of(what: str, rows: Sequence[Row], unwanted: frozenset[int]) -> None:
    """No record of aborted transactions."""
    found = [row.offset for row in rows if row.digest in unwanted]
    if found:
        raise BreachError(f"{what}: records of aborted transactions at {found[:10]}")

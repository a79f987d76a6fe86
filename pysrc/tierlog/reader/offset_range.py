"""Parses where to start and stop reading, in the forms of kcat and rpk.

    beginning  start  oldest     the first record held          (kcat, rpk)
    end        newest            after the last record held     (kcat, rpk)
    N   N:                       offset N
    -N                           the last N offsets
    +N                           N offsets after the first one
    N:M   N-M   :M   :end        up to, and not including, offset M
    s@T   e@T                    from, and up to, a moment; both may be given (kcat)
    @T   @T:   @T:T   @:T        the same (rpk); the second T may be a duration after the first

A moment T is milliseconds (13 digits), seconds (9 or 10 digits), a day ``2024-02-29``, a time
``2024-02-29T12:00:00Z`` (or with a zone, ``+01:00``) or a duration before now ``-2h``. ``s@`` and
``e@`` accept any number of milliseconds, as kcat does. A moment means the offset of the first
record that is not older. If timestamps are out of order, the range between two moments may also
have records from other times.

Ends are never included. The functions are pure: the caller passes the current time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from tierlog.config.durations import DURATION, duration_ms

__all__ = [
    "AtOffset",
    "AtTime",
    "Bound",
    "FromEnd",
    "FromStart",
    "OffsetRange",
    "date_ms",
    "parse_offsets",
]

_MAX_INT64 = 2**63 - 1
_FORMS = "beginning, end, N, -N, N:M, s@ms, e@ms, @-2h:end, @2024-02-29T12:00:00Z:1h"
_NUMBER = re.compile(r"[0-9]{1,19}")
_OFFSETS = re.compile(r"([+-]?)([0-9]{1,19})|([0-9]{1,19})?[:-](end|[0-9]{1,19})?")
_CLOCK = r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:[0-9]{2})?"
_TIME = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[T ]{_CLOCK})?"
_MOMENT = rf"{_TIME}|-{DURATION}|[0-9]{{1,19}}"
_MOMENTS = re.compile(rf"({_MOMENT})?(?:(:)(end|{_MOMENT}|{DURATION})?)?")


class AtOffset(NamedTuple):
    """An offset."""

    offset: int


class FromStart(NamedTuple):
    """A number of offsets after the first offset of the log."""

    distance: int


class FromEnd(NamedTuple):
    """A number of offsets before the end."""

    distance: int


class AtTime(NamedTuple):
    """The first record that is not older than a moment."""

    timestamp_ms: int


Bound = AtOffset | FromStart | FromEnd | AtTime
_SIGNS: dict[str, Callable[[int], Bound]] = {"-": FromEnd, "+": FromStart, "": AtOffset}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The offsets from ``start`` up to, not including, ``end``."""

    start: Bound
    end: Bound

    def resolve(
        self,
        log_start_offset: int,
        log_end_offset: int,
        offset_for_timestamp: Callable[[int], int | None],
    ) -> tuple[int, int]:
        """Return the offsets [start, end) within [`log_start_offset`, `log_end_offset`).

        ``offset_for_timestamp`` returns the offset of the first record that is not older than a
        timestamp, or None. The end is never below the start.
        """

        def offset_of(bound: Bound) -> int:
            match bound:
                case AtOffset(offset):
                    return offset
                case FromStart(distance):
                    return log_start_offset + distance
                case FromEnd(distance):
                    return log_end_offset - distance
                case AtTime(timestamp_ms):
                    found = offset_for_timestamp(timestamp_ms)
                    return log_end_offset if found is None else found

        def held(offset: int) -> int:
            return min(max(offset, log_start_offset), log_end_offset)

        start = held(offset_of(self.start))
        return start, max(start, held(offset_of(self.end)))


def parse_offsets(texts: Sequence[str], now_ms: int) -> OffsetRange:
    """Return the range that one or several ``-o`` arguments specify together.

    Raises ValueError, which describes the mistake and lists the forms. Start and end may each be
    given once: ``s@1 e@2`` is a range, but ``3 s@1`` has two starts.
    """
    start: Bound | None = None
    end: Bound | None = None
    for text in texts:
        new_start, new_end = _parse(text, now_ms)
        if (start and new_start) or (end and new_end):
            twice = "start" if start and new_start else "end"
            raise ValueError(f"{' '.join(texts)}: the {twice} is given twice")
        start, end = start or new_start, end or new_end
    if isinstance(start, AtOffset) and isinstance(end, AtOffset) and end.offset < start.offset:
        raise ValueError(f"{' '.join(texts)}: the end lies before the start")
    if isinstance(start, AtTime) and isinstance(end, AtTime) and end < start:
        raise ValueError(f"{' '.join(texts)}: the end lies before the start")
    return OffsetRange(start=start or FromStart(0), end=end or FromEnd(0))


def _parse(text: str, now_ms: int) -> tuple[Bound | None, Bound | None]:
    """Return the start and the end in one argument; None for a bound that the argument does not
    have."""
    if text in ("beginning", "start", "oldest", "earliest"):
        return FromStart(0), None
    if text in ("end", "newest", "latest"):
        return FromEnd(0), None
    if text == "stored":
        raise ValueError("stored: there are no consumer groups here; give an offset or a time")
    if text[:2] in ("s@", "e@"):
        moment = AtTime(_kcat_moment(text, now_ms))
        return (moment, None) if text[0] == "s" else (None, moment)
    if text.startswith("@"):
        return _moments(text, now_ms)
    return _offsets(text)


def _offsets(text: str) -> tuple[Bound | None, Bound | None]:
    match = _OFFSETS.fullmatch(text)
    if match is None or text in (":", "-"):
        raise _form_error(text)
    sign, number, first, last = match.groups()
    if number is not None:
        return _SIGNS[sign](_int64(number, text)), None
    start = None if first is None else AtOffset(_int64(first, text))
    if last is None or last == "end":
        return start, FromEnd(0) if last else None
    return start, AtOffset(_int64(last, text))


def _moments(text: str, now_ms: int) -> tuple[Bound | None, Bound | None]:
    match = _MOMENTS.fullmatch(text, 1)
    if match is None or text in ("@", "@:"):
        raise _form_error(text)
    first, _, last = match.groups()
    start_ms = None if first is None else _moment_ms(first, text, now_ms)
    start = None if start_ms is None else AtTime(start_ms)
    if last is None:
        return start, None
    if last == "end":
        return start, FromEnd(0)
    if re.fullmatch(DURATION, last):
        if start_ms is None:
            raise ValueError(f"{text}: a duration needs a start, as in @-2h:{last}")
        return start, AtTime(start_ms + duration_ms(last))
    return start, AtTime(_moment_ms(last, text, now_ms))


def _kcat_moment(text: str, now_ms: int) -> int:
    moment = text[2:]
    if _NUMBER.fullmatch(moment):
        return _int64(moment, text)
    if not re.fullmatch(_MOMENT, moment):
        raise ValueError(
            f"{text}: expected milliseconds after {text[:2]}, as in {text[:2]}1709208000000"
        )
    return _moment_ms(moment, text, now_ms)


def _moment_ms(moment: str, text: str, now_ms: int) -> int:
    if moment.startswith("-"):
        return max(0, now_ms - duration_ms(moment[1:]))
    if _NUMBER.fullmatch(moment):
        if len(moment) in (9, 10):
            return int(moment) * 1000
        if len(moment) == 13:
            return int(moment)
        raise ValueError(
            f"{text}: a time of {len(moment)} digits; "
            "13 are milliseconds, 9 or 10 are seconds, and s@ takes any milliseconds"
        )
    return date_ms(moment, text)


def date_ms(moment: str, text: str) -> int:
    """Return the milliseconds of a day ``2024-02-29`` or a time ``2024-02-29T12:00:00+01:00``. A
    time without a zone is in UTC. Raises ValueError, which quotes `text`, for other forms."""
    if re.fullmatch(_TIME, moment) is None:
        raise ValueError(f"{text}: expected a day or a time as in 2024-02-29T12:00:00Z")
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError as error:
        raise ValueError(f"{text}: no such time, {error}") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    whole_s = int(parsed.replace(microsecond=0).timestamp())
    return whole_s * 1000 + parsed.microsecond // 1000


def _int64(digits: str, text: str) -> int:
    value = int(digits)
    if value > _MAX_INT64:
        raise ValueError(f"{text}: no offset or time is above {_MAX_INT64}")
    return value


def _form_error(text: str) -> ValueError:
    return ValueError(f"{text!r} is no offset; expected one of {_FORMS}")

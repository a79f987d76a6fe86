"""Parse durations such as ``90m``, ``7d``, ``1d12h`` and ``1.5h``."""

from __future__ import annotations

import re

__all__ = ["DURATION", "duration_ms", "parse_duration"]

DURATION = r"(?:[0-9]{1,15}(?:\.[0-9]{1,6})?(?:ms|s|m|h|hr|d|w))+"
_PART = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)(ms|s|m|hr|h|d|w)")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,6})?")
_UNIT_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "hr": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


def duration_ms(duration: str) -> int:
    """Return the milliseconds of a text that `DURATION` matches."""
    return int(sum(float(number) * _UNIT_MS[unit] for number, unit in _PART.findall(duration)))


def parse_duration(text: str, bare_unit: str | None = None) -> int:
    """Return the milliseconds of ``7d`` or ``1d12h``.

    A number without a unit is in ``bare_unit``. If ``bare_unit`` is None, such a number is refused,
    since a user may mean days where Kafka means milliseconds. Raises ValueError.
    """
    if _NUMBER.fullmatch(text):
        if bare_unit is None:
            raise ValueError(
                f"{text} has no unit: write {text}d for {text} days, or {text}ms for {text} "
                "milliseconds"
            )
        return int(float(text) * _UNIT_MS[bare_unit])
    if re.fullmatch(DURATION, text):
        return duration_ms(text)
    raise ValueError(f"expected a duration as in 90m, 7d or 1d12h, found {text[:40]!r}")

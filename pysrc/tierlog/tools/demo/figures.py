"""How the demo shows times and rates."""

from __future__ import annotations

from collections.abc import Sequence

from tierlog.tools.output import human_size

__all__ = ["ms_text", "quantile", "rate_text"]

_MICROSECONDS = 1_000_000


def ms_text(time_us: float) -> str:
    """Return a time in ms."""
    return f"{time_us / 1000:.2f} ms"


def rate_text(size_bytes: float, time_us: float) -> str:
    """Return bytes per second; ``-`` when no time has passed."""
    return f"{human_size(int(size_bytes * _MICROSECONDS / time_us))}/s" if time_us > 0 else "-"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the ordered values lie; 0 without values."""
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0

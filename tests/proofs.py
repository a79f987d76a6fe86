"""How much is tried: what shows a behaviour in ``make test``, much of it in ``make proofs``."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["THOROUGH", "usually"]

T = TypeVar("T")

THOROUGH = os.environ.get("PROOFS") == "1"


def usually(few: T, *, thorough: T) -> T:
    """How much of something: `few` unless this run is a proof."""
    return thorough if THOROUGH else few

"""How much is tried: little in ``make quick``, what shows a behaviour in ``make test``, much in
``make proofs``."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["EXAMPLES", "THOROUGH", "usually"]

T = TypeVar("T")

THOROUGH = os.environ.get("PROOFS") == "1"
# Of each property that hypothesis tests.
EXAMPLES = 1_000 if THOROUGH else 10 if os.environ.get("QUICK") == "1" else 100


def usually(few: T, *, thorough: T) -> T:
    """How much of something: `few` unless this run is a proof."""
    return thorough if THOROUGH else few

"""Packs the many values of a plan: pickled and compressed, adjacent ones together.

Python objects take 1 KB per segment, packed ones about 50 bytes. A driver keeps only packed values
and passes them to its workers.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any

__all__ = ["pack", "unpack"]

# Random parts of keys and rows do not compress; the fastest level suffices for the rest.
_FASTEST_LEVEL = 1


def pack(value: object) -> bytes:
    """Return the value packed for `unpack`, in this process or a child."""
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), _FASTEST_LEVEL)


def unpack(packed: bytes) -> Any:
    """Return the value of `pack`. The bytes must come from this planner, never from a file or a
    store."""
    return pickle.loads(zlib.decompress(packed))

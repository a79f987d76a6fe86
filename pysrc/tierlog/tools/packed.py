"""What a plan keeps of very many things: neighbours together, pickled and compressed.

Objects of Python take a kilobyte for each segment, neighbours packed together some fifty bytes. A
driver that plans the work of others keeps only these and hands them on as they are.
"""

from __future__ import annotations

import pickle
import zlib
from typing import Any

__all__ = ["pack", "unpack"]

# What a key or a row has by chance cannot be compressed; the rest is gone at the quickest level.
_QUICKEST, _AS_IT_IS = 1, 0


def pack(value: object, *, compressed: bool = True) -> bytes:
    """A value for `unpack`, in this process or one that it started; as it is, if it is large and
    will not be kept for long."""
    level = _QUICKEST if compressed else _AS_IT_IS
    return zlib.compress(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), level)


def unpack(packed: bytes) -> Any:
    """The value of `pack`: bytes that our own planner made, never those of a file or a store."""
    return pickle.loads(zlib.decompress(packed))

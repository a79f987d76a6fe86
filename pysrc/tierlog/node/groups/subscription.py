"""Reads the topics of a subscription, which is the metadata of the protocol type ``consumer``."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["CONSUMER", "read_topics"]

CONSUMER = "consumer"

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def read_topics(metadata: bytes) -> Iterator[str]:
    """Yield the topics of a `ConsumerProtocolSubscription` of any version. Every version begins
    like version 0. Raises ValueError for other bytes."""
    try:
        _version, count = _INT16.unpack_from(metadata), _INT32.unpack_from(metadata, 2)[0]
        position = 6
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += 2
            if not 0 <= length <= len(metadata) - position:
                raise ValueError(
                    f"expected the {length} bytes of a topic at byte {position}, found "
                    f"{len(metadata) - position}"
                )
            yield metadata[position : position + length].decode()
            position += length
    except struct.error as error:
        raise ValueError(f"a subscription ends early: {error}") from None

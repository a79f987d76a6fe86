"""Remote offset and time indexes, as columns in and out of the native codec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierlog import _core

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog.batches import Int64Column
    from tierlog.remote.segment.log_index import RemoteLogIndexEntries

__all__ = [
    "encode_remote_offset_index",
    "encode_remote_time_index",
    "read_remote_offset_index",
    "read_remote_time_index",
]


def encode_remote_offset_index(entries: RemoteLogIndexEntries, base_offset: int) -> bytes:
    """Encode the remoteOffsetIndex of entries: (last offset - base, byte position), 8 bytes each.

    Raises ``CorruptDataError`` when the remoteLogIndex reaches 2 GiB, or an offset is 2^31 or more
    above the base.
    """
    return _core.encode_offset_index(entries.last_offset, entries.position, base_offset)


def encode_remote_time_index(entries: RemoteLogIndexEntries, base_offset: int) -> bytes:
    """Encode the remoteTimeIndex of entries: (last timestamp, last offset - base), 12 bytes for
    each entry whose timestamp is larger than all before it."""
    return _core.encode_time_index(entries.last_timestamp_ms, entries.last_offset, base_offset)


def read_remote_offset_index(data: Buffer, base_offset: int) -> tuple[Int64Column, Int64Column]:
    """Return the columns (last offset, byte position in the remoteLogIndex) of a remoteOffsetIndex.

    ``CorruptDataError`` unless both ascend strictly and no bytes follow them.
    """
    offset, position, _length = _core.parse_offset_index(data, base_offset, "empty")
    return np.asarray(offset), np.asarray(position)


def read_remote_time_index(data: Buffer, base_offset: int) -> tuple[Int64Column, Int64Column]:
    """Return the columns (timestamp in ms, last offset) of a remoteTimeIndex.

    ``CorruptDataError`` unless timestamps ascend strictly, offsets do not descend and no bytes
    follow them.
    """
    timestamp_ms, offset, _length = _core.parse_time_index(data, base_offset, "empty")
    return np.asarray(timestamp_ms), np.asarray(offset)

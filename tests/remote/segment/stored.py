"""The indexes of a golden segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import IndexKind, encode_indexes

if TYPE_CHECKING:
    pass

SECTIONS = {
    IndexKind.OFFSET: b"offset-index",
    IndexKind.TIME: b"time-index",
    IndexKind.TRANSACTION: b"",
    IndexKind.PRODUCER_SNAPSHOT: b"snapshot",
    IndexKind.LEADER_EPOCH: b"0\n1\n0 0\n",
    IndexKind.REMOTE_LOG: b"entries",
    IndexKind.BATCH_CHECKSUM: b"checksums",
}


def indexes_of(
    metadata: RemoteLogSegmentMetadata, sections: dict[IndexKind, bytes] | None = None
) -> bytes:
    description = SegmentDescription(metadata=metadata, record_count=10, batch_count=2)
    return encode_indexes(description, sections or SECTIONS)

"""A description of a segment and the sections of its `.indexes` object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierlog.remote.segment.description import SegmentDescription
from tierlog.remote.segment.indexes import (
    IndexKind,
)
from tierlog.testing.segments import FINISHED, segment

if TYPE_CHECKING:
    pass

SECTIONS = {
    IndexKind.OFFSET: b"offset-index" * 3,
    IndexKind.TIME: b"time-index" * 5,
    IndexKind.TRANSACTION: b"",
    IndexKind.PRODUCER_SNAPSHOT: b"\x00\x01producers",
    IndexKind.LEADER_EPOCH: b"0\n1\n0 0\n",
    IndexKind.REMOTE_LOG: bytes(range(256)),
    IndexKind.BATCH_CHECKSUM: b"checksums",
}


DESCRIPTION = SegmentDescription(
    metadata=segment(
        "a",
        10,
        99,
        epochs=((0, 0), (4, 50)),
        size_bytes=1_000,
        bytes_per_epoch=((0, 600), (4, 400)),
        log_crc32c=0xDEADBEEF,
        txn_index_empty=True,
        state=FINISHED,
    ),
    record_count=90,
    batch_count=7,
    cluster_id="cluster",
)

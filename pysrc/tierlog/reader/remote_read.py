"""The request and the result of a remote read, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tierlog.errors import CorruptDataError
from tierlog.log.checkpoint import LeaderEpochs
from tierlog.reader.charges import Payer
from tierlog.reader.places import Place
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tierlog.reader.read_ahead import Stream

__all__ = ["Fetched", "RefusedError", "RemoteRead", "ThrottledError", "Wanted", "nothing_read"]


class RemoteRead(NamedTuple):
    """The result of a remote read.

    ``records``: whole batches as they are stored, back to back. The first batch ends at or after
    the offset of the read. These batches are the bytes of ``segment`` from ``start_position`` up
    to, not including, ``end_position``. ``first_offset`` is the base offset of the first batch, and
    ``next_offset`` is the offset after the last batch.

    In an empty read `first_offset` is -1. `next_offset` is then after a gap, or it is the offset of
    the read because the first batch is too large, no memory was free in time (``refused``), or the
    quota is used up (``throttled``). ``requests`` is the number of requests to the store.
    """

    records: Buffer
    first_offset: int
    next_offset: int
    segment: RemoteLogSegmentMetadata | None = None
    start_position: int = 0
    end_position: int = 0
    requests: int = 0
    refused: bool = False
    throttled: bool = False


class RefusedError(Exception):
    """The memory stayed full for too long."""


class ThrottledError(Exception):
    """The quota is used up."""


class Fetched(NamedTuple):
    """Bytes of a place from `position` on that were fetched and not examined yet."""

    place: Place
    position: int
    view: memoryview


@dataclass(slots=True)
class Wanted:
    """The request and the progress of a read.

    The read needs the batches of `partition` from `offset` up to `last_offset`, but at most
    `max_bytes`. With `minimum_one`, the read needs the first batch whatever its size. `lineage`
    decides which segments belong to the log. The tier should hold the offsets from
    `log_start_offset` up to, not including, `tier_end_offset`; None means unknown.

    `offset` advances past gaps and into later segments. ``requests`` is the number of requests to
    the store. ``fetched`` holds bytes that were fetched but not examined yet. ``payer`` pays for
    the bytes. Once ``is_begun`` is set, the payer is still charged but can no longer refuse.
    ``stepped_over`` is the damage of a batch that seems to be below `offset`.
    """

    partition: TopicIdPartition
    lineage: LeaderEpochs
    offset: int
    max_bytes: int
    last_offset: int
    minimum_one: bool
    payer: Payer
    log_start_offset: int | None
    tier_end_offset: int | None
    stream: Stream | None
    requests: int = 0
    is_begun: bool = False
    fetched: Fetched | None = None
    stepped_over: CorruptDataError | None = None

    def require_no_gap(self, offset: int) -> None:
        """Raise the damage of a batch before `offset`, because the batch may hold the offset of the
        read. The base offset of the batch may be wrong, since no checksum covers the base
        offset."""
        if self.stepped_over is not None and offset > self.offset:
            raise self.stepped_over

    def go_to(self, offset: int) -> None:
        """Continue after a gap or in the next segment, where the stream's position is not valid."""
        self.offset = offset
        if self.stream is not None:
            self.stream.place = None


def nothing_read(wanted: Wanted, *, refused: bool = False, throttled: bool = False) -> RemoteRead:
    return RemoteRead(
        records=b"",
        first_offset=-1,
        next_offset=wanted.offset,
        requests=wanted.requests,
        refused=refused,
        throttled=throttled,
    )

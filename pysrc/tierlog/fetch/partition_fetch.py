"""One partition of a fetch request: the request, the view of the log, and the possible answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tierlog.errors import OutOfRangeError, TierlogError
from tierlog.fetch.pool import ReaderPoolFullError
from tierlog.reader.types import (
    CONSUMER,
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Hashable

    from typing_extensions import Buffer

    from tierlog.log.index_files import AbortedTransaction

__all__ = ["PartitionFetch", "error_code", "error_text"]


@dataclass(frozen=True, slots=True)
class PartitionFetch:
    """A fetch of one partition as `view` shows it, from `offset` up to, not including,
    `upper_offset`. The fetch takes at most `max_bytes`. With `minimum_one`, the first batch is
    taken even if it is larger.
    """

    request: FetchRequest
    asked: FetchPartition
    view: FetchView
    upper_offset: int
    max_bytes: int
    minimum_one: bool
    at_once: bool = False

    @classmethod
    def of(
        cls,
        request: FetchRequest,
        asked: FetchPartition,
        view: FetchView,
        left_bytes: int,
        *,
        minimum_one: bool,
        at_once: bool,
    ) -> PartitionFetch:
        """Return the fetch limited to `left_bytes`, which are still free in the response."""
        if request.replica_id != CONSUMER:
            upper_offset = view.log_end_offset
        elif request.isolation_level is IsolationLevel.READ_COMMITTED:
            upper_offset = min(view.last_stable_offset, view.high_watermark)
        else:
            upper_offset = view.high_watermark
        max_bytes = max(0, min(asked.max_bytes, left_bytes))
        return cls(request, asked, view, upper_offset, max_bytes, minimum_one, at_once)

    @property
    def partition(self) -> TopicIdPartition:
        """The partition that is fetched."""
        return self.asked.partition

    @property
    def offset(self) -> int:
        """The offset from which the partition is fetched."""
        return self.asked.fetch_offset

    @property
    def is_of_follower(self) -> bool:
        """Whether a follower sent the fetch."""
        return self.request.replica_id != CONSUMER

    @property
    def wants_aborted(self) -> bool:
        """Whether the answer lists aborted transactions."""
        is_committed = self.request.isolation_level is IsolationLevel.READ_COMMITTED
        return is_committed and not self.is_of_follower

    def with_view(self, view: FetchView) -> PartitionFetch:
        """Return the same fetch with a later view of the log."""
        return replace(self, view=view)

    def at_offset(self, offset: int) -> PartitionFetch:
        """Return the same fetch from another offset on."""
        return replace(self, asked=replace(self.asked, fetch_offset=offset))

    def read_key(self, limits_client: bool) -> Hashable:
        """Return a key that is equal for fetches if their remote reads have equal results and are
        charged to the same quotas. ``limits_client``: the client has a quota of its own."""
        lineage = self.view.log.leader_epochs
        return (
            self.partition,
            self.offset,
            self.max_bytes,
            self.minimum_one,
            self.request.isolation_level,
            # Records above this offset come from the local log.
            min(self.upper_offset, self.view.local_log_start_offset),
            self.view.leader_epoch,
            # In another lineage, the offset belongs to another record.
            lineage and lineage.entries[-1:],
            # The quota of one client may be used up while that of another client has room.
            self.request.client_id if limits_client else None,
        )

    def answer(
        self,
        source: FetchSource,
        error: FetchError = FetchError.NONE,
        text: str = "",
        *,
        records: Buffer = b"",
        aborted: tuple[AbortedTransaction, ...] | None = None,
        next_offset: int = -1,
    ) -> PartitionData:
        """Return an answer with the offsets of the view."""
        return PartitionData(
            partition=self.partition,
            source=source,
            error=error,
            records=records,
            high_watermark=self.view.high_watermark,
            last_stable_offset=self.view.last_stable_offset,
            log_start_offset=self.view.log_start_offset,
            aborted_transactions=aborted,
            next_offset=next_offset,
            text=text,
        )

    def failure(self, error: FetchError | BaseException, text: str = "") -> PartitionData:
        """Return an answer that is an error."""
        if isinstance(error, BaseException):
            return self.answer(FetchSource.ERROR, error_code(error), error_text(error))
        return self.answer(FetchSource.ERROR, error, text)


def error_code(error: BaseException) -> FetchError:
    """Return the code that a client gets for an error. Only a missing offset makes the client
    choose another offset."""
    if isinstance(error, OutOfRangeError):
        return FetchError.OFFSET_OUT_OF_RANGE
    if isinstance(error, ReaderPoolFullError) or not isinstance(error, (TierlogError, OSError)):
        return FetchError.UNKNOWN_SERVER_ERROR
    return FetchError.KAFKA_STORAGE_ERROR


def error_text(error: BaseException) -> str:
    """Return the text of an error. For an unexpected error, the text begins with the type of the
    error."""
    return str(error) if isinstance(error, (TierlogError, OSError)) else repr(error)

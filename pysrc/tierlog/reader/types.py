"""Requests and responses of a fetch over many partitions.

Names and numbers are the same as in Kafka's Fetch request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol

from tierlog.log.index_files import AbortedTransaction
from tierlog.log.log_dir import PartitionLog
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "CONSUMER",
    "FetchError",
    "FetchHost",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchSource",
    "FetchView",
    "IsolationLevel",
    "PartitionData",
]

# The replica id that every client sends, except a broker.
CONSUMER = -1


class IsolationLevel(IntEnum):
    """Which records a consumer reads; Kafka's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FetchError(IntEnum):
    """Kafka's error codes that the answer to a fetch may have."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    UNSUPPORTED_VERSION = 35
    KAFKA_STORAGE_ERROR = 56
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    THROTTLING_QUOTA_EXCEEDED = 89
    OFFSET_MOVED_TO_TIERED_STORAGE = 109


class FetchSource(Enum):
    """The tier that answers for a partition, or why the answer has no records."""

    LOCAL = "local"
    REMOTE = "remote"
    THROTTLED = "throttled"
    NO_BUDGET = "no_budget"
    NO_MEMORY = "no_memory"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """One partition of a request. A first batch may be larger than `max_bytes`.

    ``current_leader_epoch`` is the leader epoch that the client knows; -1 if the client sent none.
    """

    partition: TopicIdPartition
    fetch_offset: int
    max_bytes: int = 1 << 20
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch request. Its defaults are the defaults of Kafka's consumer.

    Even if the limits are 0 or less, the answer has one batch, for only one partition of the
    request. ``client_id`` selects the quota. ``replica_id`` is the broker's id if the request comes
    from a follower. The request is answered when there are ``min_bytes``, or after ``max_wait_ms``.
    """

    partitions: tuple[FetchPartition, ...]
    max_bytes: int = 50 << 20
    min_bytes: int = 1
    max_wait_ms: int = 500
    isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    client_id: str = ""
    replica_id: int = CONSUMER


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionData:
    """The answer for one partition.

    ``records``: whole checked batches as they are stored, back to back. The first batch may begin
    below the fetch offset. Unknown offsets are -1. ``aborted_transactions`` is None unless the
    request is for committed records only. ``next_offset`` is the offset after the records of a
    remote read. ``text`` is an error message for people.
    """

    partition: TopicIdPartition
    source: FetchSource
    error: FetchError = FetchError.NONE
    records: Buffer = b""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    next_offset: int = -1
    text: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the records."""
        return memoryview(self.records).nbytes

    @property
    def is_worth_keeping(self) -> bool:
        """Whether a later request for the same data can use this answer."""
        return self.size_bytes > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """One answer for each partition of the request, in its order."""

    partitions: tuple[PartitionData, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchView:
    """The state of one partition at one moment.

    The log is readable from ``log_start_offset`` on, locally from ``local_log_start_offset`` on;
    ``log.leader_epochs`` is the lineage of the whole log. Consumers read below ``high_watermark``,
    or below ``last_stable_offset``; followers below ``log_end_offset``. ``tiered`` says whether
    offsets below the local log start offset are in the tier. A host that is not the leader
    (``leads`` is false) answers only fetches of consumers. Followers and searches for offsets need
    the leader. ``active_aborted`` has the transactions that were aborted in the active segment;
    None when the segment's transaction index has these transactions.
    """

    log: PartitionLog
    log_start_offset: int
    local_log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    leader_epoch: int = -1
    leads: bool = True
    tiered: bool = True
    active_aborted: tuple[AbortedTransaction, ...] | None = None


class FetchHost(Protocol):
    """The owner of the partitions: a node, or a reader of directories and stores."""

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """Return the present state of the partition; None for an unknown partition. The call must
        return quickly, and any thread may make the call.

        A host of a log that another process writes reads the last stable offset and the high
        watermark first, then lists the segments, and reads the log start and the local log start
        last. In this order, the listed segments contain every abort marker below the last stable
        offset, and no segment from the local log start on is missing.
        """
        ...

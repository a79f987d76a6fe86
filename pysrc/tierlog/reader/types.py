"""A fetch over many partitions: what is asked, and what is answered for each of them.

The words and numbers are those of Kafka's Fetch request; offsets are Kafka offsets, sizes bytes.
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

# The replica id of everybody who is no broker.
CONSUMER = -1


class IsolationLevel(IntEnum):
    """What a consumer wants to see; Kafka's numbers."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class FetchError(IntEnum):
    """Kafka's error codes that a fetch answers with."""

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
    """Where the answer for a partition comes from, or why it has no records."""

    LOCAL = "local"
    REMOTE = "remote"
    THROTTLED = "throttled"
    NO_BUDGET = "no_budget"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPartition:
    """One partition of a request; `max_bytes` is exceeded by a first batch that is larger.

    ``current_leader_epoch`` is the epoch the client believes in, -1 when it does not say.
    """

    partition: TopicIdPartition
    fetch_offset: int
    max_bytes: int = 1 << 20
    current_leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A fetch; the defaults are those of Kafka's consumer.

    Limits of 0 or less ask for no bytes, but get the first batch there is all the same, once per
    request. ``client_id`` decides which quota it counts for; ``replica_id`` is a broker's id when a
    follower asks. No answer is kept back longer than ``max_wait_ms`` for want of ``min_bytes``.
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

    ``records``: whole batches as they are stored, back to back, each of them checked; the first one
    may begin before the offset asked for. Offsets are -1 where unknown.
    ``aborted_transactions`` is None unless the reader wants committed records only. ``text`` says
    to a person what the error is about.
    """

    partition: TopicIdPartition
    source: FetchSource
    error: FetchError = FetchError.NONE
    records: Buffer = b""
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted_transactions: tuple[AbortedTransaction, ...] | None = None
    text: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of the records."""
        return memoryview(self.records).nbytes

    @property
    def is_worth_keeping(self) -> bool:
        """Whether somebody who asks for the same later is helped by it."""
        return self.size_bytes > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResponse:
    """One answer for each partition of the request, in its order."""

    partitions: tuple[PartitionData, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchView:
    """What a host shows of one partition at one moment.

    The log is readable from ``log_start_offset`` on, locally from ``local_log_start_offset`` on;
    ``log.leader_epochs`` is the lineage of the whole of it. Consumers read below
    ``high_watermark``, or below ``last_stable_offset``; followers below ``log_end_offset``.
    ``tiered``: what lies below the local log start is in the tier. Without ``leads`` only fetches
    of consumers are answered; followers, and searches for offsets, need the leader.
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


class FetchHost(Protocol):
    """Whoever has the partitions: a node, or a reader of directories and stores."""

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        """The partition now, None when it is not here; quick, from any thread.

        Who looks at a log that somebody else goes on with asks for the last stable offset and the
        high watermark, then lists the segments, and then asks for the log start and the local log
        start. An abort below the last stable offset may stand in the last segment listed, and no
        segment from the local log start on may be missing.
        """
        ...

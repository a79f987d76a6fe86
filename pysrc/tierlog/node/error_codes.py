"""Kafka's error codes, and the code of each of tierlog's errors."""

from __future__ import annotations

from enum import IntEnum

from tierlog.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    FencedLeaderError,
    GapError,
    MetadataNotReadyError,
    OutOfRangeError,
    RemoteMetadataError,
    RemoteStorageError,
    TierlogError,
)

__all__ = ["MAX_PARTITIONS", "READ_ONLY", "ErrorCode", "error_code_of"]

# What a client that wants to change something is told.
READ_ONLY = "this server shows an archive, which is read only"
# Most partitions of a topic, as Kafka's controller creates at a time.
MAX_PARTITIONS = 10_000


class ErrorCode(IntEnum):
    """Kafka's numbers."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_NOT_AVAILABLE = 15
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    UNKNOWN_TOPIC_ID = 100
    TRANSACTIONAL_ID_NOT_FOUND = 105
    TRANSACTION_ABORTABLE = 120


# The first class that an error belongs to counts.
_CODES: tuple[tuple[type[TierlogError], ErrorCode], ...] = (
    (OutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (FencedLeaderError, ErrorCode.FENCED_LEADER_EPOCH),
    (MetadataNotReadyError, ErrorCode.LEADER_NOT_AVAILABLE),
    (RemoteStorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (RemoteMetadataError, ErrorCode.KAFKA_STORAGE_ERROR),
    (CorruptDataError, ErrorCode.KAFKA_STORAGE_ERROR),
    (GapError, ErrorCode.KAFKA_STORAGE_ERROR),
    (ClosedError, ErrorCode.KAFKA_STORAGE_ERROR),
    (ConfigError, ErrorCode.UNKNOWN_SERVER_ERROR),
)


def error_code_of(error: BaseException) -> ErrorCode:
    """Return the code that tells a client what to do about `error`.

    A client tries again after KAFKA_STORAGE_ERROR and LEADER_NOT_AVAILABLE, and goes elsewhere
    after OFFSET_OUT_OF_RANGE. An error without a row here is UNKNOWN_SERVER_ERROR.
    """
    if isinstance(error, OSError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR

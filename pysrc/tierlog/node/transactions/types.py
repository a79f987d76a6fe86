"""A transaction as plain values, and the error of a request that does not fit its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tierlog.errors import TierlogError
from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.error_codes import ErrorCode

__all__ = [
    "OFFSETS_TOPIC",
    "Partition",
    "Transaction",
    "TransactionRefusedError",
    "TransactionState",
]

# The partition of this topic by which Kafka names a group in a transaction.
OFFSETS_TOPIC = "__consumer_offsets"


class TransactionState(IntEnum):
    """Kafka's numbers for the states of a transaction."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """Kafka's name of the state."""
        return self.name.title().replace("_", "")

    @property
    def is_prepared(self) -> bool:
        """Whether the transaction has ended, and its markers are to be written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)


class Partition(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its latest transaction.

    ``last_epoch``: the epoch before the latest one, when its producer may not know the latest one
    yet. ``previous_producer_id``, ``next_producer_id``: another producer id when the epochs of one
    were used up or are; else the same one, and -1. ``client_version``: the transaction version
    (KIP-890) of the client that ended the transaction.
    """

    transactional_id: str
    producer_id: int
    previous_producer_id: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    producer_epoch: int = -1
    last_epoch: int = -1
    next_producer_id: int = -1
    partitions: frozenset[Partition] = frozenset()
    started_ms: int = -1
    client_version: int = 0

    @property
    def producer(self) -> ProducerEpoch:
        """Its producer id and epoch."""
        return ProducerEpoch(self.producer_id, self.producer_epoch)


class TransactionRefusedError(TierlogError):
    """A request was refused. ``code`` says why in Kafka's terms."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(code, text)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.text}"

    def __reduce__(self) -> tuple[object, ...]:
        return TransactionRefusedError, (self.code, self.text)

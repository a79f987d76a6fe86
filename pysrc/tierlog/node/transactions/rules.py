"""The rules of a transaction: pure functions that return its next state, or refuse a request.

They are Kafka's (``TransactionCoordinator``, KIP-98, KIP-360, KIP-890). A client of transaction
version 2 gets a new epoch with the end of every transaction; with earlier versions the epoch stays
until the producer starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tierlog.log.writer.batches import ProducerEpoch
from tierlog.node.error_codes import ErrorCode
from tierlog.node.transactions.types import (
    Partition,
    Transaction,
    TransactionRefusedError,
    TransactionState,
)

__all__ = [
    "BUMPS_EPOCH",
    "add_partitions",
    "begin_epoch",
    "check_expected",
    "check_partition",
    "complete",
    "fence",
    "is_overdue",
    "prepare_end",
]

# The first transaction version that gives every transaction an epoch of its own.
BUMPS_EPOCH = 2
_LAST_EPOCH = 2**15 - 2
_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_PREPARED = {True: TransactionState.PREPARE_COMMIT, False: TransactionState.PREPARE_ABORT}
_COMPLETED = {True: TransactionState.COMPLETE_COMMIT, False: TransactionState.COMPLETE_ABORT}


# -- a producer starts


def begin_epoch(
    found: Transaction,
    timeout_ms: int,
    expected: ProducerEpoch | None,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    """Return the state with the epoch of a producer that starts; earlier epochs are fenced.

    ``expected``: what a producer that goes on after an error had before. Its repeated request gets
    the same answer. No transaction may be ongoing or prepared.
    """
    check_expected(found, expected)
    begun = replace(
        found,
        state=_EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=-1,
        updated_ms=now_ms,
        previous_producer_id=found.producer_id,
        next_producer_id=-1,
    )
    epoch, is_new = found.producer_epoch, found.producer_epoch < 0
    if epoch >= _LAST_EPOCH and (expected is None or expected.epoch == epoch):
        return replace(
            begun,
            producer_id=new_producer_id(),
            producer_epoch=0,
            last_epoch=-1 if expected is None else epoch,
        )
    if expected is None:
        return replace(begun, producer_epoch=epoch + 1, last_epoch=-1)
    if is_new or expected.epoch == epoch:
        return replace(begun, producer_epoch=epoch + 1, last_epoch=epoch)
    if expected.epoch == found.last_epoch:
        return begun
    raise _fenced(found, expected)


def check_expected(found: Transaction, expected: ProducerEpoch | None) -> None:
    """Refuse a producer that goes on after an error and whose producer id is not known."""
    if expected is None or found.producer_epoch < 0 or expected.producer_id == found.producer_id:
        return
    if expected.producer_id != found.previous_producer_id or expected.epoch < _LAST_EPOCH:
        raise _fenced(found, expected)


# -- a transaction goes on


def add_partitions(
    found: Transaction,
    producer: ProducerEpoch,
    added: Iterable[Partition],
    version: int,
    now_ms: int,
) -> Transaction:
    """Return the state with more partitions; the same state when it has them all."""
    _check_producer(found, producer)
    partitions = found.partitions.union(added)
    if found.state is _ONGOING and partitions == found.partitions:
        return found
    return replace(
        found,
        state=_ONGOING,
        partitions=partitions,
        started_ms=found.started_ms if found.state is _ONGOING else now_ms,
        updated_ms=now_ms,
        client_version=version,
    )


def check_partition(found: Transaction, producer: ProducerEpoch, partition: Partition) -> None:
    """Refuse a partition that is not part of the transaction."""
    _check_producer(found, producer)
    if found.state is not _ONGOING or partition not in found.partitions:
        raise TransactionRefusedError(
            ErrorCode.TRANSACTION_ABORTABLE,
            f"{partition.topic}-{partition.number} was not added to the transaction",
        )


def _check_producer(found: Transaction, producer: ProducerEpoch) -> None:
    if producer.producer_id != found.producer_id:
        raise _unknown_producer(found, producer)
    if producer.epoch != found.producer_epoch:
        raise _fenced(found, producer)
    if found.state.is_prepared:
        raise _still_ending(found)


# -- a transaction ends


def prepare_end(
    found: Transaction,
    producer: ProducerEpoch,
    *,
    is_commit: bool,
    version: int,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    """Return the prepared state; the same state when the request repeats one that is done."""
    if version < BUMPS_EPOCH:
        return _prepare_in_same_epoch(found, producer, is_commit, version, now_ms)
    is_repeated = _is_repeated_end(found, producer)
    if producer.producer_id != found.producer_id and not is_repeated:
        raise _unknown_producer(found, producer)
    is_complete = found.state in _COMPLETED.values()
    may_be_current = not found.state.is_prepared and producer.epoch == found.producer_epoch
    if not (may_be_current or (is_repeated and (is_complete or found.state.is_prepared))):
        raise _fenced(found, producer)
    if found.state is _ONGOING:
        return _prepare(found, is_commit, version, new_producer_id, now_ms)
    if found.state.is_prepared:
        _check_outcome(found, is_commit, _PREPARED)
        raise _still_ending(found)
    if is_repeated:
        _check_outcome(found, is_commit, _COMPLETED)
        return found
    if is_commit:
        raise _wrong_state(found, is_commit)
    # An abort without any records still begins the next epoch.
    return _prepare(replace(found, started_ms=now_ms), False, version, new_producer_id, now_ms)


def _is_repeated_end(found: Transaction, producer: ProducerEpoch) -> bool:
    """Whether the producer has the epoch before the one that the end of its transaction began."""
    if found.client_version >= BUMPS_EPOCH and found.producer_epoch == producer.epoch + 1:
        return producer.producer_id == found.producer_id
    was_last = found.producer_epoch == 0 and producer.epoch == _LAST_EPOCH
    return was_last and producer.producer_id == found.previous_producer_id


def _prepare_in_same_epoch(
    found: Transaction, producer: ProducerEpoch, is_commit: bool, version: int, now_ms: int
) -> Transaction:
    if producer.producer_id != found.producer_id:
        raise _unknown_producer(found, producer)
    if producer.epoch != found.producer_epoch:
        raise _fenced(found, producer)
    if found.state is _ONGOING:
        return replace(found, state=_PREPARED[is_commit], updated_ms=now_ms, client_version=version)
    if found.state.is_prepared:
        _check_outcome(found, is_commit, _PREPARED)
        raise _still_ending(found)
    _check_outcome(found, is_commit, _COMPLETED)
    return found


def _prepare(
    found: Transaction,
    is_commit: bool,
    version: int,
    new_producer_id: Callable[[], int],
    now_ms: int,
) -> Transaction:
    is_last = found.producer_epoch >= _LAST_EPOCH
    return replace(
        found,
        state=_PREPARED[is_commit],
        producer_epoch=found.producer_epoch + 1,
        last_epoch=found.producer_epoch,
        next_producer_id=new_producer_id() if is_last else -1,
        updated_ms=now_ms,
        client_version=version,
    )


def fence(found: Transaction, version: int, now_ms: int) -> Transaction:
    """Return the state in which an ongoing transaction is aborted by the node: in a new epoch, so
    that its producer is refused from now on."""
    return replace(
        found,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=found.producer_epoch + 1,
        last_epoch=-1,
        updated_ms=now_ms,
        client_version=version,
    )


def complete(found: Transaction, now_ms: int) -> Transaction:
    """Return the state after all markers of a prepared transaction are written."""
    is_commit = found.state is TransactionState.PREPARE_COMMIT
    completed = replace(
        found,
        state=_COMPLETED[is_commit],
        previous_producer_id=found.producer_id,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
    if found.next_producer_id < 0:
        return completed
    return replace(
        completed,
        producer_id=found.next_producer_id,
        next_producer_id=-1,
        producer_epoch=0,
    )


def is_overdue(found: Transaction, now_ms: int) -> bool:
    """Whether an ongoing transaction has run longer than its producer allows."""
    return found.state is _ONGOING and found.started_ms + found.timeout_ms < now_ms


# -- refusals


def _check_outcome(
    found: Transaction, is_commit: bool, states: dict[bool, TransactionState]
) -> None:
    if found.state is not states[is_commit]:
        raise _wrong_state(found, is_commit)


def _wrong_state(found: Transaction, is_commit: bool) -> TransactionRefusedError:
    wanted = "commit" if is_commit else "abort"
    text = f"{found.transactional_id!r}: expected an ongoing transaction to {wanted}, found "
    return TransactionRefusedError(ErrorCode.INVALID_TXN_STATE, text + found.state.label)


def _still_ending(found: Transaction) -> TransactionRefusedError:
    text = f"{found.transactional_id!r}: the last transaction is still ending; try again"
    return TransactionRefusedError(ErrorCode.CONCURRENT_TRANSACTIONS, text)


def _unknown_producer(found: Transaction, asked: ProducerEpoch) -> TransactionRefusedError:
    return TransactionRefusedError(
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        f"{found.transactional_id!r}: expected producer id {found.producer_id}, found "
        f"{asked.producer_id}",
    )


def _fenced(found: Transaction, asked: ProducerEpoch) -> TransactionRefusedError:
    return TransactionRefusedError(
        ErrorCode.PRODUCER_FENCED,
        f"{found.transactional_id!r}: another producer has begun epoch {found.producer_epoch} "
        f"of producer id {found.producer_id}, after epoch {asked.epoch} of {asked.producer_id}",
    )

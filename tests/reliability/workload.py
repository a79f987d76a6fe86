"""What producers write: batches of random sizes, some idempotent, some in transactions."""

from __future__ import annotations

import random

from tests.oracle import batches as oracle
from tests.oracle import build
from tests.oracle.model import Record
from tests.reliability.host import OwnedLog
from tests.reliability.ledger import Row

__all__ = ["append_large", "append_some"]

_PRODUCERS = range(1000, 1003)
_I32_MAX = 2**31 - 1


def append_some(
    log: OwnedLog,
    rng: random.Random,
    now_ms: int,
    *,
    batches: int,
    value_bytes: int = 400,
    transactions: bool = False,
) -> None:
    """Appends so many batches, the last of which leaves no transaction open."""
    for _ in range(batches):
        now_ms += rng.randrange(1, 20)
        data, rows = _next_batch(log, rng, now_ms, value_bytes, transactions)
        log.append(data, rows)
    for producer_id in sorted(log.producers.open_transactions.values()):
        log.append(*_marker(log, producer_id, now_ms, commit=rng.random() < 0.6))


def append_large(
    log: OwnedLog, rng: random.Random, now_ms: int, *, batches: int, value_bytes: int
) -> None:
    """Batches of one record of that size."""
    for _ in range(batches):
        offset, value = log.log_end_offset, rng.randbytes(value_bytes)
        record = Record(offset=offset, timestamp_ms=now_ms, key=None, value=value)
        data = build.batch([record], leader_epoch=log.leader_epoch)
        log.append(data, [(offset, now_ms, None, value)])


def _next_batch(
    log: OwnedLog, rng: random.Random, now_ms: int, value_bytes: int, transactions: bool
) -> tuple[bytes, list[Row]]:
    opened = sorted(log.producers.open_transactions.values())
    if opened and rng.random() < 0.4:
        return _marker(log, rng.choice(opened), now_ms, commit=rng.random() < 0.6)
    records = _records(log.log_end_offset, rng, now_ms, value_bytes)
    idempotent = transactions or rng.random() < 0.3
    producer_id = rng.choice(_PRODUCERS) if idempotent else -1
    known = log.producers.producers.get(producer_id)
    sequence = known.batches[-1].last_sequence + 1 if known and known.batches else 0
    in_transaction = idempotent and (producer_id in opened or (transactions and rng.random() < 0.7))
    data = build.batch(
        records,
        leader_epoch=log.leader_epoch,
        producer_id=producer_id,
        producer_epoch=0 if idempotent else -1,
        base_sequence=sequence & _I32_MAX if idempotent else -1,
        transactional=in_transaction,
    )
    return data, [(one.offset, one.timestamp_ms, one.key, one.value) for one in records]


def _records(base_offset: int, rng: random.Random, now_ms: int, value_bytes: int) -> list[Record]:
    return [
        Record(
            offset=base_offset + number,
            timestamp_ms=now_ms + number,
            key=None if rng.random() < 0.2 else b"key-%d" % rng.randrange(1000),
            value=None if rng.random() < 0.1 else rng.randbytes(rng.randrange(value_bytes)),
        )
        for number in range(rng.randrange(1, 6))
    ]


def _marker(
    log: OwnedLog, producer_id: int, now_ms: int, *, commit: bool
) -> tuple[bytes, list[Row]]:
    """COMMIT or ABORT; readers pass control records over."""
    data = build.end_transaction_marker(
        offset=log.log_end_offset,
        timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=1,
        commit=commit,
        leader_epoch=log.leader_epoch,
    )
    assert oracle.parse(data).is_control
    return data, []

"""The settings of transactions."""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.config.kinds import MAX_INT32, setting, whole_number
from tierlog.config.sections import Section

__all__ = ["TransactionConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig(Section):
    """Transactions of `tierlog serve --data-dir`."""

    max_timeout_ms: int = setting(
        "transaction.max.timeout.ms",
        whole_number(1, MAX_INT32),
        900_000,
        "Longest transaction timeout that a producer may ask for.",
    )
    id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        whole_number(1, MAX_INT32),
        604_800_000,
        "How long the state of a transactional id is kept after its last transaction.",
    )
    abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        whole_number(1, MAX_INT32),
        10_000,
        "How often transactions that ran into their timeout are looked for; they are aborted.",
    )
    remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        whole_number(1, MAX_INT32),
        3_600_000,
        "How often transactional ids that have expired are looked for.",
    )
    max_ids: int = setting(
        "tierlog.transaction.max.ids",
        whole_number(1, MAX_INT32),
        100_000,
        "Most transactional ids. A further one is refused with COORDINATOR_NOT_AVAILABLE, which "
        "clients retry.",
    )

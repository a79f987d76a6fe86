"""A ledger of what producers sent and brokers acked. It knows nothing of the code under test."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, NamedTuple

__all__ = ["Ack", "Ledger", "Partition", "digest"]

Partition = tuple[str, int]


class Ack(NamedTuple):
    """A record that a broker acked."""

    partition: Partition
    offset: int
    digest: int


def digest(*fields: object) -> int:
    """Return a number that tells the content of a record from any other content."""
    return int.from_bytes(blake2b(repr(fields).encode(), digest_size=8).digest())


class Ledger:
    """Records of any number of producers. Thread-safe.

    ``acks`` are in the order of their arrival. ``unsettled`` records were sent and not acked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[Partition, set[int]] = defaultdict(set)
        self.acks: list[Ack] = []
        self.unsettled: set[int] = set()
        self.failed = 0

    def expect_ack(self, partition: Partition, content: int) -> Callable[[Any, Any], None]:
        """Return the delivery callback of a record that is about to be sent."""
        with self._lock:
            self.sent[partition].add(content)
            self.unsettled.add(content)

        def delivered(error: Any, message: Any) -> None:
            with self._lock:
                if error is not None:
                    self.failed += 1
                    return
                self.unsettled.discard(content)
                self.acks.append(Ack(partition, message.offset(), content))

        return delivered

    def note_failure(self) -> None:
        """Count a record that the client did not accept."""
        with self._lock:
            self.failed += 1

    def acked_at(self, partition: Partition) -> dict[int, set[int]]:
        """Return what was acked at each offset. A topic that was created again, or a log that an
        unclean election truncated, has an offset more than once."""
        found: dict[int, set[int]] = defaultdict(set)
        for ack in tuple(self.acks):
            if ack.partition == partition:
                found[ack.offset].add(ack.digest)
        return found

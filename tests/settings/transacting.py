"""What settings change for transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tests.node.running import PATIENCE_S, Running, running_local
from tests.node.transactions.conversation import TOPIC, Talk, add, describe, init
from tests.settings.observing import Place
from tierlog.clock import ManualClock

__all__ = ["aborted_after_ms", "first_starts", "forgotten_after_ms"]

_SECOND_MS, _HOUR_MS = 1_000, 3_600_000
_UNKNOWN_ID = 105


class _Conversation:
    """A client of a node whose clock stands still, and the clock."""

    def __init__(self, server: Running, clock: ManualClock) -> None:
        self.talk = Talk(server.address)
        self._server = server
        self._clock = clock

    def state(self, name: str) -> tuple[int, str]:
        """The error for a transactional id, and the state of its transaction."""
        # An idle client is disconnected when the clock has moved far.
        talk = Talk(self._server.address)
        (found,) = talk.ask(describe(name), 0).transaction_states
        talk.close()
        return found.error_code, found.transaction_state

    def wait_until(self, name: str, wanted: tuple[int, str], step_ms: int) -> int:
        """Move the clock until an id has that state; how far."""
        passed_ms = 0
        while self.state(name) != wanted:
            self._clock.advance(step_ms)
            passed_ms += step_ms
            due = self._server.node.transactions.run_due()  # type: ignore[union-attr]
            asyncio.run_coroutine_threadsafe(due, self._server.loop).result(PATIENCE_S)
        return passed_ms


@contextmanager
def _conversation(place: Place) -> Iterator[_Conversation]:
    clock = ManualClock()
    data_dir = str(place.folder / "data")
    with running_local(data_dir, config=place.config, clock=clock) as server:
        assert server.node.local is not None
        server.node.local.create_topic(TOPIC, 1, {})
        found = _Conversation(server, clock)
        try:
            yield found
        finally:
            found.talk.close()


def first_starts(place: Place) -> list[int]:
    """The errors of two producers that start with a transaction timeout of a minute."""
    with _conversation(place) as one:
        return [one.talk.ask_once(init(name), 4).error_code for name in ("a", "b")]


def aborted_after_ms(place: Place) -> int:
    """How long a transaction with a timeout of three seconds goes on without its producer."""
    with _conversation(place) as one:
        found = one.talk.ask(init("a", timeout_ms=3_000), 4)
        one.talk.ask(add("a", found, (TOPIC, 0)), 3)
        assert one.state("a") == (0, "Ongoing")
        return one.wait_until("a", (0, "CompleteAbort"), _SECOND_MS)


def forgotten_after_ms(place: Place) -> int:
    """How long an id without transactions is known."""
    with _conversation(place) as one:
        one.talk.ask(init("a"), 4)
        return one.wait_until("a", (_UNKNOWN_ID, ""), _HOUR_MS)

"""Says things once: what lasts is news when it begins and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tierlog.clock import Clock
from tierlog.sidecar.report import Outcome, Progress, Status, TierListener, TierRow

__all__ = ["Lately", "Said", "SparingListener"]

# What was said is not said again for so long.
SAY_AGAIN_MS = 600_000
_MAX_REMEMBERED = 10_000


class Lately:
    """What was said lately. For one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ms: dict[Hashable, int] = {}

    def is_news(self, what: Hashable) -> bool:
        """Whether it was not said lately; from now on it was."""
        now_ms = self._clock.monotonic_ms()
        said_ms = self._said_ms.get(what)
        if said_ms is not None and now_ms - said_ms < SAY_AGAIN_MS:
            return False
        if len(self._said_ms) >= _MAX_REMEMBERED:
            self._said_ms = {
                one: at_ms for one, at_ms in self._said_ms.items() if now_ms - at_ms < SAY_AGAIN_MS
            }
        self._said_ms[what] = now_ms
        return True

    def forget(self, what: Hashable) -> None:
        """It is over: the next time is news."""
        self._said_ms.pop(what, None)


class Said:
    """Warnings and states of a watch."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._say = say
        self._lately = Lately(clock)
        self._states: set[str] = set()

    def say(self, text: str) -> None:
        """`text`, unless it was said lately."""
        if self._lately.is_news(text):
            self._say(text)

    def state(self, name: str, wrong: str | None, right: str) -> None:
        """Once when something goes wrong, whatever the words, and once when it is right again."""
        if wrong is not None and name not in self._states:
            self._states.add(name)
            self._say(wrong)
        elif wrong is None and name in self._states:
            self._states.remove(name)
            self._say(right)


class SparingListener(TierListener):
    """Passes on to another one, but not that the same segment or task has failed yet again."""

    def __init__(self, clock: Clock, listener: TierListener) -> None:
        self._listener = listener
        self._lately = Lately(clock)

    def on_row(self, row: TierRow) -> None:
        """See `TierListener`."""
        segment = (row.topic, row.partition, row.base_offset)
        if row.outcome is not Outcome.FAILED:
            self._lately.forget(segment)
        elif not self._lately.is_news(segment):
            return
        self._listener.on_row(row)

    def on_warning(self, text: str) -> None:
        """See `TierListener`."""
        self._listener.on_warning(text)

    def on_change(self, text: str) -> None:
        """See `TierListener`."""
        self._listener.on_change(text)

    def on_failure(self, task: str, text: str) -> None:
        """See `TierListener`."""
        if self._lately.is_news(task):
            self._listener.on_failure(task, text)

    def on_progress(self, progress: Progress) -> None:
        """See `TierListener`."""
        self._listener.on_progress(progress)

    def on_status(self, status: Status) -> None:
        """See `TierListener`."""
        self._listener.on_status(status)

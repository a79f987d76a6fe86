"""Reports a lasting condition only when it starts and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tierlog.clock import Clock
from tierlog.sidecar.report import Outcome, Progress, Status, TierListener, TierRow

__all__ = ["Lately", "Said", "SparingListener"]

# A message is not repeated for this time.
SAY_AGAIN_MS = 600_000
_MAX_REMEMBERED = 10_000


class Lately:
    """The messages that were reported recently. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said_ms: dict[Hashable, int] = {}

    def is_news(self, what: Hashable) -> bool:
        """Return whether the message is new or old enough to repeat, and remember it."""
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
        """Forget the message: its next occurrence is new."""
        self._said_ms.pop(what, None)


class Said:
    """The warnings and states of a watch."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._say = say
        self._lately = Lately(clock)
        self._states: set[str] = set()

    def say(self, text: str) -> None:
        """Report `text` unless it was reported recently."""
        if self._lately.is_news(text):
            self._say(text)

    def state(self, name: str, wrong: str | None, right: str) -> None:
        """Report once when a failure starts, whatever its text, and once when it ends."""
        if wrong is not None and name not in self._states:
            self._states.add(name)
            self._say(wrong)
        elif wrong is None and name in self._states:
            self._states.remove(name)
            self._say(right)


class SparingListener(TierListener):
    """Forwards events to another listener without repeated failures of one segment or task."""

    def __init__(self, clock: Clock, listener: TierListener) -> None:
        self._listener = listener
        self._lately = Lately(clock)

    def on_row(self, row: TierRow) -> None:
        segment = (row.topic, row.partition, row.base_offset)
        if row.outcome is not Outcome.FAILED:
            self._lately.forget(segment)
        elif not self._lately.is_news(segment):
            return
        self._listener.on_row(row)

    def on_warning(self, text: str) -> None:
        self._listener.on_warning(text)

    def on_change(self, text: str) -> None:
        self._listener.on_change(text)

    def on_failure(self, task: str, text: str) -> None:
        if self._lately.is_news(task):
            self._listener.on_failure(task, text)

    def on_progress(self, progress: Progress) -> None:
        self._listener.on_progress(progress)

    def on_status(self, status: Status) -> None:
        self._listener.on_status(status)

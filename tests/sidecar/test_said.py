"""What lasts is said once, and again when it is over or after a while."""

from __future__ import annotations

from dataclasses import replace

from tierlog.clock import ManualClock
from tierlog.sidecar.report import Outcome, Progress, Status, TierListener, TierRow
from tierlog.sidecar.said import SAY_AGAIN_MS, Said, SparingListener

FAILED = TierRow(
    topic="orders", partition=0, base_offset=7, size_bytes=1, outcome=Outcome.FAILED, text="no"
)


def test_a_warning_is_said_again_after_a_while() -> None:
    clock, said = ManualClock(), list[str]()
    voice = Said(clock, said.append)
    voice.say("a")
    voice.say("a")
    voice.say("b")
    clock.advance(SAY_AGAIN_MS - 1)
    voice.say("a")
    assert said == ["a", "b"]
    clock.advance(1)
    voice.say("a")
    assert said == ["a", "b", "a"]


def test_a_state_has_a_beginning_and_an_end() -> None:
    said = list[str]()
    voice = Said(ManualClock(), said.append)
    for wrong in (None, "timed out", "connection lost", None, None, "timed out"):
        voice.state("broker", wrong, "it is back")
    assert said == ["timed out", "it is back", "timed out"]


class Told(TierListener):
    def __init__(self) -> None:
        self.said: list[object] = []

    def on_row(self, row: TierRow) -> None:
        self.said.append(row)

    def on_failure(self, task: str, text: str) -> None:
        self.said.append((task, text))

    def on_warning(self, text: str) -> None:
        self.said.append(text)

    def on_progress(self, progress: Progress) -> None:
        self.said.append(progress)

    def on_status(self, status: Status) -> None:
        self.said.append(status)


def test_a_segment_that_fails_again_and_again() -> None:
    told, clock = Told(), ManualClock()
    sparing = SparingListener(clock, told)
    copied = replace(FAILED, outcome=Outcome.COPIED)
    other = replace(FAILED, partition=1)
    for row in (FAILED, replace(FAILED, text="still no"), other, copied, FAILED):
        sparing.on_row(row)
    assert told.said == [FAILED, other, copied, FAILED]
    told.said.clear()
    for task, text in (("t", "a"), ("t", "b"), ("u", "a")):
        sparing.on_failure(task, text)
    assert told.said == [("t", "a"), ("u", "a")]
    clock.advance(SAY_AGAIN_MS)
    sparing.on_failure("t", "a")
    assert told.said[2:] == [("t", "a")]


def test_everything_else_passes() -> None:
    told = Told()
    sparing = SparingListener(ManualClock(), told)
    progress = Progress(total_bytes=1, done_bytes=0)
    sparing.on_warning("w")
    sparing.on_warning("w")
    sparing.on_progress(progress)
    assert told.said == ["w", "w", progress]

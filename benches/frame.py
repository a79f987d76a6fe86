"""The parts that all benches share: cases, limits, and the rows of their results."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from .corpus import Corpora

OURS = "tierlog"
MAX_ROUNDS = 99

Run = Callable[[], Any]
# The result of an operation, by name. A peer agrees when all of its values equal ours.
Answer = Mapping[str, object]
# For each peer, the goal for the ratio of tierlog's speed to that of the peer; None if there is no
# goal.
Goals = Mapping[str, float | None]


class PeerMissingError(RuntimeError):
    """A peer cannot run on this machine. The message says what it needs."""


class DisagreementError(AssertionError):
    """tierlog and a peer found different results in the same input, so no figure counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """The result of a run in another process, which measured its own time."""

    seconds: float
    cpu_seconds: float
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The length of a measurement. Every side warms up. Then all sides take turns for at least
    ``rounds`` rounds and ``least_s`` seconds. ``cpu_time`` measures the CPU time of the calling
    thread, which varies less on a machine with other load."""

    rounds: int = 9
    least_s: float = 2.0
    warmup_s: float = 0.5
    cpu_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The settings of one run of the benches."""

    corpora: Corpora
    pace: Pace = field(default_factory=Pace)


def nothing() -> None:
    """Do nothing, to reset a case that leaves no traces."""


def unchanged(found: Answer) -> Answer:
    """Return the result of a run, which is already an `Answer`."""
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The functions of a prepared case. The run of a peer returns its `Answer`, directly, as
    `Timed`, or as a function that computes it after the measurement. ``ours``, the run of tierlog,
    may return any result, from which ``answer`` makes an `Answer`."""

    amount: float
    ours: Run
    peers: Mapping[str, Run]
    answer: Callable[[Any], Answer] = unchanged
    reset: Callable[[], None] = nothing

    def runs(self) -> dict[str, Run]:
        """Return the run of every side by name, tierlog first."""
        return {OURS: self.ours, **self.peers}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation on one shape of input, by tierlog and by peers.

    ``peers`` has the goal for each peer. ``unit`` is the unit of ``Sides.amount``. ``one_thread``
    is False when a run waits or works in other threads. ``rounds`` limits the rounds of a case that
    takes many seconds. ``warmup_s`` is the warm-up of sides that become faster for a longer time,
    like a JVM that compiles.
    """

    operation: str
    shape: str
    unit: str
    peers: Goals
    prepare: Callable[[ExitStack], Sides]
    one_thread: bool = True
    rounds: int | None = None
    warmup_s: float | None = None

    @property
    def name(self) -> str:
        return f"{self.operation}, {self.shape}"

    @property
    def sides(self) -> tuple[str, ...]:
        """Return the names of all sides, tierlog first."""
        return (OURS, *self.peers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One figure that must not exceed a limit. It has no peer."""

    operation: str
    shape: str
    unit: str
    at_most: float
    measure: Callable[[], float]

    @property
    def name(self) -> str:
        return f"{self.operation}, {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. ``ratio`` is the speed of tierlog divided by that of the peer; None
    when the peer was not measured here."""

    operation: str
    shape: str
    unit: str
    ours: float
    peer_name: str = ""
    peer: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    note: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def measure(item: Case | Limit, pace: Pace) -> list[Row]:
    """Return the rows of a case or limit. Raise DisagreementError before the measurement if the
    answers differ."""
    if isinstance(item, Limit):
        return [_keep(item)]
    with ExitStack() as stack:
        sides = item.prepare(stack)
        missing = check(item, sides)
        runs = {name: run for name, run in sides.runs().items() if name not in missing}
        if not item.one_thread:
            pace = replace(pace, cpu_time=False)
        if item.rounds is not None:
            pace = replace(pace, rounds=min(item.rounds, pace.rounds))
        if item.warmup_s is not None and pace.warmup_s:
            pace = replace(pace, warmup_s=item.warmup_s)
        seconds = _race(runs, sides.reset, pace)
    return [_row(item, sides.amount, seconds, name, missing.get(name, "")) for name in item.peers]


def _row(case: Case, amount: float, seconds: Mapping[str, float], peer: str, note: str) -> Row:
    goal = case.peers[peer]
    ratio = None if note else seconds[peer] / seconds[OURS]
    return Row(
        operation=case.operation,
        shape=case.shape,
        unit=case.unit,
        ours=amount / seconds[OURS],
        peer_name=peer,
        peer=None if note else amount / seconds[peer],
        ratio=ratio,
        goal="" if goal is None else f">= {goal:g}x",
        met=None if goal is None or ratio is None else ratio >= goal,
        note=note,
    )


class Benchmark(Protocol):
    """The part of pytest-benchmark's fixture that the benches use."""

    group: str | None

    def pedantic(self, target: Run, *, setup: Run, rounds: int, warmup_rounds: int) -> object:
        """Measure `target` this many times, after a call of `setup` each time."""


def run_side(case: Case, side: str, benchmark: Benchmark) -> None:
    """Run one side of a case under pytest-benchmark, after a comparison of the answers of all
    sides."""
    with ExitStack() as stack:
        sides = case.prepare(stack)
        missing = check(case, sides)
        if side in missing:
            raise PeerMissingError(missing[side])
        benchmark.group = case.name
        run = sides.runs()[side]
        benchmark.pedantic(run, setup=sides.reset, rounds=Pace().rounds, warmup_rounds=1)


def check(case: Case, sides: Sides) -> dict[str, str]:
    """Compare the answers of all sides. Return the missing peers with the reason of each."""
    if sides.peers.keys() != case.peers.keys():
        raise ValueError(f"{case.name}: goals for {[*case.peers]}, runs for {[*sides.peers]}")
    sides.reset()
    expected = sides.answer(_result(sides.ours()))
    missing = {}
    for name, run in sides.peers.items():
        sides.reset()
        try:
            found = _result(run())
        except PeerMissingError as error:
            missing[name] = str(error)
            continue
        ours = {key: expected.get(key) for key in found}
        if not found or ours != found:
            raise DisagreementError(f"{case.name}: {OURS} found {ours}, {name} found {found}")
    return missing


def _keep(limit: Limit) -> Row:
    value = limit.measure()
    return Row(
        operation=limit.operation,
        shape=limit.shape,
        unit=limit.unit,
        ours=value,
        goal=f"<= {limit.at_most:g} {limit.unit}",
        met=value <= limit.at_most,
    )


def _race(runs: Mapping[str, Run], reset: Callable[[], None], pace: Pace) -> dict[str, float]:
    """Return the median seconds of every side. The sides take turns."""
    for run in runs.values():
        until = time.perf_counter() + pace.warmup_s
        while time.perf_counter() < until:
            reset()
            run()
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    gc.collect()
    gc.disable()
    try:
        until = time.perf_counter() + pace.least_s
        for number in range(MAX_ROUNDS):
            if number >= pace.rounds and time.perf_counter() >= until:
                break
            for name, run in runs.items():
                reset()
                seconds[name].append(_seconds(run, pace.cpu_time))
    finally:
        gc.enable()
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def _seconds(run: Run, cpu_time: bool) -> float:
    clock = time.thread_time if cpu_time else time.perf_counter
    start = clock()
    result = run()
    taken = clock() - start
    if isinstance(result, Timed):
        return result.cpu_seconds if cpu_time else result.seconds
    return taken


def _result(returned: object) -> Any:
    if isinstance(returned, Timed):
        return returned.result
    return returned() if callable(returned) else returned

"""The crash matrix: processes that die at every named point, and what is left afterwards.

    python -m tests.reliability.matrix --cycles 1000 --seed 7
    python -m tests.reliability.matrix --state 12 --kill store.put_log.after:2 --kill ...

Work happens in children forked from this process, which has everything imported: a cycle takes
well under 100 ms. A state (see `episode`) is prepared once and copied for each of its cycles; a
run without a kill counts how often its script passes each point. A cycle kills the script at one
occurrence of one point (one in eight at a random moment instead), every third one kills the
process that recovers too, and the next process must find everything as the ledger says.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from tests.reliability.episode import MakeWorld, prepare, recover, script
from tests.reliability.mutations import MUTATIONS
from tests.reliability.points import POINTS, Counters, Kill, arm
from tests.reliability.seams import watch_files
from tests.reliability.world import World

__all__ = ["ChildFailedError", "Failure", "Matrix", "Report", "run"]

CYCLES_PER_STATE = 24
RANDOM_EVERY = 8
TWICE_EVERY = 3
CHILD_TIMEOUT_S = 60.0
MAX_FAILURES = 5
STATES_PER_SEED = 1_000_000
PER_WORKER = 100_000
# A kill by the parent, so many microseconds after the child began, instead of at a point.
AFTER_US = "after_us"


class ChildFailedError(Exception):
    """A child ended by an error of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A cycle after which something was not as it must be, and how to see it again."""

    state: int
    kills: tuple[str, ...]
    problems: tuple[str, ...]

    def __str__(self) -> str:
        kills = " ".join(f"--kill {kill}" for kill in self.kills)
        again = f"python -m tests.reliability.matrix --state {self.state} {kills}"
        return "\n  ".join([again, *self.problems])


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run of the matrix did and found; ``kills`` by point and occurrence."""

    cycles: int = 0
    states: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    recovery_kills: int = 0
    survived: int = 0
    failures: list[Failure] = field(default_factory=list)
    durations_ms: list[int] = field(default_factory=list)

    def merge(self, other: Report) -> None:
        self.cycles += other.cycles
        self.states += other.states
        self.kills = dict(Counter(self.kills) + Counter(other.kills))
        self.recovery_kills += other.recovery_kills
        self.survived += other.survived
        self.failures += other.failures
        self.durations_ms += other.durations_ms

    def by_point(self) -> Counter[str]:
        """How often each point killed."""
        found: Counter[str] = Counter()
        for kill, count in self.kills.items():
            found[Kill.parse(kill).point] += count
        return found

    def occurrences(self, point: str) -> int:
        """At how many different occurrences of the point something was killed."""
        return sum(Kill.parse(kill).point == point for kill in self.kills)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Report:
        fields = json.loads(text)
        fields["failures"] = [Failure(**one) for one in fields["failures"]]
        return cls(**fields)


class Matrix:
    """Runs cycles below `folder`; `make` opens a state in the child."""

    def __init__(
        self, folder: Path, make: MakeWorld = World, max_failures: int = MAX_FAILURES
    ) -> None:
        self._folder = folder
        self._max_failures = max_failures
        self._make = make
        self._counters = Counters()
        self._errors = folder / "error.txt"
        self.report = Report()

    def run(self, states: Iterator[int], cycles: int) -> Report:
        """So many cycles, over as many of the states as that takes."""
        while self.report.cycles < cycles and len(self.report.failures) < self._max_failures:
            left = cycles - self.report.cycles
            self._state(next(states), min(CYCLES_PER_STATE, left))
        return self.report

    def again(self, state: int, kills: Sequence[Kill]) -> Report:
        """One cycle, as a failure says it."""
        self._cycle(state, self._prepared(state)[0], kills)
        return self.report

    def _state(self, state: int, cycles: int) -> None:
        template, duration_us = self._prepared(state)
        counts = self._counters.counts()
        rng = random.Random(f"kills {state}")
        for number in range(cycles):
            if len(self.report.failures) >= self._max_failures:
                break
            if number % RANDOM_EVERY == RANDOM_EVERY - 1:
                kills = [Kill(AFTER_US, rng.randrange(duration_us))]
            else:
                kills = [self._choose(counts, rng)]
            if number % TWICE_EVERY == 0:
                kills.append(Kill(rng.choice(sorted(counts)), rng.choice((1, 1, 2, 5))))
            self._cycle(state, template, kills)
        shutil.rmtree(template)

    def _choose(self, counts: dict[str, int], rng: random.Random) -> Kill:
        """A point that killed least so far, at its first, last or any occurrence."""
        by_point = self.report.by_point()
        fewest = min(by_point[point] for point in counts)
        point = rng.choice([one for one in counts if by_point[one] == fewest])
        last = counts[point]
        return Kill(point, rng.choice((1, last, rng.randrange(1, last + 1))))

    def _prepared(self, state: int) -> tuple[Path, int]:
        """The state on disk, with the counters of an undisturbed run of its script."""
        self.report.states += 1
        template = self._folder / f"state-{state}"
        self._child(partial(prepare, template, state, self._make), template)
        work = self._copy(template)
        self._counters.clear()
        began = time.monotonic()
        self._child(partial(script, work, state, self._make), work)
        duration_us = int((time.monotonic() - began) * 1e6)
        counts = self._counters.counts()
        problems = self._recover(work)
        if problems:
            raise ChildFailedError("\n  ".join([f"state {state}, nobody killed:", *problems]))
        self._counters.clear()
        for point, count in counts.items():
            for _ in range(count):
                self._counters.add(point)
        return template, duration_us

    def _copy(self, template: Path) -> Path:
        work = self._folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(template, work)
        return work

    # -- one cycle

    def _cycle(self, state: int, template: Path, kills: Sequence[Kill]) -> None:
        """The script dies of the first kill, the processes that recover of the others."""
        work = self._copy(template)
        self.report.cycles += 1
        began = time.monotonic()
        work_on = partial(script, work, state, self._make)
        for number, kill in enumerate(kills):
            if self._child(work_on, work, kill):
                self.report.kills[str(kill)] = self.report.kills.get(str(kill), 0) + 1
                self.report.recovery_kills += number > 0
            else:
                self.report.survived += 1
            work_on = partial(self._told, work)
        problems = self._recover(work)
        self.report.durations_ms.append(int((time.monotonic() - began) * 1e3))
        if problems:
            failure = Failure(state=state, kills=tuple(map(str, kills)), problems=tuple(problems))
            self.report.failures.append(failure)

    def _recover(self, work: Path) -> list[str]:
        answer = work / "problems.json"
        self._child(partial(self._told, work), work)
        problems: list[str] = json.loads(answer.read_text())
        return problems

    def _told(self, work: Path) -> None:
        problems = recover(work, self._make)
        (work / "problems.json").write_text(json.dumps(problems))

    # -- children

    def _child(self, work_on: Callable[[], None], work: Path, kill: Kill | None = None) -> bool:
        """Runs in a child; whether that was killed. ChildFailedError for any other end."""
        self._errors.unlink(missing_ok=True)
        after_s = CHILD_TIMEOUT_S
        if kill is not None and kill.point == AFTER_US:
            after_s = kill.occurrence / 1e6
        child = os.fork()
        if child == 0:
            self._in_child(work_on, work, kill)
        status, timed_out = _wait(child, after_s)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            if timed_out and after_s == CHILD_TIMEOUT_S:
                raise ChildFailedError(f"{kill}: still running after {after_s:g} s")
            return True
        if os.waitstatus_to_exitcode(status) != 0:
            text = self._errors.read_text() if self._errors.exists() else f"status {status}"
            raise ChildFailedError(f"{kill}: {text}")
        return False

    def _in_child(self, work_on: Callable[[], None], work: Path, kill: Kill | None) -> None:
        """Never returns."""
        code = 1
        try:
            arm(self._counters if kill is None else Counters(), [kill] if kill else [])
            watch_files({"file": work / "store", "index": work / "index"})
            work_on()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it is, the parent is to read it
            self._errors.write_text(traceback.format_exc())
        finally:
            os._exit(code)


def _wait(child: int, timeout_s: float) -> tuple[int, bool]:
    """The child's status, and whether it was killed because it took longer than that."""
    descriptor = os.pidfd_open(child)
    try:
        timed_out = not select.select([descriptor], [], [], timeout_s)[0]
        if timed_out:
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1], timed_out
    finally:
        os.close(descriptor)


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Where a fsync costs nothing, if there is such a place: a killed process loses no page."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    return tempfile.TemporaryDirectory(dir=memory if usable else None, prefix="tierlog-matrix-")


def run(
    cycles: int,
    seed: int,
    workers: int,
    mutation: str | None = None,
    max_failures: int = MAX_FAILURES,
) -> Report:
    """Cycles shared between so many processes; the states depend on the seed alone."""
    first = seed * STATES_PER_SEED
    with scratch_folder() as name:
        children = []
        for worker in range(workers):
            folder = Path(name) / f"worker-{worker}"
            folder.mkdir()
            # Neighbours to each: every second state copies through drafts.
            states = range(first + worker * PER_WORKER, first + (worker + 1) * PER_WORKER)
            share = cycles // workers + (worker < cycles % workers)
            child = os.fork()
            if child == 0:
                make = MUTATIONS[mutation] if mutation else World
                _work(Matrix(folder, make, max_failures), folder, states, share)
            children.append((child, folder))
        for child, _ in children:
            os.waitpid(child, 0)
        report = Report()
        for _, folder in children:
            text = (folder / "report.json").read_text()
            if not text.startswith("{"):
                raise ChildFailedError(text)
            report.merge(Report.loads(text))
    return report


def _work(matrix: Matrix, folder: Path, states: Sequence[int], cycles: int) -> None:
    """One worker process; never returns."""
    text = "nothing"
    try:
        text = matrix.run(iter(states), cycles).dumps()
    except BaseException:  # noqa: BLE001 - the parent is to read it
        text = traceback.format_exc()
    finally:
        (folder / "report.json").write_text(text)
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Kill tierlog at every point and look what is left."
    )
    parser.add_argument("--cycles", type=int, default=320)
    parser.add_argument("--seed", type=int, help="drawn and printed when not given")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="put a known bug back")
    parser.add_argument("--failures", type=int, default=MAX_FAILURES, help="end after so many")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--state", type=int, help="see one failure again, with its --kill")
    parser.add_argument("--kill", action="append", type=Kill.parse, default=[])
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    began = time.monotonic()
    if options.state is not None:
        make = MUTATIONS[options.mutation] if options.mutation else World
        with scratch_folder() as folder:
            report = Matrix(Path(folder), make).again(options.state, options.kill)
    else:
        print(f"seed {seed}", flush=True)
        report = run(options.cycles, seed, options.workers, options.mutation, options.failures)
    if options.json:
        options.json.write_text(report.dumps())
    print(table(report, time.monotonic() - began))
    return 1 if report.failures else 0


def table(report: Report, seconds: float) -> str:
    """The report as the rows of RELIABILITY.md, and every failure."""
    by_point = report.by_point()
    durations = sorted(report.durations_ms)
    rows = [
        ("cycles", f"{report.cycles:,}"),
        ("states they began from", f"{report.states:,}"),
        ("named points", f"{len(POINTS)}"),
        ("of these killed at", f"{sum(by_point[point] > 0 for point in POINTS)}"),
        ("different (point, occurrence) pairs", f"{len(report.kills) - _random(report)[0]:,}"),
        ("processes killed", f"{by_point.total():,}"),
        ("of these at a random moment", f"{_random(report)[1]:,}"),
        ("of these while recovering", f"{report.recovery_kills:,}"),
        (
            "machine",
            f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        ),
        ("date", time.strftime("%Y-%m-%d", time.gmtime())),
        ("median of a cycle", f"{durations[len(durations) // 2] if durations else 0} ms"),
        ("duration", f"{seconds:.0f} s"),
        ("cycles that lost, changed, orphaned or left something", f"{len(report.failures)}"),
    ]
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join([*lines, *map(str, report.failures)])


def _random(report: Report) -> tuple[int, int]:
    """How many different moments, and how many kills, were random."""
    counts = [count for kill, count in report.kills.items() if kill.startswith(AFTER_US)]
    return len(counts), sum(counts)


if __name__ == "__main__":
    sys.exit(main())

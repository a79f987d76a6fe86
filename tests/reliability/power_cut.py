"""Power cuts: what was not synced is lost, in any order; then the product opens what is left.

    python -m tests.reliability.power_cut                       every change, three states each
    python -m tests.reliability.power_cut --states 200          so many states
    python -m tests.reliability.power_cut --operation copy --cut 17 --state 3

An operation (see `operations`) runs once while its changes of files and folders are recorded, those
of SQLite and of the Rust core too. For a cut after each change, `lost_writes` makes states that the
disk may hold: all of the last few changes in every combination, others at random. A forked process
opens the state as after any crash, and the checks of the crash matrix must hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from tests.reliability.children import in_child, in_workers
from tests.reliability.disk import Change, DiskWatch, run_preloaded
from tests.reliability.disk_mutations import MUTATIONS
from tests.reliability.lost_writes import Choice, LostWrites, RandomChoice, SubsetChoice
from tests.reliability.matrix import scratch_folder
from tests.reliability.operations import EPISODES, OPERATIONS, Operation, spare_the_host

__all__ = ["Report", "State", "run"]

SCENARIOS: dict[str, Operation] = {**OPERATIONS, **EPISODES}
MAX_FAILURES = 10
# These are combined in every way.
LAST_CHANGES = 3
RANDOM_STATES = 3
STATES_PER_CUT = RANDOM_STATES + 2 * 2**LAST_CHANGES


@dataclass(frozen=True, slots=True)
class State:
    """What the disk holds after a cut behind the change `cut` (from 1) of an operation. The first
    states are random ones, the others keep a subset of the last changes."""

    operation: str
    cut: int
    number: int
    seed: int = 0

    def __str__(self) -> str:
        return (
            f"python -m tests.reliability.power_cut --operation '{self.operation}' "
            f"--cut {self.cut} --state {self.number} --seed {self.seed}"
        )

    def choice(self, pending: Sequence[int]) -> Choice:
        if self.number < RANDOM_STATES:
            return RandomChoice(random.Random(str(self)))
        last = pending[-LAST_CHANGES:]
        subsets = chain.from_iterable(combinations(last, n) for n in range(len(last) + 1))
        every = [
            SubsetChoice(frozenset(kept), last[0] if last else 0, earlier=earlier)
            for kept in subsets
            for earlier in (False, True)
        ]
        return every[(self.number - RANDOM_STATES) % len(every)]


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run did and found. ``changes`` by operation; ``cuts`` counts the different ones."""

    changes: dict[str, int] = field(default_factory=dict)
    cuts: int = 0
    states: int = 0
    unsynced: int = 0
    failures: list[str] = field(default_factory=list)

    def merge(self, other: Report) -> None:
        self.changes |= other.changes
        self.cuts += other.cuts
        self.states += other.states
        self.unsynced += other.unsynced
        self.failures += other.failures


class Runner:
    """Runs power cuts of one operation at a time below `folder`."""

    def __init__(self, folder: Path, seed: int, max_failures: int = MAX_FAILURES) -> None:
        self._folder = folder
        self._seed = seed
        self._max_failures = max_failures
        self.report = Report()

    def record(self, name: str) -> tuple[LostWrites, list[Change]]:
        """Run the operation; the disk before it, and its changes."""
        work, logs = self._folder / "work", self._folder / "logs"
        for folder in (work, logs):
            shutil.rmtree(folder, ignore_errors=True)
        logs.mkdir()
        SCENARIOS[name].prepare(work)
        # From here on the model knows the files by their inodes.
        disk = LostWrites(work, SCENARIOS[name].is_safe)
        watch = DiskWatch(work, logs, changes=True)
        in_child(lambda: _act(SCENARIOS[name], work, watch), self._folder / "answer.json")
        changes = list(watch.changes())
        self.report.changes[name] = len(changes)
        return disk, changes

    def run(self, name: str, states: Sequence[State] | None, share: range, count: int) -> None:
        """Cut at `states`, else at a share of all cuts, `count` states of them."""
        disk, changes = self.record(name)
        if states is None:
            states = choose(name, len(changes), count, self._seed)[share.start :: share.step]
        by_cut: dict[int, list[State]] = {}
        for state in states:
            by_cut.setdefault(state.cut, []).append(state)
        for cut, change in enumerate(changes, 1):
            disk.apply(change)
            if cut in by_cut:
                self.report.cuts += 1
                self._cut(disk, by_cut[cut])
            if len(self.report.failures) >= self._max_failures:
                return

    def _cut(self, disk: LostWrites, states: Sequence[State]) -> None:
        pending = disk.pending()
        self.report.unsynced += bool(pending)
        for state in states:
            left = self._folder / "left"
            shutil.rmtree(left, ignore_errors=True)
            disk.make_state(left, state.choice(pending))
            self.report.states += 1
            problems = self._open(SCENARIOS[state.operation], left)
            if problems:
                told = [str(state), f"{len(pending)} changes were not durable", *problems]
                self.report.failures.append("\n  ".join(told))

    def _open(self, operation: Operation, left: Path) -> list[str]:
        try:
            problems: list[str] = in_child(
                lambda: operation.start_again(left), self._folder / "answer.json"
            )
        except AssertionError as error:
            return [str(error)]
        return problems


def _act(operation: Operation, work: Path, watch: DiskWatch) -> None:
    """Do the operation; the model must then hold what the folder does."""
    disk = LostWrites(work, operation.is_safe)
    with watch.watching():
        outcome, go_on = operation.act(work, nullcontext())
    assert outcome.is_quiet, f"{outcome.errors} {outcome.told}"
    for change in watch.changes():
        disk.apply(change)
    # What is mapped is written without a call; nothing of it counts after a cut.
    found = {name: data for name, data in disk.files() if not name.endswith("-shm")}
    real = {
        str(path.relative_to(work)): path.read_bytes()
        for path in work.rglob("*")
        if path.is_file() and not path.name.endswith("-shm")
    }
    wrong = [name for name in found.keys() | real.keys() if found.get(name) != real.get(name)]
    assert not wrong, f"the record lacks changes of {sorted(wrong)}"
    del go_on


def choose(name: str, changes: int, count: int, seed: int) -> list[State]:
    """`count` states: of each cut one before any cut has a second one."""
    rng = random.Random(f"{seed} {name}")
    states = []
    for cut in range(1, changes + 1):
        # A random state comes first, then one of the combinations in turn.
        numbers = rng.sample(range(STATES_PER_CUT), STATES_PER_CUT)
        states.append([State(name, cut, number, seed) for number in numbers])
    rng.shuffle(states)
    return [of_cut[turn] for turn in range(STATES_PER_CUT) for of_cut in states][:count]


def run(names: Sequence[str], options: argparse.Namespace) -> Report:
    """The states of these operations, shared between processes; see `main`."""
    spare_the_host()
    if options.mutation is not None:
        MUTATIONS[options.mutation]()

    def work(folder: Path, number: int) -> dict[str, Any]:
        runner = Runner(folder, options.seed, options.failures)
        share = range(number, options.states, options.workers)
        for name in names:
            if len(runner.report.failures) < options.failures:
                runner.run(name, None, share, options.states)
        return asdict(runner.report)

    report = Report()
    with scratch_folder() as scratch:
        for found in in_workers(Path(scratch), options.workers, work):
            report.merge(Report(**found))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Lose what was not synced, and open the rest.")
    parser.add_argument("--states", type=int, default=300, help="of each operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--operation", choices=sorted(SCENARIOS), action="append")
    parser.add_argument("--cut", type=int, help="only this one, in the state --state")
    parser.add_argument("--state", type=int, default=0)
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="put a known bug back")
    parser.add_argument("--failures", type=int, default=MAX_FAILURES, help="end after so many")
    parser.add_argument("--json", type=Path, help="write the report there")
    options = parser.parse_args(arguments)
    names = options.operation or list(SCENARIOS)
    if options.cut is not None:
        spare_the_host()
        with scratch_folder() as scratch:
            runner = Runner(Path(scratch), options.seed)
            state = State(names[0], options.cut, options.state, options.seed)
            runner.run(names[0], [state], range(0), 0)
            report = runner.report
    else:
        report = run(names, options)
    print(f"changes: {sum(report.changes.values())} of {len(report.changes)} operations")
    print(f"power cuts: {report.cuts}, of these with unsynced changes: {report.unsynced}")
    print(f"states opened: {report.states}")
    print(f"failures: {len(report.failures)}")
    for failure in report.failures:
        print(failure)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report)))
    return 1 if report.failures else 0


if __name__ == "__main__":
    code = run_preloaded("tests.reliability.power_cut", sys.argv[1:])
    sys.exit(main(sys.argv[1:]) if code is None else code)

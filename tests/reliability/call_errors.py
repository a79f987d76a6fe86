"""An error at every call: each file call of an operation fails once, and what is left is compared.

    python -m tests.reliability.call_errors                      every call with every error
    python -m tests.reliability.call_errors --cases 300          so many of them
    python -m tests.reliability.call_errors --operation copy --call 17 --error EIO

An operation (see `operations`) runs once to list its calls. Then it runs once for each call and
error, in a forked process on a copy of its state: the call fails, the others do what they do. The
operation must recover or end with a typed error. Without the fault the same process goes on (where
it would), and another one starts; then nothing may be lost, wrong, stuck or left over.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.reliability.children import in_child, in_workers
from tests.reliability.disk import ERRORS, SHORT, Call, DiskWatch, run_preloaded
from tests.reliability.disk_mutations import MUTATIONS
from tests.reliability.matrix import scratch_folder
from tests.reliability.operations import OPERATIONS, Operation, spare_the_host

__all__ = ["Case", "Report", "errors_of", "is_invisible"]

MAX_FAILURES = 25
# The calls that the manual pages let a signal interrupt or a full disk fail.
_INTERRUPTED = frozenset(
    ["open", "create", "read", "write", "sync", "truncate", "lock", "allocate"]
)
_FULL = frozenset({"create", "write", "sync", "truncate", "allocate", "link", "rename", "mkdir"})
_CHANGES = frozenset({"write", "sync", "truncate", "rename", "link"})
# The rest belongs to the test's host.
_AREAS = ("store", "index", "meta", "state", "kafka")
_SHORT = frozenset({"read", "write"})
# SQLite ends a transaction whose sync was interrupted, as after any other error of a sync.
_SQLITE = re.compile(r"metadata\.sqlite(-wal|-journal)?$")
# A checkpoint that fails costs nothing: the write-ahead log stays. The folder was synced with that
# log in it before SQLite syncs it again. Of index files, an empty folder may come back.
_CHECKPOINTED = re.compile(r"metadata\.sqlite(-shm)?$|^(meta|state|index)$")


def errors_of(call: Call) -> list[str]:
    """The errors that the call can end with."""
    by_error = {"ENOSPC": _FULL, "EINTR": _INTERRUPTED, SHORT: _SHORT}
    return [error for error in ERRORS if call.name in by_error.get(error, {call.name})]


def is_invisible(call: Call, error: str) -> bool:
    """Whether nothing may come of the error: the operation has to repeat the call."""
    if error == "EINTR":
        is_sync_of_sqlite = call.name == "sync" and _SQLITE.search(call.path)
        return call.name in _INTERRUPTED and not is_sync_of_sqlite
    return error == SHORT and call.name == "write"


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an operation (numbered from 1) that ends with an error."""

    operation: str
    number: int
    error: str

    def __str__(self) -> str:
        return (
            f"python -m tests.reliability.call_errors --operation '{self.operation}' "
            f"--call {self.number} --error {self.error}"
        )


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run did and found. ``struck`` counts delivered errors by operation and error,
    ``recovered`` those that nobody noticed."""

    calls: dict[str, int] = field(default_factory=dict)
    struck: dict[str, int] = field(default_factory=dict)
    recovered: int = 0
    missed: int = 0
    failures: list[str] = field(default_factory=list)

    def merge(self, other: Report) -> None:
        self.calls |= other.calls
        self.struck = dict(Counter(self.struck) + Counter(other.struck))
        self.recovered += other.recovered
        self.missed += other.missed
        self.failures += other.failures


class Runner:
    """Runs cases below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls: dict[str, list[Call]] = {}
        self.report = Report()

    def calls(self, name: str) -> list[Call]:
        """The calls of an operation; the first time, its state is made and it runs undisturbed."""
        if name not in self._calls:
            OPERATIONS[name].prepare(self._template(name))
            found = self._in_child(name, None)
            if found["problems"]:
                raise AssertionError(f"{name}, undisturbed: {found['problems']}")
            self._calls[name] = [Call(*one) for one in found["calls"]]
            self.report.calls[name] = len(self._calls[name])
        return self._calls[name]

    def cases(self, name: str) -> list[Case]:
        return [
            Case(name, number, error)
            for number, call in enumerate(self.calls(name), 1)
            for error in errors_of(call)
        ]

    def run(self, case: Case) -> None:
        self.calls(case.operation)
        found = self._in_child(case.operation, case)
        if found["struck"]:
            key = f"{case.operation}/{case.error}"
            self.report.struck[key] = self.report.struck.get(key, 0) + 1
            self.report.recovered += found["quiet"]
        else:
            self.report.missed += 1
        if found["problems"]:
            told = "\n  ".join([str(case), found["call"], *found["problems"]])
            self.report.failures.append(told)

    def _template(self, name: str) -> Path:
        return self._folder / f"state of {name}"

    def _in_child(self, name: str, case: Case | None) -> dict[str, Any]:
        work = self._folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self._template(name), work)
        try:
            found: dict[str, Any] = in_child(
                lambda: _run_case(OPERATIONS[name], case, work, self._folder),
                self._folder / "answer.json",
            )
        except AssertionError as error:
            return {"problems": [str(error)], "struck": True, "quiet": False, "call": ""}
        return found


def _run_case(operation: Operation, case: Case | None, work: Path, folder: Path) -> dict[str, Any]:
    """Do it once, with the error of `case` if there is one."""
    watch = DiskWatch(work, folder)
    number, error = (case.number, case.error) if case else (0, "EIO")
    problems: list[str] = []
    quiet, call = False, Call("", "")
    try:
        outcome, go_on = operation.act(work, watch.watching(number, error))
        calls = watch.calls()
        if case is not None and watch.was_struck:
            call = calls[number - 1]
        quiet = outcome.is_quiet
        problems += outcome.untyped()
        if not quiet and (not watch.was_struck or is_invisible(call, error)):
            problems.append(f"not survived unseen: {outcome.told} {outcome.errors}")
        if quiet and watch.was_struck and not is_invisible(call, error):
            problems += _swallowed(call, calls[: number - 1], calls[number:])
        del outcome
        if go_on is not None:
            problems += [f"same process: {one}" for one in go_on()]
        del go_on
        problems += [f"next start: {one}" for one in operation.start_again(work)]
        gc.collect()
        problems += [f"descriptor still open: {path}" for path in _open_below(work)]
    except BaseException:  # noqa: BLE001 - whatever it is, the parent is to read it
        problems.append(traceback.format_exc())
        calls = watch.calls()
    return {
        "problems": problems,
        "struck": watch.was_struck,
        "quiet": quiet,
        "call": f"{call.name} {call.path}",
        "calls": [] if case else [[one.name, one.path] for one in calls],
    }


def _swallowed(failed: Call, earlier: Sequence[Call], later: Sequence[Call]) -> Iterator[str]:
    """A change that failed and that nobody reported, repeated or gave up together with its file."""
    again = {call.path for call in later if call.name in (failed.name, "unlink")}
    if _CHECKPOINTED.search(failed.path) or _was_synced(failed, earlier):
        return
    if failed.name in _CHANGES and not again & {failed.path, f"{failed.path}.tmp"}:
        yield "the error was swallowed"


def _was_synced(failed: Call, earlier: Sequence[Call]) -> bool:
    """Whether it is the sync of a file without a change since its last one: a checkpoint syncs the
    write-ahead log that the commits have synced."""
    changes = (one.name for one in reversed(earlier) if one.path == failed.path)
    last = next((name for name in changes if name in _CHANGES), None)
    return failed.name == last == "sync" and bool(_SQLITE.search(failed.path))


def _open_below(folder: Path) -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue
        area = path.removeprefix(f"{folder}/").split("/")[0]
        # Objects stay open for the next read, while a thread that ends still has the store.
        is_object = area == "store" and path.endswith((".log", ".indexes"))
        if area in _AREAS and not is_object:
            yield path


def kind_of(call: Call) -> str:
    """A text that calls of one kind share: random ids and numbers are left out."""
    return f"{call.name} {re.sub(r'[0-9A-Za-z_-]{22}|[0-9]+|[0-9a-f]{16,}', '#', call.path)}"


def choose(runner: Runner, names: Sequence[str], options: argparse.Namespace) -> list[Case]:
    """All cases; or `options.cases` of them, each kind of call and each error in turn. With
    `options.error` only those of this error."""
    rng = random.Random(options.seed)
    kinds: dict[str, list[Case]] = {}
    for name in names:
        calls = runner.calls(name)
        for case in runner.cases(name):
            if options.error not in (None, case.error):
                continue
            kind = f"{name} {kind_of(calls[case.number - 1])} {case.error}"
            kinds.setdefault(kind, []).append(case)
    groups = list(kinds.values())
    rng.shuffle(groups)
    for group in groups:
        rng.shuffle(group)
    longest = max(map(len, groups))
    ordered = [group[turn] for turn in range(longest) for group in groups if turn < len(group)]
    return ordered[: options.cases]


def run(names: Sequence[str], options: argparse.Namespace) -> Report:
    """The cases of these operations, shared between processes; see `main`."""
    spare_the_host()
    if options.mutation is not None:
        MUTATIONS[options.mutation]()

    def work(folder: Path, number: int) -> dict[str, Any]:
        runner = Runner(folder)
        cases = choose(runner, names, options)
        for case in cases[number :: options.workers]:
            if len(runner.report.failures) < options.failures:
                runner.run(case)
        return asdict(runner.report)

    report = Report()
    with scratch_folder() as scratch:
        for found in in_workers(Path(scratch), options.workers, work):
            report.merge(Report(**found))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Let each file call fail once.")
    parser.add_argument("--cases", type=int, help="all of them when not given")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--operation", choices=sorted(OPERATIONS), action="append")
    parser.add_argument("--call", type=int, help="only this call")
    parser.add_argument("--error", choices=sorted(ERRORS), help="only this error")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="put a known bug back")
    parser.add_argument("--failures", type=int, default=MAX_FAILURES, help="end after so many")
    parser.add_argument("--json", type=Path, help="write the report there")
    options = parser.parse_args(arguments)
    names = options.operation or list(OPERATIONS)
    if options.call is not None:
        report = _again(Case(names[0], options.call, options.error or "EIO"))
    else:
        report = run(names, options)
    _print(report)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report)))
    return 1 if report.failures else 0


def _again(case: Case) -> Report:
    spare_the_host()
    with scratch_folder() as scratch:
        runner = Runner(Path(scratch))
        runner.run(case)
        return runner.report


def _print(report: Report) -> None:
    by_error: Counter[str] = Counter()
    for key, number in report.struck.items():
        by_error[key.rpartition("/")[2]] += number
    errors = ", ".join(f"{error} {number}" for error, number in sorted(by_error.items()))
    print(f"calls: {sum(report.calls.values())} of {len(report.calls)} operations")
    print(f"errors delivered: {sum(report.struck.values())} ({errors})")
    print(f"errors whose call was not made again: {report.missed}")
    print(f"of these recovered from without a word: {report.recovered}")
    print(f"failures: {len(report.failures)}")
    for failure in report.failures:
        print(failure)


if __name__ == "__main__":
    code = run_preloaded("tests.reliability.call_errors", sys.argv[1:])
    sys.exit(main(sys.argv[1:]) if code is None else code)

"""Coverage-guided fuzzing of the Rust core; see docs/RELIABILITY.md.

    python -m tests.fuzzing.run --runs 1000000            # over all targets
    python -m tests.fuzzing.run --seconds 600 --target scan
    python -m tests.fuzzing.run --seconds 0 --minimise    # write the corpus that is kept

Targets take turns, each for the same time, so runs are spread in proportion to their speed. What
was found stays in `target/fuzzing` and is the start of the next run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from tests.fuzzing import seeds

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent.parent
CRATE = ROOT / "rust" / "fuzz"
CORPUS = ROOT / "rust" / "core" / "tests" / "fuzzing" / "corpus"
TRIPLE = "x86_64-unknown-linux-gnu"
TARGETS = tuple(sorted(path.stem for path in (CRATE / "src" / "bin").glob("*.rs")))
MAX_INPUT_BYTES = 512
TURN_SECONDS = 30
# An input that takes longer is a failure. The limit leaves room for a busy machine.
UNIT_SECONDS = 300
COVERAGE = (
    "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters "
    "-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
)
EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)$", re.MULTILINE)


class Fuzzer:
    """The built targets, and the folder of their inputs, `work`."""

    def __init__(self, work: Path) -> None:
        self.work = work
        built = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target" / "fuzzing" / "build"))
        self._programs = built / TRIPLE / "release"
        command = ("cargo", "build", "--locked", "--quiet", "--release", "--target", TRIPLE)
        environ = {**os.environ, "RUSTFLAGS": COVERAGE, "CARGO_TARGET_DIR": str(built)}
        subprocess.run(command, cwd=CRATE, env=environ, check=True)
        seeds.write(work / "seeds")
        (work / "crashes").mkdir(parents=True, exist_ok=True)

    def run(self, target: str, *options: str) -> str:
        """Return what libFuzzer printed; end the program when it found a failure."""
        command = [str(self._programs / target), f"-max_len={MAX_INPUT_BYTES}"]
        command += [f"-artifact_prefix={self.work / 'crashes' / target}-", *options]
        environ = {**os.environ, "RUST_BACKTRACE": "0"}
        done = subprocess.run(
            command, env=environ, stderr=subprocess.PIPE, text=True, errors="replace", check=False
        )
        if done.returncode:
            sys.exit(f"{done.stderr[-4000:]}\n{target} failed (exit {done.returncode})")
        return done.stderr

    def fuzz(self, target: str, runs: int, seconds: int) -> int:
        """Fuzz for at most this many runs and seconds; return the runs that were made."""
        found = self.work / "found" / target
        found.mkdir(parents=True, exist_ok=True)
        told = self.run(
            target,
            f"-runs={runs}",
            f"-max_total_time={seconds}",
            f"-timeout={UNIT_SECONDS}",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-reload=0",
            str(found),
            str(CORPUS / target),
            str(self.work / "seeds" / target),
        )
        executed = EXECUTED.search(told)
        return int(executed[1]) if executed else 0

    def minimise(self, target: str) -> None:
        """Keep the smallest set of inputs that covers what all inputs cover."""
        kept, found = CORPUS / target, self.work / "found" / target
        smallest = self.work / "smallest" / target
        shutil.rmtree(smallest, ignore_errors=True)
        for folder in (kept, found, smallest):
            folder.mkdir(parents=True, exist_ok=True)
        sources = (str(kept), str(found), str(self.work / "seeds" / target))
        # Edges alone count, not how often each was taken: that set would be five times as large.
        self.run(target, "-set_cover_merge=1", "-use_counters=0", str(smallest), *sources)
        shutil.rmtree(kept)
        shutil.copytree(smallest, kept)


def fuzz(fuzzer: Fuzzer, targets: tuple[str, ...], runs: int, seconds: int) -> Counter[str]:
    """Fuzz the targets in turn until the runs or the seconds are used up; print a line a round."""
    made: Counter[str] = Counter()
    started = time.monotonic()
    turn_seconds = max(1, min(TURN_SECONDS, seconds // len(targets)))
    while (left := runs - made.total()) > 0:
        for target in targets:
            left_seconds = seconds - int(time.monotonic() - started)
            if left_seconds <= 0:
                return made
            made[target] += fuzzer.fuzz(target, left, min(turn_seconds, left_seconds))
            print(f"{target} {made[target]:,}", flush=True)
        elapsed = time.monotonic() - started
        print(f"{elapsed:.0f} s: {made.total():,} runs", flush=True)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=sys.maxsize)
    parser.add_argument("--seconds", type=int, default=86_400 * 365)
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--minimise", action="store_true")
    given = parser.parse_args()
    targets = tuple(given.target or TARGETS)
    for target in targets:
        (CORPUS / target).mkdir(parents=True, exist_ok=True)
    fuzzer = Fuzzer(ROOT / "target" / "fuzzing")
    made = fuzz(fuzzer, targets, given.runs, given.seconds)
    for target in targets:
        if given.minimise:
            fuzzer.minimise(target)
        inputs = len(list((CORPUS / target).iterdir()))
        print(f"{target:14} {made[target]:>14,} runs {inputs:>5} inputs kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The tests of franz-go's client (``pkg/kgo``), run against a node of ours.

    python -m tests.node.kgo --records 5000

Go's registry has the source. The exit code is 1 when a test fails that is not in `KNOWN`, or one of
`KNOWN` passes. docs/COMPATIBILITY.md has the same table.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.node.nodes import running_node

VERSION = "v1.22.3"
PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
CACHE_DIR = Path(__file__).parents[2] / ".cache" / "kgo" / VERSION
BUILD_TIMEOUT_S = 900
TEST_TIMEOUT_S = 1800

KNOWN = {
    "TestConsumeRegex": "expects an internal topic `__consumer_offsets`; groups lie in SQLite",
}
"""Tests that fail, and why."""

_OUTCOME = re.compile(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)


def build_tests() -> Path:
    """Return the program of the tests, built from the released source the first time."""
    program = CACHE_DIR / "kgo.test"
    if not program.exists():
        module = CACHE_DIR / "module"
        module.mkdir(parents=True, exist_ok=True)
        (module / "go.mod").write_text("module judge\n")
        _go(module, "get", "-t", f"{PACKAGE}@{VERSION}")
        _go(module, "test", "-c", "-o", "kgo.part", PACKAGE)
        os.replace(module / "kgo.part", program)
    return program


def _go(module: Path, *arguments: str) -> str:
    return subprocess.run(
        ["go", *arguments],
        cwd=module,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    ).stdout


def run_tests(program: Path, bootstrap: str, records: int, log: Path) -> dict[str, str]:
    """Run them against a broker and return the outcome of each test and subtest. Their output goes
    to `log`."""
    # A test reads a source file of its package.
    folder = _go(CACHE_DIR / "module", "list", "-f", "{{.Dir}}", PACKAGE).strip()
    command = [str(program), "-test.v", f"-test.timeout={TEST_TIMEOUT_S}s"]
    command.append("-test.run=^Test")
    settings = {
        "KGO_SEEDS": bootstrap,
        "KGO_TEST_RF": "1",
        "KGO_TEST_RECORDS": str(records),
        "KGO_LOG_LEVEL": "none",
    }
    with log.open("w") as output:
        subprocess.run(
            command,
            cwd=folder,
            env=os.environ | settings,
            stdout=output,
            stderr=output,
            check=False,
            timeout=TEST_TIMEOUT_S + 60,
        )
    return {name: outcome for outcome, name in _OUTCOME.findall(log.read_text(errors="replace"))}


def surprises(outcomes: Mapping[str, str]) -> list[str]:
    """Return the lines about tests that did not end as expected."""
    failed = {name.partition("/")[0] for name, outcome in outcomes.items() if outcome == "FAIL"}
    passed = {name for name, outcome in outcomes.items() if outcome == "PASS"}
    found = [f"{name}: failed" for name in sorted(failed - KNOWN.keys())]
    found += [f"{name}: known to fail, and passed" for name in sorted(passed & KNOWN.keys())]
    if not passed:
        found.append("no test passed: see the log")
    return found


def main() -> int:
    """Build, run, and print a line for each test that did not pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000, help="records of the group tests")
    records = parser.parse_args().records
    program = build_tests()
    log = CACHE_DIR / "output.txt"
    with tempfile.TemporaryDirectory() as folder, running_node(Path(folder)) as node:
        outcomes = run_tests(program, node.bootstrap_servers, records, log)
        said = node.errors.read_text()
    whole = {name: outcome for name, outcome in outcomes.items() if "/" not in name}
    for name, outcome in outcomes.items():
        if outcome != "PASS":
            print(f"{outcome.lower():8} {name}{': ' if name in KNOWN else ''}{KNOWN.get(name, '')}")
    counts = {one: list(whole.values()).count(one) for one in ("PASS", "FAIL", "SKIP")}
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed, {counts['SKIP']} skipped themselves")
    print(f"output: {log}")
    if said:
        print(f"the node said:\n{said}")
    found = surprises(outcomes)
    for line in found:
        print(f"unexpected: {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

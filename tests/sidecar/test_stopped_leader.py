"""A sidecar that stops in mid-copy and is overtaken: whatever it commits later does not count.

The process is stopped at each of its looks at the claims, before and after it. Then the sidecar of
a later leader does a whole pass, and the stopped process is killed or goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.sidecar.two_brokers import (
    END,
    command,
    make_brokers,
    require_counted_once,
    require_once,
    sidecar_of,
    url_of,
)
from tierlog.cli import main
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.store.object_store import storage_error
from tierlog.remote.urls import open_store
from tierlog.sidecar import Outcome
from tierlog.tiering.copy import CopyFailedError, SegmentCopier
from tierlog.tools.ls import list_store
from tierlog.tools.verify.source import verify_store

# Stops itself at looks at the claims: "2:after,3:before".
STOPPING = """
import os, signal, sys
from tierlog.cli import main
from tierlog.remote.segment.claims import StoreClaims

real, stops, looks = StoreClaims.require, sys.argv.pop(1).split(","), [0]

def stop_at(moment):
    if moment in stops:
        os.kill(os.getpid(), signal.SIGSTOP)

def require(*given):
    looks[0] += 1
    stop_at(f"{looks[0]}:before")
    found = real(*given)
    stop_at(f"{looks[0]}:after")
    return found

StoreClaims.require = require
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def brokers(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two brokers; the second one leads in a later epoch."""
    return make_brokers(tmp_path)


@contextmanager
def stopped(log_dir: Path, stops: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the sidecar of a broker until it stops itself."""
    script = [sys.executable, "-c", STOPPING, stops, *command(log_dir)[3:]]
    process = subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_stopped(process)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def lead_again(log_dir: Path) -> None:
    """The broker leads under a later epoch than all before."""
    path = log_dir / "epochs-0" / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()
    lines[1] = str(int(lines[1]) + 1)
    path.write_text("\n".join([*lines, f"{int(lines[-1].split()[0]) + 9} 100000"]) + "\n")


def require_readable_once(log_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each way to read the store shows every offset once and nothing of the deposed leader."""
    require_counted_once(log_dir)
    url = url_of(log_dir)
    local = [
        offset for part in tierlog.read(log_dir, "epochs", 0) for offset in part.offset.tolist()
    ]
    read = [offset for part in tierlog.read(url, "epochs", 0) for offset in part.offset.tolist()]
    assert read == [offset for offset in local if offset < END]
    capsys.readouterr()
    assert main(["cat", url, "epochs:0", "-f", "%o\\n"]) == 0
    assert [int(line) for line in capsys.readouterr().out.split()] == read
    listed = list_store(url, segments=True)
    assert listed.segments is not None
    assert [row.base_offset for row in listed.segments] == [0, 146, 285]
    assert listed.gaps == ()
    report = verify_store(url, now_ms=1 << 50)
    problems = [one for one in report.findings if one.severity == "problem"]
    # A `.log` object by itself is what a killed copy leaves; nothing reads it.
    assert {one.what for one in problems} <= {"log_without_indexes"}
    assert "duplicate" not in {one.what for one in report.findings}
    assert report.summary.segments == 3


@pytest.mark.parametrize("then", ["killed", "killed at its next look", "continued"])
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("look", range(1, 6))
def test_nothing_of_a_stopped_leader_counts(
    brokers: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    look: int,
    moment: str,
    then: str,
) -> None:
    first, second = brokers
    next_look = f",{look + 1}:before" if then == "killed at its next look" else ""
    with stopped(first, f"{look}:{moment}{next_look}") as process:
        with sidecar_of(second) as sidecar:
            sidecar.run_once()
        if then != "killed":
            process.send_signal(signal.SIGCONT)
            os.waitpid(process.pid, os.WUNTRACED)
    require_readable_once(first, capsys)
    with sidecar_of(second) as sidecar:
        assert sidecar.run_once().of(Outcome.COPIED) == ()
    require_readable_once(first, capsys)
    left = {problem.reason for problem in require_counted_once(first)}
    # What was killed before its `.indexes` object belongs to the state directory of its sidecar.
    assert left <= {"log_without_indexes"}
    if then == "continued":
        assert not left


def test_leader_that_comes_back_does_not_finish_what_was_left_out(
    brokers: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = brokers
    with stopped(first, "1:after,2:before") as process:
        with sidecar_of(second) as sidecar:
            assert len(sidecar.run_once().of(Outcome.COPIED)) == 3
        # The segment is stored now, and its state directory does not say so yet.
        process.send_signal(signal.SIGCONT)
        wait_until_stopped(process)
    assert [one.reason for one in require_counted_once(first)] == ["deposed_copy"]
    lead_again(first)
    with sidecar_of(first) as sidecar:
        assert sidecar.run_once().of(Outcome.COPIED) == ()
    require_readable_once(first, capsys)
    require_once(first)


def test_leader_that_comes_back_copies_what_was_left_out(brokers: tuple[Path, Path]) -> None:
    """The later leader took over and copied nothing."""
    first, second = brokers
    with stopped(first, "1:after,2:before") as process:
        with sidecar_of(second) as sidecar, pytest.MonkeyPatch.context() as patch:
            patch.setattr(SegmentCopier, "copy", refuse_to_copy)
            sidecar.run_once()
        process.send_signal(signal.SIGCONT)
        wait_until_stopped(process)
    lead_again(first)
    with sidecar_of(first) as sidecar:
        assert len(sidecar.run_once().of(Outcome.COPIED)) == 3
    require_once(first)


def refuse_to_copy(*_: Any, **__: Any) -> None:
    raise CopyFailedError("the store is full")


def test_follower_does_not_finish_what_the_leader_left_out(brokers: tuple[Path, Path]) -> None:
    """It settles its interrupted copies, too, of partitions that other brokers lead."""
    first, second = brokers
    with stopped(first, "1:after,2:before") as process:
        with sidecar_of(second) as sidecar:
            sidecar.run_once()
        process.send_signal(signal.SIGCONT)
        wait_until_stopped(process)
    # The topic is not tiered from here any more.
    with sidecar_of(first, topics=["another"]) as sidecar:
        (warning,) = sidecar.run_once().warnings
    assert "left to the partition's leader" in warning
    assert [one.reason for one in require_counted_once(first)] == ["deposed_copy"]
    lead_again(first)
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    require_once(first)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_segment_finished_between_listing_and_takeover(
    brokers: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_recorded: bool,
) -> None:
    """The later leader does not know it, so it copies the records, unless it lists again."""
    first, second = brokers
    real = StoreClaims.take_over
    with stopped(first, "1:after") as process:

        def take_over(*given: Any) -> None:
            monkeypatch.setattr(StoreClaims, "take_over", real)
            process.send_signal(signal.SIGCONT)
            process.wait(timeout=60)
            if not is_recorded:
                raise storage_error("no answer", retriable=False)
            real(*given)

        monkeypatch.setattr(StoreClaims, "take_over", take_over)
        for _ in range(2):
            with sidecar_of(second) as sidecar:
                sidecar.run_once()
    require_readable_once(first, capsys)
    require_once(first)


def test_takeover_is_withdrawn_by_a_leader_deposed_meanwhile(brokers: tuple[Path, Path]) -> None:
    first, second = brokers
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    with pytest.MonkeyPatch.context() as patch:
        real = StoreClaims.take_over

        def take_over(claims: StoreClaims, partition: Any, epoch: int, _: int) -> None:
            folder = f"claims/{partition.topic_id}-{partition.partition}"
            open_store(url_of(first)).put_bytes(f"{folder}/0000000099-7", b"{}")
            real(claims, partition, epoch, 0)

        patch.setattr(StoreClaims, "take_over", take_over)
        with sidecar_of(second) as sidecar:
            sidecar.run_once()
    assert not list((first.parent / "store").rglob("*.takeover"))
    require_once(first)

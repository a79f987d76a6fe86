"""Two sidecars that share only the store: what a deposed one still has under way never counts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.support import wait_until
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.claims import StoreClaims
from tierlog.remote.urls import open_store
from tierlog.sidecar import Outcome, Progress, Sidecar, TierReport

PARTITION = "epochs-0"
END = 410


@pytest.fixture
def brokers(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two brokers with one log; the second one leads in a later epoch."""
    first = copy_log_dir(tmp_path, "clean/disk1", PARTITION)
    second = tmp_path / "disk2"
    shutil.copytree(first, second)
    properties = (second / "meta.properties").read_text()
    node_id = open_log_dir(first).node_id
    assert node_id is not None
    changed = properties.replace(f"node.id={node_id}", f"node.id={node_id + 1}")
    assert changed != properties
    (second / "meta.properties").write_text(changed)
    path = second / PARTITION / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()
    last_epoch = int(lines[-1].split()[0])
    lines[1] = str(int(lines[1]) + 1)
    path.write_text("\n".join([*lines, f"{last_epoch + 1} 100000"]) + "\n")
    return first, second


def url_of(log_dir: Path) -> str:
    return (log_dir.parent / "store").as_uri()


def sidecar_of(log_dir: Path, state: str | None = None) -> Sidecar:
    state_dir = str(log_dir.parent / (state or f"state-{log_dir.name}"))
    return Sidecar([str(log_dir)], url_of(log_dir), state_dir=state_dir, clock=ManualClock())


def command(log_dir: Path, *arguments: str) -> list[str]:
    state_dir = str(log_dir.parent / f"state-{log_dir.name}")
    tier = [sys.executable, "-m", "tierlog", "tier", str(log_dir), "--to", url_of(log_dir)]
    return [*tier, "--once", "--state-dir", state_dir, *arguments]


def require_once(log_dir: Path) -> None:
    """The store has every offset in one segment, and no object besides."""
    store = open_store(url_of(log_dir))
    segments = tuple(list_segments(store, on_problem=lambda problem: pytest.fail(str(problem))))
    held = Counter(
        offset for one in segments for offset in range(one.start_offset, one.end_offset + 1)
    )
    assert held == Counter(range(END))


@pytest.mark.parametrize("moment", range(1, 10))
def test_leader_that_is_deposed_in_mid_copy_commits_nothing(
    brokers: tuple[Path, Path], moment: int
) -> None:
    """The later leader does all its work at the n-th step of the earlier one."""
    first, second = brokers
    steps = iter(range(1, 1_000))
    later: list[TierReport] = []

    def overtake(_: Progress) -> None:
        if next(steps) == moment:
            with sidecar_of(second) as sidecar:
                later.append(sidecar.run_once())

    with sidecar_of(first) as sidecar:
        report = sidecar.run_once(overtake)
    (told,) = later
    copied = [*told.of(Outcome.COPIED), *report.of(Outcome.COPIED)]
    assert sorted(row.base_offset for row in copied) == [0, 146, 285]
    if len(told.of(Outcome.COPIED)):
        assert any("is over, a later leader tiers it" in one for one in report.warnings)
    require_once(first)


@pytest.fixture
def stopped_copy(brokers: tuple[Path, Path]) -> Iterator[subprocess.Popen[str]]:
    """The first broker's sidecar, asleep in its second copy."""
    first, _ = brokers
    slow = ["--copy-quota", "5000", "--copy-quota-mode", "pace"]
    process = subprocess.Popen(
        command(first, *slow), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    store = first.parent / "store"
    try:
        wait_until(lambda: any(store.rglob("*.indexes")), timeout_s=60)
        os.kill(process.pid, signal.SIGSTOP)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_process_that_slept_in_mid_copy_commits_nothing(
    brokers: tuple[Path, Path], stopped_copy: subprocess.Popen[str]
) -> None:
    first, second = brokers
    later = subprocess.run(command(second), capture_output=True, text=True, timeout=60)
    assert "2 segments copied" in later.stderr, later.stderr
    os.kill(stopped_copy.pid, signal.SIGCONT)
    _, said = stopped_copy.communicate(timeout=60)
    assert "is over, a later leader tiers it" in said
    require_once(first)


def test_earlier_leader_does_not_begin(brokers: tuple[Path, Path]) -> None:
    first, second = brokers
    with sidecar_of(second) as sidecar:
        sidecar.run_once()
    for state in ("a", "b"):
        with sidecar_of(first, state) as sidecar:
            report = sidecar.run_once()
        assert report.of(Outcome.COPIED) == ()
        (warning,) = report.warnings
        assert "is over, a later leader tiers it" in warning
    require_once(first)


def test_broker_does_not_depose_itself(brokers: tuple[Path, Path]) -> None:
    """Its state is lost, and nothing on the disk names the epoch that it claimed before."""
    first, _ = brokers
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    folder = next((first.parent / "store" / "claims").iterdir())
    (claim,) = folder.iterdir()
    claim.rename(folder / f"{99:010d}-{claim.name.partition('-')[2]}")
    shutil.rmtree(next((first.parent / "store").glob("epochs-*")))
    with sidecar_of(first, "fresh") as sidecar:
        assert len(sidecar.run_once().of(Outcome.COPIED)) == 3
    require_once(first)


def test_deposed_leader_keeps_a_segment_that_the_later_one_has_learned(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later leader does its whole pass between the earlier one's `.indexes` object and its last
    look at the claims: it has found the segment, and copies only the others."""
    first, second = brokers
    real, calls = StoreClaims.require, iter(range(1, 1_000))

    def require(*given: Any) -> None:
        if next(calls) == 4:
            monkeypatch.setattr(StoreClaims, "require", real)
            with sidecar_of(second) as sidecar:
                assert len(sidecar.run_once().of(Outcome.COPIED)) == 2
        real(*given)

    monkeypatch.setattr(StoreClaims, "require", require)
    with sidecar_of(first) as sidecar:
        assert len(sidecar.run_once().of(Outcome.COPIED)) == 1
    require_once(first)


def test_earlier_leader_finishes_between_learning_and_claim(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = brokers
    real = StoreClaims.claim

    def claim(*given: Any) -> bool:
        monkeypatch.setattr(StoreClaims, "claim", real)
        with sidecar_of(first) as sidecar:
            sidecar.run_once()
        return real(*given)

    with sidecar_of(second) as sidecar:
        monkeypatch.setattr(StoreClaims, "claim", claim)
        sidecar.run_once()
    require_once(first)

"""Two sidecars that share only the store: what a deposed one still has under way never counts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.support import wait_until
from tests.sidecar.two_brokers import (
    command,
    make_brokers,
    require_counted_once,
    require_once,
    sidecar_of,
)
from tierlog.remote.segment.claims import StoreClaims
from tierlog.sidecar import Outcome, Progress, TierReport


@pytest.fixture
def brokers(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two brokers; the second one leads in a later epoch."""
    return make_brokers(tmp_path)


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
    require_counted_once(first)
    with sidecar_of(second) as sidecar:
        sidecar.run_once()
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

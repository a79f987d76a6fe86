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
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo, storage_error
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
        if next(calls) == 2:
            monkeypatch.setattr(StoreClaims, "require", real)
            with sidecar_of(second) as sidecar:
                assert len(sidecar.run_once().of(Outcome.COPIED)) == 2
        real(*given)

    monkeypatch.setattr(StoreClaims, "require", require)
    with sidecar_of(first) as sidecar:
        # It cannot know whether the later leader found the segment, so it does not count it.
        assert sidecar.run_once().of(Outcome.COPIED) == ()
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


def test_failed_look_after_the_copy_keeps_what_the_later_leader_found(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later leader finds the stored segment; then the store does not answer the earlier one."""
    first, second = brokers
    real, looks = StoreClaims.require, iter(range(1, 1_000))

    def require(*given: Any) -> None:
        stored = any((first.parent / "store").rglob("*.indexes"))
        if stored and next(looks) == 1:
            monkeypatch.setattr(StoreClaims, "require", real)
            with sidecar_of(second) as sidecar:
                assert len(sidecar.run_once().of(Outcome.COPIED)) == 2
            raise storage_error("no answer")
        real(*given)

    monkeypatch.setattr(StoreClaims, "require", require)
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    require_once(first)


def test_failed_look_after_the_copy_is_settled_by_the_next_run(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied twice."""
    first, _ = brokers
    real, looks = StoreClaims.require, iter(range(1, 1_000))

    def require(*given: Any) -> None:
        stored = any((first.parent / "store").rglob("*.indexes"))
        if stored and next(looks) == 1:
            raise storage_error("no answer")
        real(*given)

    monkeypatch.setattr(StoreClaims, "require", require)
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    with sidecar_of(first) as sidecar:
        sidecar.run_once()
    require_once(first)
    assert len(list((first.parent / "store").rglob("*.log"))) == 3


def test_listing_that_lacks_the_new_claim_is_an_error(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose listing lags cannot fence, so nothing is copied until it has caught up."""
    first, _ = brokers
    real = LocalStore.list

    def lagging(store: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        return (info for info in real(store, prefix) if not info.key.startswith("claims/"))

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "list", lagging)
        with sidecar_of(first) as sidecar:
            report = sidecar.run_once()
    assert report.of(Outcome.COPIED) == ()
    assert any("the listing lacks claims/" in one for one in report.failures)
    with sidecar_of(first) as sidecar:
        assert len(sidecar.run_once().of(Outcome.COPIED)) == 3
    require_once(first)


def test_list_requests_of_a_copy(
    brokers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each segment takes two, the claim one, the store check one; a takeover two more."""
    first, second = brokers
    listed: list[str] = []
    real = LocalStore.list

    def counted(store: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        listed.append(prefix)
        return real(store, prefix)

    monkeypatch.setattr(LocalStore, "list", counted)
    for broker, copied, claims, folders in (
        (first, 3, 1, 1),
        (first, 0, 1, 1),
        (second, 0, 2, 3),
        (second, 0, 1, 3),
    ):
        listed.clear()
        with sidecar_of(broker) as sidecar:
            assert len(sidecar.run_once().of(Outcome.COPIED)) == copied
        assert sum(prefix.startswith("claims/") for prefix in listed) == claims + 2 * copied
        assert sum(prefix.startswith("epochs-") for prefix in listed) == folders

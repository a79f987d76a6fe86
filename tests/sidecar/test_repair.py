"""Objects that vanish from the store, or are damaged there, come back while the broker has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tierlog
from tests.kafka_tools.golden import golden_segments
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.errors import RemoteStorageError
from tierlog.remote.bucket import list_segments
from tierlog.remote.local_store import LocalStore
from tierlog.remote.store import open_store
from tierlog.sidecar import Outcome, Sidecar

PARTITION = "epochs-0"
END = 410
BASES = [one.base_offset for one in golden_segments(topic="epochs") if one.rolled]
HOUR_MS = 3_600_000
Damage = Callable[[Path, Path], None]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A stopped broker with three rolled segments, all of them copied once."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", PARTITION)
    assert "3 segments copied" in tier(log_dir).stderr
    return log_dir


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tierlog", *arguments], capture_output=True, text=True, timeout=120
    )


def tier(log_dir: Path, *arguments: str, state: str = "state") -> subprocess.CompletedProcess[str]:
    url = (log_dir.parent / "store").as_uri()
    state_dir = str(log_dir.parent / state)
    return command(
        "tier", str(log_dir), "--to", url, "--once", "--state-dir", state_dir, *arguments
    )


def objects(log_dir: Path, suffix: str) -> list[Path]:
    """By base offset."""
    found = (log_dir.parent / "store").rglob(f"*{suffix}")
    return sorted((path for path in found if path.is_file()), key=lambda path: path.name)


def require_whole(log_dir: Path) -> None:
    """Every record is read, and an audit of every byte finds nothing."""
    url = (log_dir.parent / "store").as_uri()
    pieces = tierlog.read(url, "epochs", 0)
    assert [offset for piece in pieces for offset in piece.offset.tolist()] == list(range(END))
    audit = command("verify", url, "--deep")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert audit.stdout.strip().endswith(": no problems"), audit.stdout
    assert len(objects(log_dir, ".log")) == len(objects(log_dir, ".indexes")) == len(BASES)


# -- damage to the objects of the middle segment


def remove_both(log: Path, indexes: Path) -> None:
    log.unlink()
    indexes.unlink()


def remove_log(log: Path, indexes: Path) -> None:
    log.unlink()


def remove_indexes(log: Path, indexes: Path) -> None:
    indexes.unlink()


def cut_log(log: Path, indexes: Path) -> None:
    log.write_bytes(log.read_bytes()[:-100])


def flip_log(log: Path, indexes: Path) -> None:
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)


def flip_indexes(log: Path, indexes: Path) -> None:
    data = bytearray(indexes.read_bytes())
    data[len(data) // 2] ^= 1
    indexes.write_bytes(data)


LISTED = [remove_both, remove_log, remove_indexes, cut_log]
ALL = [*LISTED, flip_log, flip_indexes]


def damage_middle(log_dir: Path, damage: Damage) -> None:
    damage(objects(log_dir, ".log")[1], objects(log_dir, ".indexes")[1])


@pytest.mark.parametrize("damage", LISTED)
def test_what_a_listing_shows_is_mended_by_default(log_dir: Path, damage: Damage) -> None:
    damage_middle(log_dir, damage)
    done = tier(log_dir)
    assert done.returncode == 0, done.stderr
    require_whole(log_dir)
    assert "0 segments copied" in tier(log_dir).stderr


@pytest.mark.parametrize("state", ["state", "fresh"])
@pytest.mark.parametrize("damage", ALL)
def test_repair_mends_all_damage(log_dir: Path, damage: Damage, state: str) -> None:
    damage_middle(log_dir, damage)
    done = tier(log_dir, "--repair", state=state)
    assert done.returncode == 0, done.stderr
    require_whole(log_dir)


@pytest.mark.parametrize("damage", [remove_log, remove_indexes])
def test_audit_and_listing_name_the_command_that_repairs(log_dir: Path, damage: Damage) -> None:
    damage_middle(log_dir, damage)
    url = (log_dir.parent / "store").as_uri()
    audit = command("verify", url, "--deep", "--format", "json")
    assert audit.returncode == 1
    assert "tierlog tier --repair" in audit.stdout
    assert "tierlog tier --repair" in command("ls", url).stderr


@pytest.mark.parametrize("state", ["state", "fresh"])
def test_indexes_are_rebuilt_when_the_broker_has_deleted_the_segment(
    log_dir: Path, state: str
) -> None:
    damage_middle(log_dir, remove_indexes)
    local_retention(log_dir)
    done = tier(log_dir, "--repair", state=state)
    assert done.returncode == 0, done.stderr
    require_whole(log_dir)


def local_retention(log_dir: Path) -> None:
    """The broker keeps nothing but the active segment."""
    for base in BASES:
        for path in (log_dir / PARTITION).glob(f"{base:020d}.*"):
            path.unlink()


def test_what_neither_has_is_told_and_left(log_dir: Path) -> None:
    damage_middle(log_dir, flip_log)
    local_retention(log_dir)
    before = {path: path.read_bytes() for path in objects(log_dir, "")}
    done = tier(log_dir, "--repair", "--format", "json")
    assert done.returncode == 1
    assert "restore the objects from a backup" in done.stdout
    assert {path: path.read_bytes() for path in objects(log_dir, "")} == before


def test_second_copies_are_removed(log_dir: Path) -> None:
    """As a copy loop left them: two states that did not know of each other."""
    store = log_dir.parent / "store"
    aside = log_dir.parent / "aside"
    store.rename(aside)
    assert "3 segments copied" in tier(log_dir, state="other").stderr
    shutil.copytree(aside, store, dirs_exist_ok=True)
    assert len(objects(log_dir, ".log")) == 2 * len(BASES)
    for state in ("state", "fresh"):
        done = tier(log_dir, "--repair", state=state)
        assert done.returncode == 0, done.stderr
        require_whole(log_dir)


def test_dry_run_repairs_nothing(log_dir: Path) -> None:
    damage_middle(log_dir, remove_both)
    before = objects(log_dir, "")
    done = tier(log_dir, "--repair", "--dry-run")
    assert "1 segment to copy" in done.stderr
    assert objects(log_dir, "") == before


# -- a process that goes on


def sidecar_of(log_dir: Path, clock: ManualClock) -> Sidecar:
    url = (log_dir.parent / "store").as_uri()
    return Sidecar([str(log_dir)], url, state_dir=str(log_dir.parent / "state"), clock=clock)


def test_store_is_checked_each_hour(log_dir: Path) -> None:
    clock = ManualClock()
    with sidecar_of(log_dir, clock) as sidecar:
        assert sidecar.run_once().ok
        damage_middle(log_dir, remove_both)
        clock.advance(HOUR_MS // 2)
        assert sidecar.run_once().of(Outcome.COPIED) == ()
        clock.advance(HOUR_MS // 2)
        report = sidecar.run_once()
    assert [row.base_offset for row in report.of(Outcome.COPIED)] == [BASES[1]]
    require_whole(log_dir)


@pytest.mark.parametrize("why", ["the listing fails", "nothing is mounted"])
def test_store_that_does_not_answer_repairs_nothing(
    log_dir: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = log_dir.parent / "store"
    clock = ManualClock()
    with sidecar_of(log_dir, clock) as sidecar:
        assert sidecar.run_once().ok
        segments = tuple(list_segments(open_store(store.as_uri())))
        with monkeypatch.context() as patched:
            if why == "the listing fails":
                damage_middle(log_dir, remove_both)

                def refuse(*_: object) -> None:
                    raise RemoteStorageError("no answer")

                patched.setattr(LocalStore, "list", refuse)
            else:
                store.rename(store.with_name("elsewhere"))
                store.mkdir()
            clock.advance(HOUR_MS)
            report = sidecar.run_once()
            assert report.of(Outcome.COPIED) == ()
            assert len([one for one in report.warnings if "cannot tell" in one]) == 1
            known = sidecar.metadata.list(segments[0].topic_id_partition)
            assert {one.segment_id for one in known} == {one.segment_id for one in segments}

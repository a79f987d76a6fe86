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
from tierlog.errors import GapError, RemoteStorageError
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.urls import open_store
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


def flip_metadata(log: Path, indexes: Path) -> None:
    """The section that says which segment it is: a fresh state directory learns nothing of it."""
    data = indexes.read_bytes()
    position = data.index(b'"segment_id"')
    indexes.write_bytes(data[:position] + b"?" + data[position + 1 :])


LISTED = [remove_both, remove_log, remove_indexes, cut_log]
ALL = [*LISTED, flip_log, flip_indexes, flip_metadata]


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
@pytest.mark.parametrize("damage", [remove_indexes, flip_indexes, flip_metadata])
def test_indexes_are_rebuilt_when_the_broker_has_deleted_the_segment(
    log_dir: Path, damage: Damage, state: str
) -> None:
    damage_middle(log_dir, damage)
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


# -- gaps that are none


@pytest.fixture
def deleted_before_copy(tmp_path: Path) -> Path:
    """A stopped broker that had deleted its second segment before it was copied."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", PARTITION)
    whole = tmp_path / "whole"
    shutil.copytree(log_dir / PARTITION, whole)
    drop_segments(log_dir, from_base=BASES[2])
    assert "1 segment copied" in tier(log_dir).stderr
    shutil.copytree(whole, log_dir / PARTITION, dirs_exist_ok=True)
    drop_segments(log_dir, to_base=BASES[2])
    assert "1 segment copied" in tier(log_dir).stderr
    require_offsets(log_dir)
    return log_dir


def drop_segments(log_dir: Path, from_base: int = 0, to_base: int = END + 1) -> None:
    """Remove the files of the segments with base offsets `from_base` up to `to_base`."""
    for path in (log_dir / PARTITION).glob("0*.*"):
        if from_base <= int(path.name[:20]) < to_base:
            path.unlink()


def require_offsets(log_dir: Path) -> None:
    """The first and the third segment are read, and nothing counts as missing between them."""
    url = (log_dir.parent / "store").as_uri()
    pieces = tierlog.read(url, "epochs", 0)
    offsets = [offset for piece in pieces for offset in piece.offset.tolist()]
    assert offsets == [*range(BASES[1]), *range(BASES[2], END)]
    assert "Missing" not in command("ls", url).stdout
    assert command("verify", url, "--deep").returncode == 0


def flip_last_section(log: Path, indexes: Path) -> None:
    data = bytearray(indexes.read_bytes())
    data[-1] ^= 1
    indexes.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "state", "broker_has_it"),
    [
        (remove_both, "state", True),
        (remove_both, "fresh", True),
        (remove_indexes, "state", True),
        (remove_indexes, "state", False),
        (remove_indexes, "fresh", False),
        (flip_metadata, "state", True),
        (flip_metadata, "fresh", False),
        (flip_last_section, "state", False),
        (flip_last_section, "fresh", True),
    ],
)
def test_repair_keeps_what_was_deleted_before_it_was_copied(
    deleted_before_copy: Path, damage: Damage, state: str, broker_has_it: bool
) -> None:
    log_dir = deleted_before_copy
    damage(objects(log_dir, ".log")[-1], objects(log_dir, ".indexes")[-1])
    if not broker_has_it:
        drop_segments(log_dir, to_base=BASES[2] + 1)
    done = tier(log_dir, "--repair", state=state)
    assert done.returncode == 0, done.stderr
    require_offsets(log_dir)


def test_lost_segment_before_one_that_is_copied_again_is_a_gap(log_dir: Path) -> None:
    for suffix in (".log", ".indexes"):
        for path in objects(log_dir, suffix)[1:]:
            path.unlink()
    drop_segments(log_dir, to_base=BASES[2])
    assert tier(log_dir, "--repair").returncode == 1
    assert len(objects(log_dir, ".log")) == 2
    with pytest.raises(GapError, match=f"offsets {BASES[1]} to {BASES[2] - 1} are in no segment"):
        list(tierlog.read((log_dir.parent / "store").as_uri(), "epochs", 0))


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

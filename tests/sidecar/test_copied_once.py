"""A segment is copied once, wherever its broker's checkpoints say that the log begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiering.hosts import GoldenLog
from tests.tiering.node import EPOCH, Node
from tests.tiering.topic_lives import END, NAME, Lives
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store
from tierlog.tiering.partition_work import Happened

# One pass over three small segments takes a second; a pass that never ends takes them all.
_PASS_S = 30


def tier(lives: Lives, state: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One pass of the command. A pass that does not end is a TimeoutExpired."""
    command = [sys.executable, "-m", "tierlog", "tier", str(lives.logs), "--to", lives.url]
    return subprocess.run(
        [*command, "--once", "--state-dir", str(lives.logs.parent / state), *arguments],
        capture_output=True,
        text=True,
        timeout=_PASS_S,
    )


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    """A stopped broker: two rolled segments (from offsets 0 and 20) and the active one."""
    lives = Lives(tmp_path)
    (lives.logs / "replication-offset-checkpoint").write_text(f"0\n1\n{NAME} 0 {END}\n")
    return lives


def delete_records(lives: Lives, epochs: str, log_start: int | None) -> None:
    """The checkpoints after DeleteRecords: the broker moves the leader epochs at once and the log
    start up to a minute later."""
    (lives.directory / "leader-epoch-checkpoint").write_text(epochs)
    if log_start is not None:
        text = f"0\n1\n{NAME} 0 {log_start}\n"
        (lives.logs / "log-start-offset-checkpoint").write_text(text)


def log_objects(lives: Lives) -> list[Path]:
    return sorted((lives.logs.parent / "store").rglob("*.log"))


@pytest.mark.parametrize("log_start", [0, 5, None])
@pytest.mark.parametrize(
    "epochs",
    ["0\n1\n0 5\n", "0\n1\n0 20\n", "0\n2\n0 5\n1 60\n"],
    ids=["begins inside the segment", "begins behind the segment", "two epochs"],
)
def test_segment_is_copied_once(lives: Lives, epochs: str, log_start: int | None) -> None:
    delete_records(lives, epochs, log_start)
    first = tier(lives, "state")
    assert "2 segments copied" in first.stderr, first.stderr
    assert first.returncode == 0
    copied = log_objects(lives)
    assert len(copied) == 2
    for state in ("state", "fresh"):
        again = tier(lives, state)
        assert "0 segments copied" in again.stderr, again.stderr
        assert again.returncode == 0
        assert log_objects(lives) == copied
    assert main(["verify", lives.url, "--deep"]) == 0


def test_deleted_records_of_two_epochs_are_no_problem(tmp_path: Path) -> None:
    """Offsets 146 to 159 of the first segment are of epoch 0, the others of epoch 2."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    for path in (log_dir / "epochs-0").glob(f"{0:020d}.*"):
        path.unlink()
    (log_dir / "epochs-0" / "leader-epoch-checkpoint").write_text("0\n2\n2 200\n4 320\n")
    url = (tmp_path / "store").as_uri()
    command = ["tier", str(log_dir), "--to", url, "--once", "--state-dir", str(tmp_path / "state")]
    assert main(command) == 0
    epochs = {one.start_offset: one.leader_epochs for one in list_segments(open_store(url))}
    assert epochs == {146: ((0, 146), (2, 160)), 285: ((2, 285), (4, 320))}
    assert main(["verify", url, "--deep"]) == 0


def test_finished_segment_outside_the_lineage_is_recognised_by_its_bytes(tmp_path: Path) -> None:
    """The lineage begins behind the segment, so only size and checksum tell that it is copied."""
    node = Node(tmp_path)
    log = GoldenLog(tmp_path, "epochs-0")
    first, second = log.log.segments[:2]
    epochs = log.log.leader_epochs
    assert epochs is not None
    cut = epochs.clipped(second.base_offset, 10_000)
    (log.directory / "leader-epoch-checkpoint").write_bytes(cut.encode())
    log.changed()
    for epoch in (EPOCH, EPOCH + 1):
        node.lead(log, epoch)
        node.manager.run_until_idle()
        assert node.told.of(Happened.COPIED).count(first.base_offset) == 1
    assert len(node.metadata.list(log.partition)) == len(log.log.rolled_segments)

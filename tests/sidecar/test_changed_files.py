"""Files that change between the listing and the copy, and after a segment was refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiering.topic_lives import END, NAME, NEW, OLD, Life, Lives
from tierlog.clock import ManualClock
from tierlog.sidecar import Outcome, Progress, Sidecar, TierReport
from tierlog.tiering.refusals import RETRY_MS

SECOND = 20
INTERVAL_MS = 31_000


@pytest.fixture
def lives(tmp_path: Path) -> Lives:
    """Two rolled segments (from offsets 0 and 20), all committed, and the active one."""
    lives = Lives(tmp_path)
    (lives.logs / "replication-offset-checkpoint").write_text(f"0\n1\n{NAME} 0 {END}\n")
    return lives


def sidecar_of(lives: Lives, clock: ManualClock) -> Sidecar:
    state_dir = str(lives.logs.parent / "state")
    return Sidecar([str(lives.logs)], lives.url, state_dir=state_dir, clock=clock)


def bytes_of(life: Life, base_offset: int) -> bytes:
    return b"".join(life.batches()[base_offset : base_offset + 20])


def stored(lives: Lives, life: Life) -> dict[int, bytes]:
    """The `.log` objects under the topic id of `life`, by base offset."""
    folder = lives.logs.parent / "store" / f"{NAME}-{life.partition.topic_id}" / "0"
    return {int(path.name[:20]): path.read_bytes() for path in folder.glob("*.log")}


# -- between listing and open


def recreate_without_topic_id(lives: Lives) -> None:
    """A broker writes partition.metadata after it has created the directory."""
    lives.recreate()
    (lives.directory / "partition.metadata").unlink()


def recreate_with_the_same_files(lives: Lives) -> None:
    """File systems give inode numbers again, so that only the topic id tells the files apart."""
    path = lives.directory / "partition.metadata"
    path.unlink()
    path.write_text(f"version: 0\ntopic_id: {NEW.partition.topic_id}")


def replace_a_segment(lives: Lives) -> None:
    """Another file of the same name and size under the same topic id."""
    path = lives.directory / f"{SECOND:020d}.log"
    replacement = lives.logs / "replacement"
    replacement.write_bytes(bytes_of(NEW, SECOND))
    os.replace(replacement, path)


@pytest.mark.parametrize(
    "change",
    [
        Lives.recreate,
        recreate_without_topic_id,
        recreate_with_the_same_files,
        replace_a_segment,
    ],
)
def test_what_replaced_the_listed_file_is_not_copied_for_it(
    lives: Lives, change: Callable[[Lives], None]
) -> None:
    """The directory changes when the first segment is copied and the second one is listed."""
    changes = iter([change])

    def after_first_copy(progress: Progress) -> None:
        if progress.row is not None and progress.row.outcome is Outcome.COPIED:
            for one in changes:
                one(lives)

    with sidecar_of(lives, ManualClock()) as sidecar:
        report = sidecar.run_once(after_first_copy)
    assert next(changes, None) is None
    assert stored(lives, OLD) == {0: bytes_of(OLD, 0)}
    assert stored(lives, NEW) == {}
    (row,) = [one for one in report.rows if one.base_offset == SECOND]
    assert (row.outcome, row.reason) == (Outcome.SKIPPED, "vanished")
    assert report.ok


def test_new_topic_is_copied_under_its_own_id_at_the_next_look(lives: Lives) -> None:
    clock = ManualClock()
    with sidecar_of(lives, clock) as sidecar:
        sidecar.run_once(lambda progress: lives.recreate() if lives.live is OLD else None)
        clock.advance(INTERVAL_MS)
        sidecar.run_once()
    assert (
        stored(lives, OLD).items() <= {0: bytes_of(OLD, 0), SECOND: bytes_of(OLD, SECOND)}.items()
    )
    assert stored(lives, NEW) == {0: bytes_of(NEW, 0), SECOND: bytes_of(NEW, SECOND)}


# -- after a refusal


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    """At the end of a batch, all of which have the same size here."""
    os.truncate(path, path.stat().st_size // 2)


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def write_over(path: Path, data: bytes) -> None:
    """The same inode, as `cp` does it."""
    path.write_bytes(data)


def put_in_place(path: Path, data: bytes) -> None:
    """Another inode of the same size, as `rsync` does it."""
    beside = path.with_suffix(".restored")
    beside.write_bytes(data)
    os.replace(beside, path)


@pytest.fixture
def passes(lives: Lives) -> Iterator[Callable[[int], TierReport]]:
    """Passes of one process, each `later_ms` after the one before."""
    clock = ManualClock()
    with sidecar_of(lives, clock) as sidecar:

        def next_pass(after_ms: int) -> TierReport:
            clock.advance(after_ms)
            return sidecar.run_once()

        yield next_pass


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short])
@pytest.mark.parametrize("restore", [write_over, put_in_place])
def test_restored_segment_is_copied_by_the_same_process(
    lives: Lives,
    passes: Callable[[int], TierReport],
    damage: Callable[[Path], None],
    restore: Callable[[Path, bytes], None],
) -> None:
    path = lives.directory / f"{0:020d}.log"
    damage(path)
    for _ in range(3):
        report = passes(INTERVAL_MS)
        assert 0 in [row.base_offset for row in report.of(Outcome.REFUSED)]
        assert 0 not in stored(lives, OLD)
    restore(path, bytes_of(OLD, 0))
    report = passes(INTERVAL_MS)
    assert 0 in [row.base_offset for row in report.of(Outcome.COPIED)]
    # The second one was refused with the first one where that gave no producer state.
    assert stored(lives, OLD) == {0: bytes_of(OLD, 0), SECOND: bytes_of(OLD, SECOND)}
    report = passes(INTERVAL_MS)
    assert report.ok
    assert report.of(Outcome.REFUSED) == ()


def test_segment_that_comes_back_is_copied(lives: Lives) -> None:
    """It vanishes between listing and open, and its very file comes back."""
    path = lives.directory / f"{SECOND:020d}.log"
    clock = ManualClock()
    with sidecar_of(lives, clock) as sidecar:
        sidecar.run_once(lambda progress: move_away(path) if path.exists() else None)
        assert SECOND not in stored(lives, OLD)
        path.with_suffix(".moved").rename(path)
        clock.advance(INTERVAL_MS)
        report = sidecar.run_once()
    assert SECOND in [row.base_offset for row in report.of(Outcome.COPIED)]
    assert stored(lives, OLD)[SECOND] == bytes_of(OLD, SECOND)


def test_damage_of_a_single_read_passes(lives: Lives, passes: Callable[[int], TierReport]) -> None:
    """The disk gave wrong bytes once: neither inode nor time of the file tell of it."""
    path = lives.directory / f"{0:020d}.log"
    before = path.stat()
    flip_a_bit(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert passes(0).of(Outcome.REFUSED) != ()
    path.write_bytes(bytes_of(OLD, 0))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert passes(INTERVAL_MS).of(Outcome.COPIED) == ()
    assert [row.base_offset for row in passes(RETRY_MS).of(Outcome.COPIED)] == [0, SECOND]

"""Listings that do not read quiet directories again say what a listing that reads them says."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tierlog.clock import ManualClock
from tierlog.log.listing_memory import REFRESH_MS, SETTLED_MS, ListingMemory
from tierlog.log.log_dir import Listing, LogDir, open_log_dir
from tierlog.log.names import SkipReason
from tierlog.log.segment_files import DirectoryFiles, Findings

NOW_MS = 4_000_000_000_000
EPOCHS = "leader-epoch-checkpoint"
TOPIC_ID = "version: 0\ntopic_id: qza3daxmQBmJiMVKA5kDaQ\n"


class Broker:
    """Directories that change as a broker's do; what it does to names shows in their times."""

    def __init__(self, root: Path, partitions: int = 3) -> None:
        self.root = root
        root.mkdir()
        (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
        self.number = 0
        for partition in range(partitions):
            self.create(root / f"topic-{partition}")

    @property
    def directories(self) -> list[Path]:
        return sorted(path for path in self.root.iterdir() if path.is_dir())

    def logs(self, directory: Path) -> list[Path]:
        return sorted(path for path in directory.glob("*.log") if not path.is_symlink())

    def touch(self, directory: Path) -> None:
        """As after some time: no two changes bear the same time."""
        self.number += 1
        os.utime(directory, ns=(0, self.number * 1_000_000_000))

    def create(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "partition.metadata").write_text(TOPIC_ID)
        self.epochs(directory)
        for base in (0, 10):
            (directory / f"{base:020}.log").write_bytes(b"x" * 100)
            (directory / f"{base:020}.index").touch()
        self.touch(directory)

    def append(self, directory: Path) -> None:
        if self.logs(directory):
            with self.logs(directory)[-1].open("ab") as file:
                file.write(b"more")

    def roll(self, directory: Path) -> None:
        logs = self.logs(directory)
        base = int(logs[-1].stem) + 10 if logs else 0
        (directory / f"{base:020}.log").touch()
        self.touch(directory)

    def retire(self, directory: Path) -> None:
        if len(self.logs(directory)) > 1:
            first = self.logs(directory)[0]
            first.rename(first.with_suffix(".log.deleted"))
            self.touch(directory)

    def purge(self, directory: Path) -> None:
        for path in directory.glob("*.deleted"):
            path.unlink()
        self.touch(directory)

    def truncate(self, directory: Path) -> None:
        if len(self.logs(directory)) > 1:
            self.logs(directory)[-1].unlink()
            self.touch(directory)
            os.truncate(self.logs(directory)[-1], 40)

    def epochs(self, directory: Path) -> None:
        self.number += 1
        temporary = directory / f"{EPOCHS}.tmp"
        temporary.write_text(f"0\n1\n{self.number} 0\n")
        temporary.rename(directory / EPOCHS)
        self.touch(directory)

    def damage(self, directory: Path) -> None:
        (directory / EPOCHS).write_text("garbage")

    def repair(self, directory: Path) -> None:
        (directory / EPOCHS).write_text(f"0\n1\n{self.number} 0\n")

    def swap(self, directory: Path) -> None:
        (directory / f"{0:020}.log.swap").touch()
        self.touch(directory)

    def unswap(self, directory: Path) -> None:
        (directory / f"{0:020}.log.swap").unlink(missing_ok=True)
        self.touch(directory)

    def replace_active(self, directory: Path) -> None:
        if self.logs(directory):
            active = self.logs(directory)[-1]
            active.unlink()
            active.symlink_to("/dev/null")
            self.touch(directory)

    def open_to_all(self, directory: Path) -> None:
        directory.chmod(0o777)

    def close_to_all(self, directory: Path) -> None:
        directory.chmod(0o755)

    def recreate(self, directory: Path) -> None:
        shutil.rmtree(directory)
        self.create(directory)

    def delete(self, directory: Path) -> None:
        directory.rename(directory.with_name(f"{directory.name}.{'a' * 32}-delete"))
        self.create(self.root / f"topic-{10 + self.number}")


OPERATIONS = [name for name, value in vars(Broker).items() if callable(value) and name[0] != "_"]
OPERATIONS = [name for name in OPERATIONS if name not in ("logs", "touch", "create")]


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "disk")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=NOW_MS)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were read."""
    found: list[str] = []
    real = DirectoryFiles.read

    def read(directory: str, dir_fd: int, findings: Findings) -> DirectoryFiles:
        found.append(Path(directory).name)
        return real(directory, dir_fd, findings)

    monkeypatch.setattr(DirectoryFiles, "read", staticmethod(read))
    return found


def said(listing: Listing) -> object:
    """All of it; errors by their text."""
    return [
        (replace(log, problems=()), [str(one) for one in log.problems])
        for log in listing.partitions
    ], replace(listing, partitions=())


def opened(broker: Broker) -> LogDir:
    return open_log_dir(broker.root)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_both_listings_say_the_same(
    seed: int, broker: Broker, clock: ManualClock
) -> None:
    rng = random.Random(seed)
    logs, memory = opened(broker), ListingMemory(clock)
    for _ in range(60):
        for _ in range(rng.randrange(3)):
            directory = rng.choice([one for one in broker.directories if "delete" not in one.name])
            getattr(broker, rng.choice(OPERATIONS))(directory)
        assert said(logs.listing(memory)) == said(logs.listing())
        clock.advance(rng.randrange(60_000))


def test_quiet_directories_are_read_once(
    broker: Broker, clock: ManualClock, reads: list[str]
) -> None:
    logs, memory = opened(broker), ListingMemory(clock)
    first = logs.listing(memory)
    assert sorted(reads) == ["topic-0", "topic-1", "topic-2"]
    reads.clear()
    assert logs.listing(memory) == first
    broker.append(broker.directories[1])
    grown = logs.listing(memory)
    assert reads == []
    assert grown.partitions[1].segments[-1].size_bytes == 104
    assert grown.partitions[1].segments[:-1] == first.partitions[1].segments[:-1]
    broker.roll(broker.directories[2])
    assert len(logs.listing(memory).partitions[2].segments) == 3
    assert reads == ["topic-2"]


@pytest.mark.parametrize("name", ["recreate", "epochs", "truncate", "open_to_all", "damage"])
def test_what_happened_is_seen(
    name: str, broker: Broker, clock: ManualClock, reads: list[str]
) -> None:
    logs, memory = opened(broker), ListingMemory(clock)
    first = logs.listing(memory)
    reads.clear()
    getattr(broker, name)(broker.directories[0])
    assert logs.listing(memory) != first
    assert "topic-0" in reads or name == "open_to_all"


def test_a_directory_that_changed_just_now_is_read_again(
    broker: Broker, clock: ManualClock, reads: list[str]
) -> None:
    """A further change might bear the same time."""
    directory = max(broker.directories, key=lambda path: path.stat().st_ctime_ns)
    changed_ms = directory.stat().st_ctime_ns // 1_000_000
    clock.jump_wall(changed_ms + SETTLED_MS - 1 - clock.now_ms())
    logs, memory = opened(broker), ListingMemory(clock)
    for _ in range(3):
        logs.listing(memory)
    assert reads.count(directory.name) == 3
    clock.advance(SETTLED_MS)
    reads.clear()
    for _ in range(3):
        logs.listing(memory)
    assert reads.count(directory.name) == 1


@pytest.mark.parametrize("jump_ms", [REFRESH_MS, -1])
def test_everything_is_read_again_now_and_then(
    jump_ms: int, broker: Broker, clock: ManualClock, reads: list[str]
) -> None:
    logs, memory = opened(broker), ListingMemory(clock)
    logs.listing(memory)
    reads.clear()
    clock.jump_wall(jump_ms)
    logs.listing(memory)
    assert len(reads) == 3


def test_what_is_wrong_is_looked_at_every_time(
    broker: Broker, clock: ManualClock, reads: list[str]
) -> None:
    bad, odd, junk = broker.directories
    broker.damage(bad)
    (odd / f"{20:020}.log").symlink_to("/dev/null")
    (junk / "notes.txt").touch()
    logs, memory = opened(broker), ListingMemory(clock)
    first = logs.listing(memory)
    assert first.partitions[0].problems
    assert [one.reason for one in first.partitions[1].skipped] == [SkipReason.NOT_A_FILE]
    reads.clear()
    assert logs.listing(memory).partitions[1:] == first.partitions[1:]
    assert reads == ["topic-0", "topic-1"]
    broker.repair(bad)
    assert not logs.listing(memory).partitions[0].problems


def test_what_is_gone_is_forgotten(broker: Broker, clock: ManualClock) -> None:
    logs, memory = opened(broker), ListingMemory(clock)
    logs.listing(memory)
    assert len(memory) == 3
    shutil.rmtree(broker.directories[0])
    logs.listing(memory)
    assert len(memory) == 2

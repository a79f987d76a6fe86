"""kill -9 before and in every call that changes the disk; a power cut at each of them. Outside of
proofs, of every third one."""

from __future__ import annotations

import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kill import dies
from tests.proofs import usually
from tests.remote.index_files.model import NAMES, Model, folder, tiered
from tests.remote.index_files.support import ROW, check, fetcher, found, metadata_of, open_files
from tierlog.remote.index_files.family import RemoteIndexFiles

ROTATE_BYTES = 2 * len(ROW[0].data) + 50
CALLS = ("open", "pwrite", "fsync", "rename", "ftruncate", "unlink", "mkdir", "rmdir")
STEP = usually(3, thorough=1)
CUT = 235
CUT_ROW = [source.cut(CUT) for source in ROW]
LATER = tiered(CUT, 420, name="the new leader's")


def opened(index_dir: Path) -> RemoteIndexFiles:
    return open_files(index_dir, rotate_bytes=ROTATE_BYTES)


# -- what is done when the process dies, and what is done after it


def nothing(_index_dir: Path) -> None:
    pass


def some(index_dir: Path) -> None:
    opened(index_dir).catch_up(metadata_of(ROW[:3]), fetcher(*ROW))


def all_of_it(index_dir: Path) -> None:
    opened(index_dir).catch_up(metadata_of(ROW), fetcher(*ROW))


def damaged(index_dir: Path) -> None:
    """Everything that opening puts right at once."""
    all_of_it(index_dir)
    log, offset, time = (folder(index_dir) / f"{400:020d}.{kind}" for kind in NAMES)
    log.write_bytes(log.read_bytes()[:-60])
    offset.write_bytes(b"")
    time.unlink()
    middle = folder(index_dir) / f"{200:020d}.{NAMES[0]}"
    middle.write_bytes(middle.read_bytes().replace(b"orders", b"ORDERS"))
    (folder(index_dir) / f"{600:020d}.{NAMES[1]}").mkdir()


def append_all(index_dir: Path) -> None:
    files = opened(index_dir)
    for source in ROW:
        files.append(source.metadata, source.data)


def lose_and_catch_up(index_dir: Path) -> None:
    for kind in NAMES:
        (folder(index_dir) / f"{0:020d}.{kind}").unlink(missing_ok=True)
    all_of_it(index_dir)


def truncate(index_dir: Path) -> None:
    opened(index_dir).truncate_to(CUT)


def truncate_and_go_on(index_dir: Path) -> None:
    files = opened(index_dir)
    files.catch_up(metadata_of([*CUT_ROW, LATER]), fetcher(*ROW, LATER))


def drop(index_dir: Path) -> None:
    files = opened(index_dir)
    files.drop_below(430)
    files.catch_up(metadata_of(ROW), fetcher(*ROW))


def rebuild(index_dir: Path) -> None:
    opened(index_dir).rebuild(metadata_of(ROW), fetcher(*ROW))


def delete(index_dir: Path) -> None:
    opened(index_dir).delete()


def whole() -> Model:
    model = Model(rotate_bytes=ROTATE_BYTES)
    model.catch_up(ROW)
    return model


def cut() -> Model:
    model = whole()
    model.catch_up([*CUT_ROW, LATER])
    return model


def dropped() -> Model:
    model = whole()
    model.drop_below(430)
    return model


Step = Callable[[Path], None]
SCENES: dict[str, tuple[Step, Step, Step, Callable[[], Model]]] = {
    "append to nothing": (nothing, append_all, all_of_it, whole),
    "append": (some, append_all, all_of_it, whole),
    "catch up": (some, all_of_it, all_of_it, whole),
    "fill a gap": (all_of_it, lose_and_catch_up, all_of_it, whole),
    "recover": (damaged, all_of_it, all_of_it, whole),
    "truncate": (all_of_it, truncate, truncate_and_go_on, cut),
    "truncate by metadata": (all_of_it, truncate_and_go_on, truncate_and_go_on, cut),
    "drop": (all_of_it, drop, drop, dropped),
    "rebuild": (some, rebuild, all_of_it, whole),
    "rebuild, then rebuild": (damaged, rebuild, rebuild, whole),
    "delete": (all_of_it, delete, delete, lambda: Model()),
}


# -- kill -9


@dataclass(slots=True)
class Killer:
    """Kills the process before its n-th call that changes the disk, or in its n-th write, when half
    of the bytes are written."""

    number: int
    in_write: bool = False
    calls: int = 0

    def install(self) -> None:
        for name in ("pwrite",) if self.in_write else CALLS:
            setattr(os, name, self._killing(name, getattr(os, name)))

    def _killing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **keywords)
            self.calls += 1
            if self.calls < self.number:
                return real(*args, **keywords)
            if self.in_write:
                descriptor, data, position = args
                real(descriptor, data[: len(data) // 2], position)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("still there")

        return call


@pytest.mark.parametrize("in_write", [False, True])
@pytest.mark.parametrize("scene", SCENES)
def test_killed_at_every_call(scene: str, in_write: bool, tmp_path: Path) -> None:
    """The files open, say nothing wrong, and are then made byte for byte as if nothing had been."""
    prepare, step, finish, expected = SCENES[scene]
    prepare(tmp_path / "prepared")
    (tmp_path / "prepared").mkdir(exist_ok=True)
    number = 1 - STEP
    killed = True
    while killed:
        number += STEP
        index_dir = tmp_path / str(number)
        shutil.copytree(tmp_path / "prepared", index_dir, symlinks=True)
        killed = dies(Killer(number, in_write).install, partial(step, index_dir))
        after_a_crash(index_dir, finish, expected())
        shutil.rmtree(index_dir)
    assert number > 5 or in_write


def after_a_crash(index_dir: Path, finish: Step, model: Model) -> None:
    known = {entry.rdi for source in (*ROW, LATER) for entry in source.entries}
    files = opened(index_dir)
    assert {entry.rdi for entry in files.entries()} <= known
    for offset in range(0, 600, 35):
        entry = files.lookup_offset(offset)
        assert entry is None or entry.first_offset <= offset <= entry.last_offset
    files.close()
    assert opened(index_dir).findings == ()
    finish(index_dir)
    if not model.files:
        assert not folder(index_dir).exists() or not any(
            path.is_file() for path in folder(index_dir).rglob("*")
        )
        return
    for path in folder(index_dir).glob("*.set-aside-*"):
        path.rmdir()
    check(opened(index_dir), model, index_dir)


def test_what_a_crash_loses_is_what_was_not_acknowledged(tmp_path: Path) -> None:
    """Killed anywhere after the third append has returned, three segments are there."""
    for number in range(1, 100):
        index_dir = tmp_path / str(number)
        some(index_dir)
        if not dies(Killer(number).install, partial(append_all, index_dir)):
            break
        last_offset = opened(index_dir).last_offset
        assert last_offset is not None
        assert last_offset >= 299
    assert number > 10


# -- a power cut


Tree = dict[str, bytes]


@dataclass(slots=True)
class LyingDisk:
    """Knows what of a folder is on the disk: a file's bytes once it was synced, a name once its
    folder was."""

    root: Path
    contents: dict[int, bytes] = field(default_factory=dict)
    names: dict[int, dict[str, int]] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    states: list[tuple[object, Tree]] = field(default_factory=list)
    acknowledged: object = None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folders.add(os.stat(self.root).st_ino)
        for name in CALLS:
            monkeypatch.setattr(os, name, self._watching(name, getattr(os, name)))

    def _watching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **keywords: Any) -> Any:
            result = real(*args, **keywords)
            if name == "open":
                if args[1] & os.O_EXCL:
                    # A number that a removed file may have had.
                    self.contents.pop(os.fstat(result).st_ino, None)
            elif name == "fsync":
                self._synced(args[0])
            elif name == "mkdir":
                self.names.pop(os.stat(args[0]).st_ino, None)
            if name != "open":
                self.states += [(self.acknowledged, tree) for tree in (self.kept(), self.torn())]
            return result

        return call

    def _synced(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(found.st_mode):
            self.folders.add(found.st_ino)
            entries = list(os.scandir(path.resolve()))
            self.names[found.st_ino] = {entry.name: entry.inode() for entry in entries}
            self.folders |= {entry.inode() for entry in entries if entry.is_dir()}
        else:
            self.contents[found.st_ino] = path.read_bytes()

    def kept(self) -> Tree:
        """Only what was synced."""
        return dict(self._walk(os.stat(self.root).st_ino, ""))

    def _walk(self, number: int, prefix: str) -> Iterator[tuple[str, bytes]]:
        for name, child in self.names.get(number, {}).items():
            if child in self.folders:
                yield from self._walk(child, f"{prefix}{name}/")
            else:
                yield f"{prefix}{name}", self.contents.get(child, b"")

    def torn(self) -> Tree:
        """All names and sizes, but zeros for bytes that were not synced."""
        tree = {}
        for path in self.root.rglob("*"):
            if path.is_file():
                found = path.stat()
                data = self.contents.get(found.st_ino, b"")[: found.st_size]
                name = str(path.relative_to(self.root))
                tree[name] = data + bytes(found.st_size - len(data))
        return tree


def written(tree: Tree, index_dir: Path) -> None:
    index_dir.mkdir()
    for name, data in tree.items():
        path = index_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def test_what_is_acknowledged_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_dir = tmp_path / "indexes"
    index_dir.mkdir()
    disk = LyingDisk(index_dir)
    with monkeypatch.context() as patch:
        disk.install(patch)
        files = opened(index_dir)
        disk.acknowledged = -1
        for source in ROW:
            files.append(source.metadata, source.data)
            disk.acknowledged = files.last_offset
        disk.states += [(disk.acknowledged, tree) for tree in (disk.kept(), disk.torn())]
    assert len(disk.states) > 60
    for number, (acknowledged, tree) in enumerate(distinct(disk.states)[::STEP]):
        copy = tmp_path / str(number)
        written(tree, copy)
        files = opened(copy)
        last_offset = -1 if files.last_offset is None else files.last_offset
        assert isinstance(acknowledged, int)
        # Zeros in the middle of a file are damage, and then all of it is made again.
        damaged = {finding.reason for finding in files.findings} - {"stale_index", "truncated"}
        assert last_offset >= acknowledged or damaged
        assert not damaged or tree not in [kept for _, kept in disk.states[::2]]
        files.catch_up(metadata_of(ROW), fetcher(*ROW))
        check(files, whole(), copy)
        shutil.rmtree(copy)


@pytest.mark.parametrize("scene", ["rebuild", "truncate", "drop", "fill a gap", "recover"])
def test_a_power_cut_at_every_call(
    scene: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, step, finish, expected = SCENES[scene]
    index_dir = tmp_path / "indexes"
    index_dir.mkdir()
    disk = LyingDisk(index_dir)
    with monkeypatch.context() as patch:
        disk.install(patch)
        prepare(index_dir)
        opened(index_dir).close()
        disk.states.clear()
        step(index_dir)
    states = distinct(disk.states)
    assert len(states) > 5
    for number, (_, tree) in enumerate(states[::STEP]):
        copy = tmp_path / str(number)
        written(tree, copy)
        after_a_crash(copy, finish, expected())
        shutil.rmtree(copy)


def distinct(states: list[tuple[object, Tree]]) -> list[tuple[object, Tree]]:
    kept: list[tuple[object, Tree]] = []
    for state in states:
        if state not in kept:
            kept.append(state)
    return kept


def of_another_lineage(index_dir: Path) -> None:
    other = [tiered(start, start + 69, name=f"wrong {start}") for start in range(0, 630, 70)]
    opened(index_dir).catch_up(metadata_of(other), fetcher(*other))


def test_a_swap_is_all_or_nothing(tmp_path: Path) -> None:
    """Files of another lineage never stand beside rebuilt ones, wherever the rebuild was killed."""
    prepared = tmp_path / "prepared"
    of_another_lineage(prepared)
    old, new = found(prepared), whole().on_disk()
    assert not old.keys() <= new.keys()
    seen = set()
    number = 1 - STEP
    killed = True
    while killed:
        number += STEP
        index_dir = tmp_path / str(number)
        shutil.copytree(prepared, index_dir)
        killed = dies(Killer(number).install, partial(rebuild, index_dir))
        opened(index_dir).close()
        now = found(index_dir)
        assert now in (old, new), number
        seen.add(now == new)
        shutil.rmtree(index_dir)
    assert seen == {False, True}


def test_a_swap_is_all_or_nothing_in_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index_dir = tmp_path / "indexes"
    index_dir.mkdir()
    disk = LyingDisk(index_dir)
    with monkeypatch.context() as patch:
        disk.install(patch)
        of_another_lineage(index_dir)
        # What is opened is synced, its indexes with it.
        old = found(index_dir)
        opened(index_dir).close()
        disk.states.clear()
        rebuild(index_dir)
    seen = set()
    for number, (_, tree) in enumerate(distinct(disk.states)):
        copy = tmp_path / str(number)
        written(tree, copy)
        opened(copy).close()
        now = found(copy)
        assert now in (old, whole().on_disk()), number
        seen.add(now == old)
        shutil.rmtree(copy)
    assert seen == {False, True}

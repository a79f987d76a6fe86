"""What a disk may hold after a power cut: a model of files that is fed by their changes.

A file system promises little. A sync of a file keeps its bytes and its size; a sync of a folder
keeps the names in it. Each other write, truncation and change of a name may have reached the disk
or not, in any order, and a write also in part, by pages or by sectors. A rename is one step. What
was never written reads as zeros or as bytes of a deleted file.

    disk = LostWrites(folder, is_kept)
    for change in watch.changes():
        disk.apply(change)
        disk.make_state(target, choice)
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.reliability.disk import Change

__all__ = ["Choice", "LostWrites", "RandomChoice", "SubsetChoice"]

_PAGE_BYTES = 4096
_SECTOR_BYTES = 512


class Choice:
    """Which unsynced changes reached the disk. ``number`` counts the changes."""

    def keeps(self, number: int) -> bool:
        """Whether the change, or a part of the write, reached the disk."""
        raise AssertionError

    def parts(self, number: int, position: int, size_bytes: int) -> list[tuple[int, int]] | None:
        """The ranges (start, end) of the write that did; None for all of it."""
        return None

    def filler(self, size_bytes: int) -> bytes:
        """What lies in a page that was never written."""
        return bytes(size_bytes)


class SubsetChoice(Choice):
    """Of the last changes those in `kept`; of the earlier ones all or none."""

    def __init__(self, kept: frozenset[int], last_from: int, *, earlier: bool) -> None:
        self._kept = kept
        self._last_from = last_from
        self._earlier = earlier

    def keeps(self, number: int) -> bool:
        return number in self._kept if number >= self._last_from else self._earlier


class RandomChoice(Choice):
    """Each change with a likelihood that is drawn once, a third of the writes in part."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._likelihood = rng.choice((0.1, 0.5, 0.9))
        self._unit_bytes = rng.choice((_SECTOR_BYTES, _PAGE_BYTES))
        self._has_garbage = rng.random() < 0.3

    def keeps(self, number: int) -> bool:
        return self._rng.random() < self._likelihood

    def parts(self, number: int, position: int, size_bytes: int) -> list[tuple[int, int]] | None:
        if self._rng.random() < 0.67:
            return None
        found = []
        start, end = position, position + size_bytes
        while start < end:
            stop = min(end, (start // self._unit_bytes + 1) * self._unit_bytes)
            if self._rng.random() < 0.5:
                found.append((start, stop))
            start = stop
        return found

    def filler(self, size_bytes: int) -> bytes:
        return self._rng.randbytes(size_bytes) if self._has_garbage else bytes(size_bytes)


@dataclass(slots=True)
class _Write:
    number: int
    position: int
    data: bytes

    def put(self, content: bytearray, choice: Choice) -> None:
        end = self.position + len(self.data)
        parts = choice.parts(self.number, self.position, len(self.data))
        if parts is None:
            parts = [(self.position, end)]
        before = len(content)
        if end > before:
            # The size has reached the disk with the write, or with a part of it.
            content.extend(choice.filler(end - before))
        for start, stop in parts:
            content[start:stop] = self.data[start - self.position : stop - self.position]


@dataclass(slots=True)
class _Resize:
    number: int
    size_bytes: int
    only_grows: bool

    def put(self, content: bytearray, _choice: Choice) -> None:
        if self.size_bytes > len(content):
            content.extend(bytes(self.size_bytes - len(content)))
        elif not self.only_grows:
            del content[self.size_bytes :]


@dataclass(slots=True, eq=False)
class _File:
    is_kept: bool
    synced: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Resize] = field(default_factory=list)

    def change(self, what: _Write | _Resize) -> None:
        what.put(self.content, Choice())
        self.pending.append(what)

    def sync(self) -> None:
        self.synced = bytearray(self.content)
        self.pending.clear()

    def state(self, choice: Choice) -> bytes:
        if self.is_kept or not self.pending:
            return bytes(self.content)
        content = bytearray(self.synced)
        for one in self.pending:
            if choice.keeps(one.number):
                one.put(content, choice)
        return bytes(content)


@dataclass(slots=True, eq=False)
class _Folder:
    """``names`` as the process sees them, ``synced`` as they were when all before was durable."""

    names: dict[str, _Node] = field(default_factory=dict)
    synced: dict[str, _Node] = field(default_factory=dict)


_Node = _File | _Folder


@dataclass(slots=True)
class _Renaming:
    """One step: names that begin to mean another node, or (None) nothing."""

    number: int
    names: list[tuple[_Folder, str, _Node | None]]
    is_durable: bool


class LostWrites:
    """The files below `folder` as they are, all of it durable. ``is_kept`` says of a path below
    the folder whether nothing is ever lost of it: it lies on another disk."""

    def __init__(self, folder: Path, is_kept: Callable[[str], bool]) -> None:
        self._is_kept = is_kept
        self._root = _Folder()
        self._by_inode: dict[int, _Node] = {}
        self._renamings: list[_Renaming] = []
        self.number = 0
        self._read(folder, self._root, "")

    def _read(self, path: Path, folder: _Folder, name: str) -> None:
        self._by_inode[path.stat().st_ino] = folder
        for entry in sorted(path.iterdir()):
            below = f"{name}/{entry.name}".lstrip("/")
            if entry.is_dir():
                inner = _Folder()
                self._read(entry, inner, below)
                node: _Node = inner
            else:
                data = bytearray(entry.read_bytes())
                node = _File(self._is_kept(below), data, bytearray(data))
                self._by_inode[entry.stat().st_ino] = node
            folder.names[entry.name] = folder.synced[entry.name] = node

    # -- changes

    def apply(self, change: Change) -> bool:
        """Take a change; whether it changed what a power cut may leave."""
        self.number += 1
        match change.name:
            case "create" | "nameless" | "mkdir" | "link":
                return self._make(change)
            case "rename":
                node = self._by_inode[change.file]
                names = [(*self._place(change.path), None), (*self._place(change.target), node)]
                self._rename(names, self._is_kept(change.target))
            case "unlink" if not change.path:
                self._root.names.clear()
            case "unlink":
                self._rename([(*self._place(change.path), None)], self._is_kept(change.path))
            case "sync":
                return self._sync(self._by_inode[change.file])
            case "write":
                file = self._file(change.file)
                file.change(_Write(self.number, change.position, change.data))
            case "truncate" | "allocate":
                only_grows = change.name == "allocate"
                resize = _Resize(self.number, change.position, only_grows)
                self._file(change.file).change(resize)
        return not self._is_kept(change.target or change.path)

    def _make(self, change: Change) -> bool:
        if not change.path:
            self._by_inode[change.file] = self._root
            return False
        if change.name == "link":
            node = self._by_inode[change.file]
        else:
            is_folder = change.name == "mkdir"
            node = _Folder() if is_folder else _File(self._is_kept(change.path))
            self._by_inode[change.file] = node
        if change.name != "nameless":
            self._rename([(*self._place(change.path), node)], self._is_kept(change.path))
        return not self._is_kept(change.path)

    def _file(self, inode: int) -> _File:
        node = self._by_inode[inode]
        assert isinstance(node, _File)
        return node

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder = self._root
        *above, name = path.split("/")
        for one in above:
            below = folder.names[one]
            assert isinstance(below, _Folder)
            folder = below
        return folder, name

    def _rename(self, names: list[tuple[_Folder, str, _Node | None]], is_kept: bool) -> None:
        _set_names(names, lambda folder: folder.names)
        self._renamings.append(_Renaming(self.number, names, is_kept))
        self._forget_durable()

    def _sync(self, node: _Node) -> bool:
        if isinstance(node, _File):
            had_pending = bool(node.pending) and not node.is_kept
            node.sync()
            return had_pending
        found = [
            one
            for one in self._renamings
            if not one.is_durable and any(folder is node for folder, _, _ in one.names)
        ]
        for one in found:
            one.is_durable = True
        self._forget_durable()
        return bool(found)

    def _forget_durable(self) -> None:
        """Changes before which nothing is pending need not be remembered."""
        while self._renamings and self._renamings[0].is_durable:
            _set_names(self._renamings.pop(0).names, lambda folder: folder.synced)

    # -- states

    def pending(self) -> list[int]:
        """The numbers of the changes that a power cut may lose, the last one last."""
        found = {one.number for one in self._renamings if not one.is_durable}
        for node in self._by_inode.values():
            if isinstance(node, _File) and not node.is_kept:
                found.update(one.number for one in node.pending)
        return sorted(found)

    def make_state(self, target: Path, choice: Choice) -> None:
        """Write what the disk may hold into the new folder `target`."""
        changed: dict[int, dict[str, _Node]] = {}

        def names_of(folder: _Folder) -> dict[str, _Node]:
            return changed.setdefault(id(folder), dict(folder.synced))

        for one in self._renamings:
            if one.is_durable or choice.keeps(one.number):
                _set_names(one.names, names_of)
        self._write(target, self._root, names_of, choice)

    def _write(
        self,
        path: Path,
        folder: _Folder,
        names_of: Callable[[_Folder], dict[str, _Node]],
        choice: Choice,
    ) -> None:
        os.mkdir(path)
        for name, node in names_of(folder).items():
            if isinstance(node, _Folder):
                self._write(path / name, node, names_of, choice)
            else:
                (path / name).write_bytes(node.state(choice))

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Path and bytes of each file as the process sees it."""

        def walk(folder: _Folder, above: str) -> Iterator[tuple[str, bytes]]:
            for name, node in sorted(folder.names.items()):
                if isinstance(node, _Folder):
                    yield from walk(node, f"{above}{name}/")
                else:
                    yield above + name, bytes(node.content)

        yield from walk(self._root, "")


def _set_names(
    names: list[tuple[_Folder, str, _Node | None]],
    names_of: Callable[[_Folder], dict[str, _Node]],
) -> None:
    for folder, name, node in names:
        if node is None:
            names_of(folder).pop(name, None)
        else:
            names_of(folder)[name] = node

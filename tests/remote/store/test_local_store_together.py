"""Small objects that go to the disk together: their order, their errors, kill -9 at every call."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.descriptors import open_below
from tests.kill import dies
from tests.remote.store.killing import Killer, there
from tierlog._core import sync_files
from tierlog.errors import RemoteStorageError
from tierlog.remote.store import local_store
from tierlog.remote.store.local_draft import link_nameless
from tierlog.remote.store.local_store import LocalStore

OBJECTS = {
    "a/1": b"one",
    "a/2": b"",
    "b/c/3": b"three" * 10_000,
    "4": b"four",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_all_of_them(root: Path) -> None:
    store = LocalStore(root)
    assert store.put_all_if_absent(OBJECTS) == dict.fromkeys(OBJECTS, True)
    assert there(root) == OBJECTS
    again = {"a/1": b"another", "a/5": b"five"}
    assert store.put_all_if_absent(again) == {"a/1": False, "a/5": True}
    assert there(root) == {**OBJECTS, "a/5": b"five"}
    assert store.put_all_if_absent({}) == {}
    assert open_below(root) == 0


def test_more_than_there_are_threads(root: Path) -> None:
    objects = {f"{number % 7}/{number}": b"%d" % number for number in range(200)}
    assert all(LocalStore(root).put_all_if_absent(objects).values())
    assert there(root) == objects
    assert open_below(root) == 0


def test_names_come_between_the_files_and_the_folders(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def sync(files: dict[str, int]) -> None:
        sizes = {name: os.fstat(descriptor).st_size for name, descriptor in files.items()}
        calls.append(sizes if OBJECTS.keys() <= sizes.keys() else set(files))
        sync_files(files)

    def link(descriptor: int, name: str, folder: int) -> bool:
        calls.append(name)
        return link_nameless(descriptor, name, folder)

    monkeypatch.setattr(local_store, "sync_files", sync)
    monkeypatch.setattr(local_store, "link_nameless", link)
    LocalStore(root).put_all_if_absent(OBJECTS)
    whole = {key: len(data) for key, data in OBJECTS.items()}
    # Every folder on the way, since each of them holds a new name.
    assert calls == [whole, "1", "2", "3", "4", {"", "a", "b", "b/c"}]


@pytest.mark.parametrize("number", [1, 2])
def test_a_failed_sync_is_an_error(
    number: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [number]

    def failing(files: dict[str, int]) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.EIO, "Input/output error", "b/c" if number == 2 else "b/c/3")
        sync_files(files)

    monkeypatch.setattr(local_store, "sync_files", failing)
    store = LocalStore(root)
    with pytest.raises(RemoteStorageError, match=r"b/c(/3)?: Input/output error"):
        store.put_all_if_absent(OBJECTS)
    # Names of files only once those are durable.
    assert there(root) == ({} if number == 1 else OBJECTS)
    assert open_below(root) == 0
    found = store.put_all_if_absent(OBJECTS)
    assert found == dict.fromkeys(OBJECTS, number == 1)


@pytest.mark.parametrize("call", ["write", "open", "link", "mkdir"])
def test_a_full_disk(call: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    real, left = getattr(os, call), [2]

    def full(*args: Any, **keywords: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RemoteStorageError, match="No space left"):
            LocalStore(root).put_all_if_absent(OBJECTS)
    assert there(root).items() <= OBJECTS.items()
    assert open_below(root) == 0


def test_what_cannot_be_synced_is_told_by_name() -> None:
    reading, writing = os.pipe()
    try:
        files = {"null": os.open(os.devnull, os.O_RDONLY), "pipe": reading, "other": writing}
        with pytest.raises(OSError, match="Invalid argument") as caught:
            sync_files(files)
        os.close(files["null"])
        assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "null")
    finally:
        os.close(reading)
        os.close(writing)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_files({"closed": -1})
    with pytest.raises(TypeError):
        sync_files({"none": "1"})  # type: ignore[dict-item]
    sync_files({})


# -- kill -9


def test_killed_at_every_call(tmp_path: Path) -> None:
    """An object is whole or not there, nothing else is left, and the next run does the rest."""
    number, killed, seen = 0, True, set()
    while killed:
        number += 1
        root = tmp_path / str(number)
        killed = dies(Killer(number).install, partial(LocalStore(root).put_all_if_absent, OBJECTS))
        left = there(root)
        seen.add(len(left))
        assert left.items() <= OBJECTS.items()
        stored = LocalStore(root).put_all_if_absent(OBJECTS)
        assert stored == {key: key not in left for key in OBJECTS}
        assert there(root) == OBJECTS
    assert seen == {0, 1, 2, 3, 4}

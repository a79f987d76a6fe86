"""What errors at every call and power cuts have found, each shown by the one call that it needs."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.compare import differences, violations
from tests.reliability.operations import ManagerOperation
from tests.reliability.world import World
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.errors import RemoteStorageError
from tierlog.log import segment_files
from tierlog.log.log_dir import SegmentHandle, open_log_dir
from tierlog.remote.metadata.sqlite import SqliteRemoteLogMetadataManager
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import open_regular_file
from tierlog.sidecar.events import Events
from tierlog.sidecar.report import TierListener
from tierlog.types import TopicIdPartition


def failing(
    monkeypatch: pytest.MonkeyPatch, module: Any, call: str, when: Callable[..., bool]
) -> list[object]:
    """The call of the module fails with EIO where `when` says so; what it was asked to do then."""
    real = getattr(module, call)
    struck: list[object] = []

    def fail(*arguments: Any, **options: Any) -> Any:
        if when(*arguments):
            struck.append(arguments)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **options)

    monkeypatch.setattr(module, call, fail)
    return struck


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def open_below(folder: Path) -> list[str]:
    paths = []
    for number in os.listdir("/proc/self/fd"):
        try:
            paths.append(path_of(int(number)))
        except FileNotFoundError:
            continue
    return [path for path in paths if path.startswith(str(folder))]


def test_the_folders_of_new_metadata_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by power cuts: a new state directory was gone, and all it had been told."""
    synced, real = [], os.fsync

    def sync(descriptor: int) -> None:
        synced.append(path_of(descriptor))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    SqliteRemoteLogMetadataManager(tmp_path / "new" / "state" / "metadata.sqlite").close()
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "state")} <= set(synced)
    synced.clear()
    SqliteRemoteLogMetadataManager(tmp_path / "new" / "state" / "metadata.sqlite").close()
    # SQLite swallows an error of this sync, so it cannot be left to it.
    assert str(tmp_path / "new" / "state") in synced


def test_a_lock_that_fails_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        assert failing(patch, fcntl, "flock", lambda *_: True) == []
        with pytest.raises(OSError, match="Input/output error"):
            SqliteRemoteLogMetadataManager(tmp_path / "metadata.sqlite")
    assert open_below(tmp_path) == []
    SqliteRemoteLogMetadataManager(tmp_path / "metadata.sqlite").close()


@pytest.mark.parametrize("open_file", [open_regular_file, SegmentHandle])
def test_a_file_whose_state_is_unknown_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_file: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"bytes")
    seen: list[int] = []

    def is_last(descriptor: int) -> bool:
        # The handle asks twice: for the kind of the file, and for its identity.
        seen.append(descriptor)
        return open_file is open_regular_file or len(seen) == 2

    with monkeypatch.context() as patch:
        failing(patch, os, "fstat", is_last)
        with pytest.raises(OSError, match="Input/output error"):
            open_file(path)
    assert open_below(tmp_path) == []


def test_every_error_of_a_read_is_the_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put_bytes("key", b"bytes")
    with monkeypatch.context() as patch:
        failing(patch, os, "fstat", lambda _: True)
        with pytest.raises(RemoteStorageError, match="key: Input/output error"):
            store.get_range("key", 0, 5)
    assert bytes(store.get_range("key", 0, 5)) == b"bytes"


def test_an_error_of_a_close_neither_fails_a_put_nor_leaves_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real, struck = LocalStore(tmp_path), os.close, []

    def close(descriptor: int) -> None:
        written = "key" in path_of(descriptor) or ".tierlog-" in path_of(descriptor)
        real(descriptor)
        if written:
            struck.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        assert store.put_if_absent("key", b"bytes")
        assert not store.put_if_absent("key", b"other")
    assert len(struck) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_an_error_of_the_close_of_a_draft_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, real = LocalStore(tmp_path), os.close
    draft = store.draft("folder/key", 5)
    assert draft is not None
    written = draft.fileno()

    def close(descriptor: int) -> None:
        real(descriptor)
        if descriptor == written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        with pytest.raises(OSError, match="Input/output error"):
            draft.close()
    assert open_below(tmp_path) == []


def test_a_segment_that_a_listing_cannot_see_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a stat that fails: local retention deleted it with later ones, and the index files
    lacked it once it was copied."""
    root = tmp_path / "world"
    ManagerOperation("hidden", World.run, tiered=False).prepare(root)
    world = World(root)
    world.lead_all()
    real, struck = segment_files._identity_of_regular, []

    def hide(entry: Any, kind: str, path: str, findings: Any) -> Any:
        if kind == "log" and entry.name == f"{0:020}.log":
            struck.append(path)
            return findings.skip_error(path, OSError(errno.EIO, os.strerror(errno.EIO)))
        return real(entry, kind, path, findings)

    with monkeypatch.context() as patch:
        patch.setattr(segment_files, "_identity_of_regular", hide)
        world.run()
    assert struck
    assert list(violations(world)) == []
    for log in world.host.logs.values():
        log.forget_view()
    for _ in range(3):
        world.run()
    assert list(differences(world)) == []
    world.close()


def test_properties_that_cannot_be_read_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    with monkeypatch.context() as patch:
        failing(patch, os, "open", lambda path, *_: path == "meta.properties")
        with pytest.raises(OSError, match="Input/output error"):
            open_log_dir(log_dir)
    assert open_log_dir(log_dir).cluster_id


class Warnings(TierListener):
    def __init__(self) -> None:
        self.told: list[str] = []

    def on_warning(self, text: str) -> None:
        self.told.append(text)


def test_index_files_that_cannot_be_written_are_a_warning() -> None:
    clock, listener = ManualClock(0), Warnings()
    events = Events(clock, dry_run=False)
    events.begin(listener, 0)
    partition = TopicIdPartition(topic_id="jKT3Dc6USuSaZ8wB6Q75Gw", topic="epochs", partition=0)
    events.on_index_failure(partition, OSError(errno.ENOSPC, "No space left on device"))
    assert len(listener.told) == 1
    assert "remote index files" in listener.told[0]
    assert "No space left on device" in listener.told[0]


@pytest.mark.parametrize("call", ["unlink", "lstat"])
def test_index_files_of_a_deleted_topic_go_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    root = tmp_path / "world"
    ManagerOperation("deletion", World.run).prepare(root)
    world = World(root)
    world.lead_all()
    log = world.host.logs["doomed-0"]
    assert list(world.index_files(log.partition))
    with monkeypatch.context() as patch:
        index = str(world.index_dir)
        struck = failing(patch, os, call, lambda path, *_: str(path).startswith(index))
        world.delete_topic(log)
        world.run()
        assert struck
        assert world.failures.told
    for _ in range(3):
        world.run()
    assert list(world.index_files(log.partition)) == []
    assert world.metadata.partition_delete_state(log.partition) is None
    world.close()

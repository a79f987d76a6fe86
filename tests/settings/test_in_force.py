"""Every setting changes what a shipped command or a documented public call does.

A row of the table has a value and an observation. What is observed under that value differs from
what is observed under the default, which is the same each time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.settings.observing import Observe, Place, command, files_of
from tierlog.remote.bucket import list_segments
from tierlog.remote.indexes import IndexKind
from tierlog.remote.storage import ObjectStorageManager
from tierlog.remote.store import LocalStore


def section_sizes(place: Place, kind: IndexKind) -> list[int]:
    """The sizes of that section in the `.indexes` objects of a store, by base offset."""
    store = LocalStore(place.store)
    storage = ObjectStorageManager(store)
    segments = sorted(list_segments(store), key=lambda one: one.start_offset)
    return [len(storage.fetch_indexes(one, [kind])[kind]) for one in segments]


def offset_indexes(place: Place) -> list[int]:
    assert place.tier().code == 0
    return section_sizes(place, IndexKind.OFFSET)


def runs_after_a_rebuild(place: Place) -> list[int]:
    """The remoteLogIndex of `.indexes` objects that were lost."""
    place.tiered()
    for path in sorted(place.store.rglob("*.indexes"))[:-1]:
        path.unlink()
    for path in place.store.rglob("*.log"):
        os.utime(path, (0, 0))  # no copy is still under way
    said = command("index", "rebuild", place.store.as_uri(), "--config", place.write_config())
    assert said.code == 0, said.err
    return section_sizes(place, IndexKind.REMOTE_LOG)


def rebuilt_index_files(place: Place) -> int:
    """How many remote index files a rebuild makes."""
    place.tiered()
    target = place.folder / "index"
    said = command(
        "index", "rebuild", place.store.as_uri(), "--to", str(target), "--config",
        place.write_config(),
    )  # fmt: skip
    assert said.code == 0, said.err
    return len(files_of(target))


def seconds_of_cat(place: Place) -> bool:
    """Whether `cat` waits for a quota: the second segment begins when the window has passed."""
    place.tiered()
    begun = time.monotonic()
    quota = {
        "remote_log_manager_fetch_max_bytes_per_second": "100",
        "remote_log_manager_fetch_quota_window_num": "1",
    }
    said = command("cat", place.store.as_uri(), "epochs:0", "--config", place.write_config(**quota))
    assert said.code == 0, said.err
    return time.monotonic() - begun > 1


def archived(place: Place) -> int:
    """How many segments a pass copies."""
    assert place.tier().code == 0
    return len(list(list_segments(LocalStore(place.store))))


def archived_after_retention(place: Place) -> int:
    """How many segments are left where retention would delete all."""
    place.tiered().tier("--retention-ms", "1h")
    return len(list(list_segments(LocalStore(place.store))))


ROWS: dict[str, tuple[str, Observe]] = {
    "log.index.interval.bytes": ("1000000", offset_indexes),
    "remote.log.copy.disable": ("true", archived),
    "tierlog.retention.max.deleted.ratio": ("1", archived_after_retention),
    "tierlog.remote.index.interval.bytes": ("1000", runs_after_a_rebuild),
    "tierlog.remote.index.rotate.bytes": ("100", rebuilt_index_files),
    "tierlog.remote.index.rotate.ms": ("1", rebuilt_index_files),
    "remote.log.manager.fetch.max.bytes.per.second": ("9223372036854775807", seconds_of_cat),
}


@pytest.mark.parametrize("name", ROWS)
def test_setting_is_in_force(name: str, tmp_path: Path) -> None:
    value, observe = ROWS[name]

    def observed(folder: str, properties: dict[str, str]) -> object:
        place = Place(tmp_path / folder, properties)
        place.folder.mkdir()
        return observe(place)

    default = observed("default", {})
    assert default == observed("again", {})
    assert observed("changed", {name: value}) != default

"""The index cache when processes end, fork or are killed, and when the disk refuses."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.remote.index_cache.segments import (
    MAPPED_ENTRIES,
    PATIENCE,
    OpenCache,
    Troubles,
    WatchedStore,
    file_of,
    files_in,
    stored,
)
from tierlog.errors import ClosedError, ConfigError
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment.storage import ObjectStorageManager

ROOT = Path(__file__).resolve().parents[3]


CHILD = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.remote.index_cache.segments import WatchedStore, indexed
from tierlog.remote.index_cache.cache import RemoteIndexCache
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager

store = WatchedStore(Path(sys.argv[2]))
cache = RemoteIndexCache(ObjectStorageManager(store), sys.argv[3])
"""


def run_child(code: str, watched: WatchedStore, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CHILD + code, str(ROOT), str(watched.root), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


KILLS = {
    "half-way": """
def write(descriptor, data):
    half = real_write(descriptor, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
real_write, os.write = os.write, write
""",
    "before the rename": """
os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
""",
}


@pytest.mark.parametrize("moment", sorted(KILLS))
def test_cac3_killed_while_writing(
    moment: str, watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    whole, half = stored(watched, "a"), stored(watched, "b")
    code = f"""
cache.get(indexed("a").metadata)
{KILLS[moment]}
cache.get(indexed("b").metadata)
"""
    assert run_child(code, watched, folder).returncode == -signal.SIGKILL
    assert [name.rpartition(".")[2] for name in files_in(folder)].count("tmp") == 1
    cache = open_cache()
    assert files_in(folder) == [file_of(folder, whole.metadata).name]
    assert len(cache) == 1
    assert cache.get(half.metadata).lookup_offset(9) == half.offsets[0]


def test_cac6_deleted_means_absent_after_a_crash(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    """Killed while a reader still held what had been removed."""
    one = stored(watched, "a")
    code = """
entry = cache.get(indexed("a").metadata)
cache.remove(entry.metadata.segment_id)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run_child(code, watched, folder).returncode == -signal.SIGKILL
    assert [name.rpartition(".")[2] for name in files_in(folder)] == ["deleted"]
    cache = open_cache()
    assert (len(cache), files_in(folder)) == (0, [])
    assert one.metadata.segment_id not in cache


@pytest.mark.parametrize("end", ["", "cache.close()", "del cache", "import gc; del cache, entry"])
def test_the_end_of_a_process_deletes_nothing(
    end: str, watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    one = stored(watched, "a", entries=MAPPED_ENTRIES)
    code = f'entry = cache.get(indexed("a", entries={MAPPED_ENTRIES}).metadata)\n{end}\n'
    done = run_child(code, watched, folder)
    assert (done.returncode, done.stderr) == (0, "")
    cache = open_cache()
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    assert watched.reads_of(one.metadata) == 0


def test_close_deletes_nothing_that_readers_hold(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    one, gone = stored(watched, "a"), stored(watched, "b")
    cache = open_cache()
    entry, removed = cache.get(one.metadata), cache.get(gone.metadata)
    cache.remove(gone.metadata.segment_id)
    cache.close()
    del entry, removed
    assert files_in(folder) == [file_of(folder, one.metadata).name]


# -- disks that refuse


def test_cac12_a_full_disk(watched: WatchedStore, folder: Path) -> None:
    """A file-size limit of the process stands for the full disk: writes really fail half-way."""
    one = stored(watched, "a", entries=MAPPED_ENTRIES)
    stored(watched, "b")
    code = f"""
import resource
troubles = []
cache.close()
cache = RemoteIndexCache(
    ObjectStorageManager(store), sys.argv[3], on_disk_error=troubles.append
)
small, large = indexed("b"), indexed("a", entries={MAPPED_ENTRIES})
cache.get(small.metadata)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
for count in (1, 2):
    assert cache.get(large.metadata).lookup_offset(9) == large.offsets[0]
    assert store.reads_of(large.metadata) == count
    assert [error.errno for error in troubles] == [27] * count, troubles
    assert cache.stats().disk_errors == count
assert len(os.listdir(sys.argv[3])) == 2, os.listdir(sys.argv[3])
assert cache.get(small.metadata).lookup_offset(9) == small.offsets[0]
assert store.reads_of(small.metadata) == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
for _ in range(2):
    assert cache.get(large.metadata).lookup_offset(9) == large.offsets[0]
assert store.reads_of(large.metadata) == 3
assert len(cache) == 2
"""
    done = run_child(code, watched, folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert errno.EFBIG == 27
    assert file_of(folder, one.metadata).read_bytes() == one.data


def test_cac12_the_folder_goes_away(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    tmp_path: Path,
    troubles: Troubles,
) -> None:
    """Removed or moved by somebody: readers notice nothing, and the folder is made again."""
    first, second, third, fourth = (
        stored(watched, f"s{n}", 1_000 + n, entries=MAPPED_ENTRIES) for n in range(4)
    )
    cache = open_cache()
    held = cache.get(first.metadata)
    shutil.rmtree(folder)
    assert held.lookup_offset(2**62) == first.offsets[-1]
    assert cache.get(second.metadata).lookup_offset(2**62) == second.offsets[-1]
    assert [file_of(folder, second.metadata).name] == files_in(folder)
    assert troubles == []
    folder.rename(tmp_path / "moved")
    assert cache.get(third.metadata).lookup_offset(2**62) == third.offsets[-1]
    assert [type(error) for error in troubles] == [FileNotFoundError]
    cache.get(fourth.metadata)
    assert [file_of(folder, fourth.metadata).name] == files_in(folder)
    for one in (first, second):
        cache.remove(one.metadata.segment_id)
    del held
    assert len(troubles) == 1


def test_cac12_a_file_where_the_folder_was(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
) -> None:
    one = stored(watched, "a")
    cache = open_cache()
    shutil.rmtree(folder)
    folder.write_text("mine")
    for count in (1, 2, 3):
        assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
        assert watched.reads_of(one.metadata) == len(troubles) == count
    assert folder.read_text() == "mine"


def test_cac12_another_cache_took_the_folder(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
) -> None:
    first, second = stored(watched, "a"), stored(watched, "b")
    cache = open_cache()
    shutil.rmtree(folder)
    other = open_cache()
    other.get(first.metadata)
    for _ in range(2):
        cache.get(second.metadata)
        assert files_in(folder) == [file_of(folder, first.metadata).name]
    assert isinstance(troubles[-1], ConfigError)


# -- forks


def in_child(job: Callable[[], object]) -> int:
    """The exit status of a forked child that runs `job`: 0 when it returns."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            job()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_refused_and_deletes_nothing(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    one, other = stored(watched, "a", entries=MAPPED_ENTRIES), stored(watched, "b")
    cache = open_cache()
    held: list[Any] = [cache.get(one.metadata), cache.get(other.metadata)]
    cache.remove(other.metadata.segment_id)
    before = files_in(folder)

    def use() -> None:
        with pytest.raises(ClosedError, match="parent process"):
            cache.get(one.metadata)
        for refused in (cache.sweep, lambda: cache.remove(one.metadata.segment_id)):
            with pytest.raises(ClosedError):
                refused()
        assert held[0].lookup_offset(9) == one.offsets[0]
        cache.close()
        held.clear()
        gc.collect()
        assert files_in(folder) == before
        # The lock is still the parent's.
        with pytest.raises(ConfigError):
            RemoteIndexCache(ObjectStorageManager(watched), folder)

    assert in_child(use) == 0
    assert files_in(folder) == before
    assert cache.get(one.metadata) is held[0]
    with pytest.raises(ConfigError):
        open_cache()
    held.clear()
    assert files_in(folder) == [file_of(folder, one.metadata).name]


def test_a_child_does_not_keep_its_parent_s_lock(
    open_cache: OpenCache,
) -> None:
    """The parent may end, and another process go on, while a child still runs."""
    cache = open_cache()
    (child_runs, running), (asks, told) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        os.write(running, b"!")
        os.read(asks, 1)
        os._exit(0)
    assert os.read(child_runs, 1) == b"!"
    # As a parent that ends without a close.
    cache._directory._drop_lock()
    again = open_cache()
    assert len(again) == 0
    for descriptor in (child_runs, running, asks, told):
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0


def test_close_frees_the_folder_although_a_descriptor_was_inherited(
    open_cache: OpenCache,
) -> None:
    """By a child that is about to become another program, which no Python hook hears of."""
    cache = open_cache()
    assert cache._directory._descriptor is not None
    inherited = os.dup(cache._directory._descriptor)
    cache.close()
    assert len(open_cache()) == 0
    os.close(inherited)


def test_a_child_may_open_its_own(
    watched: WatchedStore, open_cache: OpenCache, tmp_path: Path
) -> None:
    one = stored(watched, "a")
    open_cache().get(one.metadata)

    def use() -> None:
        with RemoteIndexCache(ObjectStorageManager(watched), tmp_path / "child") as own:
            assert own.get(one.metadata).lookup_offset(9) == one.offsets[0]
            own.remove(one.metadata.segment_id)
            assert files_in(tmp_path / "child") == []

    assert in_child(use) == 0

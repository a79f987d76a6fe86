"""The files of the index cache: races, readers, crashes, damage, disks that refuse, forks."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.descriptors import open_below
from tests.remote.index_cache.segments import (
    FEW_ENTRIES,
    MAPPED_ENTRIES,
    PATIENCE,
    Indexed,
    OpenCache,
    Troubles,
    WatchedStore,
    file_of,
    files_in,
    indexed,
    run_all,
    stored,
)
from tierlog.clock import ManualClock
from tierlog.errors import ClosedError, ConfigError, CorruptDataError
from tierlog.remote.index_cache.directory import CachedFileName
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind

ROOT = Path(__file__).resolve().parents[3]


def filled(open_cache: OpenCache, *wanted: Indexed) -> None:
    """Leaves the files of those segments behind, as a process that ended well does."""
    cache = open_cache()
    for one in wanted:
        cache.get(one.metadata)
    cache.close()


def mappings_of(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


# -- names


def test_names_are_parsed_strictly() -> None:
    uuid = "ab_cd-_-AAAAAAAAAAAAAA"
    for text in (f"0_{uuid}.1.indexes", f"{2**63 - 1}_{uuid}.{2**62}.indexes"):
        for suffix in ("", ".tmp", ".deleted"):
            name = CachedFileName.parse(text + suffix)
            assert name is not None
            assert (str(name), name.segment_id, name.suffix) == (text + suffix, uuid, suffix)
    for text in (
        "",
        ".lock",
        f"00_{uuid}.1.indexes",
        f"-1_{uuid}.1.indexes",
        f"+1_{uuid}.1.indexes",
        f"{2**63}_{uuid}.1.indexes",
        f"1_{uuid}.{2**62 + 1}.indexes",
        f"1_{uuid}.01.indexes",
        f"1_{uuid}..indexes",
        f"1_{uuid}.indexes",
        f"_{uuid}.1.indexes",
        f"1{uuid}.1.indexes",
        f"1_{uuid[:-1]}.1.indexes",
        f"1_{uuid}A.1.indexes",
        f"1_{uuid[:-1]}B.1.indexes",
        f"1_{uuid}.1.indexes.tmp.tmp",
        f"1_{uuid}.1.indexes.bak",
        f"1_{uuid}.1.INDEXES",
        f"1_{uuid}.1.indexes\n",
        f"\u0661_{uuid}.1.indexes",
        f"1_{uuid}.\u0661.indexes",
        f"1_{uuid}.index",
        f"1_{uuid}.timeindex",
    ):
        assert CachedFileName.parse(text) is None, text


def test_an_id_may_hold_underscores(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    names = (f"n{number}" for number in range(10_000))
    one = stored(
        watched, next(name for name in names if "_" in indexed(name).metadata.segment_id.id)
    )
    filled(open_cache, one)
    assert files_in(folder)[0].count("_") > 1
    cache = open_cache()
    assert one.metadata.segment_id in cache
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    assert watched.reads_of(one.metadata) == 1


# -- races and readers


def test_cac1_a_late_removal_never_hits_the_new_file(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    """KAFKA-15481 step by step: evicted, fetched again by another thread, and only then removed."""
    one = stored(watched, "a", entries=MAPPED_ENTRIES)
    evicted, fetched = threading.Event(), threading.Event()

    def dawdle(_segment: object, _cause: str) -> None:
        if not evicted.is_set():
            evicted.set()
            assert fetched.wait(PATIENCE)

    def fetch_again() -> object:
        assert evicted.wait(PATIENCE)
        try:
            return cache.get(one.metadata)
        finally:
            fetched.set()

    cache = open_cache(on_removal=dawdle)
    old = cache.get(one.metadata)
    old_path = file_of(folder, one.metadata)
    was_there, new = run_all(lambda: cache.remove(one.metadata.segment_id), fetch_again)
    assert was_there is True
    assert new is cache.get(one.metadata)
    assert new is not old
    del old
    gc.collect()
    new_path = file_of(folder, one.metadata)
    assert new_path != old_path
    assert new_path.read_bytes() == one.data
    assert files_in(folder) == [new_path.name]


@pytest.mark.parametrize("entries", [FEW_ENTRIES, MAPPED_ENTRIES])
@pytest.mark.parametrize("hold_view", [False, True])
def test_cac2_a_reader_keeps_an_evicted_entry(
    hold_view: bool,
    entries: int,
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
) -> None:
    """KAFKA-17184: it goes on as if nothing had happened; the file goes when it lets go."""
    one = stored(watched, "a", entries=entries)
    cache = open_cache()
    entry = cache.get(one.metadata)
    view = entry.section(IndexKind.OFFSET)
    offsets = bytes(view)
    assert cache.remove(one.metadata.segment_id)
    assert [name.rpartition(".")[2] for name in files_in(folder)] == ["deleted"]
    for target, position in one.offsets[:50]:
        assert entry.lookup_offset(target) == (target, position)
    again = cache.get(one.metadata)
    assert again is not entry
    if hold_view:
        del entry
    else:
        del view
    if not hold_view or entries == MAPPED_ENTRIES:
        assert len(files_in(folder)) == 2
    if hold_view:
        assert view == offsets
        del view
    else:
        del entry
    assert files_in(folder) == [file_of(folder, one.metadata).name]
    assert again.lookup_offset(9) == one.offsets[0]


def test_an_evicted_entry_may_still_be_looked_at_for_the_first_time(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    """Taken over from an earlier run, handed to a reader, evicted before it was verified."""
    one = stored(watched, "a")
    filled(open_cache, one)
    cache = open_cache()
    entry = cache._cache.get(
        (one.metadata.topic_id_partition.topic_id, 0, one.metadata.segment_id.id)
    )
    assert not entry.verified
    cache.remove(one.metadata.segment_id)
    entry.verify()
    assert entry.lookup_offset(9) == one.offsets[0]
    del entry
    assert files_in(folder) == []


@pytest.mark.parametrize(("entries", "rounds"), [(MAPPED_ENTRIES, 60), (FEW_ENTRIES, 700)])
def test_cac9_cac15_descriptors_mappings_and_files_stay_few(
    entries: int, rounds: int, watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    many = [stored(watched, f"s{n}", 10_000 + n, entries=entries) for n in range(8)]
    cache = open_cache(total_size_bytes=3 * many[0].size_bytes)
    mapped = 3 if entries == MAPPED_ENTRIES else 0
    for _ in range(rounds + 1):
        for one in many:
            cache.get(one.metadata)
        assert (mappings_of(folder), len(files_in(folder))) == (mapped, 3)
    assert len(watched.reads) == (rounds + 1) * len(many)
    assert open_below(folder) == 1, "the folder's lock"
    cache.resize(1)
    assert (mappings_of(folder), files_in(folder)) == (0, [])


def test_entries_in_use_hold_no_descriptors(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    many = [stored(watched, f"s{n}", entries=MAPPED_ENTRIES) for n in range(40)]
    filled(open_cache, *many)
    cache = open_cache()
    before = open_below(folder)
    held = [cache.get(one.metadata) for one in many]
    assert open_below(folder) == before
    assert mappings_of(folder) == len(held)


def test_many_threads_and_little_room(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    """Hits, loads, evictions and removals at once: always the right indexes, and nothing stays."""
    many = [stored(watched, f"s{n}", 10_000 + 1_000 * n) for n in range(12)]
    cache = open_cache(total_size_bytes=4 * many[0].size_bytes)

    def use(seed: int) -> None:
        for step in range(300):
            one = many[(seed * 7 + step * step) % len(many)]
            if step % 50 == 49:
                cache.remove(one.metadata.segment_id)
            entry = cache.get(one.metadata)
            assert entry.metadata.segment_id == one.metadata.segment_id
            row = step % FEW_ENTRIES
            assert entry.lookup_offset(one.offsets[row][0]) == one.offsets[row]

    assert run_all(*[lambda seed=seed: use(seed) for seed in range(8)]) == [None] * 8
    cache.sweep()
    assert cache.size_bytes == sum((folder / name).stat().st_size for name in files_in(folder))
    assert len(cache) == len(files_in(folder)) <= 4


def test_cac7_close_under_load(watched: WatchedStore, open_cache: OpenCache, folder: Path) -> None:
    many = [stored(watched, f"s{n}", entries=MAPPED_ENTRIES) for n in range(6)]
    cache = open_cache(total_size_bytes=3 * many[0].size_bytes)
    busy = threading.Barrier(5)

    def use(seed: int) -> int:
        held = [cache.get(many[seed].metadata)]
        busy.wait(PATIENCE)
        try:
            for step in range(10_000):
                held[-1:] = [held[-1], cache.get(many[(seed + step) % 6].metadata)][-2:]
        except ClosedError:
            pass
        for entry in held:
            assert entry.lookup_offset(2**62)[0] == entry.metadata.end_offset
        return len(held)

    def close() -> None:
        busy.wait(PATIENCE)
        cache.close()

    found = run_all(*[lambda seed=seed: use(seed) for seed in range(4)], close)
    assert all(isinstance(one, int) for one in found[:4]), found
    gc.collect()
    # A thread's last load may have stored its file just before.
    again = open_cache()
    assert len(again) == len(files_in(folder)) <= 3 + 4
    for one in many:
        assert again.get(one.metadata).metadata.segment_id == one.metadata.segment_id


# -- start


def test_complete_files_are_taken_over(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    many = [stored(watched, f"s{n}", n * 1_000, entries=MAPPED_ENTRIES) for n in range(3)]
    filled(open_cache, *many)
    names = files_in(folder)
    cache = open_cache()
    assert (len(cache), cache.size_bytes) == (3, sum(one.size_bytes for one in many))
    assert mappings_of(folder) == 0
    for one in many:
        assert cache.get(one.metadata).lookup_offset(2**62) == one.offsets[-1]
        assert watched.reads_of(one.metadata) == 1
    assert files_in(folder) == names
    assert cache.stats().adopted == 3


def test_taken_over_files_keep_to_the_bound_newest_first(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    many = [stored(watched, f"s{n}", 1_000 + n) for n in range(4)]
    filled(open_cache, *many)
    for age, one in enumerate((many[2], many[0], many[3], many[1])):
        os.utime(file_of(folder, one.metadata), (1_000 - age, 1_000 - age))
    cache = open_cache(total_size_bytes=2 * many[0].size_bytes)
    assert len(files_in(folder)) == 2
    assert many[2].metadata.segment_id in cache
    assert many[0].metadata.segment_id in cache


def test_taken_over_files_expire_like_others(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    filled(open_cache, stored(watched, "a"))
    clock = ManualClock()
    cache = open_cache(clock=clock, ttl_ms=1_000)
    clock.advance(1_000)
    assert cache.sweep() == 1
    assert files_in(folder) == []


def test_taken_over_indexes_must_be_of_the_segment_asked_for(
    watched: WatchedStore, open_cache: OpenCache
) -> None:
    one = stored(watched, "a")
    filled(open_cache, one)
    cache = open_cache()
    with pytest.raises(CorruptDataError, match="wrong_segment"):
        cache.get(replace(one.metadata, segment_size_bytes=5))


def test_cac3_leftovers_of_a_crash_are_removed(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    one = stored(watched, "a")
    filled(open_cache, one)
    path = file_of(folder, one.metadata)
    for suffix in (".tmp", ".deleted"):
        (folder / (path.name + suffix)).write_bytes(one.data[:50])
    cache = open_cache()
    assert files_in(folder) == [path.name]
    assert len(cache) == 1


def test_of_two_generations_the_newer_one_is_taken_over(
    watched: WatchedStore, open_cache: OpenCache, folder: Path
) -> None:
    one = stored(watched, "a")
    filled(open_cache, one)
    path = file_of(folder, one.metadata)
    name = CachedFileName.parse(path.name)
    assert name is not None
    newer = str(name).replace(f".{name.generation}.", f".{name.generation + 5}.")
    shutil.copy(path, folder / newer)
    cache = open_cache()
    assert (files_in(folder), len(cache)) == ([newer], 1)
    cache.remove(one.metadata.segment_id)
    cache.get(one.metadata)
    found = CachedFileName.parse(file_of(folder, one.metadata).name)
    assert found is not None
    assert found.generation > name.generation + 5


def test_an_older_generation_stands_in_for_a_damaged_one(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
) -> None:
    one = stored(watched, "a")
    filled(open_cache, one)
    path = file_of(folder, one.metadata)
    name = CachedFileName.parse(path.name)
    assert name is not None
    newer = folder / str(name).replace(f".{name.generation}.", f".{name.generation + 5}.")
    newer.write_bytes(one.data[:-1])
    cache = open_cache()
    assert files_in(folder) == [path.name]
    assert [type(error) for error in troubles] == [CorruptDataError]
    cache.get(one.metadata)
    assert watched.reads_of(one.metadata) == 1


def damages(one: Indexed) -> dict[str, bytes]:
    """Every kind of damage that shows at the start, without reading the sections."""

    def flipped(position: int) -> bytes:
        return bytes(
            byte ^ 0x04 if index == position else byte for index, byte in enumerate(one.data)
        )

    header = IndexesHeader.parse(one.data, path="")
    other = indexed("another")
    return {
        "empty": b"",
        "one byte": one.data[:1],
        "half a header": one.data[:100],
        "no sections": one.data[: header.sections[0].position],
        "no last byte": one.data[:-1],
        "a byte more": one.data + b"\0",
        "zeros": bytes(len(one.data)),
        "magic": flipped(0),
        "version": flipped(9),
        "table": flipped(40),
        "metadata": flipped(header.sections[0].position + 5),
        "another segment": other.data,
        "twice": one.data * 2,
    }


@pytest.mark.parametrize("kind", sorted(damages(indexed("a"))))
def test_cac3_files_damaged_at_the_start_are_removed(
    kind: str,
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
) -> None:
    one, sound = stored(watched, "a"), stored(watched, "b")
    filled(open_cache, one, sound)
    file_of(folder, one.metadata).write_bytes(damages(one)[kind])
    cache = open_cache()
    assert files_in(folder) == [file_of(folder, sound.metadata).name]
    assert len(cache) == len(troubles) == cache.stats().damaged == 1
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    assert cache.get(sound.metadata).lookup_offset(9) == sound.offsets[0]
    assert watched.reads_of(one.metadata) == 2
    assert watched.reads_of(sound.metadata) == 1


@pytest.mark.parametrize("entries", [FEW_ENTRIES, MAPPED_ENTRIES])
@pytest.mark.parametrize("kind", [kind for kind in IndexKind if kind is not IndexKind.METADATA])
def test_cac3_a_flipped_bit_is_found_at_first_use_and_rewritten(
    kind: IndexKind,
    entries: int,
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
) -> None:
    """KAFKA-15511: readers get the right answer, and the file is whole again."""
    one = stored(watched, "a", entries=entries)
    section = IndexesHeader.parse(one.data, path="").section(kind)
    if not section.size_bytes:
        kind = IndexKind.OFFSET
        section = IndexesHeader.parse(one.data, path="").section(kind)
    filled(open_cache, one)
    path = file_of(folder, one.metadata)
    with path.open("r+b") as file:
        file.seek(section.position)
        file.write(bytes([one.data[section.position] ^ 0x80]))
    cache = open_cache()
    assert len(cache) == 1
    readers = [lambda: cache.get(one.metadata).lookup_offset(9)] * 8
    assert run_all(*readers) == [one.offsets[0]] * 8
    assert watched.reads_of(one.metadata) == 2
    assert file_of(folder, one.metadata).read_bytes() == one.data
    assert len(files_in(folder)) == 1
    (trouble,) = troubles
    assert isinstance(trouble, CorruptDataError)
    assert (trouble.reason, trouble.path) == ("bad_crc", str(path))
    assert cache.stats().damaged == 1


def test_a_disk_that_keeps_other_bytes_is_not_believed(
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    troubles: Troubles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, cache, write = stored(watched, "a", entries=MAPPED_ENTRIES), open_cache(), os.write

    def wrong(descriptor: int, data: memoryview) -> int:
        return write(descriptor, bytes(data[:-1]) + bytes([data[-1] ^ 1]))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", wrong)
        assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    gc.collect()
    assert files_in(folder) == []
    (trouble,) = troubles
    assert isinstance(trouble, CorruptDataError)
    assert (trouble.reason, cache.stats().disk_errors) == ("bad_crc", 1)
    cache.get(one.metadata)
    assert file_of(folder, one.metadata).read_bytes() == one.data
    assert watched.reads_of(one.metadata) == 2


@pytest.mark.parametrize("damage", ["truncated", "grown", "removed", "a link", "a folder"])
def test_cac3_files_damaged_after_the_start_are_fetched_again(
    damage: str,
    watched: WatchedStore,
    open_cache: OpenCache,
    folder: Path,
    tmp_path: Path,
) -> None:
    one = stored(watched, "a", entries=MAPPED_ENTRIES)
    filled(open_cache, one)
    cache = open_cache()
    path = file_of(folder, one.metadata)
    if damage == "truncated":
        os.truncate(path, 4_096)
    elif damage == "grown":
        os.truncate(path, one.size_bytes + 1)
    else:
        path.rename(tmp_path / "elsewhere")
    if damage == "a link":
        path.symlink_to(tmp_path / "elsewhere")
    if damage == "a folder":
        path.mkdir()
    assert cache.get(one.metadata).lookup_offset(9) == one.offsets[0]
    assert watched.reads_of(one.metadata) == 2
    assert cache.stats().damaged == 1
    assert cache.get(one.metadata).lookup_offset(19) == one.offsets[1]
    assert watched.reads_of(one.metadata) == 2


def test_foreign_files_are_left_alone(
    watched: WatchedStore, open_cache: OpenCache, folder: Path, tmp_path: Path
) -> None:
    """Kafka's own cache, notes, links, pipes and folders, whatever they are called."""
    one = stored(watched, "a")
    filled(open_cache, one)
    name = file_of(folder, one.metadata).name
    ours = name.replace(".indexes", "9.indexes")
    (folder / f"0_{one.metadata.segment_id.id}.index").write_bytes(b"Kafka's")
    (folder / "notes.tmp").write_text("mine")
    (folder / "old.deleted").write_text("mine")
    outside = tmp_path / "outside"
    outside.write_bytes(one.data)
    (folder / ours).symlink_to(outside)
    (folder / f"{ours}.tmp").symlink_to(outside)
    os.mkfifo(folder / ours.replace("0_", "1_"))
    os.mkfifo(folder / f"{ours.replace('0_', '1_')}.deleted")
    (folder / ours.replace("0_", "2_")).mkdir()
    (folder / f"{ours.replace('0_', '3_')}.tmp").mkdir()
    before = files_in(folder)
    cache = open_cache()
    assert files_in(folder) == before
    assert len(cache) == 1
    cache.get(one.metadata)
    cache.remove(one.metadata.segment_id)
    assert files_in(folder) == sorted(set(before) - {name})
    assert outside.read_bytes() == one.data


def test_one_folder_one_cache(watched: WatchedStore, open_cache: OpenCache, folder: Path) -> None:
    one = stored(watched, "a")
    cache = open_cache()
    cache.get(one.metadata)
    with pytest.raises(ConfigError, match="another index cache uses this folder"):
        open_cache()
    assert len(files_in(folder)) == 1
    cache.close()
    assert len(open_cache()) == 1


def test_a_file_is_no_folder(open_cache: OpenCache, folder: Path) -> None:
    folder.write_text("not a folder")
    with pytest.raises(FileExistsError):
        open_cache()
    assert folder.read_text() == "not a folder"

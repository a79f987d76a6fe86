"""Remote index files that a crash, a disk or somebody has damaged: opened, reported, made again."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import combinations
from pathlib import Path

import pytest

from tests.oracle import remote_index as oracle
from tests.remote.index_files.model import NAMES, Model, Tiered, folder, tiered
from tests.remote.index_files.support import (
    ROW,
    check,
    fetcher,
    found,
    metadata_of,
    open_files,
)
from tierlog.errors import CorruptDataError
from tierlog.remote.index_files import file as remote_index_file

ROTATE_BYTES = 2 * len(ROW[0].data) + 50
SMALL = [tiered(0, 19), tiered(20, 39), tiered(40, 59)]


def written(index_dir: Path, sources: list[Tiered], *, rotate_bytes: int = ROTATE_BYTES) -> Model:
    files, model = (
        open_files(index_dir, rotate_bytes=rotate_bytes),
        Model(rotate_bytes=rotate_bytes),
    )
    files.catch_up(metadata_of(sources), fetcher(*sources))
    model.catch_up(sources)
    files.close()
    return model


def path_of(index_dir: Path, base_offset: int, kind: str = NAMES[0]) -> Path:
    return folder(index_dir) / f"{base_offset:020d}.{kind}"


def heals(
    index_dir: Path, model: Model, sources: list[Tiered], *, reasons: set[str] | None = None
) -> None:
    """Opens, answers with good entries or none, and is whole after the next catch up."""
    files = open_files(index_dir, rotate_bytes=model.rotate_bytes)
    if reasons is not None:
        assert {finding.reason for finding in files.findings} == reasons
    entries = [(entry.first_offset, entry.last_offset, entry.rdi) for entry in files.entries()]
    known = {(entry.first_offset, entry.last_offset, entry.rdi) for entry in model.entries}
    assert set(entries) <= known
    for offset in range(0, 60, 7):
        entry = files.lookup_offset(offset)
        assert entry is None or entry.first_offset <= offset <= entry.last_offset
    files.catch_up(metadata_of(sources), fetcher(*sources))
    check(files, model, index_dir)
    files.close()
    assert open_files(index_dir, rotate_bytes=model.rotate_bytes).findings == ()


# -- torn


@pytest.mark.parametrize("last", [True, False])
def test_a_log_cut_at_every_length(last: bool, tmp_path: Path) -> None:
    """COD2, COD5: what is whole stays, what was cut off is reported and comes back."""
    rotate_bytes = 1 << 20 if last else 1
    model = written(tmp_path, SMALL[:2], rotate_bytes=rotate_bytes)
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    rows = [entry.position for entry in oracle.decode(whole)]
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        kept = sum(position <= length for position in [*rows[1:], len(whole) - 8])
        files = open_files(tmp_path, rotate_bytes=rotate_bytes)
        assert len(list(files.entries())) == kept + (0 if last else 2)
        on_border = length in (0, *rows, len(whole) - 8)
        reasons = {finding.reason for finding in files.findings} - {"stale_index"}
        assert reasons == (set() if on_border else {"truncated"})
        heals(tmp_path, model, SMALL[:2], reasons=set())


@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"\x01"])
def test_what_follows_the_last_entry(fill: bytes, tmp_path: Path) -> None:
    """Zeros are an append whose bytes never came; other bytes are damage."""
    model = written(tmp_path, SMALL)
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    for length in (1, 7, 8, 9, 45, 46, 47, 300, 70_000, 5 << 20):
        path.write_bytes(whole[:-8] + fill * length)
        files = open_files(tmp_path)
        torn = fill == b"\0" or length < 46
        assert (files.last_offset is None) is not torn, length
        assert len(files.findings) == 1
        heals(tmp_path, model, SMALL, reasons=set())


def test_the_last_entry_filled_in_part(tmp_path: Path) -> None:
    """Its length came to the disk, its end did not."""
    model = written(tmp_path, SMALL)
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    last = oracle.decode(whole)[-1].position
    for trailer in (b"", whole[-8:], bytes(8)):
        path.write_bytes(whole[: last + 60] + bytes(len(whole) - 8 - last - 60) + trailer)
        heals(tmp_path, model, SMALL, reasons={"bad_crc", "stale_index"})


def test_the_trailer_is_never_needed(tmp_path: Path) -> None:
    model = written(tmp_path, SMALL)
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    for trailer, reasons in (
        (b"", set()),
        (struct.pack(">q", 0), {"truncated"}),
        (struct.pack(">q", -1), {"truncated"}),
        (whole[-8:-1], {"truncated"}),
        (whole[-8:] + b"\0", {"truncated"}),
    ):
        path.write_bytes(whole[:-8] + trailer)
        heals(tmp_path, model, SMALL, reasons=reasons)


# -- damaged


def test_every_flipped_bit(tmp_path: Path) -> None:
    """COD1: in no file of the three does one make a wrong answer, and all of them heal."""
    source = [tiered(0, 19)]
    model = written(tmp_path, source)
    for kind in NAMES:
        path = path_of(tmp_path, 0, kind)
        whole = path.read_bytes()
        for position in range(len(whole)):
            for bit in range(8) if kind != NAMES[0] else (0, 7):
                flipped = bytearray(whole)
                flipped[position] ^= 1 << bit
                path.write_bytes(flipped)
                heals(tmp_path, model, source)


@pytest.mark.parametrize("middle", [0, 2, 5])
@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [
        (0, b"\x00\x01", "unknown_magic"),
        (0, b"\xff\xff", "unknown_magic"),
        (2, b"\x7f\xff", "bad_length"),
        (2, b"\xff\xff", "bad_length"),
        (44, b"\x80\x00", "bad_length"),
        (4, b"\0\0\0\0", "bad_crc"),
        (16, b"\x7f", "bad_crc"),
    ],
)
def test_damage_in_the_middle_drops_the_file(
    middle: int, position: int, value: bytes, reason: str, tmp_path: Path
) -> None:
    """COD5, COD6: no entry behind it is looked for, and none before it is trusted."""
    model = written(tmp_path, ROW)
    path = path_of(tmp_path, 200)
    data = bytearray(path.read_bytes())
    at = oracle.decode(bytes(data))[middle].position + position
    data[at : at + len(value)] = value
    path.write_bytes(data)
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    (finding,) = files.findings
    assert (finding.reason, finding.path) == (reason, str(path))
    assert finding.position == at - position
    assert files.lookup_offset(250) is None
    assert files.lookup_offset(199) is not None
    assert files.lookup_offset(400) is not None
    heals(tmp_path, model, ROW, reasons=set())


def test_good_entries_in_the_wrong_place(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    wholes = {base: path_of(tmp_path, base).read_bytes() for base in (0, 200, 400)}
    elsewhere = oracle.encode(
        [
            oracle.Entry(
                first_offset=0,
                last_offset=9,
                first_timestamp_ms=0,
                last_timestamp_ms=0,
                data_length=1,
                rdi=b"elsewhere/key:0",
            )
        ],
        trailer=True,
    )
    twice = oracle.encode(ROW[2].entries[:2]) * 2
    for base, data, reason in (
        (200, wholes[0], "wrong_base"),
        (400, wholes[200], "wrong_base"),
        (0, elsewhere, "bad_rdi"),
        (200, twice, "offset_order"),
        (0, wholes[0] + wholes[200], "bad_length"),
    ):
        path_of(tmp_path, base).write_bytes(data)
        heals(tmp_path, model, ROW, reasons={reason})


def test_an_entry_left_out_is_missed_wherever_a_piece_of_the_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are verified piece by piece, and as a whole all the same."""
    monkeypatch.setattr(remote_index_file, "_CHUNK_BYTES", 32 << 10)
    source = tiered(0, 4_999)
    model = written(tmp_path, [source], rotate_bytes=1 << 20)
    open_files(tmp_path)
    path = path_of(tmp_path, 0)
    whole = path.read_bytes()
    assert open_files(tmp_path).findings == ()
    assert [entry.first_offset for entry in open_files(tmp_path).entries()] == list(
        range(0, 5_000, 10)
    )
    for row in range(245, 256):
        before, after = source.entries[:row], source.entries[row:]
        for data, reason in (
            (oracle.encode([*before, *after[1:]], trailer=True), "bad_rdi"),
            (oracle.encode(before) + oracle.encode([before[-1], *after]), "offset_order"),
        ):
            path.write_bytes(data)
            files = open_files(tmp_path)
            assert [finding.reason for finding in files.findings] == [reason]
            assert files.last_offset is None
        path.write_bytes(whole[: 130 * row])
        assert {one.reason for one in open_files(tmp_path).findings} <= {"truncated", "stale_index"}
        path.unlink()
    heals(tmp_path, model, [source])


def test_files_that_cover_the_same_offsets(tmp_path: Path) -> None:
    """Both are good: the earlier one is kept, whatever the later one has comes from it."""
    written(tmp_path, ROW)
    entries = [entry for source in ROW[:4] for entry in source.entries]
    path_of(tmp_path, 0).write_bytes(oracle.encode(entries))
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    assert {finding.reason for finding in files.findings} == {"offset_order", "stale_index"}
    assert [entry.first_offset for entry in files.entries()] == list(range(0, 600, 10))


def test_wrong_indexes_beside_a_good_log(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    for kind in NAMES[1:]:
        path = path_of(tmp_path, 200, kind)
        whole = path.read_bytes()
        other = path_of(tmp_path, 0, kind).read_bytes()[:-1] + b"x"
        for data in (b"", whole[:-1], whole[:-8], whole + bytes(12), bytes(len(whole)), other):
            path.write_bytes(data)
            heals(tmp_path, model, ROW, reasons={"stale_index"})
        path.unlink()
        heals(tmp_path, model, ROW, reasons={"stale_index"})


@pytest.mark.parametrize("kind", NAMES[1:])
def test_an_index_that_goes_wrong_while_it_is_used(kind: str, tmp_path: Path) -> None:
    """Every bit of it: look-ups answer as before, and the next one that writes makes it again."""
    source = [tiered(0, 59, timestamp_ms=lambda offset: 1_000 + offset * 37 % 100)]
    model = written(tmp_path, source)
    files = open_files(tmp_path)
    path = path_of(tmp_path, 0, kind)
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            for offset in range(0, 60, 9):
                entry = files.lookup_offset(offset)
                assert entry is not None
                assert entry.rdi == source[0].entries[offset // 10].rdi
            for time in (1_000, 1_034, 1_083):
                expected = oracle.lookup_timestamp(source[0].entries, time)
                entry = files.lookup_timestamp(time)
                assert entry is not None
                assert expected is not None
                # An index cannot make the answer come too late, or be no entry at all.
                assert entry.first_offset == expected.first_offset, (position, bit, time)
    path.unlink()
    assert files.lookup_offset(5) is not None
    assert files.lookup_timestamp(1_050) is not None
    files.catch_up([], fetcher())
    check(files, model, tmp_path)


def test_a_log_that_goes_wrong_while_it_is_used(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    harms: list[Callable[[Path], object]] = [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes().replace(b"orders", b"ORDERS")),
    ]
    for harm in harms:
        harm(path_of(tmp_path, 200))
        with pytest.raises(CorruptDataError):
            files.lookup_offset(250)
        with pytest.raises(CorruptDataError):
            files.lookup_timestamp(1_000_250)
        with pytest.raises((CorruptDataError, FileNotFoundError)):
            list(files.entries())
        assert files.lookup_offset(100) is not None
        files.catch_up(metadata_of(ROW), fetcher(*ROW))
        check(files, model, tmp_path)


# -- lost


def test_any_files_lost_come_back_byte_for_byte(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    names = sorted(model.on_disk())
    assert len(names) == 9
    for count in (1, 2, 3, 9):
        for lost in combinations(names, count):
            for name in lost:
                (folder(tmp_path) / name).unlink()
            heals(tmp_path, model, ROW)


def test_a_lost_folder_comes_back(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    shutil.rmtree(tmp_path)
    heals(tmp_path, model, ROW, reasons=set())


def test_a_folder_lost_while_it_is_used_comes_back(tmp_path: Path) -> None:
    model = written(tmp_path, ROW[:5])
    model.append(ROW[5])
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    shutil.rmtree(folder(tmp_path).parent)
    with pytest.raises(FileNotFoundError):
        files.append(ROW[5].metadata, ROW[5].data)
    with pytest.raises(CorruptDataError):
        files.lookup_offset(5)
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    check(files, model, tmp_path)


def test_a_copy_before_catching_up_does_not_hide_what_was_lost(tmp_path: Path) -> None:
    written(tmp_path, ROW[:4])
    path_of(tmp_path, 200).unlink()
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    files.append(ROW[4].metadata, ROW[4].data)
    assert files.lookup_offset(250) is None
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    assert [entry.first_offset for entry in files.entries()] == list(range(0, 600, 10))
    assert open_files(tmp_path, rotate_bytes=ROTATE_BYTES).findings == ()


# -- hostile names


def make_link(path: Path) -> None:
    target = path.parent.parent.parent.parent / "target"
    target.write_bytes(b"precious")
    path.symlink_to(target)


def make_folder(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("data")


MAKERS: dict[str, Callable[[Path], None]] = {
    "link": make_link,
    "folder": make_folder,
    "fifo": os.mkfifo,
    "dangling": lambda path: path.symlink_to("/nonexistent/file"),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    "name",
    [
        *(f"{200:020d}.{kind}" for kind in NAMES),
        f"{777:020d}.{NAMES[0]}",
        f"{200:020d}.{NAMES[1]}.tmp",
        "rebuilt",
        "rebuilt.tmp",
        "rebuilt.moving",
    ],
)
def test_what_is_no_file_is_set_aside(maker: str, name: str, tmp_path: Path) -> None:
    index_dir = tmp_path / "indexes"
    model = written(index_dir, ROW)
    path = folder(index_dir) / name
    if path.exists():
        path.unlink()
    MAKERS[maker](path)
    files = open_files(index_dir, rotate_bytes=ROTATE_BYTES)
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    files.rebuild(metadata_of(ROW), fetcher(*ROW))
    left = {name: data for name, data in regular(index_dir).items() if ".set-aside-" not in name}
    assert left == model.on_disk()
    kept = [*tmp_path.rglob("precious"), *tmp_path.rglob("target")]
    if maker in ("link", "folder"):
        assert kept, "somebody's data is gone"
    if maker == "link":
        assert (tmp_path / "target").read_bytes() == b"precious"
    assert open_files(index_dir, rotate_bytes=ROTATE_BYTES).findings == ()


def regular(index_dir: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in folder(index_dir).iterdir()
        if path.is_file() and not path.is_symlink()
    }


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    strangers = {
        "0.remoteLogIndex": b"x",
        "00000000000000000200.remoteLogIndex.bak": b"x",
        "99999999999999999999.remoteLogIndex": b"x",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٢٠٠.remoteLogIndex": b"x",
        "00000000000000000000.index": b"x",
        "leader-epoch-checkpoint": b"x",
    }
    for name, data in strangers.items():
        (folder(tmp_path) / name).write_bytes(data)
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    assert files.findings == ()
    files.rebuild(metadata_of(ROW), fetcher(*ROW))
    assert found(tmp_path) == {**model.on_disk(), **strangers}


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    for name in (f"{0:020d}.{NAMES[1]}.tmp", f"{600:020d}.{NAMES[0]}", f"{600:020d}.{NAMES[2]}"):
        (folder(tmp_path) / name).write_bytes(b"")
    (folder(tmp_path) / f"{700:020d}.{NAMES[1]}").write_bytes(bytes(8))
    staged = folder(tmp_path) / "rebuilt.tmp"
    staged.mkdir()
    (staged / f"{0:020d}.{NAMES[0]}").write_bytes(b"half")
    heals(tmp_path, model, ROW, reasons={"missing_log"})


def test_folders_that_are_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    partition = folder(tmp_path / "indexes")
    partition.parent.mkdir(parents=True)
    partition.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"(Not a directory|Too many levels)"):
        open_files(tmp_path / "indexes")
    partition.unlink()
    partition.parent.rmdir()
    partition.parent.symlink_to(tmp_path / "elsewhere")
    files = open_files(tmp_path / "indexes")
    with pytest.raises(OSError, match=r"(Not a directory|Too many levels)"):
        files.append(ROW[0].metadata, ROW[0].data)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_huge_file_costs_no_memory(tmp_path: Path) -> None:
    model = written(tmp_path, ROW)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for size in (2**31, 2**40):
        os.truncate(path_of(tmp_path, 200), size)
        heals(tmp_path, model, ROW, reasons={"bad_length"})
    with path_of(tmp_path, 200).open("r+b") as file:
        file.truncate(path_of(tmp_path, 200).stat().st_size - 8)
        file.truncate(2**29)
    heals(tmp_path, model, ROW, reasons={"bad_length"})
    for kind in NAMES[1:]:
        os.truncate(path_of(tmp_path, 200, kind), 2**40)
        heals(tmp_path, model, ROW, reasons={"stale_index"})
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 64 << 10


# -- disks that fail


@pytest.mark.parametrize("call", ["pwrite", "fsync", "open", "close", "rename", "ftruncate"])
@pytest.mark.parametrize("number", range(12))
def test_a_call_that_fails(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is acknowledged, and the next one that writes makes sure of what is there first."""
    model = Model(rotate_bytes=ROTATE_BYTES)
    files = open_files(tmp_path, rotate_bytes=ROTATE_BYTES)
    files.append(ROW[0].metadata, ROW[0].data)
    real = getattr(os, call)
    calls = 0

    def failing(*args: object, **keywords: object) -> object:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            if call == "close":
                real(*args)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*args, **keywords)

    monkeypatch.setattr(os, call, failing)
    failed = 0
    try:
        files.catch_up(metadata_of(ROW[:4]), fetcher(*ROW))
        files.truncate_to(150)
        files.rebuild(metadata_of(ROW[:4]), fetcher(*ROW))
    except OSError:
        failed += 1
    monkeypatch.undo()
    assert failed == (calls > number)
    for offset in range(0, 400, 50):
        # A change that failed half-way may have left files that nobody answers from.
        with suppress(CorruptDataError):
            entry = files.lookup_offset(offset)
            assert entry is None or entry.first_offset <= offset <= entry.last_offset
    files.catch_up(metadata_of(ROW), fetcher(*ROW))
    model.catch_up(ROW)
    check(files, model, tmp_path)
    assert open_files(tmp_path, rotate_bytes=ROTATE_BYTES).findings == ()


def test_after_a_failed_sync_the_bytes_go_to_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a failed sync dropped may still be read from memory, so reading proves nothing."""
    files = open_files(tmp_path)
    files.append(ROW[0].metadata, ROW[0].data)
    first = path_of(tmp_path, 0).stat().st_ino

    def failing(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output"):
            files.append(ROW[1].metadata, ROW[1].data)
        with pytest.raises(OSError, match="Input/output"):
            files.append(ROW[1].metadata, ROW[1].data)
    assert files.last_offset == 99
    assert files.append(ROW[1].metadata, ROW[1].data) == 0
    assert files.last_offset == 199
    assert path_of(tmp_path, 0).stat().st_ino != first


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite

    def short(descriptor: int, data: memoryview, position: int) -> int:
        return real(descriptor, data[:37], position)

    monkeypatch.setattr(os, "pwrite", short)
    model = written(tmp_path, ROW)
    check(open_files(tmp_path, rotate_bytes=ROTATE_BYTES), model, tmp_path)

"""A damaged log directory is never read short, or with other offsets, without an error."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.proofs import usually
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.errors import CorruptDataError
from tierlog.log.index_files import read_offset_index
from tierlog.log.log_dir import open_log_dir
from tierlog.log.segment import scan_segment
from tierlog.reader.damage import LostRecords
from tierlog.reader.open import open_reader

TOPIC = "epochs"
# Base offset, length, leader epoch, magic and checksum: no checksum covers the first four.
UNCOVERED_BYTES = 21
LOGS = [
    (disk, log.name)
    for disk in ("disk1", "disk2")
    for log in open_log_dir(str(DATA_DIR / "clean" / disk)).partitions()
    if log.segments and not log.partition and log.compacted is False
]


def read(folder: Path | str, topic: str, start: int = 0, end: int | None = None) -> list[int]:
    """The offsets; those before an error are its note."""
    found: list[int] = []
    try:
        for piece in open_reader(folder).read(topic, 0, start, end):
            found += piece.offset.tolist()
    except CorruptDataError as error:
        error.add_note(str(found))
        raise
    return found


def damages(path: Path, chance: random.Random, count: int) -> list[bytes]:
    """The file cut at the border of a batch, or with one bit flipped in a header."""
    data, table = path.read_bytes(), scan_segment(path, verify_crc=False)
    found = []
    for position in chance.choices(table.position.tolist(), k=count) if len(table) else ():
        cut = data[:position]
        if position:
            found.append(cut)
        flipped = bytearray(data)
        flipped[position + chance.randrange(UNCOVERED_BYTES)] ^= 1 << chance.randrange(8)
        found.append(bytes(flipped))
    return found


@pytest.mark.parametrize(("disk", "name"), LOGS)
def test_damage_is_an_error_or_does_not_show(disk: str, name: str, tmp_path: Path) -> None:
    folder = copy_log_dir(tmp_path, f"clean/{disk}", name)
    topic, chance = name.removesuffix("-0"), random.Random(name)
    truth = read(folder, topic)
    for path in sorted((folder / name).glob("*.log")):
        data = path.read_bytes()
        for damaged in damages(path, chance, usually(3, thorough=300)):
            path.write_bytes(damaged)
            try:
                found = read(folder, topic)
            except CorruptDataError as error:
                (note,) = error.__notes__
                before = [int(one) for one in note.strip("[]").split(", ") if one]
                assert before == truth[: len(before)]
            else:
                assert found == truth
        path.write_bytes(data)


def test_a_compacted_segment_is_held_against_its_offset_index(tmp_path: Path) -> None:
    """Offsets may be missing there, but not those that an index entry names."""
    folder = copy_log_dir(tmp_path, "clean/disk2", "compacted-0")
    path = sorted((folder / "compacted-0").glob("*.log"))[0]
    data = path.read_bytes()
    index = read_offset_index(path.with_suffix(".index").read_bytes(), 0)
    position, offset = int(index.position[-1]), int(index.offset[-1])
    path.write_bytes(data[:position])
    with pytest.raises(CorruptDataError, match=f"expected last_offset {offset} or more, as in"):
        read(folder, "compacted")
    base = int.from_bytes(data[position : position + 8], "big")
    path.write_bytes(data[:position] + (base + 1).to_bytes(8, "big") + data[position + 8 :])
    with pytest.raises(CorruptDataError, match=f"expected last_offset {offset}, as in the offset"):
        read(folder, "compacted")


@pytest.fixture(scope="module")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tiered")
    assert tier_golden(place / "store", place / "state").ok
    return place / "store"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path, "clean/disk1", f"{TOPIC}-0")


def second(folder: Path) -> Path:
    return sorted((folder / f"{TOPIC}-0").glob("*.log"))[1]


def test_a_base_offset_that_was_changed_ends_the_read_before_its_batch(folder: Path) -> None:
    path = second(folder)
    table = scan_segment(path, verify_crc=False)
    row = len(table) // 2
    base = int(table.base_offset[row])
    overwrite(path, int(table.position[row]), (base + 1000).to_bytes(8, "big"))
    with pytest.raises(CorruptDataError, match=f"base_offset {base} exactly") as caught:
        read(folder, TOPIC)
    assert caught.value.position == table.position[row]
    assert caught.value.__notes__ == [str(list(range(base)))]
    # What ends before it is whole.
    assert read(folder, TOPIC, 0, base) == list(range(base))
    with pytest.raises(CorruptDataError):
        read(folder, TOPIC, 0, base + 1)


def test_a_segment_that_was_cut_between_batches_is_an_error(folder: Path) -> None:
    path = second(folder)
    table = scan_segment(path, verify_crc=False)
    last = int(table.base_offset[-1])
    with path.open("r+b") as file:
        file.truncate(int(table.position[-1]))
    with pytest.raises(CorruptDataError, match=r"last_offset .* exactly") as caught:
        read(folder, TOPIC)
    assert caught.value.__notes__ == [str(list(range(last)))]
    assert read(folder, TOPIC, 0, last) == list(range(last))


def test_missing_segment_file_names_the_offsets_that_are_in_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a segment that was cut: its neighbour shows one as it shows the other."""
    path = second(folder)
    first = int(path.stem)
    following = int(sorted((folder / f"{TOPIC}-0").glob("*.log"))[2].stem)
    truth = read(folder, TOPIC)
    path.unlink()
    with pytest.raises(
        CorruptDataError, match=f"offsets {first} to {following - 1} are in no file"
    ):
        read(folder, TOPIC)
    assert main(["cat", str(folder), f"{TOPIC}:0", "--on-gap", "skip"]) == 1
    assert "--on-corrupt skip reads past them" in capsys.readouterr().err
    assert main(["cat", str(folder), f"{TOPIC}:0", "--on-corrupt", "skip", "-f", "%o\n"]) == 1
    captured = capsys.readouterr()
    expected = [one for one in truth if not first <= one < following]
    assert [*map(int, captured.out.split())] == expected
    assert f"left out: {TOPIC}-0: offsets {first} to {following - 1}" in captured.err


def test_a_read_past_damage_names_what_it_lost(folder: Path) -> None:
    """A base offset that was changed costs its batch, a cut what was behind it."""
    path = second(folder)
    table = scan_segment(path, verify_crc=False)
    following = int(sorted((folder / f"{TOPIC}-0").glob("*.log"))[2].stem)
    row, data = len(table) // 2, path.read_bytes()
    first, last = int(table.base_offset[row]), int(table.last_offset[row])
    truth = read(folder, TOPIC)
    overwrite(path, int(table.position[row]), (first + 1000).to_bytes(8, "big"))
    for lost in (range(first, last + 1), range(int(table.base_offset[-1]), following)):
        told: list[LostRecords] = []
        reader = open_reader(folder, on_corrupt=told.append)
        found = [one for piece in reader.read(TOPIC, 0, 0) for one in piece.offset.tolist()]
        assert found == [one for one in truth if one not in lost]
        assert [(one.first_offset, one.last_offset) for one in told] == [(lost[0], lost[-1])]
        path.write_bytes(data[: int(table.position[-1])])


@pytest.mark.parametrize("offset", ["-1", "-5"])
def test_the_end_of_a_cut_active_segment_is_unknown(
    folder: Path, capsys: pytest.CaptureFixture[str], offset: str
) -> None:
    path = sorted((folder / f"{TOPIC}-0").glob("*.log"))[-1]
    table = scan_segment(path, verify_crc=False)
    with path.open("r+b") as file:
        file.truncate(int(table.position[-1]))
    assert main(["cat", str(folder), f"{TOPIC}:0", "-o", offset, "-f", "%o "]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "high watermark" in captured.err or "offset index" in captured.err


def test_directory_and_store_give_the_same_sound_records_before_a_bad_batch(
    golden_store: Path, folder: Path, tmp_path: Path
) -> None:
    """The bad batch lies in the middle of a chunk."""
    store = Path(shutil.copytree(golden_store, tmp_path / "store"))
    local = second(folder)
    (stored,) = store.glob(f"{TOPIC}-{'?' * 22}/0/{local.name.removesuffix('.log')}-*.log")
    table = scan_segment(local, verify_crc=False)
    row = len(table) // 2
    base = int(table.base_offset[row])
    for path in (local, stored):
        overwrite(path, int(table.position[row]) + 70, b"\xff\xff\xff")
    for source in (str(folder), store.as_uri()):
        with pytest.raises(CorruptDataError, match="bad_crc") as caught:
            read(source, TOPIC)
        assert caught.value.__notes__ == [str(list(range(base)))]
        # A range that ends before is whole, also inside the batch before.
        for end in (base, base - 1):
            assert read(source, TOPIC, 0, end) == list(range(end))

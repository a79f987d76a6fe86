"""Damaged records: an error after the sound ones, or left out and named if the caller says so."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tierlog
from tests.kafka_tools.golden import golden_segments
from tests.proofs import usually
from tests.settings.observing import Said, command
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.errors import ConfigError, CorruptDataError
from tierlog.log.segment import scan_segment
from tierlog.reader.damage import LostRecords

TOPIC = "epochs"
SEGMENT = golden_segments(TOPIC, "clean")[1]
BATCHES = scan_segment(SEGMENT.path)
ROWS = (0, 1, len(BATCHES) // 2, len(BATCHES) - 1)
PLACES = pytest.mark.parametrize("place", ["logs", "store"])
LENGTH_AT, PAYLOAD_AT = 8, 70


class Damaged(NamedTuple):
    """A source of the topic, and the file or object that has the segment's bytes."""

    source: str
    path: Path


@pytest.fixture
def damaged(place: str, tmp_path: Path) -> Damaged:
    logs = copy_log_dir(tmp_path, "clean/disk1", f"{TOPIC}-0")
    if place == "logs":
        return Damaged(str(logs), logs / f"{TOPIC}-0" / SEGMENT.path.name)
    store = tmp_path / "store"
    said = command("tier", str(logs), "--to", store.as_uri(), "--topic", TOPIC, "--once")
    assert said.code == 0, said.err
    (path,) = store.rglob(f"{SEGMENT.path.stem}-*.log")
    return Damaged(store.as_uri(), path)


def cat(source: str, *arguments: str) -> Said:
    return command("cat", source, f"{TOPIC}:0", "-f", "%o\\n", *arguments)


def offsets_of(source: str) -> list[int]:
    said = cat(source)
    assert said.code == 0, said.err
    return [int(line) for line in said.out.split()]


def lost_rows(row: int) -> range:
    return range(int(BATCHES.base_offset[row]), int(BATCHES.last_offset[row]) + 1)


@PLACES
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("at", [PAYLOAD_AT, LENGTH_AT])
def test_cat_stops_at_damage_or_names_it(damaged: Damaged, row: int, at: int) -> None:
    everything = offsets_of(damaged.source)
    overwrite(damaged.path, int(BATCHES.position[row]) + at, b"\x7f\xff\xff")
    lost = lost_rows(row)

    stopped = cat(damaged.source)
    assert stopped.code == 1
    printed = [int(line) for line in stopped.out.split()]
    assert printed == [one for one in everything if one < lost.start]
    assert str(BATCHES.position[row]) in stopped.err

    salvaged = cat(damaged.source, "--on-corrupt", "skip")
    assert salvaged.code == 1
    printed = [int(line) for line in salvaged.out.split()]
    missing = sorted(set(everything) - set(printed))
    assert missing == list(lost)
    assert f"{TOPIC}-0: offsets {lost.start} to {lost.stop - 1}: " in salvaged.err
    assert printed == [one for one in everything if one not in missing]


# Position in the batch, and the bytes that are written there.
DAMAGE = {
    "length": (8, b"\x7f\xff\xff\xff"),
    "negative length": (8, b"\xff\xff\xff\xff"),
    "length of the next batches": (10, b"\x7f"),
    "zeros": (0, bytes(61)),
    "magic": (16, b"\x09"),
    "checksum": (17, b"\x00\x01\x02\x03"),
    "payload": (70, b"\xff\xff\xff"),
}


@pytest.mark.parametrize("row", [*ROWS, slice(3, 6, 2)])
@pytest.mark.parametrize("kind", DAMAGE)
def test_directory_and_store_lose_the_same_records(
    kind: str, row: int | slice, tmp_path: Path
) -> None:
    logs = copy_log_dir(tmp_path, "clean/disk1", f"{TOPIC}-0")
    store = tmp_path / "store"
    assert command("tier", str(logs), "--to", store.as_uri(), "--once").code == 0
    (stored,) = store.rglob(f"{SEGMENT.path.stem}-*.log")
    at, data = DAMAGE[kind]
    rows = [row] if isinstance(row, int) else range(len(BATCHES))[row]
    lost = {one for row in rows for one in lost_rows(row)}
    found: list[tuple[list[int], list[tuple[int, int | None]]]] = []
    for source, path in (
        (str(logs), logs / f"{TOPIC}-0" / SEGMENT.path.name),
        (store.as_uri(), stored),
    ):
        everything = offsets_of(source)
        for row in rows:
            overwrite(path, int(BATCHES.position[row]) + at, data)
        told: list[LostRecords] = []
        pieces = tierlog.read(source, TOPIC, 0, 0, SEGMENT.next_base_offset, on_corrupt=told.append)
        offsets = [int(offset) for piece in pieces for offset in piece.offset]
        found.append((offsets, [(one.first_offset, one.last_offset) for one in told]))
        wanted = [one for one in everything if one < (SEGMENT.next_base_offset or 0)]
        assert set(wanted) - set(offsets) == lost
    assert found[0] == found[1]


def salvaged(source: str) -> tuple[dict[int, bytes | None], set[int]]:
    """Return the values by offset that a read of the segment finds, and the offsets it reports."""
    told: list[LostRecords] = []
    values: dict[int, bytes | None] = {}
    end = SEGMENT.next_base_offset or 0
    for piece in tierlog.read(source, TOPIC, 0, SEGMENT.base_offset, end, on_corrupt=told.append):
        offsets = piece.offset.tolist()
        assert not values.keys() & set(offsets)
        values |= zip(offsets, piece.values, strict=True)
    lost = [range(one.first_offset, (one.last_offset or end) + 1) for one in told]
    return values, {offset for one in lost for offset in one}


def test_random_damage_gives_no_wrong_record_and_hides_none(tmp_path: Path) -> None:
    logs = copy_log_dir(tmp_path, "clean/disk1", f"{TOPIC}-0")
    store = tmp_path / "store"
    assert command("tier", str(logs), "--to", store.as_uri(), "--once").code == 0
    (stored,) = store.rglob(f"{SEGMENT.path.stem}-*.log")
    sound = SEGMENT.path.read_bytes()
    truth, _ = salvaged(store.as_uri())
    chance = random.Random(5)
    for _ in range(usually(100, thorough=2_000)):
        data = bytearray(sound)
        # No checksum covers the base offset: beside another damaged batch it may be believed.
        batches = chance.choice([1, 1, 2, 3])
        for _ in range(batches):
            lowest = 0 if batches == 1 else 8
            start = int(chance.choice(BATCHES.position)) + chance.randrange(lowest, 80)
            end = min(start + chance.choice([1, 4, 20]), len(data))
            data[start:end] = chance.randbytes(end - start)
        found = []
        for source, path in (
            (str(logs), logs / f"{TOPIC}-0" / SEGMENT.path.name),
            (store.as_uri(), stored),
        ):
            path.write_bytes(data)
            values, lost = salvaged(source)
            assert values.items() <= truth.items()
            assert truth.keys() - values.keys() <= lost
            found.append(values)
        assert found[0] == found[1]


@PLACES
@pytest.mark.parametrize("row", [3, 5])
@pytest.mark.parametrize("starts_there", [False, True])
def test_damaged_batch_with_a_lower_base_offset_is_not_passed_over(
    damaged: Damaged, row: int, starts_there: bool
) -> None:
    """It seems to lie before the read."""
    position = int(BATCHES.position[row])
    overwrite(damaged.path, position, SEGMENT.base_offset.to_bytes(8, "big"))
    overwrite(damaged.path, position + PAYLOAD_AT, b"\x7f\xff\xff")
    start = int(BATCHES.base_offset[row]) if starts_there else 0
    end = SEGMENT.next_base_offset or 0
    with pytest.raises(CorruptDataError):
        list(tierlog.read(damaged.source, TOPIC, 0, start, end))
    told: list[LostRecords] = []
    pieces = tierlog.read(damaged.source, TOPIC, 0, start, end, on_corrupt=told.append)
    found = {int(offset) for piece in pieces for offset in piece.offset}
    assert set(range(start, end)) - found == set(lost_rows(row))
    assert [range(one.first_offset, (one.last_offset or 0) + 1) for one in told] == [lost_rows(row)]


@PLACES
@pytest.mark.parametrize("at", [PAYLOAD_AT, LENGTH_AT])
def test_range_after_damage_is_read(damaged: Damaged, at: int) -> None:
    overwrite(damaged.path, int(BATCHES.position[2]) + at, b"\x7f\xff\xff")
    start, end = int(BATCHES.base_offset[4]) + 2, SEGMENT.next_base_offset or 0
    told: list[LostRecords] = []
    for options in ({}, {"on_corrupt": told.append}):
        pieces = tierlog.read(damaged.source, TOPIC, 0, start, end, **options)  # type: ignore[arg-type]
        assert [int(offset) for piece in pieces for offset in piece.offset] == [*range(start, end)]
    assert told == []


@PLACES
def test_range_before_damage_is_read(damaged: Damaged) -> None:
    overwrite(damaged.path, int(BATCHES.position[5]) + PAYLOAD_AT, b"\xff\xff\xff")
    end = int(BATCHES.base_offset[5])
    said = cat(damaged.source, "-o", f"0:{end}")
    assert said.code == 0, said.err
    assert int(said.out.split()[-1]) == end - 1


@PLACES
def test_read_reports_or_passes_over(damaged: Damaged) -> None:
    everything = offsets_of(damaged.source)
    for row in (2, 3, 7):
        overwrite(damaged.path, int(BATCHES.position[row]) + PAYLOAD_AT, b"\xff\xff\xff")
    with pytest.raises(CorruptDataError, match="bad_crc"):
        list(tierlog.read(damaged.source, TOPIC, 0))
    told: list[LostRecords] = []
    expected = [one for one in everything if not any(one in lost_rows(row) for row in (2, 3, 7))]
    for on_corrupt in (told.append, "skip"):
        pieces = tierlog.read(damaged.source, TOPIC, 0, on_corrupt=on_corrupt)
        assert [int(offset) for piece in pieces for offset in piece.offset] == expected
    assert [range(one.first_offset, (one.last_offset or 0) + 1) for one in told] == [
        lost_rows(row) for row in (2, 3, 7)
    ]
    assert {one.error.position for one in told} == {int(BATCHES.position[row]) for row in (2, 3, 7)}


def test_unknown_word_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_corrupt: expected fail, skip or a function"):
        tierlog.read(str(SEGMENT.path.parents[1]), TOPIC, 0, on_corrupt="maybe")  # type: ignore[arg-type]


TRANSACTIONS = golden_segments("transactions", "clean")


@pytest.mark.parametrize("row", range(0, len(scan_segment(TRANSACTIONS[-1].path)), 3))
def test_committed_reads_stop_before_a_damaged_active_segment(row: int, tmp_path: Path) -> None:
    logs = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")

    def read(**options: Any) -> list[int]:
        found = tierlog.read(
            str(logs), "transactions", 0, isolation_level="read_committed", **options
        )
        return [offset for records in found for offset in records.offset.tolist()]

    committed = read()
    segment = TRANSACTIONS[-1].path
    damaged_at = int(scan_segment(segment).base_offset[row])
    position = int(scan_segment(segment).position[row])
    overwrite(logs / "transactions-0" / segment.name, position + PAYLOAD_AT, b"damage")
    with pytest.raises(CorruptDataError, match="bad_crc"):
        read()
    lost: list[LostRecords] = []
    found = read(on_corrupt=lost.append)
    (only,) = lost
    assert only.last_offset is None
    assert TRANSACTIONS[-2].path.stem < f"{only.first_offset:020}"
    assert only.first_offset <= damaged_at
    assert found == [offset for offset in committed if offset < only.first_offset]
    assert found == read(on_corrupt="skip")
    said = command(
        "cat",
        str(logs),
        "transactions:0",
        "-f",
        "%o\\n",
        "--on-corrupt",
        "skip",
        "--read-committed",
    )
    assert (said.code, [int(line) for line in said.out.split()]) == (1, found)
    assert f"offsets {only.first_offset} and later" in said.err

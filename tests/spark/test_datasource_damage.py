"""Damage under the data source: what it costs, and that it is told, without Spark."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments, truth_records
from tests.native.bomb import zstd_of_zeros
from tests.oracle import build
from tests.oracle.model import HEADER_BYTES
from tests.spark.source import as_truth, batches_of, rows_of, tasks_of, truth
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.errors import (
    ConfigError,
    CorruptDataError,
    GapError,
    OutOfRangeError,
    RemoteStorageError,
)
from tierlog.log.segment import scan_segment

TOPIC = "epochs"
SALVAGE = {"subscribe": TOPIC, "onCorrupt": "quarantine"}
MAGIC_POSITION = 16
SEGMENT = golden_segments(TOPIC, "clean")[1]
BATCHES = scan_segment(SEGMENT.path)


def quarantined(path: str) -> list[dict[str, Any]]:
    return rows_of({"path": path, "subscribe": TOPIC, "view": "quarantine"})


def offsets_of(path: str, **more: str) -> list[int]:
    options = {"path": path, **SALVAGE, **more}
    return [row["offset"] for row in rows_of(options)]


def all_but(lost: list[dict[str, Any]]) -> list[int]:
    # An end that is not known may be anywhere.
    gone = [(one["start_offset"], one["end_offset"] or 1 << 62) for one in lost]
    offsets = [row["offset"] for row in truth(TOPIC, 0)]
    return [one for one in offsets if not any(start <= one < end for start, end in gone)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log directory that can be damaged."""
    return copy_log_dir(tmp_path, "clean/disk1", f"{TOPIC}-0")


@pytest.fixture
def log(folder: Path) -> Path:
    """A rolled segment in it."""
    return folder / f"{TOPIC}-0" / SEGMENT.path.name


@pytest.mark.parametrize("row", [0, 1, len(BATCHES) // 2, len(BATCHES) - 1])
def test_of_a_damaged_batch_on_to_the_next_entry(row: int, folder: Path, log: Path) -> None:
    """The index of these logs leads to every few batches."""
    overwrite(log, int(BATCHES.position[row]) + 70, b"\xff\xff\xff")
    (lost,) = quarantined(str(folder))
    assert (lost["topic"], lost["partition"], lost["path"]) == (TOPIC, 0, str(log))
    assert (lost["reason"], lost["position"]) == ("bad_crc", BATCHES.position[row])
    assert lost["start_offset"] == BATCHES.base_offset[row]
    assert BATCHES.last_offset[row] < lost["end_offset"] <= SEGMENT.next_base_offset
    assert offsets_of(str(folder)) == all_but([lost])
    for fail in ({}, {"onCorrupt": "fail"}):
        with pytest.raises(CorruptDataError, match="bad_crc"):
            rows_of({"path": str(folder), "subscribe": TOPIC, **fail})


def test_without_an_index_only_the_batch_is_lost(folder: Path, log: Path) -> None:
    log.with_suffix(".index").unlink()
    overwrite(log, int(BATCHES.position[3]) + 70, b"\xff\xff\xff")
    (lost,) = quarantined(str(folder))
    assert (lost["start_offset"], lost["end_offset"]) == tuple(BATCHES.base_offset[3:5])
    assert offsets_of(str(folder)) == all_but([lost])


def test_damage_before_the_start_costs_nothing_before_it(folder: Path, log: Path) -> None:
    """Without an index the way to the start goes through all that is before it."""
    log.with_suffix(".index").unlink()
    overwrite(log, 70, b"\xff\xff\xff")
    start = int(BATCHES.base_offset[2])
    place = {"path": str(folder), "subscribe": TOPIC, "view": "quarantine"}
    (lost,) = rows_of({**place, "startingOffsets": f'{{"{TOPIC}": {{"0": {start}}}}}'})
    assert (lost["position"], lost["start_offset"]) == (0, start)


def test_a_first_batch_below_its_segment(folder: Path, log: Path) -> None:
    """No checksum covers its offset."""
    overwrite(log, 0, bytes(8))
    (lost,) = quarantined(str(folder))
    assert (lost["reason"], lost["position"]) == ("offset_order", 0)
    assert lost["start_offset"] == SEGMENT.base_offset
    assert offsets_of(str(folder)) == all_but([lost])


def test_two_wounds(folder: Path, log: Path) -> None:
    for row in (1, len(BATCHES) - 2):
        overwrite(log, int(BATCHES.position[row]) + 70, b"\xff\xff\xff")
    lost = quarantined(str(folder))
    assert len(lost) == 2
    assert offsets_of(str(folder)) == all_but(lost)


@pytest.mark.parametrize("row", [0, 2])
def test_a_base_offset_that_no_checksum_covers(row: int, folder: Path, log: Path) -> None:
    overwrite(log, int(BATCHES.position[row]), b"\x00\x7f")
    lost = quarantined(str(folder))
    assert lost[0]["reason"] == "offset_order"
    assert lost[0]["start_offset"] == BATCHES.base_offset[row]
    assert offsets_of(str(folder)) == all_but(lost)


@pytest.mark.parametrize("base_offset", [150, 260])
def test_an_entry_that_leads_to_a_wrong_base_offset(
    base_offset: int, folder: Path, log: Path
) -> None:
    """Of two neighbours that are damaged, neither is gone on with: the next one after them is."""
    overwrite(log, int(BATCHES.position[4]) + 70, b"\xff\xff\xff")
    overwrite(log, int(BATCHES.position[5]), base_offset.to_bytes(8, "big"))
    (lost,) = quarantined(str(folder))
    assert (lost["reason"], lost["position"]) == ("bad_crc", BATCHES.position[4])
    assert (lost["start_offset"], lost["end_offset"]) == (
        BATCHES.base_offset[4],
        BATCHES.base_offset[6],
    )
    assert offsets_of(str(folder)) == all_but([lost])


def test_a_rolled_segment_that_was_cut(folder: Path, log: Path) -> None:
    with log.open("r+b") as file:
        file.truncate(int(BATCHES.position[-1]) + 10)
    (lost,) = quarantined(str(folder))
    assert (lost["reason"], lost["position"]) == ("torn_tail", BATCHES.position[-1])
    assert offsets_of(str(folder)) == all_but([lost])


def test_the_active_segment_behind_its_sound_end(folder: Path) -> None:
    active = golden_segments(TOPIC, "clean")[-1]
    path = folder / f"{TOPIC}-0" / active.path.name
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x00" * 100)
    assert quarantined(str(folder)) == []
    path.write_bytes(whole + whole[:61].replace(b"\x02", b"\x09"))
    (lost,) = quarantined(str(folder))
    assert (lost["path"], lost["position"]) == (str(path), len(whole))
    assert offsets_of(str(folder)) == [row["offset"] for row in truth(TOPIC, 0)]


def test_an_empty_segment_and_foreign_files(folder: Path, log: Path) -> None:
    log.write_bytes(b"")
    (log.parent / "notes.txt").write_text("nothing to see")
    expected = [
        row["offset"]
        for row in truth(TOPIC, 0)
        if not SEGMENT.base_offset <= row["offset"] < SEGMENT.next_base_offset
    ]
    assert offsets_of(str(folder)) == expected


# -- offsets, which no checksum covers, and what is not there between sound batches


def contents(path: str, **more: str) -> dict[int, dict[str, Any]]:
    rows = rows_of({"path": path, **SALVAGE, "includeHeaders": "true", **more})
    return {row["offset"]: as_truth(row) for row in rows}


def active_log(folder: Path) -> Path:
    return folder / f"{TOPIC}-0" / golden_segments(TOPIC, "clean")[-1].path.name


def cut_out(log: Path, row: int) -> tuple[int, int]:
    """Takes a batch away; the offsets that it had."""
    batches, data = scan_segment(log), log.read_bytes()
    start = int(batches.position[row])
    log.write_bytes(data[:start] + data[start + int(batches.size_bytes[row]) :])
    return int(batches.base_offset[row]), int(batches.last_offset[row]) + 1


@pytest.mark.parametrize("task_bytes", ["3000", "1000000"])
@pytest.mark.parametrize("row", [0, 3, -1])
def test_a_batch_that_is_gone_from_a_segment(
    row: int, task_bytes: str, folder: Path, log: Path
) -> None:
    """Of a log that was never compacted, and its index leads into the middle of other batches."""
    start, end = cut_out(log, row % len(BATCHES))
    lost = rows_of(
        {"path": str(folder), "subscribe": TOPIC, "view": "quarantine", "taskBytes": task_bytes}
    )
    assert {one["reason"] for one in lost} == {"missing_offsets"}
    # Two tasks may have a part of it each.
    assert sorted(x for one in lost for x in range(one["start_offset"], one["end_offset"])) == [
        *range(start, end)
    ]
    assert offsets_of(str(folder), taskBytes=task_bytes) == all_but(lost)
    with pytest.raises(CorruptDataError, match="missing_offsets"):
        offsets_of(str(folder), onCorrupt="fail")


def test_a_batch_that_is_gone_from_the_active_segment(folder: Path) -> None:
    start, end = cut_out(active_log(folder), 1)
    (lost,) = quarantined(str(folder))
    assert (lost["reason"], lost["start_offset"], lost["end_offset"]) == (
        "missing_offsets",
        start,
        end,
    )
    assert offsets_of(str(folder)) == all_but([lost])


@pytest.mark.parametrize("task_bytes", ["3000", "1000000"])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("leap", [1, 4, 1 << 20, 1 << 40])
@pytest.mark.parametrize("of_active", [True, False])
def test_a_batch_that_leaps_over_the_next_one(
    of_active: bool, leap: int, index: bool, task_bytes: str, folder: Path, log: Path
) -> None:
    """Its records are sound, and have the offsets of others."""
    damaged = active_log(folder) if of_active else log
    batches = scan_segment(damaged)
    base = int(batches.base_offset[2])
    overwrite(damaged, int(batches.position[2]), (base + leap).to_bytes(8, "big"))
    if not index:
        damaged.with_suffix(".index").unlink()
    given = {"taskBytes": task_bytes}
    lost = rows_of({"path": str(folder), "subscribe": TOPIC, "view": "quarantine", **given})
    assert base not in all_but(lost)
    expected = {row["offset"]: row for row in truth(TOPIC, 0)}
    found = contents(str(folder), **given)
    assert sorted(found) == all_but(lost)
    assert found == {offset: expected[offset] for offset in found}


def test_two_batches_the_wrong_way_round(folder: Path, log: Path) -> None:
    data, start = log.read_bytes(), int(BATCHES.position[2])
    middle, end = int(BATCHES.position[3]), int(BATCHES.position[4])
    log.write_bytes(data[:start] + data[middle:end] + data[start:middle] + data[end:])
    lost = quarantined(str(folder))
    assert (lost[0]["reason"], lost[0]["start_offset"]) == ("offset_order", BATCHES.base_offset[2])
    assert offsets_of(str(folder)) == all_but(lost)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_a_batch_of_the_active_segment_that_claims_to_be_longer_than_that(
    level: str, folder: Path
) -> None:
    """As a tail that is being written does; but an index leads to batches behind it."""
    log = active_log(folder)
    batches = scan_segment(log)
    overwrite(log, int(batches.position[1]) + 8, (1 << 20).to_bytes(4, "big"))
    given = {"isolation.level": level}
    lost = rows_of({"path": str(folder), "subscribe": TOPIC, "view": "quarantine", **given})
    assert lost[0]["reason"] == "torn_tail"
    assert lost[0]["position"] == batches.position[1]
    assert lost[0]["start_offset"] <= batches.base_offset[1]
    found = offsets_of(str(folder), **given)
    assert found == (all_but(lost) if lost[0]["end_offset"] else [])


def test_a_segment_under_a_name_that_is_too_low(folder: Path, log: Path) -> None:
    """It seems to begin where the one before it has a batch; that one's rest is not read then."""
    before = golden_segments(TOPIC, "clean")[0]
    base = int(scan_segment(before.path).base_offset[-2])
    log.rename(log.with_name(f"{base:020d}.log"))
    lost = [one for one in quarantined(str(folder)) if one["start_offset"] is not None]
    assert [(one["start_offset"], one["end_offset"]) for one in lost] == [
        (base, SEGMENT.base_offset)
    ]
    assert offsets_of(str(folder)) == all_but(lost)


def test_a_compacted_segment_that_was_cut_where_its_index_goes_on(tmp_path: Path) -> None:
    """Of one that is compacted nobody knows its last offset; but an index has entries for it."""
    segment = golden_segments("compacted-transactions", "clean")[0]
    folder = copy_log_dir(tmp_path, "clean/disk1", "compacted-transactions-0")
    os.truncate(folder / "compacted-transactions-0" / segment.path.name, 0)
    (lost,) = rows_of(
        {"path": str(folder), "subscribe": "compacted-transactions", "view": "quarantine"}
    )
    assert (lost["reason"], lost["start_offset"], lost["end_offset"]) == (
        "missing_offsets",
        segment.base_offset,
        segment.next_base_offset,
    )


# -- what no file has


def test_the_first_segment_is_gone(folder: Path) -> None:
    """The broker would have taken its offsets out of the leader epochs."""
    first = golden_segments(TOPIC, "clean")[0]
    for file in (folder / f"{TOPIC}-0").glob(f"{first.base_offset:020d}.*"):
        file.unlink()
    (lost,) = quarantined(str(folder))
    assert (lost["reason"], lost["start_offset"], lost["end_offset"]) == (
        "missing_segment",
        first.base_offset,
        first.next_base_offset,
    )
    assert offsets_of(str(folder)) == all_but([lost])


def test_a_partition_is_gone(tmp_path: Path) -> None:
    """Two checkpoints name it. One that the broker deletes lies there under another name."""
    topic = "orders.eu-west_1"
    folder = copy_log_dir(tmp_path, "clean/disk1", f"{topic}-0", f"{topic}-1")
    place = {"path": str(folder), "subscribe": topic, "view": "quarantine"}
    assert rows_of(place) == []
    shutil.rmtree(folder / f"{topic}-1")
    (lost,) = rows_of(place)
    assert (lost["topic"], lost["partition"], lost["start_offset"]) == (topic, 1, None)
    assert (lost["reason"], lost["path"]) == ("missing_partition", str(folder / f"{topic}-1"))
    checkpoint = folder / "recovery-point-offset-checkpoint"
    lines = [line for line in checkpoint.read_text().splitlines() if f"{topic} 1 " not in line]
    lines[1] = str(len(lines) - 2)
    checkpoint.write_text("\n".join([*lines, ""]))
    assert rows_of(place) == []


@pytest.mark.parametrize(
    "name",
    [
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        f"{TOPIC}-0/leader-epoch-checkpoint",
        f"{TOPIC}-0/partition.metadata",
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_told(name: str, folder: Path) -> None:
    """Without it nobody knows whether all is there."""
    (folder / name).write_bytes(b"\xff\n")
    (lost,) = quarantined(str(folder))
    assert lost["path"] == str(folder / name)
    assert lost["start_offset"] is None
    assert lost["topic"] == (TOPIC if "/" in name else None)
    assert offsets_of(str(folder)) == all_but([])
    with pytest.raises(CorruptDataError):
        offsets_of(str(folder), onCorrupt="fail")


def test_partitions_of_which_one_has_lost_the_id_of_its_topic(tmp_path: Path) -> None:
    topic = "orders.eu-west_1"
    folder = copy_log_dir(tmp_path, "clean/disk1", f"{topic}-0", f"{topic}-1")
    (folder / f"{topic}-1" / "partition.metadata").unlink()
    rows = rows_of({"path": str(folder), "subscribe": topic, "onCorrupt": "quarantine"})
    assert {row["partition"] for row in rows} == {0, 1}


def test_a_damaged_transaction_index_of_a_damaged_segment(tmp_path: Path) -> None:
    """Made again from the segment it cannot be, so nobody knows what was aborted."""
    folder = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")
    index = sorted((folder / "transactions-0").glob("*.txnindex"))[0]
    overwrite(index, 0, b"\xff")
    overwrite(index.with_suffix(".log"), 100, b"\xff\xff\xff")
    given = {"path": str(folder), "subscribe": "transactions", "isolation.level": "read_committed"}
    given["onCorrupt"] = "quarantine"
    lost = rows_of({**given, "view": "quarantine"})
    assert ("bad_crc", 0, None) not in {
        (one["reason"], one["start_offset"], one["end_offset"]) for one in lost
    }
    assert any(one["reason"] == "bad_crc" and one["start_offset"] == 0 for one in lost)
    assert rows_of(given) == []


@pytest.mark.parametrize("task_bytes", ["3000", "1000000"])
@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("kept", [None, 0, 3])
def test_a_rolled_segment_that_is_gone_or_ends_early(
    kept: int | None, level: str, task_bytes: str, folder: Path, log: Path
) -> None:
    """Its file, all batches, or those from one on: nothing that is left is damaged."""
    if kept is None:
        log.unlink()
        (log.with_suffix(".index")).unlink()
        (log.with_suffix(".timeindex")).unlink()
    else:
        os.truncate(log, int(BATCHES.position[kept]))
    given = {"isolation.level": level, "taskBytes": task_bytes}
    lost = rows_of({"path": str(folder), "subscribe": TOPIC, "view": "quarantine", **given})
    assert {one["reason"] for one in lost} == {"missing_offsets"}
    assert lost[0]["start_offset"] == BATCHES.base_offset[kept or 0]
    assert lost[-1]["end_offset"] == SEGMENT.next_base_offset
    assert offsets_of(str(folder), **given) == all_but(lost)
    with pytest.raises(CorruptDataError, match="missing_offsets"):
        offsets_of(str(folder), onCorrupt="fail", **given)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("kept", [None, 0, 2])
def test_a_log_that_ends_below_its_high_watermark(
    kept: int | None, level: str, folder: Path
) -> None:
    active = golden_segments(TOPIC, "clean")[-1]
    path = folder / f"{TOPIC}-0" / active.path.name
    first = int(scan_segment(path).base_offset[kept or 0])
    if kept is None:
        for file in path.parent.glob(f"{path.stem}.*"):
            file.unlink()
    else:
        os.truncate(path, int(scan_segment(path).position[kept]))
    given = {"isolation.level": level}
    lost = rows_of({"path": str(folder), "subscribe": TOPIC, "view": "quarantine", **given})
    end_offset = len(truth(TOPIC, 0))
    assert [(one["reason"], one["start_offset"], one["end_offset"]) for one in lost] == [
        ("missing_segment", first, end_offset)
    ]
    assert offsets_of(str(folder), **given) == all_but(lost)


def test_without_the_end_of_a_transaction_all_behind_its_start_is_told(tmp_path: Path) -> None:
    """Wherever the log is cut: what committed readers were given is read, or in a row."""
    folder = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")
    given = {"path": str(folder), "subscribe": "transactions", "isolation.level": "read_committed"}
    given["onCorrupt"] = "quarantine"
    committed = {
        row["offset"] for row in truth_records("clean", "transactions", 0) if row["read_committed"]
    }
    for path in sorted((folder / "transactions-0").glob("*.log"), reverse=True):
        for position in reversed(scan_segment(path).position.tolist()):
            os.truncate(path, position)
            found = {row["offset"] for row in rows_of(given)}
            lost = rows_of({**given, "view": "quarantine"})
            told = [range(one["start_offset"], one["end_offset"]) for one in lost]
            assert found <= committed
            assert all(any(one in part for part in told) for one in committed - found), position
        for file in path.parent.glob(f"{path.stem}.*"):
            file.unlink()


def test_what_is_met_twice_is_told_once(folder: Path) -> None:
    """The end of the active segment is looked for again when it is below the high watermark."""
    path = folder / f"{TOPIC}-0" / golden_segments(TOPIC, "clean")[-1].path.name
    overwrite(path, int(scan_segment(path).position[-1]) + MAGIC_POSITION, b"\x09")
    lost = quarantined(str(folder))
    assert [one["reason"] for one in lost if one["path"] != str(path)] == ["missing_segment"]
    rows = [tuple(one.items()) for one in lost]
    assert len(rows) == len(set(rows))


def test_a_segment_that_is_no_file_is_told(folder: Path, log: Path, tmp_path: Path) -> None:
    log.rename(tmp_path / "elsewhere.log")
    log.symlink_to(tmp_path / "elsewhere.log")
    lost = {one["reason"]: one for one in quarantined(str(folder))}
    assert lost.keys() == {"not_a_file", "orphan_index", "missing_segment"}
    assert lost["not_a_file"]["path"] == str(log)
    assert offsets_of(str(folder)) == all_but([lost["missing_segment"]])


def test_a_partition_that_is_no_directory_is_told(folder: Path, tmp_path: Path) -> None:
    (folder / f"{TOPIC}-1").symlink_to(tmp_path)
    (folder / "another-1").symlink_to(tmp_path)
    (lost,) = quarantined(str(folder))
    assert (lost["topic"], lost["partition"]) == (TOPIC, 1)
    assert (lost["reason"], lost["start_offset"]) == ("not_a_directory", None)


@pytest.mark.parametrize("level", ["read_uncommitted", "read_committed"])
def test_of_a_brokers_logs_nothing_is_missing(level: str) -> None:
    """Compacted ones, too, whose segments may end early."""
    for disk in ("disk1", "disk2"):
        given = {"path": str(DATA_DIR / "clean" / disk), "isolation.level": level}
        assert rows_of({**given, "view": "quarantine"}) == []


def test_a_directory_that_is_no_log_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found neither a partition nor"):
        quarantined(str(tmp_path))


# -- stores


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("tiered")
    assert tier_golden(place / "store", place / "state").ok
    return place / "store"


@pytest.fixture
def store_copy(tiered: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiered, tmp_path / "store"))


def objects_of(store: Path, suffix: str) -> list[Path]:
    return sorted(store.glob(f"{TOPIC}-*/0/*{suffix}"))


def test_a_damaged_object_of_a_store(store_copy: Path) -> None:
    held = offsets_of(store_copy.as_uri())
    log = objects_of(store_copy, ".log")[1]
    row = len(BATCHES) // 2
    overwrite(log, int(BATCHES.position[row]) + 70, b"\xff\xff\xff")
    (lost,) = quarantined(store_copy.as_uri())
    assert lost["reason"] == "bad_crc"
    assert lost["start_offset"] == BATCHES.base_offset[row]
    found = offsets_of(store_copy.as_uri())
    assert found == [one for one in held if not lost["start_offset"] <= one < lost["end_offset"]]


def test_a_segment_that_is_not_there_is_told(store_copy: Path) -> None:
    held = offsets_of(store_copy.as_uri())
    for suffix in (".log", ".indexes"):
        objects_of(store_copy, suffix)[1].unlink()
    (lost,) = quarantined(store_copy.as_uri())
    assert (lost["reason"], lost["start_offset"], lost["end_offset"]) == (
        "missing_segment",
        SEGMENT.base_offset,
        SEGMENT.next_base_offset,
    )
    missing = f"offsets {SEGMENT.base_offset} to {SEGMENT.next_base_offset - 1} are in no segment"
    for more in ({}, {"onCorrupt": "quarantine"}, {"onCorrupt": "fail"}, {"view": "batches"}):
        with pytest.raises(GapError, match=missing):
            offsets_of(store_copy.as_uri(), **more)
    for more in ({}, {"onCorrupt": "fail"}):
        assert offsets_of(store_copy.as_uri(), onGap="skip", **more) == [
            one for one in held if not SEGMENT.base_offset <= one < SEGMENT.next_base_offset
        ]


def test_a_read_beside_missing_offsets_needs_no_choice(store_copy: Path) -> None:
    held = offsets_of(store_copy.as_uri())
    for suffix in (".log", ".indexes"):
        objects_of(store_copy, suffix)[1].unlink()
    for name, part in (
        ("endingOffsets", range(SEGMENT.base_offset)),
        ("startingOffsets", range(SEGMENT.next_base_offset, held[-1] + 1)),
    ):
        bound = part.stop if name == "endingOffsets" else part.start
        offsets = f'{{"{TOPIC}": {{"0": {bound}}}}}'
        assert offsets_of(store_copy.as_uri(), **{name: offsets}) == list(part)


def test_a_read_up_to_an_unknown_end_is_an_error(store_copy: Path) -> None:
    held = offsets_of(store_copy.as_uri())
    newest = objects_of(store_copy, ".log")[-1]
    newest.with_suffix(".indexes").unlink()
    base = int(newest.name[:20])
    with pytest.raises(GapError, match=f"the offsets from {base} on are in no segment"):
        offsets_of(store_copy.as_uri())
    wanted = [one for one in held if one < base]
    assert offsets_of(store_copy.as_uri(), onGap="skip") == wanted
    end = f'{{"{TOPIC}": {{"0": {base}}}}}'
    assert offsets_of(store_copy.as_uri(), endingOffsets=end) == wanted


def test_indexes_that_cannot_be_read(store_copy: Path) -> None:
    indexes = objects_of(store_copy, ".indexes")[1]
    overwrite(indexes, 10, b"\xee" * 8)
    reasons = {row["reason"]: row for row in quarantined(store_copy.as_uri())}
    assert reasons.keys() == {"corrupt_indexes", "missing_segment"}
    assert reasons["corrupt_indexes"]["path"].endswith(indexes.name)
    assert reasons["corrupt_indexes"]["topic"] is None
    with pytest.raises(CorruptDataError, match="corrupt_indexes"):
        offsets_of(store_copy.as_uri(), onCorrupt="fail")


@pytest.mark.parametrize("row", [0, -1])
def test_a_log_object_that_is_left_of_the_first_or_last_segment(row: int, store_copy: Path) -> None:
    """No segment beside it shows that it is missing."""
    held = offsets_of(store_copy.as_uri())
    segments = [one for one in golden_segments(TOPIC, "clean") if one.rolled]
    objects_of(store_copy, ".indexes")[row].unlink()
    (lost,) = quarantined(store_copy.as_uri())
    assert (lost["reason"], lost["topic"]) == ("log_without_indexes", None)
    assert lost["path"].endswith(objects_of(store_copy, ".log")[row].name)
    gone = range(segments[row].base_offset, segments[row].next_base_offset)
    found = offsets_of(store_copy.as_uri(), onGap="skip")
    assert found == [one for one in held if one not in gone]


def test_a_log_object_that_a_copy_left_behind_hides_nothing(store_copy: Path) -> None:
    log = objects_of(store_copy, ".log")[0]
    shutil.copy(log, log.with_name(f"{log.name[:21]}{'A' * 22}.log"))
    assert quarantined(store_copy.as_uri()) == []


def test_a_topic_of_which_nothing_can_be_read(folder: Path, store_copy: Path) -> None:
    """That it is not there would be half of it."""
    (folder / f"{TOPIC}-0").rename(folder / "elsewhere")
    (folder / f"{TOPIC}-0").symlink_to(folder / "elsewhere")
    with pytest.raises(OutOfRangeError, match=r"no such topic; .*not_a_directory"):
        offsets_of(str(folder))
    for indexes in objects_of(store_copy, ".indexes"):
        overwrite(indexes, 10, b"\xee" * 8)
    with pytest.raises(OutOfRangeError, match=r"no such topic; .*corrupt_indexes"):
        offsets_of(store_copy.as_uri())


# -- what the plan did not know


def test_what_is_gone_since_the_plan_is_an_error(folder: Path, store_copy: Path) -> None:
    """Not an empty rest of a segment: Spark tries again, and plans anew with the next query."""
    objects = objects_of(store_copy, ".log")
    for path, gone in (
        (str(folder), folder / f"{TOPIC}-0" / SEGMENT.path.name),
        (
            store_copy.as_uri(),
            objects[1],
        ),
    ):
        options = {"path": path, **SALVAGE}
        tasks = tasks_of(options)
        gone.unlink()
        with pytest.raises((FileNotFoundError, RemoteStorageError), match=gone.name):
            batches_of(options, tasks)


def test_a_batch_that_would_open_to_gigabytes(folder: Path, log: Path) -> None:
    """With a sound one before it and behind it."""
    log.with_suffix(".index").unlink()
    data, start = log.read_bytes(), int(BATCHES.position[3])
    bomb = build.seal(
        zstd_of_zeros(4 << 30),
        attributes=4,
        base_offset=int(BATCHES.base_offset[3]),
        record_count=1,
    )
    log.write_bytes(data[:start] + bomb + data[start:])
    (lost,) = quarantined(str(folder))
    # Where what is packed begins, behind the header.
    assert (lost["reason"], lost["position"]) == ("too_large", start + HEADER_BYTES)
    # The batch that follows holds the same offset.
    assert (lost["start_offset"], lost["end_offset"]) == (BATCHES.base_offset[3],) * 2
    assert offsets_of(str(folder)) == all_but([])

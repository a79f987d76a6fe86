"""Golden log directories are sound; each kind of damage to a copy is found where it was done."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.dump_text import DumpedBatch, parse_log_dump
from tests.kafka_tools.golden import DATA_DIR, golden_segments, truth_text
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog._core import crc32c
from tierlog.cli import main
from tierlog.tools.findings import Finding, Report, Severity, report_text
from tierlog.tools.verify.log_dir import verify_log_dir

EPOCHS = "epochs-0"
SEGMENTS = golden_segments(topic="epochs")
FIRST, SECOND, ACTIVE = SEGMENTS[0], SEGMENTS[1], SEGMENTS[-1]


def batches(index: int) -> list[DumpedBatch]:
    return parse_log_dump(truth_text(SEGMENTS[index].path))


def problems(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.PROBLEM]


def only_problem(report: Report) -> Finding:
    (finding,) = problems(report)
    assert not report.sound
    return finding


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return copy_log_dir(tmp_path, "clean/disk1", EPOCHS)


@pytest.mark.parametrize("name", ["clean/disk1", "clean/disk2", "unclean/disk1", "unclean/disk2"])
@pytest.mark.parametrize("deep", [False, True])
def test_what_a_real_broker_left_is_sound(name: str, deep: bool) -> None:
    report = verify_log_dir(DATA_DIR / name, deep=deep)
    data_set, disk = name.split("/")
    segments = [s for s in golden_segments(data_set=data_set) if s.log_dir == disk]
    assert problems(report) == []
    assert report.summary.segments == len(segments)
    assert report.summary.batches == sum(segment.batch_count for segment in segments)
    assert report.summary.records == sum(segment.record_count for segment in segments)
    assert report.summary.size_bytes == sum(segment.size_bytes for segment in segments)


def test_a_copy_without_dump_texts_has_no_notes(log_dir: Path) -> None:
    report = verify_log_dir(log_dir)
    assert report.findings == ()
    assert list(report_text(report, with_notes=False))[-1].endswith("84.0 KiB: no problems")


def test_the_preallocated_tail_of_a_killed_broker_is_a_note() -> None:
    report = verify_log_dir(DATA_DIR / "unclean/disk1")
    (tail,) = [finding for finding in report.findings if finding.what == "zero_tail"]
    assert tail.severity is Severity.NOTE
    assert tail.path.endswith("crash-preallocated-0/00000000000000000258.log")


def test_a_flipped_bit_in_a_batch(log_dir: Path) -> None:
    damaged = batches(1)[2]
    path = log_dir / EPOCHS / SECOND.path.name
    overwrite(path, damaged.position + 70, b"\xff\xff")
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.path, finding.what) == (str(path), "bad_crc")
    assert finding.position == damaged.position
    assert "restore the segment" in finding.action


def test_damage_does_not_hide_the_damage_behind_it(log_dir: Path) -> None:
    """The offset index of the golden segment has an entry for every batch but the first."""
    path, truth = log_dir / EPOCHS / FIRST.path.name, batches(0)
    for damaged in (truth[1], truth[4]):
        overwrite(path, damaged.position + 70, b"\xff\xff\xff")
    report = verify_log_dir(log_dir)
    found = problems(report)
    assert [finding.position for finding in found] == [truth[1].position, truth[4].position]
    assert [finding.what for finding in found] == ["bad_crc", "bad_crc"]
    again = [f"byte {batch.position}, offset {batch.base_offset}" for batch in (truth[2], truth[5])]
    assert [finding.action.rpartition(" from ")[2] for finding in found] == again
    whole = sum(segment.batch_count for segment in SEGMENTS)
    assert report.summary.batches == whole - 2


def test_a_cut_rolled_segment_is_a_problem_and_an_active_one_is_not(log_dir: Path) -> None:
    os.truncate(log_dir / EPOCHS / FIRST.path.name, FIRST.size_bytes - 5)
    finding = only_problem(verify_log_dir(log_dir))
    assert finding.what == "torn_tail"
    assert finding.position == batches(0)[-1].position

    shutil.copy(FIRST.path, log_dir / EPOCHS / FIRST.path.name)
    with (log_dir / EPOCHS / ACTIVE.path.name).open("ab") as file:
        file.write(FIRST.path.read_bytes()[:40])
    report = verify_log_dir(log_dir)
    (torn,) = report.findings
    assert (torn.severity, torn.what) == (Severity.NOTE, "torn_tail")
    assert torn.position == ACTIVE.size_bytes
    assert report.sound


def test_a_missing_segment_in_the_middle(log_dir: Path) -> None:
    for file in (log_dir / EPOCHS).glob(f"{SECOND.base_offset:020d}.*"):
        file.unlink()
    finding = only_problem(verify_log_dir(log_dir))
    assert finding.what == "last_offset"
    assert finding.path.endswith(FIRST.path.name)
    assert finding.found == str(FIRST.last_offset)


def test_a_log_that_lost_its_end(log_dir: Path) -> None:
    last = batches(-1)[-1]
    os.truncate(log_dir / EPOCHS / ACTIVE.path.name, last.position)
    report = verify_log_dir(log_dir)
    finding = only_problem(report)
    assert finding.what == "log_too_short"
    assert f"high watermark {last.last_offset + 1}" in finding.expected
    assert finding.found.endswith(str(last.base_offset))


def test_a_batch_of_another_epoch(log_dir: Path) -> None:
    batch = batches(0)[1]
    overwrite(log_dir / EPOCHS / FIRST.path.name, batch.position + 12, struct.pack(">i", 9))
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.what, finding.position) == ("leader_epoch", batch.position + 12)
    assert finding.found == "9"


def test_a_damaged_checkpoint(log_dir: Path) -> None:
    overwrite(log_dir / EPOCHS / "leader-epoch-checkpoint", 0, b"7")
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.what, finding.position) == ("bad_version", 0)


def swap_entries(data: bytes) -> bytes:
    return data[8:16] + data[:8] + data[16:]


def wrong_position(data: bytes) -> bytes:
    return data[:7] + bytes([data[7] + 1]) + data[8:]


def wrong_offset(data: bytes) -> bytes:
    return data[:3] + bytes([data[3] + 1]) + data[4:]


def one_byte_more(data: bytes) -> bytes:
    return data + b"\1"


def zeros_after(data: bytes) -> bytes:
    return data + bytes(24)


def past_the_log(data: bytes) -> bytes:
    return data + struct.pack(">ii", 2**30, 2**30)


@pytest.mark.parametrize(
    ("change", "what", "position"),
    [
        (swap_entries, "entry_order", 8),
        (wrong_position, "no_batch_there", 0),
        (wrong_offset, "wrong_offset", 0),
        (one_byte_more, "bad_length", None),
        (zeros_after, "zero_tail", None),
        (past_the_log, "past_the_log", None),
    ],
)
def test_a_wrong_offset_index(
    log_dir: Path, change: Callable[[bytes], bytes], what: str, position: int | None
) -> None:
    path = log_dir / EPOCHS / FIRST.path.with_suffix(".index").name
    data = path.read_bytes()
    path.write_bytes(change(data))
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.path, finding.what) == (str(path), what)
    assert finding.position == (len(data) if position is None else position)
    assert "rebuilds indexes" in finding.action


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[12:24] + data[:12] + data[24:], "entry_order"),
        (lambda data: data + struct.pack(">qi", 2**60, 2**30), "past_the_log"),
        (lambda data: struct.pack(">q", 1) + data[8:], "wrong_timestamp"),
        (lambda data: data[:-1], "bad_length"),
    ],
)
def test_a_wrong_time_index(log_dir: Path, change: Callable[[bytes], bytes], what: str) -> None:
    path = log_dir / EPOCHS / FIRST.path.with_suffix(".timeindex").name
    path.write_bytes(change(path.read_bytes()))
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.path, finding.what) == (str(path), what)


@pytest.mark.parametrize(
    ("position", "data", "what"),
    [
        (0, b"\0\1", "bad_version"),
        (2, bytes(7) + b"\x7f", "no_marker_there"),
        (18, struct.pack(">q", 2**40), "past_the_log"),
        (10, struct.pack(">q", 2**40), "entry_order"),
    ],
)
def test_a_wrong_transaction_index(tmp_path: Path, position: int, data: bytes, what: str) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")
    path = log_dir / "transactions-0" / "00000000000000000000.txnindex"
    # The last entry, so that the order of the others is left alone.
    start = path.stat().st_size - 34
    overwrite(path, start + position, data)
    finding = only_problem(verify_log_dir(log_dir))
    assert (finding.path, finding.what, finding.position) == (str(path), what, start)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: b"\0\2" + data[2:], "unknown_magic"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "bad_crc"),
        (lambda data: data[:9], "truncated"),
        (lambda data: b"", "truncated"),
        (lambda data: data + b"\0", "bad_crc"),
    ],
)
def test_a_wrong_snapshot(tmp_path: Path, change: Callable[[bytes], bytes], what: str) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")
    path = log_dir / "transactions-0" / "00000000000000000085.snapshot"
    path.write_bytes(change(path.read_bytes()))
    assert only_problem(verify_log_dir(log_dir)).what == what


def test_missing_indexes_are_notes(log_dir: Path) -> None:
    for suffix in (".index", ".timeindex"):
        (log_dir / EPOCHS / SECOND.path.with_suffix(suffix).name).unlink()
    report = verify_log_dir(log_dir)
    assert report.sound
    assert [finding.what for finding in report.findings] == ["missing", "missing"]


def test_an_index_may_run_ahead_of_the_active_log_after_a_crash(log_dir: Path) -> None:
    path = log_dir / EPOCHS / ACTIVE.path.with_suffix(".index").name
    path.write_bytes(path.read_bytes() + struct.pack(">ii", 2**30, 2**30) + bytes(80))
    report = verify_log_dir(log_dir)
    assert report.sound
    assert [finding.what for finding in report.findings] == ["past_the_log"]


def test_things_that_are_no_files(log_dir: Path) -> None:
    os.mkfifo(log_dir / EPOCHS / "00000000000000009999.index")
    target = log_dir / EPOCHS / FIRST.path.with_suffix(".index").name
    (log_dir / EPOCHS / "00000000000000009998.index").symlink_to(target)
    report = verify_log_dir(log_dir)
    assert [finding.what for finding in problems(report)] == ["not_a_file", "not_a_file"]


def test_records_that_are_wrong_in_a_sound_batch_show_only_in_depth(tmp_path: Path) -> None:
    """A compressed batch whose checksum was made right again over a damaged payload."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "broker-zstd-0")
    segment = golden_segments(topic="broker-zstd")[0]
    batch = parse_log_dump(truth_text(segment.path))[1]
    path = log_dir / "broker-zstd-0" / segment.path.name
    data = bytearray(path.read_bytes())
    data[batch.position + 61 : batch.position + 65] = b"\0\0\0\0"
    end = batch.position + batch.size_bytes
    checksum = crc32c(bytes(data[batch.position + 21 : end]))
    data[batch.position + 17 : batch.position + 21] = struct.pack(">I", checksum)
    path.write_bytes(data)
    assert verify_log_dir(log_dir).sound
    finding = only_problem(verify_log_dir(log_dir, deep=True))
    assert (finding.path, finding.position) == (str(path), batch.position + 61)


@pytest.mark.parametrize("left", [0, 34])
def test_an_abort_that_the_index_does_not_have(tmp_path: Path, left: int) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk2", "transactions-0")
    path = log_dir / "transactions-0" / "00000000000000000085.txnindex"
    entries = path.stat().st_size // 34
    os.truncate(path, left)
    assert verify_log_dir(log_dir).sound
    found = problems(verify_log_dir(log_dir, deep=True))
    assert [finding.what for finding in found] == ["missing_abort"] * (entries - left // 34)
    path.unlink()
    assert len(problems(verify_log_dir(log_dir, deep=True))) == entries


def test_the_text_leads_on(log_dir: Path) -> None:
    overwrite(log_dir / EPOCHS / FIRST.path.name, batches(0)[0].position + 80, b"\0\0\0\0")
    lines = list(report_text(verify_log_dir(log_dir), with_notes=False))
    assert lines[0] == f"PROBLEM  {log_dir / EPOCHS / FIRST.path.name}"
    assert lines[1].startswith("  bad_crc at byte 0: expected ")
    assert lines[2].startswith("  the batches before this byte are sound")
    assert lines[-1].endswith("1 problem")


def test_nothing_is_written(log_dir: Path) -> None:
    def state() -> list[tuple[str, int, int]]:
        return sorted(
            (str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in log_dir.rglob("*")
        )

    before = state()
    verify_log_dir(log_dir)
    assert state() == before


@pytest.mark.parametrize("version", ["0.10", "2.4"])
def test_index_entries_of_old_brokers_are_sound(
    version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brokers up to 1.1 write the first offset of a batch, later ones the last."""
    assert main(["verify", str(DATA_DIR / "legacy" / f"kafka-{version}")]) == 0
    assert "no problems" in capsys.readouterr().out

"""What ``cat`` prints, against what a consumer got and what DumpLogSegments says."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dump_text import parse_log_dump
from tests.fetch.views import truth as truth_of_view
from tests.fetch.views import whole_view
from tests.kafka_tools.golden import (
    DATA_DIR,
    GoldenSegment,
    golden_segments,
    manifest,
    truth_records,
    truth_text,
)
from tests.oracle import build
from tests.oracle.model import Record
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.errors import CorruptDataError
from tierlog.log.records import decode_records
from tierlog.reader.open import read
from tierlog.tools.cat.record_format import parse_format
from tierlog.tools.cat.selection import format_records

PARTITIONS = [
    (data_set, row)
    for data_set, held in manifest()["data_sets"].items()
    for row in held["partitions"]
    if not row["topic"].startswith("__") and row["record_count"]
]
STABLE = {
    (row["topic"], row["partition"]): row["last_stable_offset"]
    for row in manifest()["data_sets"]["clean"]["partitions"]
}
TIERED = [
    segment
    for segment in golden_segments(data_set="clean")
    if segment.rolled
    and not segment.topic.startswith(("__", "compacted"))
    and segment.next_base_offset <= STABLE[segment.topic, segment.partition]
]


def cat(capsysbinary: pytest.CaptureFixture[bytes], *args: str) -> bytes:
    assert main(["cat", *args]) == 0
    return capsysbinary.readouterr().out


def cat_json(capsysbinary: pytest.CaptureFixture[bytes], *args: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cat(capsysbinary, *args, "-J").splitlines()]


def bytes_in_json(item: Any) -> bytes | None:
    if item is None:
        return None
    return base64.b64decode(item["base64"]) if isinstance(item, dict) else item.encode()


def bytes_in_truth(item: Any) -> Any:
    """Bytes, None, or a digest of bytes that were too many to keep."""
    return base64.b64decode(item) if isinstance(item, str) else item


def same(found: Any, expected: Any) -> bool:
    data, truth = bytes_in_json(found), bytes_in_truth(expected)
    if isinstance(truth, dict):
        assert data is not None
        digest = {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return digest == truth
    return bool(data == truth)


def require_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [record["offset"] for record in found] == [record["offset"] for record in expected]
    for record, truth in zip(found, expected, strict=True):
        assert record["ts"] == truth["timestamp_ms"]
        assert record["tstype"] == truth["timestamp_type"]
        assert same(record["key"], truth["key"])
        assert same(record["payload"], truth["value"])
        headers = record.get("headers", [])
        pairs = list(zip(headers[::2], headers[1::2], strict=True))
        assert len(pairs) == len(truth["headers"])
        for (name, value), (true_name, true_value) in zip(pairs, truth["headers"], strict=True):
            assert bytes_in_json(name) == true_name.encode()
            assert same(value, true_value)


def truth_of(data_set: str, topic: str, partition: int) -> list[dict[str, Any]]:
    kinds = {"CreateTime": "create", "LogAppendTime": "logappend"}
    records = truth_records(data_set, topic, partition)
    for record in records:
        kind = str(record["timestamp_type"])
        record["timestamp_type"] = kinds.get(kind, kind)
    return records


@pytest.mark.parametrize(
    ("data_set", "row"),
    PARTITIONS,
    ids=lambda item: item if isinstance(item, str) else item["topic"],
)
def test_a_log_directory_prints_what_a_consumer_got(
    data_set: str, row: dict[str, Any], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log_dir = str(DATA_DIR / data_set / row["log_dir"])
    found = cat_json(capsysbinary, log_dir, f"{row['topic']}:{row['partition']}")
    require_same(found, truth_of(data_set, row["topic"], row["partition"]))


@pytest.mark.parametrize("segment", TIERED, ids=lambda segment: segment.name)
def test_a_store_prints_what_dump_log_segments_says(
    segment: GoldenSegment, golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Offset, timestamp and sizes of every record that is no marker, nor deleted by DeleteRecords:
    the leader epochs that were copied with the segment begin after those."""
    log_start_offset = 290 if segment.topic == "deleted-records" else 0
    dumped = [
        f"{record.offset} {record.timestamp_ms} {record.key_size} {record.value_size}"
        for batch in parse_log_dump(truth_text(segment.path))
        if not batch.is_control
        for record in batch.records
        if record.offset >= log_start_offset
    ]
    text = cat(
        capsysbinary,
        golden_store.as_uri(),
        f"{segment.topic}:{segment.partition}",
        "-o",
        f"{segment.base_offset}:{segment.next_base_offset}",
        "-f",
        r"%o %T %K %S\n",
    )
    assert text.decode().splitlines() == dumped


def test_a_store_prints_what_a_consumer_got(
    golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    for topic, partition in sorted({(one.topic, one.partition) for one in TIERED}):
        found = cat_json(capsysbinary, str(golden_store), f"{topic}:{partition}")
        end = found[-1]["offset"]
        truth = truth_of("clean", topic, partition)
        require_same(found, [record for record in truth if record["offset"] <= end])


@pytest.mark.parametrize("place", ["log directory", "store"])
@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["-o", "100:105"], [100, 101, 102, 103, 104]),
        (["-o", "100-102"], [100, 101]),
        (["-o", "beginning", "-c", "2"], [0, 1]),
        (["-c", "0"], []),
        (["-o", "end"], []),
        (["-o", "+3", "-c", "1"], [3]),
        (["-o", "119", "-c", "3"], [119, 120, 121]),
    ],
)
def test_offsets(
    place: str,
    args: list[str],
    expected: list[int],
    golden_store: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    source = golden_store.as_uri() if place == "store" else str(DATA_DIR / "clean/disk1")
    text = cat(capsysbinary, source, "epochs:0", *args, "-f", r"%o\n")
    assert [int(line) for line in text.split()] == expected


def test_the_last_ones(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text = cat(capsysbinary, str(DATA_DIR / "clean/disk1"), "epochs:0", "-o", "-3", "-f", "%o ")
    assert text == b"477 478 479 "


def test_times(golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    truth = truth_of("clean", "epochs", 0)
    moment, later = truth[100]["timestamp_ms"], truth[200]["timestamp_ms"]
    first = next(one["offset"] for one in truth if one["timestamp_ms"] >= moment)
    last = next(one["offset"] for one in truth if one["timestamp_ms"] >= later)
    for source in (golden_store.as_uri(), str(DATA_DIR / "clean/disk1")):
        arguments = [source, "epochs:0", "-o", f"s@{moment}", "-o", f"e@{later}", "-f", "%o "]
        offsets = [int(one) for one in cat(capsysbinary, *arguments).split()]
        assert offsets == list(range(first, last))


def test_values_alone_by_default(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    truth = truth_of("clean", "epochs", 0)[:3]
    text = cat(capsysbinary, str(DATA_DIR / "clean/disk1"), "epochs:0", "-c", "3")
    assert text == b"".join((bytes_in_truth(one["value"]) or b"") + b"\n" for one in truth)


def test_who_gets_other_records_than_asked_for_is_told(
    golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log_dir = str(DATA_DIR / "clean/disk2")
    assert main(["cat", log_dir, "deleted-records:0", "-o", "5", "-c", "1", "-f", "%o"]) == 0
    gone = capsysbinary.readouterr()
    assert gone.out == b"290"
    assert gone.err.startswith(b"offset 5 is gone; deleted-records:0 holds offsets 290 to ")
    assert main(["cat", golden_store.as_uri(), "epochs:0", "-o", "end", "-e"]) == 0
    ended = capsysbinary.readouterr().err.decode().splitlines()
    assert ended[0].endswith("and tierlog does not wait for more")
    assert ended[1].startswith("reached the end of epochs:0 at offset ")
    assert main(["cat", str(DATA_DIR / "clean/disk1"), "empty:0"]) == 0
    assert capsysbinary.readouterr().err == b"empty:0 holds no records\n"


@pytest.mark.parametrize(("magic", "kind"), [(0, "unknown"), (1, "create")])
def test_old_messages(
    magic: int, kind: str, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    """No Kafka of today writes them, and every Kafka reads them."""
    records = [Record(offset=n, timestamp_ms=100 + n, key=None, value=b"v") for n in range(3)]
    directory = tmp_path / "old-0"
    directory.mkdir()
    new = [Record(offset=n, timestamp_ms=200 + n, key=b"k", value=b"w") for n in (3, 4)]
    data = build.legacy_messages(records, magic=magic) + build.batch(new, log_append_time_ms=300)
    (directory / "00000000000000000000.log").write_bytes(data)
    found = cat_json(capsysbinary, str(tmp_path), "old:0")
    assert [one["tstype"] for one in found] == [kind] * 3 + ["logappend"] * 2
    timestamps = [-1, -1, -1] if magic == 0 else [100, 101, 102]
    assert [one["ts"] for one in found] == [*timestamps, 300, 300]


def test_text_comes_in_buffers_of_a_bounded_size() -> None:
    large = [Record(offset=n, timestamp_ms=0, key=None, value=bytes(700_000)) for n in range(3)]
    small = [Record(offset=n, timestamp_ms=0, key=None, value=b"v") for n in range(3, 10_003)]
    records = decode_records(build.batch(large) + build.batch(small))
    pieces = [bytes(text) for text in format_records(records, "t", 0, parse_format("%o,%s"))]
    counts = [piece.count(b",") for piece in pieces]
    assert counts == [2, 10_001]
    values = [bytes(700_000)] * 3 + [b"v"] * 10_000
    assert b"".join(pieces) == b"".join(b"%d,%s" % pair for pair in enumerate(values))


def test_a_pipe_has_room_for_a_whole_buffer() -> None:
    """A write of a MiB wakes the reader once instead of sixteen times."""
    reading, writing = os.pipe()
    try:
        command = [
            sys.executable,
            "-m",
            "tierlog",
            "cat",
            str(DATA_DIR / "clean/disk1"),
            "epochs:0",
        ]
        subprocess.run([*command, "-c", "1"], stdout=writing, check=True)
        assert fcntl.fcntl(reading, fcntl.F_GETPIPE_SZ) == 1 << 20
    finally:
        os.close(reading)
        os.close(writing)


def test_damage_ends_it_after_the_sound_records(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    segment = golden_segments(topic="epochs")[1]
    batch = parse_log_dump(truth_text(segment.path))[2]
    path = log_dir / "epochs-0" / segment.path.name
    overwrite(path, batch.position + 70, b"\xff\xff\xff\xff")
    assert main(["cat", str(log_dir), "epochs:0", "-f", r"%o\n"]) == 1
    captured = capsysbinary.readouterr()
    offsets = [int(line) for line in captured.out.split()]
    assert offsets[-1] == batch.base_offset - 1
    assert offsets == list(range(len(offsets)))
    assert captured.err.startswith(f"tierlog: {path}: bad_crc at byte {batch.position}:".encode())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["epochs:x"], "expected a partition number after the colon"),
        ([], "Missing argument 'TOPIC[:PARTITION]...'"),
        (["-p", "0"], "-p needs the topic"),
        (["epochs:0", "--format", "json", "-J"], "exclude each other"),
        (["epochs:0", "-o", "soon"], "'soon' is no offset"),
        (["epochs:0", "-o", "1", "-o", "2"], "the start is given twice"),
        (["epochs:0", "-f", "%z"], "no such token %z"),
        (["epochs:0", "-f", "%s", "-J"], "exclude each other"),
        (["epochs:0", "-c", "-1"], "-1 is not in the range"),
    ],
)
def test_wrong_usage(
    args: list[str], message: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["cat", str(DATA_DIR / "clean/disk1"), *args]) == 2
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    assert message in captured.err.decode()


@pytest.mark.parametrize("place", ["log directory", "store"])
def test_a_partition_that_is_not_there(
    place: str, golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = golden_store.as_uri() if place == "store" else str(DATA_DIR / "clean/disk1")
    for name, message in (
        ("nothing:0", "no topic nothing, only "),
        ("nothing", "epochs, headers, idempotent"),
        ("epochs:7", "no partition 7 of epochs, only 0"),
        ("epochs-0", "did you mean epochs:0?"),
    ):
        assert main(["cat", source, name]) == 1
        captured = capsysbinary.readouterr()
        assert captured.out == b""
        assert message in captured.err.decode(), name


@pytest.mark.parametrize("place", ["log directory", "store"])
def test_several_partitions_in_one_call(
    place: str, golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    source = golden_store.as_uri() if place == "store" else str(DATA_DIR / "clean/disk1")
    one, other = (
        cat(capsysbinary, source, f"orders.eu-west_1:{number}", "-f", r"%p %o\n")
        for number in (0, 1)
    )
    assert one
    assert other
    both = ["orders.eu-west_1:0", "orders.eu-west_1:1", "-f", r"%p %o\n"]
    assert cat(capsysbinary, source, *both) == one + other
    every = cat(capsysbinary, source, "orders.eu-west_1", "-f", r"%p %o\n")
    assert every.startswith(one + other)
    numbers = [int(line.split()[0]) for line in every.splitlines()]
    assert sorted(set(numbers)) == ([0, 1, 2, 3] if place == "store" else [0, 1])
    assert numbers == sorted(numbers)
    first = one.count(b"\n")
    text = cat(capsysbinary, source, *both, "-c", str(first + 2))
    assert text == one + b"".join(other.splitlines(keepends=True)[:2])


def test_words_of_kcat_are_accepted(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    source = str(DATA_DIR / "clean/disk1")
    plain = cat(capsysbinary, source, "epochs:0")
    assert cat(capsysbinary, source, "-C", "-t", "epochs", "-p", "0", "-q") == plain
    assert cat(capsysbinary, source, "epochs:0", "--format", "text") == plain
    lines = cat(capsysbinary, source, "epochs:0", "-J")
    assert cat(capsysbinary, source, "epochs:0", "--format", "json") == lines
    assert cat(capsysbinary, source, "epochs:0", "--format", "%o ", "-c", "2") == b"0 1 "
    assert main(["cat", source, "epochs:0", "-q", "-e", "-o", "end"]) == 0
    assert capsysbinary.readouterr() == (b"", b"")


@pytest.mark.parametrize("damage", ["flip", "truncate", "log gone"])
def test_a_damaged_segment_of_a_store_is_left_out_and_named(
    store_copy: Path, capsysbinary: pytest.CaptureFixture[bytes], damage: str
) -> None:
    logs = sorted(store_copy.rglob("epochs-*/0/*.log"))
    second = logs[1]
    indexes = second.with_suffix(".indexes")
    if damage == "flip":
        spoilt = bytearray(indexes.read_bytes())
        spoilt[14] ^= 1
        indexes.write_bytes(spoilt)
    elif damage == "truncate":
        indexes.write_bytes(indexes.read_bytes()[:-1])
    else:
        second.unlink()
    salvage = ("--on-corrupt", "skip")
    assert main(["cat", store_copy.as_uri(), "epochs:0", "-f", r"%o\n", *salvage]) == 1
    captured = capsysbinary.readouterr()
    assert second.stem in captured.err.decode()
    assert captured.err.count(b"\n") == 1
    offsets = [int(line) for line in captured.out.split()]
    first, last = int(second.name[:20]), int(logs[2].name[:20]) - 1
    assert offsets
    assert not [offset for offset in offsets if first <= offset <= last]

    with pytest.raises(CorruptDataError, match=second.stem):
        list(read(store_copy.as_uri(), "epochs", 0))


class TwoTiers:
    """A golden partition whose older segments are in a store only."""

    def __init__(
        self, folder: Path, name: str, store: Path, first_local: int, disk: str = "clean/disk1"
    ) -> None:
        self.topic = name.removesuffix("-0")
        self.log_dir = copy_log_dir(folder, disk, name)
        bases = sorted(int(one.stem) for one in (self.log_dir / name).glob("*.log"))
        self.border = bases[first_local]
        for base in bases[:first_local]:
            for path in (self.log_dir / name).glob(f"{base:020d}.*"):
                path.unlink()
        self.args = [str(self.log_dir), f"{self.topic}:0", "--store", store.as_uri()]


@pytest.mark.parametrize("first_local", [0, 1, 2, 3])
def test_both_tiers_print_what_a_consumer_got(
    golden_store: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    first_local: int,
) -> None:
    tiers = TwoTiers(tmp_path, "epochs-0", golden_store, first_local)
    truth = truth_of("clean", "epochs", 0)
    require_same(cat_json(capsysbinary, *tiers.args), truth)
    end = truth[-1]["offset"] + 1
    border = tiers.border
    for offsets, expected in (
        ("beginning", range(end)),
        ("end", range(0)),
        (f"{border}", range(border, end)),
        (f"{max(border - 7, 0)}:{border + 7}", range(max(border - 7, 0), border + 7)),
        ("-3", range(end - 3, end)),
        (f"-{end - border + 5}", range(max(0, border - 5), end)),
        ("+9", range(9, end)),
    ):
        text = cat(capsysbinary, *tiers.args, "-o", offsets, "-f", "%o ")
        assert [int(one) for one in text.split()] == list(expected), offsets
    for row in truth[:: len(truth) // 9]:
        moment = row["timestamp_ms"]
        first = next(one["offset"] for one in truth if one["timestamp_ms"] >= moment)
        text = cat(capsysbinary, *tiers.args, "-o", f"@{moment}", "-c", "3", "-f", "%o ")
        assert [int(one) for one in text.split()] == list(range(end))[first : first + 3]


@pytest.mark.parametrize("first_local", [0, 2, 4])
def test_committed_records_of_both_tiers(
    golden_store: Path,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    first_local: int,
) -> None:
    disk = DATA_DIR / "clean/disk2"
    whole = whole_view(disk, "transactions-0")
    committed = [row[0] for row in truth_of_view(whole.log, committed=True)]
    tiers = TwoTiers(tmp_path, "transactions-0", golden_store, first_local, "clean/disk2")
    for args in (tiers.args, [str(disk), "transactions:0"]):
        text = cat(capsysbinary, *args, "--read-committed", "-f", "%o ")
        assert [int(one) for one in text.split()] == committed
        last = cat(capsysbinary, *args, "--read-committed", "-o", "-20", "-f", "%o ")
        since = whole.last_stable_offset - 20
        assert [int(one) for one in last.split()] == [one for one in committed if one >= since]
    everything = cat(capsysbinary, *tiers.args, "-f", "%o ").split()
    assert len(everything) > len(committed)


def test_a_store_beside_what_is_no_log_directory(
    golden_store: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log_dir = str(DATA_DIR / "clean/disk1")
    for source, store, message in (
        (str(golden_store), golden_store.as_uri(), "is a store itself"),
        (log_dir, log_dir, "is no store"),
    ):
        assert main(["cat", source, "epochs:0", "--store", store]) == 2
        assert message in capsysbinary.readouterr().err.decode()


def test_what_neither_tier_has_is_an_error(
    store_copy: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    tiers = TwoTiers(tmp_path, "epochs-0", store_copy, 2)
    lost = sorted(store_copy.rglob("epochs-*/0/*.log"))[1:]
    for path in lost:
        path.unlink()
        path.with_suffix(".indexes").unlink()
    assert main(["cat", *tiers.args, "-f", "%o "]) == 1
    captured = capsysbinary.readouterr()
    missing = f"offsets {int(lost[0].stem[:20])} to {tiers.border - 1} are in no segment"
    assert missing in captured.err.decode()


def segments_of(store: Path, topic: str) -> list[Path]:
    """The `.log` objects of partition 0, by offset."""
    return sorted(store.glob(f"{topic}-{'?' * 22}/0/*.log"))


def base_of(log: Path) -> int:
    return int(log.name[:20])


def test_offsets_that_a_store_lacks_are_an_error_after_the_records_before_them(
    store_copy: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    _, lost, after, *_ = segments_of(store_copy, "epochs")
    lost.unlink()
    lost.with_suffix(".indexes").unlink()
    command = ["cat", str(store_copy), "epochs:0", "-f", "%o "]
    missing = f"epochs-0: offsets {base_of(lost)} to {base_of(after) - 1} are in no segment"
    assert main(command) == 1
    captured = capsysbinary.readouterr()
    assert [int(one) for one in captured.out.split()] == list(range(base_of(lost)))
    assert f"{missing} (" in captured.err.decode()
    assert "--on-gap skip" in captured.err.decode()

    whole = [row["offset"] for row in truth_of("clean", "epochs", 0)]
    assert main([*command, "--on-gap", "skip"]) == 1
    captured = capsysbinary.readouterr()
    found = [int(one) for one in captured.out.split()]
    assert found == [
        one for one in whole if one <= found[-1] and not base_of(lost) <= one < base_of(after)
    ]
    assert captured.err.decode().splitlines()[0].endswith(f"left out: {missing}")

    assert main([*command, "-o", f"{base_of(after)}:"]) == 0
    capsysbinary.readouterr()


@pytest.mark.parametrize("offset", ["-1", "-300", "end"])
def test_offsets_from_an_unknown_end_are_an_error(
    store_copy: Path, capsysbinary: pytest.CaptureFixture[bytes], offset: str
) -> None:
    *_, newest = segments_of(store_copy, "epochs")
    newest.with_suffix(".indexes").unlink()
    command = ["cat", str(store_copy), "epochs:0", "-f", "%o ", "-o", offset]
    assert main(command) == 1
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    message = f"epochs-0: the offsets from {base_of(newest)} on are in no segment"
    assert message in captured.err.decode()
    assert "tierlog index rebuild" in captured.err.decode()
    # Named, it reads what is before.
    assert main([*command, "--on-gap", "skip"]) == 1
    captured = capsysbinary.readouterr()
    found = [int(one) for one in captured.out.split()]
    assert found[-1:] in ([], [base_of(newest) - 1])
    assert message in captured.err.decode()


def test_a_read_to_an_unknown_end_is_an_error_after_the_records(
    store_copy: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    *_, newest = segments_of(store_copy, "epochs")
    newest.with_suffix(".indexes").unlink()
    command = ["cat", str(store_copy), "epochs:0", "-f", "%o "]
    assert main(command) == 1
    captured = capsysbinary.readouterr()
    assert [int(one) for one in captured.out.split()] == list(range(base_of(newest)))
    # A read that ends before is whole.
    for more in (["-o", f":{base_of(newest)}"], ["-c", "5"]):
        assert main([*command, *more]) == 0
    capsysbinary.readouterr()


def test_a_topic_that_looks_like_an_option_goes_after_two_dashes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_dir = str(DATA_DIR / "clean" / "disk1")
    assert main(["cat", log_dir, "-:0"]) == 2
    assert "goes after --: tierlog cat SOURCE -- -:0" in capsys.readouterr().err
    assert main(["cat", log_dir, "--", "-:0"]) == 1
    assert "no topic -, only" in capsys.readouterr().err

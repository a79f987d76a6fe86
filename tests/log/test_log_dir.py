"""A broker's log directories, with everything in them that is not a log."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import open_below
from tierlog.errors import ConfigError, OutOfRangeError
from tierlog.log.log_dir import PartitionLog, SkipReason, open_log_dir, parse_partition_directory
from tierlog.log.names import parse_segment_file
from tierlog.log.segment_files import DirectoryFiles, Findings

TOPIC_ID = "pVRw-_3fQ7mA1bqkRvT0EQ"
HEX = "0123456789abcdef0123456789abcdef"


def segment_name(base_offset: int, suffix: str = "log") -> str:
    return f"{base_offset:020d}.{suffix}"


def make_partition(root: Path, name: str = "orders-0", bases: tuple[int, ...] = (0, 100)) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    for base in bases:
        for suffix in ("log", "index", "timeindex"):
            (directory / segment_name(base, suffix)).write_bytes(b"x" * 10)
        (directory / segment_name(base, "snapshot")).write_bytes(b"s")
    (directory / "leader-epoch-checkpoint").write_bytes(b"0\n1\n0 0\n")
    (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    return directory


def make_meta(root: Path, node_id: int = 1, cluster_id: str = "c") -> None:
    root.mkdir(exist_ok=True)
    text = f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\n"
    (root / "meta.properties").write_text(text)


def write_offsets(root: Path, name: str, *lines: str) -> None:
    text = "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines))
    (root / name).write_text(text)


def only(root: Path) -> PartitionLog:
    (log,) = open_log_dir(root).partitions()
    return log


def reasons(log: PartitionLog) -> dict[str, SkipReason]:
    return {os.path.basename(skipped.path): skipped.reason for skipped in log.skipped}


def tree(root: Path) -> list[tuple[str, os.stat_result]]:
    paths = sorted([root, *root.rglob("*")])
    return [(str(path), path.lstat()) for path in paths]


def test_a_partition_and_its_segments(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=(0, 100, 250))
    (directory / segment_name(100, "txnindex")).touch()
    log = only(tmp_path)
    assert (log.topic, log.partition, log.name, log.topic_id) == ("orders", 0, "orders-0", TOPIC_ID)
    assert [(s.base_offset, s.next_base_offset) for s in log.segments] == [
        (0, 100),
        (100, 250),
        (250, None),
    ]
    second = log.segments[1]
    assert second.log_path == str(directory / segment_name(100))
    assert second.size_bytes == 10
    assert second.offset_index_path == str(directory / segment_name(100, "index"))
    assert second.time_index_path == str(directory / segment_name(100, "timeindex"))
    assert second.transaction_index_path == str(directory / segment_name(100, "txnindex"))
    assert second.start_snapshot_path == str(directory / segment_name(100, "snapshot"))
    assert second.end_snapshot_path == str(directory / segment_name(250, "snapshot"))
    assert log.segments[0].transaction_index_path is None
    assert log.active_segment is log.segments[2]
    assert log.segments[2].is_active
    assert log.rolled_segments == log.segments[:2]
    assert not log.skipped
    assert not log.problems


def test_offsets_come_from_the_checkpoints(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0", bases=(50,))
    make_partition(tmp_path, "orders-1", bases=(50,))
    write_offsets(tmp_path, "replication-offset-checkpoint", "orders 0 90")
    write_offsets(tmp_path, "recovery-point-offset-checkpoint", "orders 0 80")
    write_offsets(tmp_path, "log-start-offset-checkpoint", "orders 0 60")
    write_offsets(tmp_path, "cleaner-offset-checkpoint", "orders 1 70")
    first, second = open_log_dir(tmp_path).partitions()
    assert (first.high_watermark, first.recovery_point, first.log_start_offset) == (90, 80, 60)
    assert (second.high_watermark, second.recovery_point, second.log_start_offset) == (
        None,
        None,
        50,
    )
    assert (first.compacted, second.compacted) == (False, True)


def test_a_damaged_checkpoint_is_unknown_and_not_empty(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    names = ("replication", "log-start", "cleaner", "recovery-point")
    for name in names:
        (tmp_path / f"{name}-offset-checkpoint").write_bytes(b"0\n1\nord")
    (directory / "leader-epoch-checkpoint").write_bytes(b"\0" * 16)
    (directory / "partition.metadata").write_bytes(b"")
    listing = open_log_dir(tmp_path).listing()
    (log,) = listing.partitions
    assert (log.high_watermark, log.log_start_offset, log.recovery_point) == (None, None, None)
    assert (log.compacted, log.leader_epochs, log.topic_id) == (None, None, None)
    assert {os.path.basename(str(error.path)) for error in listing.problems} == {
        f"{name}-offset-checkpoint" for name in names
    }
    assert {os.path.basename(str(error.path)) for error in log.problems} == {
        "leader-epoch-checkpoint",
        "partition.metadata",
    }


def test_missing_files_of_a_partition_are_unknown(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    (directory / "leader-epoch-checkpoint").unlink()
    (directory / "partition.metadata").unlink()
    log = only(tmp_path)
    assert (log.leader_epochs, log.topic_id, log.problems) == (None, None, ())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("my-dashed-topic-12", ("my-dashed-topic", 12)),
        ("orders--1", ("orders-", 1)),
        ("a.b_c-delete-3", ("a.b_c-delete", 3)),
        ("__cluster_metadata-0", ("__cluster_metadata", 0)),
        ("orders-2147483647", ("orders", 2147483647)),
        ("orders-2147483648", None),
        ("orders-00", None),
        ("orders-", None),
        ("orders", None),
        ("-0", None),
        ("..-0", None),
        ("or ders-0", None),
        ("orders-0.tmp", None),
        ("orders-٣", None),
        (f"{'a' * 250}-0", None),
    ],
)
def test_directory_names(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_partition_directory(name) == expected


@given(st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_every_topic_name_is_found_again(topic: str, partition: int) -> None:
    expected = None if topic in (".", "..") else (topic, partition)
    assert parse_partition_directory(f"{topic}-{partition}") == expected


def test_what_is_no_partition_has_a_reason(tmp_path: Path) -> None:
    make_partition(tmp_path)
    make_meta(tmp_path)
    for name in (f"a-b-1.{HEX}-delete", f"orders-1.{HEX}-future", f"orders-2.{HEX}-stray", "junk"):
        (tmp_path / name).mkdir()
    (tmp_path / "remote-log-index-cache").mkdir()
    (tmp_path / ".lock").touch()
    (tmp_path / "orders-3").touch()
    (tmp_path / "orders-4").symlink_to(tmp_path / "orders-0")
    os.mkfifo(tmp_path / "orders-5")
    listing = open_log_dir(tmp_path).listing()
    assert [log.name for log in listing.partitions] == ["orders-0"]
    assert {os.path.basename(s.path): s.reason for s in listing.skipped} == {
        f"a-b-1.{HEX}-delete": SkipReason.PARTITION_DELETED,
        f"orders-1.{HEX}-future": SkipReason.PARTITION_FUTURE,
        f"orders-2.{HEX}-stray": SkipReason.PARTITION_STRAY,
        "junk": SkipReason.UNKNOWN_NAME,
        "orders-3": SkipReason.NOT_A_DIRECTORY,
        "orders-4": SkipReason.NOT_A_DIRECTORY,
        "orders-5": SkipReason.NOT_A_DIRECTORY,
    }
    assert "a symlink" in "".join(str(skipped) for skipped in listing.skipped)


def test_things_named_like_segments_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_partition(tmp_path, bases=(0, 500))
    os.mkfifo(directory / segment_name(100))
    (directory / segment_name(200)).symlink_to(directory / segment_name(0))
    (directory / segment_name(300)).mkdir()
    os.mkfifo(directory / segment_name(600, "index"))
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(directory)
        server.bind(segment_name(400))
        log = only(tmp_path)
    assert reasons(log) == {
        segment_name(100): SkipReason.NOT_A_FILE,
        segment_name(200): SkipReason.NOT_A_FILE,
        segment_name(300): SkipReason.NOT_A_FILE,
        segment_name(400): SkipReason.NOT_A_FILE,
        segment_name(600, "index"): SkipReason.NOT_A_FILE,
    }
    # The first segment does not stretch over what could not be read.
    assert [(s.base_offset, s.next_base_offset) for s in log.segments] == [(0, 100), (500, None)]


def test_an_unreadable_last_segment_leaves_the_one_before_active(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=(0, 100))
    os.mkfifo(directory / segment_name(200))
    assert only(tmp_path).segments[-1].next_base_offset is None


def test_stages_of_segment_files(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=(100,))
    for base, suffix in ((0, "log.deleted"), (0, "index.deleted"), (100, "log.cleaned")):
        (directory / segment_name(base, suffix)).touch()
    (directory / segment_name(100, "log.swap")).touch()
    log = only(tmp_path)
    assert sorted(skipped.reason for skipped in log.skipped) == sorted(
        [SkipReason.DELETED, SkipReason.DELETED, SkipReason.CLEANED, SkipReason.SWAP]
    )
    assert log.pending_swaps == (100,)
    assert [s.base_offset for s in log.segments] == [100]


def test_other_files_beside_segments(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=(100,))
    for name in (
        "leader-epoch-checkpoint.tmp",
        "quorum-state",
        "00000000000000000100-0000000001.checkpoint",
        segment_name(100, "remoteLogIndex"),
    ):
        (directory / name).touch()
    (directory / segment_name(7, "index")).touch()
    (directory / "notes.txt").touch()
    (directory / f"{2**63}.log").touch()
    (directory / f"{'9' * 200}.log").touch()
    (directory / os.fsdecode(b"\xff\n\x1b[31m.log")).touch()
    log = only(tmp_path)
    assert sorted(reasons(log).values()) == sorted(
        [
            SkipReason.ORPHAN_INDEX,
            SkipReason.UNKNOWN_NAME,
            SkipReason.UNKNOWN_NAME,
            SkipReason.BAD_OFFSET,
            SkipReason.BAD_OFFSET,
        ]
    )
    assert all(str(skipped).isprintable() for skipped in log.skipped)


@pytest.mark.parametrize("width", [1, 13, 20, 25])
def test_base_offsets_of_any_width(tmp_path: Path, width: int) -> None:
    directory = make_partition(tmp_path, bases=())
    (directory / f"{7:0{width}d}.log").write_bytes(b"abc")
    (segment,) = only(tmp_path).segments
    assert (segment.base_offset, segment.size_bytes) == (7, 3)


def test_twenty_digits_win_over_other_widths(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=())
    for width in (13, 20, 25):
        (directory / f"{7:0{width}d}.log").touch()
    log = only(tmp_path)
    assert [s.log_path for s in log.segments] == [str(directory / segment_name(7))]
    assert set(reasons(log).values()) == {SkipReason.DUPLICATE_BASE}


@pytest.mark.parametrize(
    "name", ["٣.log", "1.LOG", "-1.log", "1.log.tmp", "1_0.log", ".log", "1.log\n"]
)
def test_names_that_are_no_segments(name: str) -> None:
    assert parse_segment_file(name) is None


def test_a_segment_that_vanishes_after_its_name_was_read(tmp_path: Path) -> None:
    directory = make_partition(tmp_path, bases=(0, 100, 200))
    findings = Findings()
    with os.scandir(directory) as entries:
        names = list(entries)
    for base in (0, 100):
        (directory / segment_name(base)).rename(directory / segment_name(base, "log.deleted"))
    segments = DirectoryFiles.of(names, str(directory), findings).segments(findings)
    assert [s.base_offset for s in segments] == [200]
    vanished = [s.path for s in findings.skipped if s.reason is SkipReason.VANISHED]
    assert vanished == [str(directory / segment_name(base)) for base in (0, 100)]


def test_listing_while_the_broker_goes_on(tmp_path: Path) -> None:
    """Segments and a partition come and go; a listing tells of them or why not, and never fails."""
    directory = make_partition(tmp_path, "orders-0", bases=(0, 100))
    moving = make_partition(tmp_path, "moving-0")
    first, away = directory / segment_name(0), tmp_path / f"moving-0.{HEX}-delete"
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            moving.rename(away)
            first.rename(directory / segment_name(0, "log.deleted"))
            away.rename(moving)
            (directory / segment_name(0, "log.deleted")).rename(first)

    opened = open_log_dir(tmp_path)
    broker = threading.Thread(target=go_on)
    broker.start()
    try:
        listings = [opened.listing() for _ in range(300)]
    finally:
        stop.set()
        broker.join()
    for listing in listings:
        logs = {log.name: log for log in listing.partitions}
        assert listing.problems == ()
        assert [s.base_offset for s in logs["orders-0"].segments][-1:] == [100]
        assert {s.reason for s in listing.skipped} <= {
            SkipReason.PARTITION_DELETED,
            SkipReason.VANISHED,
        }


def test_cluster_metadata_is_known_for_what_it_is(tmp_path: Path) -> None:
    make_partition(tmp_path, "__cluster_metadata-0")
    make_partition(tmp_path, "orders-0")
    flags = {log.topic: log.is_cluster_metadata for log in open_log_dir(tmp_path).partitions()}
    assert flags == {"__cluster_metadata": True, "orders": False}


def test_several_log_directories(tmp_path: Path) -> None:
    for disk in ("disk1", "disk2"):
        make_meta(tmp_path / disk)
    make_partition(tmp_path / "disk1", "orders-1")
    make_partition(tmp_path / "disk2", "orders-0")
    write_offsets(tmp_path / "disk2", "replication-offset-checkpoint", "orders 0 90", "orders 1 10")
    disks = open_log_dir(tmp_path / "disk1", tmp_path / "disk2", tmp_path / "disk1")
    assert (disks.cluster_id, disks.node_id, len(disks.paths)) == ("c", 1, 2)
    assert [(log.name, log.high_watermark) for log in disks.partitions()] == [
        ("orders-0", 90),
        ("orders-1", None),
    ]
    assert not disks.clean_shutdown
    (tmp_path / "disk1" / ".kafka_cleanshutdown").touch()
    assert not disks.clean_shutdown
    (tmp_path / "disk2" / ".kafka_cleanshutdown").touch()
    assert disks.clean_shutdown


def test_a_partition_on_two_disks_is_left_out(tmp_path: Path) -> None:
    make_partition(tmp_path / "disk1", "orders-0")
    make_partition(tmp_path / "disk2", "orders-0")
    disks = open_log_dir(tmp_path / "disk1", tmp_path / "disk2")
    listing = disks.listing()
    assert listing.partitions == ()
    assert [s.reason for s in listing.skipped] == [SkipReason.DUPLICATE_PARTITION] * 2
    with pytest.raises(OutOfRangeError, match="several directories of partition orders-0"):
        disks.partition("orders", 0)


def test_directories_of_two_brokers_are_refused(tmp_path: Path) -> None:
    make_meta(tmp_path / "disk1", node_id=1)
    make_meta(tmp_path / "disk2", node_id=2)
    make_meta(tmp_path / "disk3", node_id=1, cluster_id="other")
    with pytest.raises(ConfigError, match=r"expected one node\.id, found 1 and 2"):
        open_log_dir(tmp_path / "disk1", tmp_path / "disk2")
    with pytest.raises(ConfigError, match=r"expected one cluster\.id, found c and other"):
        open_log_dir(tmp_path / "disk1", tmp_path / "disk3")


def test_one_partition_by_name(tmp_path: Path) -> None:
    make_partition(tmp_path, "orders-0")
    make_partition(tmp_path, "orders--1")
    (tmp_path / "link-0").symlink_to(tmp_path / "orders-0")
    opened = open_log_dir(tmp_path)
    assert opened.partition("orders", 0) == opened.partitions()[0]
    assert opened.partition("orders-", 1) == opened.partitions()[1]
    for topic, partition in (("orders", 1), ("orders", -1), ("../orders", 0), ("link", 0)):
        with pytest.raises(OutOfRangeError, match="no partition"):
            opened.partition(topic, partition)


def test_what_cannot_be_a_log_directory(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    with pytest.raises(ConfigError, match="give the directory above it"):
        open_log_dir(directory)
    # Where the log directories lie, or nothing yet, is not one with all well.
    (tmp_path / "above" / "disk1").mkdir(parents=True)
    (tmp_path / "above" / "disk1" / "meta.properties").touch()
    for folder in ("above", "above/disk1/new"):
        (tmp_path / folder).mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"found neither a partition nor meta\.properties"):
            open_log_dir(tmp_path / folder)
    assert open_log_dir(tmp_path / "above" / "disk1").partitions() == ()
    with pytest.raises(NotADirectoryError):
        open_log_dir(directory / segment_name(0))
    with pytest.raises(FileNotFoundError):
        open_log_dir(tmp_path / "nowhere")


def test_the_named_directory_may_be_a_symlink(tmp_path: Path) -> None:
    make_partition(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    assert [log.name for log in open_log_dir(tmp_path / "link").partitions()] == ["orders-0"]


def test_directories_that_everybody_may_write_to(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    directory = make_partition(root)
    directory.chmod(0o777)
    (skipped,) = open_log_dir(root).listing().skipped
    assert skipped.reason is SkipReason.WORLD_WRITABLE
    root.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod o-w"):
        open_log_dir(root)
    assert len(open_log_dir(root, allow_world_writable=True).partitions()) == 1


def test_a_disk_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    make_partition(tmp_path / "disk1", "orders-0")
    make_partition(tmp_path / "disk2", "orders-1")
    disks = open_log_dir(tmp_path / "disk1", tmp_path / "disk2")
    (tmp_path / "disk1").rename(tmp_path / "lost")
    listing = disks.listing()
    assert [log.name for log in listing.partitions] == ["orders-1"]
    assert [skipped.reason for skipped in listing.skipped] == [SkipReason.VANISHED]


def test_segment_for(tmp_path: Path) -> None:
    make_partition(tmp_path, bases=(50, 100))
    log = only(tmp_path)
    assert [log.segment_for(offset).base_offset for offset in (50, 99, 100, 10**9)] == [
        50,
        50,
        100,
        100,
    ]
    with pytest.raises(OutOfRangeError, match="below the first offset held, 50"):
        log.segment_for(49)


def test_looking_leaves_no_trace(tmp_path: Path) -> None:
    directory = make_partition(tmp_path)
    make_meta(tmp_path)
    (tmp_path / ".lock").touch()
    (directory / segment_name(0)).chmod(0o444)
    before = [(p, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino) for p, s in tree(tmp_path)]
    log = only(tmp_path)
    with log.segments[0].open() as handle:
        assert handle.read_at(0, 100) == b"x" * 10
    after = [(p, s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino) for p, s in tree(tmp_path)]
    assert before == after
    assert open_below(tmp_path) == 0

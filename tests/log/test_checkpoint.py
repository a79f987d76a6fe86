"""The text files of a log directory: what Kafka writes is read, everything else is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.errors import CorruptDataError
from tierlog.log import checkpoint
from tierlog.log.checkpoint import (
    EpochEntry,
    LeaderEpochs,
    MetaProperties,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offset_checkpoint,
    parse_partition_metadata,
)

TOPIC_ID = "pVRw-_3fQ7mA1bqkRvT0EQ"
MAX_INT64 = 2**63 - 1


@st.composite
def lineages(draw: st.DrawFn, max_size: int = 8) -> LeaderEpochs:
    """Lineages with small and with the largest numbers."""
    count = draw(st.integers(0, max_size))
    numbers = st.integers(0, 60) | st.integers(2**31 - 40, 2**31 - 1)
    epochs = draw(st.lists(numbers, min_size=count, max_size=count, unique=True))
    offsets = draw(st.lists(numbers, min_size=count, max_size=count, unique=True))
    pairs = zip(sorted(epochs), sorted(offsets), strict=True)
    return LeaderEpochs(tuple(EpochEntry(*pair) for pair in pairs))


def test_leader_epochs_as_kafka_writes_them() -> None:
    lineage = parse_leader_epochs(b"0\n2\n0 0\n3 1500\n")
    assert lineage.entries == ((0, 0), (3, 1500))
    assert [lineage.epoch_for(offset) for offset in (0, 1499, 1500, 10**12)] == [0, 0, 3, 3]
    assert lineage.end_offset(0, 2000) == 1500
    assert lineage.end_offset(3, 2000) == 2000
    assert lineage.end_offset(1, 2000) is None


def test_an_empty_file_holds_no_entries() -> None:
    assert parse_leader_epochs(b"") == LeaderEpochs()
    assert parse_offset_checkpoint(b"") == {}


def test_an_offset_before_the_first_epoch_is_unknown() -> None:
    lineage = LeaderEpochs((EpochEntry(2, 290),))
    assert lineage.epoch_for(289) is None
    assert lineage.clipped(268, 370).entries == ((2, 290),)


def test_parts_of_a_lineage() -> None:
    lineage = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 100), EpochEntry(5, 200)))
    assert lineage.up_to(200).encode() == b"0\n2\n0 0\n2 100\n"
    assert lineage.up_to(201).encode() == b"0\n3\n0 0\n2 100\n5 200\n"
    assert lineage.clipped(150, 260).entries == ((2, 150), (5, 200))
    assert lineage.clipped(100, 200).entries == ((2, 100),)
    assert lineage.clipped(300, 300).entries == ()


@given(lineages())
def test_text_form_reads_back(lineage: LeaderEpochs) -> None:
    assert parse_leader_epochs(lineage.encode()) == lineage


@given(lineages(), st.integers(0, 80), st.integers(1, 40))
def test_a_clipped_lineage_answers_like_the_whole(
    lineage: LeaderEpochs, base: int, length: int
) -> None:
    part = lineage.clipped(base, base + length)
    whole = lineage.up_to(base + length)
    assert all(entry.start_offset >= base for entry in part)
    for offset in range(base, base + length):
        assert part.epoch_for(offset) == lineage.epoch_for(offset) == whole.epoch_for(offset)


@pytest.mark.parametrize(
    "entries", [((1, 0), (1, 5)), ((1, 5), (2, 5)), ((2, 0), (1, 5)), ((-1, 0),)]
)
def test_a_lineage_that_does_not_ascend_cannot_be_made(
    entries: tuple[tuple[int, int], ...],
) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries))


def test_offset_checkpoint() -> None:
    data = f"0\n3\norders 0 42\na.b_c-d 12 0\norders 1 {MAX_INT64}\n".encode()
    assert parse_offset_checkpoint(data) == {
        ("orders", 0): 42,
        ("a.b_c-d", 12): 0,
        ("orders", 1): MAX_INT64,
    }


def test_lines_ended_as_windows_ends_them() -> None:
    assert parse_offset_checkpoint(b"0\r\n1\r\norders 0 42\r\n") == {("orders", 0): 42}


EPOCHS_REFUSED = [
    (b"1\n0\n", "bad_version", 0, "line 1"),
    (b"\n", "bad_version", 0, "line 1"),
    (b"\0\0\0\0", "truncated", 0, "line 1"),
    (b"0", "truncated", 0, "line 1"),
    (b"0\n", "truncated", 2, "line 2"),
    (b"0\n-1\n", "bad_line", 2, "line 2"),
    (b"0\n99999999999\n", "bad_line", 2, "line 2"),
    (b"0\n2\n0 0\n", "bad_count", 8, "line 4"),
    (b"0\n1\n0 0\n1 5\n", "bad_count", 8, "line 4"),
    (b"0\n1\n0 0\n\n", "bad_count", 8, "line 4"),
    (b"0\n1\n0 0", "truncated", 4, "line 3"),
    (b"0\n1\n0  0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n0\t0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n0 0 0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n+1 0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n1_0 0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n00 0\n", "bad_line", 4, "line 3"),
    ("0\n1\n٣ 0\n".encode(), "bad_line", 4, "line 3"),
    (b"0\n1\n\xff 0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n2147483648 0\n", "bad_line", 4, "line 3"),
    (b"0\n1\n0 9223372036854775808\n", "bad_line", 4, "line 3"),
    (b"0\n1\n0 -1\n", "bad_line", 4, "line 3"),
    (b"0\n2\n1 0\n1 5\n", "offset_order", 8, "line 4"),
    (b"0\n2\n1 5\n2 5\n", "offset_order", 8, "line 4"),
    (b"0\n2\n1 5\n2 4\n", "offset_order", 8, "line 4"),
    (b"0\n1\n" + b"1" * 2000 + b" 0\n", "too_large", 4, "line 3"),
]


@pytest.mark.parametrize(("data", "reason", "position", "line"), EPOCHS_REFUSED)
def test_damaged_leader_epochs_are_located(
    data: bytes, reason: str, position: int, line: str
) -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_leader_epochs(data, "a/leader-epoch-checkpoint")
    error = caught.value
    assert (error.reason, error.position) == (reason, position)
    assert error.path == "a/leader-epoch-checkpoint"
    assert error.expected.startswith(line + ": ")
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    "line",
    [
        "orders 0",
        "orders 0 1 2",
        "orders -1 5",
        "orders 0 -1",
        "orders 2147483648 5",
        ".. 0 5",
        "../orders 0 5",
        "or/ders 0 5",
        " 0 5",
        "a" * 250 + " 0 5",
    ],
)
def test_damaged_offset_checkpoints_are_refused(line: str) -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_offset_checkpoint(f"0\n1\n{line}\n".encode())
    assert (caught.value.reason, caught.value.position) == ("bad_line", 4)


def test_a_partition_named_twice_is_refused() -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_offset_checkpoint(b"0\n2\norders 0 1\norders 0 2\n")
    assert (caught.value.reason, caught.value.position) == ("duplicate", 15)


@given(st.binary(max_size=80) | st.text("0123456789 \n-ab", max_size=40).map(str.encode))
def test_parsers_answer_or_refuse_whatever_comes(data: bytes) -> None:
    parsers: list[Callable[[bytes], object]] = [
        parse_leader_epochs,
        parse_offset_checkpoint,
        parse_partition_metadata,
        parse_meta_properties,
    ]
    for parser in parsers:
        try:
            parser(data)
        except CorruptDataError as error:
            position = error.position
        else:
            position = 0
        assert 0 <= position <= len(data)


@given(lineages(), st.data())
def test_a_lineage_cut_anywhere_is_refused(lineage: LeaderEpochs, data: st.DataObject) -> None:
    text = lineage.encode()
    cut = data.draw(st.integers(1, len(text) - 1))
    with pytest.raises(CorruptDataError):
        parse_leader_epochs(text[:cut])


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_partition_metadata(end: bytes) -> None:
    data = f"version: 0\ntopic_id: {TOPIC_ID}".encode() + end
    assert parse_partition_metadata(data) == TOPIC_ID
    assert parse_partition_metadata(data.replace(b": 0", b": 7")) == TOPIC_ID


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"", 0),
        (b"version: -1\ntopic_id: pVRw-_3fQ7mA1bqkRvT0EQ", 0),
        (b"topic_id: pVRw-_3fQ7mA1bqkRvT0EQ", 0),
        (b"version: 0", 11),
        (b"version: 0\ntopic_id: ", 11),
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", 11),
        (b"version: 0\ntopic_id: pVRw-_3fQ7mA1bqkRvT0E", 11),
        (b"version: 0\ntopic_id: pVRw-_3fQ7mA1bqkRvT0ER", 11),
        (b"version: 0\ntopic_id: ../../../../../../etc12", 11),
        (b"version: 0\ntopic_id: pVRw-_3fQ7mA1bqkRvT0EQ\nmore", 44),
    ],
)
def test_damaged_partition_metadata_is_located(data: bytes, position: int) -> None:
    with pytest.raises(CorruptDataError) as caught:
        parse_partition_metadata(data, "partition.metadata")
    assert caught.value.position == position


def test_meta_properties_of_both_versions() -> None:
    new = b"#\n#Mon\nnode.id=3\nversion=1\ndirectory.id=pVRw-_3fQ7mA1bqkRvT0EQ\ncluster.id=c-1\n"
    assert parse_meta_properties(new) == MetaProperties(
        version=1, cluster_id="c-1", node_id=3, directory_id=TOPIC_ID
    )
    assert parse_meta_properties(b"version=0\nbroker.id=7\n") == MetaProperties(
        version=0, cluster_id=None, node_id=7, directory_id=None
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version=2\nnode.id=1\ncluster.id=c\n",
        b"version=1\ncluster.id=c\n",
        b"version=1\nnode.id=-1\ncluster.id=c\n",
        b"version=1\nnode.id=1\n",
        b"version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short\n",
        b"version=1\\u00zz",
        b"#" * 70_000,
    ],
)
def test_damaged_meta_properties_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        parse_meta_properties(data)


def test_reading_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / checkpoint.LEADER_EPOCHS
    path.write_bytes(b"0\n1\n0 x\n")
    with pytest.raises(CorruptDataError) as caught:
        checkpoint.read_leader_epochs(path)
    assert str(path) in str(caught.value)


def test_a_checkpoint_that_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name, text in (("fifo", "a FIFO"), ("link", "a symlink"), ("", "a directory")):
        with pytest.raises(OSError, match=text):
            checkpoint.read_offset_checkpoint(tmp_path / name)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    path.touch()
    os.truncate(path, 10 << 30)
    with pytest.raises(CorruptDataError, match="at most"):
        checkpoint.read_partition_metadata(path)

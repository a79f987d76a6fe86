"""A store of golden logs is sound; each kind of damage to a copy is found where it was done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.golden import golden_segments
from tests.tools.golden_copy import overwrite
from tierlog._core import crc32c
from tierlog.cli import main
from tierlog.errors import RemoteResourceNotFoundError
from tierlog.log.segment import scan_segment
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.indexes import IndexesHeader, IndexKind, encode_indexes
from tierlog.remote.segment.layout import log_key
from tierlog.remote.segment.log_index import decode_remote_log_index, encode_remote_log_index
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import open_store
from tierlog.tools.audit.stored_log import read_stored_log
from tierlog.tools.findings import Finding, Report, Severity
from tierlog.tools.verify.source import verify_store

HOUR_MS = 3_600_000
FIRST = golden_segments(topic="epochs")[0]


def check(store: Path, *, deep: bool = False, age_ms: int = HOUR_MS) -> Report:
    files = (path for path in store.rglob("*") if path.is_file())
    newest_ms = max(path.stat().st_mtime_ns for path in files) // 1_000_000
    return verify_store(store.as_uri(), deep=deep, now_ms=newest_ms + age_ms)


def problems(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity is Severity.PROBLEM]


def only_problem(report: Report) -> Finding:
    (finding,) = problems(report)
    return finding


def object_of(store: Path, suffix: str, topic: str = "epochs", base_offset: int = 0) -> Path:
    topic_id = "?" * 22
    (path,) = store.glob(f"{topic}-{topic_id}/0/{base_offset:020d}-*{suffix}")
    return path


def key_of(store: Path, path: Path) -> str:
    return path.relative_to(store).as_posix()


@pytest.mark.parametrize("deep", [False, True])
def test_what_was_tiered_is_sound(golden_store: Path, deep: bool) -> None:
    report = check(golden_store, deep=deep)
    assert report.sound
    # The active segments, which are not tiered, hold the ends of these transactions.
    assert {(one.what, one.severity) for one in report.findings} == {("txn_open", Severity.NOTE)}
    logs = list(golden_store.rglob("*.log"))
    assert report.summary.segments == len(logs)
    assert report.summary.size_bytes == sum(path.stat().st_size for path in logs)
    golden = {segment.sha256: segment for segment in golden_segments(data_set="clean")}
    tiered = [s for s in golden.values() if any(p.stat().st_size == s.size_bytes for p in logs)]
    assert report.summary.records <= sum(segment.record_count for segment in tiered)
    assert report.summary.deep is deep


def test_a_flipped_bit_in_a_log_shows_only_when_read(store_copy: Path) -> None:
    path = object_of(store_copy, ".log")
    overwrite(path, 2_200, b"\xff\xff\xff")
    assert check(store_copy).sound
    finding = only_problem(check(store_copy, deep=True))
    assert (finding.path, finding.what) == (key_of(store_copy, path), "bad_crc")
    assert finding.position is not None
    assert finding.position <= 2_200
    assert "tierlog tier --repair" in finding.action


def test_a_header_field_outside_of_the_batch_checksum(store_copy: Path) -> None:
    """The leader epoch of a batch: only the checksum of the whole object covers it."""
    path = object_of(store_copy, ".log")
    overwrite(path, 12, b"\0\0\0\7")
    finding = only_problem(check(store_copy, deep=True))
    assert (finding.path, finding.what) == (key_of(store_copy, path), "wrong_checksum")


@pytest.mark.parametrize("cut", [1, 30_000])
def test_a_log_of_another_size(store_copy: Path, cut: int) -> None:
    path = object_of(store_copy, ".log")
    os.truncate(path, max(path.stat().st_size - cut, 0))
    found = problems(check(store_copy))
    assert (found[0].path, found[0].what) == (key_of(store_copy, path), "wrong_size")
    assert f"expected {FIRST.size_bytes} bytes" in f"expected {found[0].expected}"


def test_a_log_without_indexes_is_left_behind_unless_it_is_young(store_copy: Path) -> None:
    object_of(store_copy, ".indexes").unlink()
    path = object_of(store_copy, ".log")
    finding = only_problem(check(store_copy))
    assert (finding.path, finding.what) == (key_of(store_copy, path), "log_without_indexes")
    report = check(store_copy, age_ms=0)
    assert report.sound
    (young,) = [one for one in report.findings if one.what == "log_without_indexes"]
    assert young.severity is Severity.NOTE


def test_indexes_without_a_log(store_copy: Path) -> None:
    object_of(store_copy, ".log").unlink()
    finding = only_problem(check(store_copy))
    assert finding.what == "indexes_without_log"
    assert finding.path == key_of(store_copy, object_of(store_copy, ".indexes"))


def test_a_missing_segment_in_the_middle(store_copy: Path) -> None:
    second = golden_segments(topic="epochs")[1]
    for suffix in (".log", ".indexes"):
        object_of(store_copy, suffix, base_offset=second.base_offset).unlink()
    finding = only_problem(check(store_copy))
    assert finding.what == "missing_offsets"
    assert finding.expected.startswith(f"a segment from offset {second.base_offset} on")
    assert finding.found.startswith(f"{second.next_base_offset - second.base_offset} offsets")


@pytest.mark.parametrize("kind", list(IndexKind))
def test_a_flipped_bit_in_every_section(store_copy: Path, kind: IndexKind) -> None:
    path = object_of(store_copy, ".indexes", topic="transactions")
    section = IndexesHeader.parse(path.read_bytes(), path="x").section(kind)
    position = section.position + section.size_bytes // 2
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 4]))
    found = problems(check(store_copy))
    assert found[0].path == key_of(store_copy, path)
    # A damaged description is found while listing, before anybody looks at sections.
    listed = kind is IndexKind.METADATA
    assert found[0].what == ("corrupt_indexes" if listed else "bad_crc")
    assert "(bad_crc)" in found[0].found or found[0].position == section.position


def rewrite(path: Path, kind: IndexKind, data: bytes) -> None:
    """Put another section into an `.indexes` object, all its checksums right."""
    whole = path.read_bytes()
    header = IndexesHeader.parse(whole, path="x")
    sections = {one: bytes(header.read_section(one, whole)) for one in IndexKind}
    description = header.description(sections.pop(IndexKind.METADATA))
    path.write_bytes(encode_indexes(description, {**sections, kind: data}))


def section_of(path: Path, kind: IndexKind) -> bytes:
    whole = path.read_bytes()
    return bytes(IndexesHeader.parse(whole, path="x").read_section(kind, whole))


def other_key(rows: list[dict[str, Any]]) -> None:
    rows[0]["rdi"] = rows[0]["rdi"].replace(b"/00000000000000000000-", b"/00000000000000000001-")


def other_position(rows: list[dict[str, Any]]) -> None:
    rows[0]["rdi"] = rows[0]["rdi"].replace(b".log:0", b".log:7")


def too_short(rows: list[dict[str, Any]]) -> None:
    rows[-1]["data_length"] -= 1


def too_far(rows: list[dict[str, Any]]) -> None:
    rows[-1]["last_offset"] += 1


@pytest.mark.parametrize("change", [other_key, other_position, too_short, too_far])
def test_a_remote_log_index_that_leads_elsewhere(
    store_copy: Path, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    path = object_of(store_copy, ".indexes")
    entries = decode_remote_log_index(section_of(path, IndexKind.REMOTE_LOG))
    names = ("first_offset", "last_offset", "first_timestamp_ms", "last_timestamp_ms")
    rows: list[dict[str, Any]] = [
        {
            **{name: int(getattr(entries, name)[row]) for name in (*names, "data_length")},
            "rdi": entries.rdi[row],
        }
        for row in range(len(entries))
    ]
    change(rows)
    columns = [[row[name] for row in rows] for name in (*names, "data_length", "rdi")]
    rewrite(path, IndexKind.REMOTE_LOG, encode_remote_log_index(*columns))
    finding = only_problem(check(store_copy))
    assert (finding.path, finding.what) == (key_of(store_copy, path), "remote_log_index")


def test_leader_epochs_that_are_not_those_of_the_metadata(store_copy: Path) -> None:
    path = object_of(store_copy, ".indexes")
    rewrite(path, IndexKind.LEADER_EPOCH, b"0\n2\n0 0\n1 5\n")
    finding = only_problem(check(store_copy))
    assert (finding.path, finding.what) == (key_of(store_copy, path), "leader_epochs")
    assert finding.found == "0 from 0, 1 from 5"


@pytest.mark.parametrize(
    ("kind", "data", "name"),
    [
        (IndexKind.OFFSET, b"\0\0\0\1\0\0\0\1", "offset index"),
        (IndexKind.TIME, b"\0\0\0\0\0\0\0\1\0\0\1\0", "time index"),
        (IndexKind.TRANSACTION, bytes(34), "transaction index"),
        (IndexKind.BATCH_CHECKSUM, b"\0\0\0\1", "batch checksums"),
    ],
)
def test_indexes_are_compared_with_the_log_in_depth(
    store_copy: Path, kind: IndexKind, data: bytes, name: str
) -> None:
    path = object_of(store_copy, ".indexes")
    rewrite(path, kind, data)
    assert check(store_copy).sound
    finding = only_problem(check(store_copy, deep=True))
    assert finding.path == key_of(store_copy, path)
    assert finding.expected.endswith(f" in the {name}")


@pytest.mark.parametrize("window_bytes", [1, 5_000, 1 << 30])
def test_a_log_read_in_windows_is_the_log(golden_store: Path, window_bytes: int) -> None:
    store = open_store(golden_store.as_uri())
    storage = ObjectStorageManager(store)
    for metadata in list_segments(store):
        data = (golden_store / log_key(metadata)).read_bytes()
        table, log = (
            scan_segment(data),
            read_stored_log(storage, metadata, window_bytes=window_bytes),
        )
        assert log.crc32c == crc32c(data) == metadata.log_crc32c
        for name in ("base_offset", "last_offset", "position", "record_count", "is_control"):
            assert getattr(log, name).tolist() == getattr(table, name).tolist(), name


def test_a_damaged_header(store_copy: Path) -> None:
    path = object_of(store_copy, ".indexes")
    overwrite(path, 0, b"NOT")
    found = problems(check(store_copy))
    assert (found[0].path, found[0].what) == (key_of(store_copy, path), "corrupt_indexes")
    assert "tierlog tier --repair" in found[0].action


def test_the_cluster_marker(store_copy: Path) -> None:
    marker = store_copy / "cluster.json"
    content = json.loads(marker.read_text())
    marker.write_text(json.dumps({**content, "cluster_id": "another"}))
    assert {finding.what for finding in problems(check(store_copy))} == {"wrong_cluster"}
    marker.write_text("{")
    assert only_problem(check(store_copy)).what == "bad_cluster_marker"
    marker.unlink()
    finding = only_problem(check(store_copy))
    assert (finding.path, finding.what) == ("cluster.json", "missing")


def test_what_is_not_ours_is_noted(store_copy: Path) -> None:
    (store_copy / "README").write_text("hello")
    folder = object_of(store_copy, ".log").parent
    (folder / ".tierlog-0123456789abcdef.tmp").write_bytes(b"half")
    report = check(store_copy)
    assert report.sound
    found = {finding.what for finding in report.findings}
    assert found == {"foreign_object", "temporary", "txn_open"}


def test_a_renamed_object(store_copy: Path) -> None:
    for suffix in (".log", ".indexes"):
        path = object_of(store_copy, suffix)
        path.rename(path.with_name(path.name.replace("0-", "1-", 1)))
    found = {finding.what for finding in problems(check(store_copy))}
    assert "wrong_key" in found


def test_nothing_there_is_an_error_and_not_a_clean_report(tmp_path: Path) -> None:
    with pytest.raises(RemoteResourceNotFoundError):
        verify_store(tmp_path.as_uri(), now_ms=0)
    with pytest.raises(RemoteResourceNotFoundError):
        verify_store((tmp_path / "missing").as_uri(), now_ms=0)
    (tmp_path / "holiday.jpg").write_bytes(b"not a store")
    with pytest.raises(RemoteResourceNotFoundError, match=r"cluster\.json"):
        verify_store(tmp_path.as_uri(), now_ms=0)


def test_the_command(store_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (store_copy.as_uri(), str(store_copy)):
        assert main(["verify", source, "--deep"]) == 0
        assert ": no problems, 2 notes" in capsys.readouterr().out
    overwrite(object_of(store_copy, ".log"), 2_200, b"\xff\xff\xff")
    assert main(["verify", str(store_copy), "--deep"]) == 1
    assert capsys.readouterr().out.startswith("PROBLEM  epochs-")

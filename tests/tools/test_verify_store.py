"""A store of golden logs is sound; each kind of damage to a copy is found where it was done."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.kafka_tools.golden import golden_segments
from tests.tools.golden_copy import overwrite
from tierlog.cli import main
from tierlog.errors import RemoteResourceNotFoundError
from tierlog.remote.indexes import IndexesHeader, IndexKind
from tierlog.tools.findings import Finding, Report, Severity
from tierlog.tools.verify_store import verify_store

HOUR_MS = 3_600_000
FIRST = golden_segments(topic="epochs")[0]


def check(store: Path, *, deep: bool = False, age_ms: int = HOUR_MS) -> Report:
    newest_ms = max(path.stat().st_mtime_ns for path in store.rglob("*")) // 1_000_000
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
    assert report.findings == ()
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
    assert "copy the segment again" in finding.action


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
    (finding,) = check(store_copy).findings
    assert (finding.path, finding.what) == (key_of(store_copy, path), "log_without_indexes")
    assert finding.severity is Severity.PROBLEM
    (young,) = check(store_copy, age_ms=0).findings
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


def test_a_damaged_header(store_copy: Path) -> None:
    path = object_of(store_copy, ".indexes")
    overwrite(path, 0, b"NOT")
    found = problems(check(store_copy))
    assert (found[0].path, found[0].what) == (key_of(store_copy, path), "corrupt_indexes")
    assert "rebuild the .indexes object" in found[0].action


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
    assert sorted(finding.what for finding in report.findings) == ["foreign_object", "temporary"]


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


def test_the_command(store_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for source in (store_copy.as_uri(), str(store_copy)):
        assert main(["verify", source, "--deep"]) == 0
        assert capsys.readouterr().out.endswith(": no problems\n")
    overwrite(object_of(store_copy, ".log"), 2_200, b"\xff\xff\xff")
    assert main(["verify", str(store_copy), "--deep"]) == 1
    assert capsys.readouterr().out.startswith("PROBLEM  epochs-")

"""The report of a rebuild as Arrow and Parquet: nothing lost, and the same bytes every time."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.tools.findings import Finding
from tierlog.tools.rebuild.index import RebuildReport, rebuild_index
from tierlog.tools.rebuild.segment import SegmentRow
from tierlog.tools.rebuild.table import (
    FINDINGS,
    SEGMENTS,
    finding_table,
    report_outcomes,
    segment_table,
    write_report,
)


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A log directory with a bad segment, and with a file that belongs to no log."""
    source = copy_log_dir(tmp_path, "clean/disk1", "headers-0", "epochs-0")
    overwrite(source / "headers-0" / f"{76:020d}.log", 40, b"\xff\xff")
    (source / "headers-0" / "notes.txt").write_text("somebody's")
    return source


@pytest.fixture
def report(damaged: Path, tmp_path: Path) -> RebuildReport:
    return rebuild_index(str(damaged), target=str(tmp_path / "to"), now_ms=0)


def test_the_columns_are_the_fields() -> None:
    assert SEGMENTS.names == [one.name for one in fields(SegmentRow)]
    assert FINDINGS.names == [one.name for one in fields(Finding)]


def test_every_field_of_every_row_is_in_the_table(report: RebuildReport) -> None:
    outcomes = list(report_outcomes(report))
    assert any(one.findings for one in outcomes)
    assert [one.row for one in outcomes] == list(report.segments)
    for one in outcomes:
        assert tuple(found.what for found in one.findings) == one.row.findings
    for outcome, row in zip(outcomes, segment_table(outcomes).to_pylist(), strict=True):
        told = {name: row.pop(name) for name in ("findings", "codecs", "bytes_per_epoch")}
        expected = {name: getattr(outcome.row, name) for name in row}
        assert row == expected
        assert told["codecs"] == list(outcome.row.codecs)
        epochs = [(one["leader_epoch"], one["size_bytes"]) for one in told["bytes_per_epoch"]]
        assert epochs == list(outcome.row.bytes_per_epoch)
        assert told["findings"] == [asdict(found) for found in outcome.findings]
    assert segment_table([]).num_rows == 0


def test_findings_about_no_segment_are_no_segments(report: RebuildReport) -> None:
    of_segments = [found for one in report_outcomes(report) for found in one.findings]
    assert len(of_segments) < len(report.findings)
    assert tuple(of_segments) == report.findings[-len(of_segments) :]
    assert finding_table(report.findings).num_rows == len(report.findings)


def test_the_command_writes_it(
    damaged: Path, report: RebuildReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command = ["index", "rebuild", str(damaged), "--to", str(tmp_path / "again"), "--report"]
    assert main([*command, str(first)]) == 1
    assert "bad_crc" in capsys.readouterr().out
    segments = pq.read_table(first / "segments.parquet")
    assert segments.schema.equals(SEGMENTS)
    assert segments.equals(segment_table(report_outcomes(report)))
    assert pq.read_table(first / "findings.parquet").equals(finding_table(report.findings))
    write_report(
        str(second), segment_table(report_outcomes(report)), finding_table(report.findings)
    )
    for name in ("segments.parquet", "findings.parquet"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_later_report_takes_the_place_of_an_earlier(
    report: RebuildReport, tmp_path: Path
) -> None:
    folder = tmp_path / "report"
    table = segment_table(report_outcomes(report))
    write_report(str(folder), table, finding_table(report.findings))
    write_report(str(folder), table.slice(0, 1), finding_table([]))
    assert sorted(path.name for path in folder.iterdir()) == [
        "findings.parquet",
        "segments.parquet",
    ]
    assert pq.read_table(folder / "segments.parquet").num_rows == 1
    assert pq.read_table(folder / "findings.parquet").num_rows == 0

"""The demo does what it says, and notices when what comes back is not the same."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from html.parser import HTMLParser
from itertools import count
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.oracle import build
from tests.tools.conftest import tier_golden
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.errors import ConfigError
from tierlog.sidecar import TierRow
from tierlog.tools.demo.report import next_commands, report_html, summary_text
from tierlog.tools.demo.run import DemoResult, empty_folder, run_demo

LOG_DIRS = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]


def other_epoch(log: Path) -> None:
    """Of the first batch: outside of its checksum, and no record shows it."""
    overwrite(log, 12, b"\0\0\0\7")


def other_value(log: Path) -> None:
    """In the last record of the first batch, its checksum made right again."""
    data = log.read_bytes()
    end = 12 + int.from_bytes(data[8:12], "big")
    # The last byte of a record without headers is their number, the one before is its value's.
    changed = bytearray(data[:end])
    changed[end - 2] ^= 1
    overwrite(log, 0, build.repair_crc(bytes(changed)))


def demo(place: Path, damage: Callable[[Path], None] | None = None) -> DemoResult:
    """The demo over the bundled logs, with a clock on which every look takes a microsecond."""

    def tier(_: Sequence[str], url: str) -> Iterable[TierRow]:
        report = tier_golden(Path(url.removeprefix("file://")), place / "state")
        if damage:
            (log,) = (place / "store").glob("epochs-*/0/00000000000000000000-*.log")
            damage(log)
        return report.rows

    return run_demo(
        LOG_DIRS,
        (place / "store").as_uri(),
        tier=tier,
        timer_ns=count(0, 1000).__next__,
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return demo(tmp_path_factory.mktemp("demo"))


def test_everything_comes_back(result: DemoResult, golden_store: Path) -> None:
    logs = list(golden_store.rglob("*.log"))
    assert result.passed
    assert result.objects_equal == len(result.segments) == len(logs)
    assert result.size_bytes == sum(path.stat().st_size for path in logs)
    assert result.records_equal == result.records > 5_000
    assert {figures.codec for figures in result.codecs.values()} == {
        "none",
        "gzip",
        "snappy",
        "lz4",
        "zstd",
    }


def test_what_was_left_out_is_all_the_rest(result: DemoResult) -> None:
    left = sum(one.segments for one in result.left_out)
    clean = golden_segments(data_set="clean")
    assert left + len(result.segments) == len(clean)
    assert {one.reason for one in result.left_out} >= {"active", "compacted", "not_stable"}
    assert all(one.outcome == "skipped" for one in result.left_out)


def test_the_summary_fits_a_screen_and_leads_on(result: DemoResult) -> None:
    lines = list(summary_text(result))
    assert lines[0] == "Every byte and every record came back."
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 132


def test_the_commands_to_try_next_work(result: DemoResult) -> None:
    for command in next_commands(result):
        program, *arguments = shlex.split(command)
        assert program == "tierlog"
        done = subprocess.run(
            [sys.executable, "-m", "tierlog", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_report_stands_alone(result: DemoResult) -> None:
    text = report_html(result, "2026-01-01")
    page = Page(text)
    assert page.links == []
    assert "script" not in page.tags
    assert "@import" not in text
    assert "url(" not in text
    assert page.tags.count("svg") == 2
    assert page.tags.count("circle") == len(result.segments)
    assert "<h1>Every byte and every record came back</h1>" in text


def test_what_is_not_the_same_is_shouted(tmp_path: Path) -> None:
    result = demo(tmp_path, other_epoch)
    assert not result.passed
    (mismatch,) = result.mismatches
    assert mismatch.startswith("epochs:0 @ 0: the object differs from the file in bytes 0 to ")
    assert result.objects_equal == len(result.segments) - 1
    lines = list(summary_text(result))
    assert lines[0] == "NOT everything came back the same."
    assert f"  DIFFERENT  {mismatch}" in lines
    assert "<h1>NOT everything came back the same</h1>" in report_html(result, "now")


def test_a_record_that_is_not_the_same_is_shouted(tmp_path: Path) -> None:
    result = demo(tmp_path, other_value)
    assert [mismatch.partition(": ")[2][:23] for mismatch in result.mismatches] == [
        "the object differs from",
        "a read was refused: epo",
    ]
    assert result.records_equal < result.records


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    assert empty_folder(str(tmp_path / "new")).is_dir()
    with pytest.raises(ConfigError, match=r"expected an empty folder"):
        empty_folder(str(tmp_path))


def test_nothing_to_tier_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "empty-0")
    assert main(["demo", str(log_dir), "--to", str(tmp_path / "demo")]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("Nothing was tiered.\n")
    assert "Try next" not in captured.err
    assert (tmp_path / "demo" / "report.html").exists()


def test_a_damaged_segment_is_left_out_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    overwrite(log_dir / "epochs-0" / "00000000000000000000.log", 100, b"\0\0\0\0")
    assert main(["demo", str(log_dir), "--to", str(tmp_path / "demo")]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Not everything was tiered; what was came back.\n")
    assert "damaged" in out


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *LOG_DIRS, "--to", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Every byte and every record came back.\n")
    assert re.search(r"^Report: file://.*/report\.html$", captured.err, re.MULTILINE)
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert main(["demo", *LOG_DIRS, "--to", str(tmp_path)]) == 2


def test_the_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *LOG_DIRS, "--to", str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is True
    assert document["records_equal"] == sum(one["records"] for one in document["segments"]) > 5_000

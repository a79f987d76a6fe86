"""``tierlog tier`` as a command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import _Watched, main
from tierlog.clock import ManualClock
from tierlog.sidecar import Progress

LOG_DIR = str(DATA_DIR / "clean" / "disk1")


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return tmp_path / "state-home"


def test_copies_once_and_then_has_nothing_to_do(
    tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = (tmp_path / "store").as_uri()
    arguments = ["tier", LOG_DIR, "--to", url, "--once", "--topic", "epochs"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    rolled = [segment for segment in golden_segments(topic="epochs") if segment.rolled]
    assert lines[0].split()[:5] == ["TOPIC", "PARTITION", "BASE-OFFSET", "SIZE", "OUTCOME"]
    assert [line.split()[2] for line in lines[1:]] == [str(one.base_offset) for one in rolled]
    assert captured.err == ("3 segments copied; 1 not copied: 1 active (--format wide says why)\n")
    assert list(state_home.glob("tierlog/*/metadata.sqlite"))

    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == ""
    assert again.err.startswith("0 segments copied; 4 not copied: 3 copied, 1 active")


def test_the_document_has_every_segment_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tier", LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--once"]
    assert main([*arguments, "--state-dir", str(tmp_path / "state"), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["segments"]
    golden = [one for one in golden_segments(data_set="clean") if one.log_dir == "disk1"]
    assert len(rows) == len(golden)
    reasons = {row["topic"]: row["reason"] for row in rows}
    assert reasons["compacted-transactions"] == "compacted"
    assert reasons["__cluster_metadata"] == "cluster_metadata"


def test_a_damaged_segment_is_1_and_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    segment = golden_segments(topic="epochs")[1]
    overwrite(log_dir / "epochs-0" / segment.path.name, 100, b"\0\0\0\0")
    assert main(["tier", str(log_dir), "--to", (tmp_path / "s").as_uri(), "--once"]) == 1
    captured = capsys.readouterr()
    outcomes = [line.split()[5] for line in captured.out.splitlines()[1:]]
    assert outcomes == ["copied", "refused", "copied"]
    assert captured.err.startswith("2 segments copied")


def test_the_store_of_another_cluster_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = (tmp_path / "store").as_uri()
    assert main(["tier", LOG_DIR, "--to", url, "--once", "--topic", "epochs"]) == 0
    other = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    meta = other / "meta.properties"
    meta.write_text(re.sub(r"cluster\.id=.*", "cluster.id=another", meta.read_text()))
    assert main(["tier", str(other), "--to", url, "--once"]) == 2
    assert "give every cluster its own prefix" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--to", "file:///tmp/x"], "Missing argument 'LOGDIR...'"),
        ([LOG_DIR], "Missing option '--to'"),
        ([LOG_DIR, "--to", "ftp://x/y"], "expected one of file://"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--state-dir", LOG_DIR], "must not lie inside"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--copy-quota", "10MB"], "expected bytes as in"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--copy-quota", "0"], "expected a whole number from 1"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--copy-quota-mode", "x"], "is not one of"),
    ],
)
def test_wrong_usage(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tier", "--once", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_copy_quota_makes_it_wait_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("tierlog.clock.SystemClock", lambda: clock)
    arguments = ["tier", LOG_DIR, "--once", "--topic", "epochs", "--copy-quota", "1K"]
    assert main([*arguments, "--to", (tmp_path / "kafka").as_uri()]) == 0
    first = capsys.readouterr().err
    assert first == "3 segments copied; 1 not copied: 1 active (--format wide says why)\n"
    assert clock.monotonic_ms() == 0
    arguments += ["--copy-quota-mode", "pace", "--copy-quota", "100B"]
    assert main([*arguments, "--to", (tmp_path / "paced").as_uri()]) == 0
    waited = re.match(
        r"3 segments copied after (\d+\.\d) s of waiting for the copy quota; 1 not copied",
        capsys.readouterr().err,
    )
    assert waited is not None
    assert float(waited[1]) == pytest.approx(clock.monotonic_ms() / 1000, abs=0.06)
    assert clock.monotonic_ms() > 600_000
    arguments = [*arguments[:-3], "check", "--copy-quota", "100B"]
    assert main([*arguments, "--to", (tmp_path / "checked").as_uri()]) == 0
    assert "warning: copy quota: 24359 bytes in one piece" in capsys.readouterr().err


def test_the_progress_names_the_quota_while_it_waits() -> None:
    told: list[str] = []

    class Bar:
        def start(self, total_bytes: int) -> None:
            told.append(f"of {total_bytes}")

        def advance(self, size_bytes: int, now_at: str = "") -> None:
            told.append(f"+{size_bytes} {now_at}")

    watched = _Watched(Bar())
    watched(Progress(total_bytes=100, done_bytes=40))
    watched(Progress(total_bytes=100, done_bytes=40, quota_wait_ms=11_500))
    assert told == ["of 100", "+40 ", "+0 copy quota: up to 12 s"]


def test_without_once_it_goes_on_until_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tierlog", "tier", LOG_DIR, "--topic", "epochs"]
    command += ["--to", (tmp_path / "store").as_uri(), "--interval", "0.1"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("3 segments copied")
            assert process.stderr.readline().startswith("0 segments copied")
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert "Traceback" not in rest

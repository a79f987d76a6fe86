"""``tierlog tier`` as a command: what it prints, where, and its exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO

import pytest

from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tests.kafka_tools.support import wait_until
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main
from tierlog.cli.tier_run import Watched
from tierlog.clock import ManualClock
from tierlog.sidecar import Progress
from tierlog.tools.output import human_size

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
    said = re.fullmatch(
        r"3 segments copied, ([0-9.]+ KiB) in [0-9.]+ s \([0-9.]+ [KM]?i?B/s\); "
        r"1 not copied: 1 active \(--format wide says why\)\n",
        captured.err,
    )
    assert said is not None, captured.err
    assert said[1] == human_size(sum(one.path.stat().st_size for one in rolled))
    assert list(state_home.glob("tierlog/*/metadata.sqlite"))

    assert main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == ""
    assert again.err.startswith(
        "0 segments copied; 3 segments copied before; 1 not copied: 1 active"
    )


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--topic", "nosuch"], 1, "no topic nosuch, only __cluster_metadata, "),
        (["--bootstrap", "localhost"], 2, "as in broker:9092, found 'localhost'"),
        (["--bootstrap", "a:9092,b"], 2, "as in broker:9092, found 'a:9092,b'"),
    ],
)
def test_what_cannot_be_meant_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, message: str
) -> None:
    arguments = ["tier", LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--once", *flags]
    assert main(arguments) == code
    assert message in capsys.readouterr().err


def test_help_says_where_things_are_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tier", "--help"]) == 0
    assert "~/.local/state/tierlog" in " ".join(capsys.readouterr().out.split())


def test_the_document_tells_when_and_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("tierlog.clock.SystemClock", lambda: clock)
    arguments = ["tier", LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--once"]
    assert main([*arguments, "--topic", "epochs", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["timestamp_ms"] for row in document["segments"]} == {clock.now_ms()}
    summary = document["summary"]
    assert summary["copied"] == 3
    copied = [row["size_bytes"] for row in document["segments"] if row["outcome"] == "copied"]
    assert summary["copied_bytes"] == sum(copied)
    assert {"duration_ms", "bytes_per_second", "copied_before"} <= summary.keys()


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
        ([LOG_DIR, "--to", "file:///tmp/x", "--retention-ms", "7y"], "expected a duration as in"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--retention-ms", "7"], "write 7d for 7 days, or 7ms"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--retention-bytes", "0"], "from 1 or -1, found '0'"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--interval", "0"], "expected a whole number from 1"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--metrics", "9404"], "expected host:port"),
        ([LOG_DIR, "--to", "file:///tmp/x", "--config", "/nowhere"], "does not exist"),
    ],
)
def test_wrong_usage(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tier", "--once", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_deletions_are_allowed_for_one_pass_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tier", LOG_DIR, "--to", "file:///tmp/x", "--allow-deletion"]) == 2
    assert "--allow-deletion is for one pass" in capsys.readouterr().err


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("place", ["disk1", "disk1/archive", "disk1/epochs-0/archive", "."])
@pytest.mark.parametrize("mode", ["--once", "--dry-run"])
def test_store_and_log_directory_lie_apart(
    tmp_path: Path, place: str, mode: str, linked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1", "epochs-0")
    before = sorted(log_dir.rglob("*"))
    folder = tmp_path / "kafka"
    if linked:
        (tmp_path / "link").symlink_to(folder)
        folder = tmp_path / "link"
    store = f"{folder.as_uri()}/{place}"
    state = ["--state-dir", str(tmp_path / "state")]
    assert main(["tier", str(log_dir), "--to", store, mode, *state]) == 2
    assert "the broker's log directory" in capsys.readouterr().err
    assert sorted(log_dir.rglob("*")) == before
    assert not (tmp_path / "kafka" / "cluster.json").exists()


def test_the_state_lies_outside_of_the_log_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1", "epochs-0")
    (tmp_path / "link").symlink_to(log_dir)
    arguments = ["tier", str(log_dir), "--to", (tmp_path / "store").as_uri(), "--once"]
    assert main([*arguments, "--state-dir", str(tmp_path / "link" / "state")]) == 2
    assert "must not lie inside the broker's log directory" in capsys.readouterr().err
    assert not (log_dir / "state").exists()


def test_a_copy_quota_makes_it_wait_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("tierlog.clock.SystemClock", lambda: clock)
    arguments = ["tier", LOG_DIR, "--once", "--topic", "epochs", "--copy-quota", "1K"]
    assert main([*arguments, "--to", (tmp_path / "kafka").as_uri()]) == 0
    first = capsys.readouterr().err
    assert first == (
        "3 segments copied, 67.4 KiB in 0.0 s; 1 not copied: 1 active (--format wide says why)\n"
    )
    assert clock.monotonic_ms() == 0
    arguments += ["--copy-quota-mode", "pace", "--copy-quota", "100B"]
    assert main([*arguments, "--to", (tmp_path / "paced").as_uri()]) == 0
    waited = re.match(
        r"3 segments copied, 67\.4 KiB in [0-9.]+ s \([0-9]+ B/s\) "
        r"after (\d+\.\d) s of waiting for the copy quota; 1 not copied",
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

    watched = Watched(Bar())
    watched(Progress(total_bytes=100, done_bytes=40))
    watched(Progress(total_bytes=100, done_bytes=40, quota_wait_ms=11_500))
    assert told == ["of 100", "+40 ", "+0 copy quota: up to 12 s"]


@contextmanager
def running(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """`tierlog tier` as a process of its own."""
    command = [sys.executable, "-m", "tierlog", "tier", *arguments, "--interval", "0.1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line_with(stream: IO[str] | None, text: str) -> str:
    """Reads on until a line has `text` in it."""
    assert stream is not None
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"ended without {text!r}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_without_once_it_goes_on_until_a_signal_ends_it(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    with running(LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--topic", "epochs") as process:
        assert process.stdout is not None
        heads = process.stdout.readline().split()
        assert heads[:5] == ["TIMESTAMP", "TOPIC", "PARTITION", "BASE-OFFSET", "SIZE"]
        rows = [process.stdout.readline().split() for _ in range(3)]
        now = datetime.now(UTC)
        for row in rows:
            assert timedelta() <= now - datetime.fromisoformat(row[0]) < timedelta(minutes=5)
        assert {row[1] for row in rows} == {"epochs"}
        rolled = [segment for segment in golden_segments(topic="epochs") if segment.rolled]
        assert sorted(int(row[3]) for row in rows) == [one.base_offset for one in rolled]
        status = line_with(process.stderr, "3 segments copied")
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    told = [status, *err.splitlines()]
    assert any(re.fullmatch(r"\S+ closing: .*", line) for line in told)
    now = datetime.now(UTC)
    for line in told:
        moment = datetime.fromisoformat(line.split()[0])
        assert timedelta() <= now - moment < timedelta(minutes=5)
    size = re.escape(human_size(sum(one.path.stat().st_size for one in rolled)))
    total = rf"\S+ 3 segments copied, {size} in [0-9.]+ s \([0-9.]+ [KM]?i?B/s\)"
    assert re.fullmatch(total, told[-1]), told[-1]


def test_warnings_of_a_run_without_end_carry_their_time(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    segment = golden_segments(topic="epochs")[1]
    overwrite(log_dir / "epochs-0" / segment.path.name, 100, b"\0\0\0\0")
    store = (tmp_path / "store").as_uri()
    arguments = [str(log_dir), "--to", store, "--topic", "epochs", "--topic", "none"]
    with running(*arguments) as process:
        warning = line_with(process.stderr, "no topic none")
        line_with(process.stderr, "1 segment refused")
        for _ in range(2):
            line_with(process.stdout, "  copied  ")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert re.match(r"20\S+Z warning: ", warning)
    total = r"20\S+Z 2 segments copied, \S+ KiB in [0-9.]+ s \(\S+ [KM]?i?B/s\); 1 refused"
    assert re.fullmatch(total, err.splitlines()[-1])


def test_rows_as_they_happen_for_programs(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    arguments = [LOG_DIR, "--to", store, "--topic", "epochs", "--format"]
    with running(*arguments, "json") as process:
        rows = [json.loads(line_with(process.stdout, "epochs")) for _ in range(3)]
        assert {row["outcome"] for row in rows} == {"copied"}
        assert all(row["timestamp_ms"] > 1_700_000_000_000 for row in rows)
    other = (tmp_path / "other").as_uri()
    with running(LOG_DIR, "--to", other, "--topic", "epochs", "--format", "yaml") as process:
        assert line_with(process.stdout, "timestamp").startswith("- timestamp_ms: 1")
        assert line_with(process.stdout, "topic") == '  topic: "epochs"\n'


def test_nobody_reads_the_rows(tmp_path: Path) -> None:
    with running(LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--topic", "epochs") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Also while the store does not answer at all."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_ALLOW_HTTP": "true",
        }
        with running(LOG_DIR, "--to", "s3://bucket/p", **endpoint) as process:
            connection, _ = silent.accept()
            with connection:
                # One of them alone ends nothing; two that come at once may arrive as one.
                for _ in range(60):
                    process.send_signal(signal.SIGTERM)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=1)
                        break
                assert process.wait(timeout=60) == 128 + signal.SIGTERM


def test_settings_of_file_environment_and_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A broker's own server.properties; its retention is not the archive's."""
    file = tmp_path / "server.properties"
    file.write_text(
        f"node.id=1\nlog.dirs={LOG_DIR}\nlog.retention.ms=1\nlog.retention.bytes=1\n"
        f"tierlog.store.url={(tmp_path / 'file').as_uri()}\ntierlog.topics=nothing\n"
    )
    monkeypatch.setenv("TIERLOG_STORE_URL", (tmp_path / "environment").as_uri())
    monkeypatch.setenv("TIERLOG_TOPICS", "epochs")
    for no_setting in ("TIERLOG_DEBUG", "TIERLOG_SPARK_GC_FREEZE"):
        monkeypatch.setenv(no_setting, "0")
    arguments = ["tier", "--config", str(file), "--once"]
    assert main(arguments) == 0
    assert capsys.readouterr().err.startswith("3 segments copied, ")
    assert len(list((tmp_path / "environment").rglob("*.log"))) == 3
    assert main([*arguments, "--to", (tmp_path / "flag").as_uri()]) == 0
    assert len(list((tmp_path / "flag").rglob("*.log"))) == 3
    assert not (tmp_path / "file").exists()
    monkeypatch.setenv("TIERLOG_RETENTION_MSS", "1")
    assert main(arguments) == 2
    assert "did you mean TIERLOG_RETENTION_MS?" in capsys.readouterr().err
    monkeypatch.delenv("TIERLOG_RETENTION_MSS")
    file.write_text("tierlog.retention.byte=1\n")
    assert main(arguments) == 2
    wrong = capsys.readouterr().err
    assert f"{file}: unknown setting tierlog.retention.byte; did you mean" in wrong


def test_the_archive_expires_by_its_own_retention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Golden records are old: a week's retention leaves nothing, a large size everything."""
    store = tmp_path / "store"
    arguments = ["tier", LOG_DIR, "--to", store.as_uri(), "--once", "--topic", "epochs"]
    assert main([*arguments, "--retention-bytes", "50GiB"]) == 0
    assert len(list(store.rglob("*.log"))) == 3
    capsys.readouterr()
    held = "retention would delete the whole archive of epochs-0 (3 of 3 segments, 68973 of 68973"
    for mode in ([], ["--dry-run"]):
        assert main([*arguments, *mode, "--retention-ms", "7ms"]) == 1
        captured = capsys.readouterr()
        assert held in captured.err
        assert "tierlog tier --once --allow-deletion" in captured.err
        assert "expire" not in captured.out
        assert len(list(store.rglob("*.log"))) == 3
    assert main([*arguments, "--retention-ms", "1h", "--allow-deletion"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("0 segments copied, 3 expired;")
    assert [line.split()[5:7] for line in captured.out.splitlines()[1:]] == [
        ["expired", "retention_time"]
    ] * 3
    assert list(store.rglob("*.log")) == []
    assert main([*arguments, "--retention-ms", "-1"]) == 0
    assert capsys.readouterr().err.startswith("0 segments copied;")


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    tmp_path: Path, state_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    arguments = ["tier", LOG_DIR, "--to", store.as_uri(), "--topic", "epochs"]
    assert main([*arguments, "--dry-run", "--copy-quota", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "dry run: 3 segments to copy, 0 to expire"
    assert [line.split()[5] for line in captured.out.splitlines()[1:]] == ["would_copy"] * 3
    assert not store.exists()
    assert not state_home.exists()
    assert main([*arguments, "--once"]) == 0
    there = sorted(path for place in (store, state_home) for path in place.rglob("*"))
    capsys.readouterr()
    expire = ["--retention-ms", "1h", "--allow-deletion", "--format", "json"]
    assert main([*arguments, "--dry-run", *expire]) == 0
    rows = json.loads(capsys.readouterr().out)["segments"]
    outcomes = [(row["base_offset"], row["outcome"]) for row in rows]
    assert outcomes[:3] == [(0, "would_expire"), (146, "would_expire"), (285, "would_expire")]
    assert sorted(path for place in (store, state_home) for path in place.rglob("*")) == there


def test_a_dry_run_finds_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    overwrite(log_dir / "epochs-0" / f"{146:020d}.log", 100, b"\0\0\0\0")
    assert main(["tier", str(log_dir), "--to", (tmp_path / "s").as_uri(), "--dry-run"]) == 1
    outcomes = [line.split()[5] for line in capsys.readouterr().out.splitlines()[1:]]
    assert outcomes == ["would_copy", "refused", "would_copy"]


def test_metrics_while_it_runs(tmp_path: Path) -> None:
    arguments = [LOG_DIR, "--to", (tmp_path / "store").as_uri(), "--topic", "epochs"]
    with running(*arguments, "--metrics", "127.0.0.1:0") as process:
        url = line_with(process.stderr, "metrics at ").split()[-1]
        line_with(process.stderr, "3 segments copied")

        def scrape() -> str:
            with urllib.request.urlopen(url) as answer:
                return str(answer.read().decode())

        # The expiration task counts what the copy task has finished.
        counted = 'tierlog_topic_remotelogmetadatacount{topic="epochs"} 3.0'
        wait_until(lambda: counted in scrape(), 60, what=counted)
        text = scrape()
    assert 'tierlog_topic_remotecopylagbytes{topic="epochs"} 0.0' in text

"""The command as a process: exit codes, which stream says what, and how it ends when it must."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tests.tools.golden_copy import copy_log_dir, overwrite
from tierlog.cli import main

LOG_DIR = str(DATA_DIR / "clean" / "disk1")
VERBS = ("ls", "cat", "verify", "tier", "demo")


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tierlog", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("tierlog 0.")
    assert run("-V").stdout == run("--version").stdout
    shown = run("--help")
    assert shown.returncode == 0
    assert all(f"\n  {verb} " in shown.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"\n  tierlog {verb} " in capsys.readouterr().out


def test_help_imports_nothing_that_takes_long() -> None:
    code = (
        "import sys; sys.argv = ['tierlog', '--help']; from tierlog.cli import main; main(); "
        "sys.exit(any(name in sys.modules for name in ('numpy', 'rich', 'obstore', 'asyncio')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_data_goes_to_stdout_and_hints_to_stderr() -> None:
    listed = run("ls", str(DATA_DIR / "unclean" / "disk2"))
    assert listed.returncode == 0
    assert listed.stdout.startswith("TOPIC ")
    assert "\x1b" not in listed.stdout + listed.stderr
    assert listed.stderr.endswith("--format wide says which and why\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "No such command"),
        (["ls"], "Missing argument 'SOURCE'"),
        (["ls", LOG_DIR, "orders:x"], "expected a partition number after the colon"),
        (["ls", LOG_DIR, "../etc"], "not a Kafka topic name"),
        (["ls", LOG_DIR, "--format", "xml"], "'xml' is not one of"),
        (["ls", f"{LOG_DIR}/epochs-0"], f"give the directory above it, {LOG_DIR}"),
        (["ls", "ftp://host/x"], "unknown kind of store, expected one of file://"),
    ],
)
def test_wrong_usage_is_2(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@pytest.mark.parametrize("args", [["ls"], ["verify"], ["cat", "orders:0"]])
def test_a_failure_is_one_line_and_1(args: list[str], tmp_path: Path) -> None:
    verb, *rest = args
    failed = run(verb, str(tmp_path / "no\nsuch"), *rest, TIERLOG_DEBUG="")
    assert failed.returncode == 1
    assert failed.stdout == ""
    where = str(tmp_path / r"no\nsuch")
    expected = "expected a broker's log directory or a store URL, found nothing"
    assert failed.stderr == f"tierlog: {where}: {expected}\n"


def test_a_full_disk_behind_stdout_is_named() -> None:
    command = [sys.executable, "-m", "tierlog", "ls", LOG_DIR]
    with open("/dev/full", "w") as full:
        failed = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert failed.returncode == 1
    assert failed.stderr == "tierlog: standard output: No space left on device\n"


def test_debug_shows_where_it_failed(tmp_path: Path) -> None:
    failed = run("ls", str(tmp_path / "nothing"), TIERLOG_DEBUG="1")
    assert failed.returncode == 1
    assert failed.stderr.startswith("Traceback ")
    assert "FileNotFoundError" in failed.stderr


def test_problems_found_is_1_and_the_report_is_written(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    assert run("verify", str(log_dir)).returncode == 0
    overwrite(log_dir / "epochs-0" / "00000000000000000000.log", 100, b"\0\0\0\0")
    file = tmp_path / "report.json"
    found = run("verify", str(log_dir), "--json", str(file), "--format", "json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert report == json.loads(file.read_text())
    assert report["summary"]["problems"] == 1
    assert report["findings"][0]["what"] == "bad_crc"


def test_a_report_replaces_files_and_nothing_else(tmp_path: Path) -> None:
    """A device or a pipe stays what it is; what cannot be written is told once it is shown."""
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_text("of yesterday")
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert run("verify", str(log_dir), "--json", str(pipe)).returncode == 0
        written, _ = reader.communicate(timeout=60)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert run("verify", str(log_dir), "--json", str(file)).returncode == 0
    assert json.loads(written)["summary"] == json.loads(file.read_text())["summary"]
    failed = run("verify", str(log_dir), "--json", str(tmp_path / "no folder" / "file"))
    assert failed.returncode == 1
    assert "no problems" in failed.stdout
    assert "no folder" in failed.stderr


@pytest.mark.parametrize("verb", [["ls", LOG_DIR], ["cat", LOG_DIR, "epochs:0"], ["--help"]])
def test_without_a_standard_output(verb: list[str]) -> None:
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "tierlog", *verb],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in ended.stderr
    assert ended.returncode == 0


@pytest.mark.parametrize("verb", [["ls", LOG_DIR], ["cat", LOG_DIR, "epochs:0"], ["--help"]])
def test_a_full_disk_is_an_error(verb: list[str]) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "tierlog", *verb],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr.startswith("tierlog: ")
    assert ended.stderr.count("\n") == 1


def test_a_store_that_holds_nothing_of_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = tmp_path.as_uri()
    assert main(["cat", url, "orders:0"]) == 1
    told = f"tierlog: {url}: expected a store, found neither its marker cluster.json nor a segment"
    assert capsys.readouterr().err.startswith(told)
    assert main(["verify", url]) == 1
    assert capsys.readouterr().err.startswith(told)


def test_notes_are_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(DATA_DIR / "unclean" / "disk1")
    assert main(["verify", source]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["verify", source, "--format", "wide"]) == 0
    assert "NOTE  " in capsys.readouterr().out


def test_formats_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ls", LOG_DIR, "epochs:0", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main(["ls", LOG_DIR, "epochs:0", "--format", "yaml"]) == 0
    yaml = capsys.readouterr().out
    assert main(["ls", LOG_DIR, "epochs", "--segments"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert len(document["segments"]) == len(text) - 1 == yaml.count("base_offset:") == 4


def test_a_closed_pipe_is_quiet() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "tierlog", "ls", LOG_DIR, "--format", "wide"]
    ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert ended.returncode == 141
    assert b"Traceback" not in ended.stderr
    assert b"Error" not in ended.stderr


def test_an_interrupt_is_quiet_and_130() -> None:
    code = """
import os, signal, sys
from tierlog.cli import command

@command.tierlog.command()
def wait():
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()

sys.exit(command.main(["wait"]))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode == 130
    assert b"Traceback" not in ended.stderr

"""Lines for operators as JSON objects, one each, of the verbs that run on and on."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any
from urllib.request import urlopen

import pytest

from tests.kafka_tools.golden import DATA_DIR
from tierlog.cli import main

DISK = str(DATA_DIR / "clean" / "disk1")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def objects(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(TIME.fullmatch(one["time"]) for one in found)
    assert all(one["text"] and one["level"] in ("info", "warning") for one in found)
    return found


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tierlog", *arguments, "--log-format", "json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def read_until(stream: IO[str] | None, event: str) -> dict[str, Any]:
    assert stream is not None
    for line in stream:
        found: dict[str, Any] = json.loads(line)
        if found["event"] == event:
            return found
    raise AssertionError(f"no {event}")


def test_one_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, state = (tmp_path / "store").as_uri(), str(tmp_path / "state")
    command = ["tier", DISK, "--to", store, "--state-dir", state, "--once"]
    assert main([*command, "--log-format", "json"]) == 0
    last = objects(capsys.readouterr().err)[-1]
    assert (last["level"], last["event"]) == ("info", "pass")
    assert last["copied"] > 0
    assert last["copied_bytes"] > 0
    assert main(command) == 0
    assert capsys.readouterr().err.startswith("0 segments copied; ")


def test_tiering_on_and_on(tmp_path: Path) -> None:
    store, state = (tmp_path / "store").as_uri(), str(tmp_path / "state")
    with start("tier", DISK, "--to", store, "--state-dir", state) as process:
        status = read_until(process.stderr, "status")
        assert status["led"] > 0
        assert status["text"].endswith("led") or "; " in status["text"]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 130
    assert [one["event"] for one in objects(rest)][-2:] == ["closing", "total"]


def test_serving(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with start("serve", "--data-dir", data, "--listen", "127.0.0.1:0") as process:
        served = read_until(process.stderr, "serving")
        host, _, port = served["bootstrap_servers"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert client.recv(1) == b""
        report = read_until(process.stderr, "report")
        assert report["level"] == "warning"
        assert "closed: " in report["text"]
        process.send_signal(signal.SIGTERM)
        out, rest = process.communicate(timeout=60)
        assert process.returncode == 0
    assert [one["event"] for one in objects(rest)] == ["closing"]
    assert f"bootstrap.servers={served['bootstrap_servers']}" in out
    assert "  store     none (--store URL)" in out


def test_the_first_screen_of_a_node_says_what_is_on(tmp_path: Path) -> None:
    places = ["--data-dir", str(tmp_path / "data"), "--store", (tmp_path / "store").as_uri()]
    properties = tmp_path / "server.properties"
    properties.write_text("remote.log.manager.copy.max.bytes.per.second=1048576\n")
    more = ["--listen", "127.0.0.1:0", "--config", str(properties), "--metrics", "127.0.0.1:0"]
    with start("serve", *places, *more) as process:
        read_until(process.stderr, "serving")
        assert process.stdout is not None
        out = ""
        while "Ctrl-C" not in out:
            out += process.stdout.readline()
        metrics = re.search(r"^  metrics   (http://127\.0\.0\.1:\d+)/metrics$", out, re.MULTILINE)
        assert metrics is not None
        with urlopen(f"{metrics[1]}/healthz", timeout=60) as health:
            assert (health.status, health.read()) == (200, b"ok\n")
        with urlopen(f"{metrics[1]}/metrics", timeout=60) as scraped:
            assert b"tierlog_" in scraped.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert f"  data      {tmp_path / 'data'}\n" in out
    assert f"  store     {(tmp_path / 'store').as_uri()}\n" in out
    assert "  copies    1.0 MiB/s to the store\n" in out
    assert "  reads     no limit from the store\n" in out
    assert len(out.splitlines()) <= 20

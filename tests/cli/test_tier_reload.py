"""``tierlog tier`` while it runs: SIGHUP reads the settings again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.kafka_tools.support import wait_until
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main

HOUR_MS = 3_600_000


class Tier:
    """`tierlog tier` as a process, with settings in a file that a test changes."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log_dir = copy_log_dir(folder / "kafka", "clean/disk1", "epochs-0")
        self.store = folder / "store"
        self.file = folder / "server.properties"
        self.flags = flags
        self.state = folder / "state"
        self.process: subprocess.Popen[str]

    def write(self, **settings: object) -> None:
        lines = {"log.dirs": self.log_dir, "tierlog.store.url": self.store.as_uri()}
        lines |= {name.replace("_", "."): value for name, value in settings.items()}
        self.file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def reload(self, **settings: object) -> None:
        self.write(**settings)
        self.process.send_signal(signal.SIGHUP)

    def said(self, text: str) -> str:
        """Read stderr on until a line has `text` in it; that line behind its time."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if text in line:
                time, _, told = line.rstrip("\n").partition(" ")
                assert datetime.fromisoformat(time).tzinfo is not None
                return told
        raise AssertionError(f"ended without {text!r}")

    def bases(self) -> list[int]:
        return sorted(int(path.name[:20]) for path in self.store.rglob("*.indexes"))

    def wait_for(self, bases: list[int]) -> None:
        wait_until(lambda: self.bases() == bases, 60, what=f"{bases} in the store")


@contextmanager
def running(tier: Tier) -> Iterator[None]:
    command = [sys.executable, "-m", "tierlog", "tier", "--state-dir", str(tier.state)]
    command += ["--config", str(tier.file)] if tier.file.exists() else []
    with subprocess.Popen(
        [*command, *tier.flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as tier.process:
        try:
            yield
            tier.process.send_signal(signal.SIGTERM)
            _, err = tier.process.communicate(timeout=60)
            assert tier.process.returncode == 0, err
            assert "Traceback" not in err
        finally:
            tier.process.kill()


def test_pause_interval_and_topics_change_while_it_runs(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    folder = tier.log_dir / "epochs-0"
    for path in sorted(folder.glob(f"{285:020d}.*")) + sorted(folder.glob(f"{410:020d}.*")):
        path.rename(tmp_path / path.name)
    hourly = {"remote_log_manager_task_interval_ms": HOUR_MS}
    tier.write(remote_log_copy_disable="true", **hourly)
    with running(tier):
        tier.said("0 segments copied")
        tier.reload(**hourly)
        assert tier.said("copy.disable") == "remote.log.copy.disable: true -> false"
        tier.wait_for([0])
        # The rest appears, and the next look is an hour away.
        for path in tmp_path.glob("0*"):
            path.rename(folder / path.name)
        tier.reload(remote_log_manager_task_interval_ms=100, tierlog_topics="epochs,other")
        assert tier.said("interval") == f"remote.log.manager.task.interval.ms: {HOUR_MS} -> 100"
        assert tier.said("topics") == "tierlog.topics: none -> epochs,other"
        tier.wait_for([0, 146, 285])


def test_a_quota_and_its_mode_change_in_the_middle_of_a_copy(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    limit = {"remote_log_manager_copy_max_bytes_per_second": 1}
    tier.write(tierlog_copy_quota_mode="pace", remote_log_manager_task_interval_ms=100, **limit)
    with running(tier):
        tier.said("lag")
        tier.reload(remote_log_manager_task_interval_ms=100)
        assert tier.said("copy.max") == (
            "remote.log.manager.copy.max.bytes.per.second: 1 -> 9223372036854775807 (unlimited)"
        )
        assert tier.said("mode") == "tierlog.copy.quota.mode: pace -> check"
        tier.wait_for([0, 146, 285])


def test_retention_changes_while_it_runs(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.write(remote_log_manager_task_interval_ms=100)
    with running(tier):
        tier.wait_for([0, 146, 285])
        tier.reload(remote_log_manager_task_interval_ms=100, tierlog_retention_bytes=50_000)
        assert tier.said("retention.bytes") == "tierlog.retention.bytes: -1 -> 50000"
        tier.wait_for([146, 285])


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    tier = Tier(tmp_path, "--interval", "0.1")
    tier.write(remote_log_copy_disable="true")
    with running(tier):
        tier.said("0 segments copied")
        tier.reload(tierlog_retention_byte=1)
        said = tier.said("SIGHUP")
        assert "did you mean tierlog.retention.bytes?; nothing was changed" in said
        tier.reload(tierlog_deleted_topic_retention_ms=1000)
        said = tier.said("settings not changed")
        assert "needs tierlog.bootstrap.servers" in said
        tier.file.unlink()
        tier.process.send_signal(signal.SIGHUP)
        assert str(tier.file) in tier.said("SIGHUP")
        assert tier.bases() == []
        # A flag wins over the file, also later; what needs a restart is named.
        tier.reload(
            remote_log_manager_task_interval_ms=HOUR_MS, tierlog_include_compacted_topics="true"
        )
        assert tier.said("compacted") == (
            "tierlog.include.compacted.topics: false -> true; needs a restart"
        )
        assert tier.said("copy.disable") == "remote.log.copy.disable: true -> false"
        tier.wait_for([0, 146, 285])


def test_a_hangup_without_a_file_ends_nothing(tmp_path: Path) -> None:
    tier = Tier(tmp_path, "--interval", "0.1")
    tier.flags += ("--to", tier.store.as_uri(), str(tier.log_dir))
    with running(tier):
        tier.said("copied")
        tier.process.send_signal(signal.SIGHUP)
        assert "there is no --config to read again" in tier.said("SIGHUP")
        tier.wait_for([0, 146, 285])


def test_a_pass_says_that_copies_are_paused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tier = Tier(tmp_path)
    tier.write(remote_log_copy_disable="true")
    arguments = ["tier", "--config", str(tier.file), "--once", "--state-dir", str(tier.state)]
    assert main([*arguments, "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["segments"]
    assert {row["reason"] for row in rows} == {"copy_disabled"}
    assert tier.bases() == []

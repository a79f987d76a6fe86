"""What settings change in `tierlog tier` and in a remote log manager."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.settings.managers import FailingStorage
from tests.settings.observing import LOG_DIR, Place, command, files_of
from tests.tiering.hosts import GoldenLog
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import Clock, ManualClock, SystemClock
from tierlog.remote.metadata.memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.urls import LocalStore
from tierlog.tiering.manager import ManagerOptions, RemoteLogManager
from tierlog.tiering.partition_work import ManagerListener
from tierlog.tiering.task_pool import TaskFailure

ROOT = Path(__file__).resolve().parents[2]


def tier(place: Place, *arguments: str, topic: str = "epochs") -> tuple[int, int, str]:
    """Exit code of a pass, how many segments the store has after it, and the summary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(place.folder / "home"))
        store = ["--to", place.store.as_uri()]
        where = [] if "tierlog.store.url" in place.properties else store
        state = ["--state-dir", str(place.folder / "state")]
        state = [] if "tierlog.state.dir" in place.properties else state
        dirs = [] if "log.dirs" in place.properties or "no dirs" in arguments else [LOG_DIR]
        more = [one for one in arguments if one != "no dirs"]
        topics = ["--topic", topic] if topic else []
        options = [*dirs, *where, *state, *topics, "--config", place.write_config()]
        said = command("tier", *options, "--once", *more)
    copied = len([name for name in files_of(place.folder) if name.endswith(".log")])
    return said.code, copied, re.sub(r"[0-9.]+ (s|B|[KM]iB)\b|/\S+| in\b", "", said.err)


def tiered(place: Place) -> tuple[int, int, str]:
    return tier(place)


def tiered_twice(place: Place) -> tuple[int, int, str]:
    """Run a second pass under the settings over what the first one copied."""
    tier(Place(place.folder, {}))
    return tier(place)


def mended(place: Place) -> int:
    """How many logs the store has after a pass that follows the loss of one."""
    tier(Place(place.folder, {}))
    next(place.store.rglob("*.log")).unlink()
    return tier(place)[1]


def whole_directory(place: Place) -> int:
    return tier(place, topic="")[1]


def compacted(place: Place) -> int:
    return tier(place, topic="compacted-transactions")[1]


def internal(place: Place) -> set[str]:
    """Why segments of an internal topic, which has an active one alone, are not copied."""
    said = place.tier("--format", "json", topic="__transaction_state")
    return {row["reason"] for row in json.loads(said.out)["segments"]}


def directories(place: Place) -> int:
    return tier(place, "no dirs")[0]


def store_of_the_settings(place: Place) -> int:
    command_ = ["tier", LOG_DIR, "--once", "--topic", "epochs", "--config", place.write_config()]
    return command(*command_, "--state-dir", str(place.folder / "state")).code


def state_of_the_settings(place: Place) -> bool:
    tier(place)
    return (place.folder / "elsewhere" / "metadata.sqlite").exists()


def cluster_of_the_settings(place: Place) -> int:
    """A directory whose `meta.properties` has no cluster id."""
    log_dir = copy_log_dir(place.folder, "clean/disk1", "epochs-0")
    meta = log_dir / "meta.properties"
    meta.write_text(re.sub(r"cluster\.id=.*", "", meta.read_text()))
    said = place.tier(log_dir=str(log_dir))
    return said.code


def waited_ms(place: Place) -> int:
    """How long a pass waits for the copy quota, by a clock that only waiting moves."""
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tierlog.clock.SystemClock", lambda: clock)
        assert place.tier().code == 0
    return clock.monotonic_ms()


def index_files(place: Place) -> int:
    tier(place)
    return len([name for name in files_of(place.folder) if name.endswith(".remoteLogIndex")])


def state_database(place: Place) -> bool:
    tier(place)
    return (place.folder / "state" / "metadata.sqlite").exists()


def configured(place: Place) -> dict[str, str]:
    """What the managers of the settings were configured with."""
    tier(place)
    return {path.name: path.read_text() for path in place.folder.glob("store*.configured")}


# -- a process that goes on


def running(place: Place, *arguments: str) -> subprocess.Popen[str]:
    options = ["--topic", "epochs", "--interval", "0.1", "--config", place.write_config()]
    where = ["--to", place.store.as_uri(), "--state-dir", str(place.folder / "state")]
    return subprocess.Popen(
        [sys.executable, "-m", "tierlog", "tier", LOG_DIR, *where, *options, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def oversize_warning(place: Place) -> bool:
    """Whether it says at the start that the quota cannot hold."""
    with running(place) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "3 segments copied" in line or "copied 3" in line or "24 KiB" in line:
                break
            if "copy quota" in line:
                break
        process.kill()
    return any("the quota will not hold" in line for line in lines)


def patience_at_the_end(place: Place) -> bool:
    """Whether a copy that hangs is waited for, when the process is told to end."""
    with running(place) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "the copy hangs" in line:
                process.send_signal(signal.SIGTERM)
            found = re.search(r"still at work after (\d+) ms", line)
            if found is not None:
                process.kill()
                return int(found[1]) >= 2_900
        process.kill()
    raise AssertionError("it ended without a word about the copy that hangs")


def metrics_address(place: Place) -> bool:
    with running(place) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        process.kill()
    return "metrics at" in first


# -- a manager


class _Heard(ManagerListener):
    def __init__(self) -> None:
        self.failures: list[TaskFailure] = []

    def on_task_failure(self, failure: TaskFailure) -> None:
        self.failures.append(failure)


def manager_of(place: Place, heard: _Heard, clock: Clock) -> RemoteLogManager:
    config = place.config
    options = ManagerOptions(
        config=config.remote_log, listener=heard, random_bytes=lambda size: b"\xff" * size
    )
    return RemoteLogManager(
        FailingStorage(LocalStore(place.store)),
        InMemoryRemoteLogMetadataManager(),
        broker_id=1,
        clock=clock,
        options=options,
    )


def retries_ms(place: Place) -> list[int]:
    """The pauses after failures in a row, at the highest chance."""
    clock, heard = ManualClock(), _Heard()
    manager = manager_of(place, heard, clock)
    log = GoldenLog(place.folder, "epochs-0")
    manager.become_leader(log.partition, 1, log)
    for _ in range(12):
        manager.run_until_idle()
        clock.advance(120_000)
    manager.close()
    return [failure.retry_ms for failure in heard.failures]


def next_run_ms(place: Place) -> int | None:
    """When the follower task of a partition runs again."""
    clock = ManualClock()
    manager = manager_of(place, _Heard(), clock)
    log = GoldenLog(place.folder, "epochs-0")
    manager.become_follower(log.partition, 1, log)
    manager.run_until_idle()
    due_ms = manager.follower_pool.next_due_ms()
    manager.close()
    return due_ms


def threads(place: Place) -> Counter[str]:
    """The threads of each pool."""
    with manager_of(place, _Heard(), SystemClock()):
        names = [one.name.rsplit("-", 1)[0] for one in threading.enumerate()]
    return Counter(name for name in names if name.startswith("tierlog-"))

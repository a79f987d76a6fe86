"""Tiering without end, in this process: what is told, what goes on, how it ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools.support import wait_until
from tests.sidecar.configs import tier_config
from tests.sidecar.running import QUICK, Told, running
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import SystemClock
from tierlog.config import Config, QuotaConfig, RemoteLogConfig
from tierlog.errors import ConfigError
from tierlog.quota import QuotaManager
from tierlog.remote.metadata.manager import RemoteLogSegmentState
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.urls import open_store
from tierlog.sidecar import Outcome, Sidecar
from tierlog.sidecar.sidecar import STUCK_MS
from tierlog.tiering.task_pool import Again, Task


def test_segments_are_copied_as_they_appear(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    folder = log_dir / "epochs-0"
    # As a broker makes them, one after the other.
    later = sorted(
        path for path in folder.iterdir() if path.name[:20] in (f"{285:020d}", f"{410:020d}")
    )
    for path in later:
        path.rename(tmp_path / path.name)
    with running(tmp_path, [log_dir]) as told:
        wait_until(lambda: len(told.rows) == 1, 30)
        wait_until(told.looks(3), 30)
        for path in later:
            (tmp_path / path.name).rename(path)
        wait_until(lambda: len(told.rows) == 3, 30)
        wait_until(lambda: told.statuses[-1].lag_segments == 0, 30)
        status = told.statuses[-1]
    assert told.bases(Outcome.COPIED) == [("epochs", 0), ("epochs", 146), ("epochs", 285)]
    assert (status.led, status.copied_segments, status.stuck) == (1, 3, 0)
    assert status.copied_bytes == sum(row.size_bytes for row in told.rows)
    assert told.warnings == told.failures == []


def test_a_directory_that_vanishes_is_warned_of_once_and_taken_up_again(tmp_path: Path) -> None:
    one = copy_log_dir(tmp_path / "1", "clean/disk1", "epochs-0")
    two = copy_log_dir(tmp_path / "2", "clean/disk1", "codec-none-0")
    with running(tmp_path, [one, two]) as told:
        # Nothing is on its way when it goes, which would be a failure besides.
        wait_until(lambda: told.statuses != [] and told.statuses[-1].led == 2, 30)
        wait_until(lambda: told.statuses[-1].lag_segments == 0, 30)
        two.rename(tmp_path / "away")
        wait_until(lambda: told.statuses[-1].led == 1, 30)
        wait_until(told.looks(5), 30)
        (warning,) = told.warnings
        assert str(two) in warning
        (tmp_path / "away").rename(two)
        wait_until(lambda: told.statuses[-1].led == 2, 30)
    assert {row.topic for row in told.rows} == {"codec-none", "epochs"}
    assert len(told.warnings) == 1
    assert told.failures == []


def test_a_broker_that_is_away_is_warned_of_once(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    silent = tier_config(QUICK, bootstrap_servers="127.0.0.1:1")
    with running(tmp_path, [log_dir], silent, broker_timeout_s=0.1) as told:
        wait_until(told.looks(3), 30)
    (warning,) = told.warnings
    assert "127.0.0.1:1 does not answer" in warning
    assert told.rows == []
    assert {status.broker_answers for status in told.statuses} == {False}


def test_what_is_damaged_is_said_once_and_stops_nothing(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0", "codec-none-0")
    (log_dir / "codec-none-0" / "leader-epoch-checkpoint").write_text("0\n7\n0 0\n")
    segment = log_dir / "epochs-0" / f"{146:020d}.log"
    segment.write_bytes(segment.read_bytes()[:-1] + b"?")
    with running(tmp_path, [log_dir]) as told:
        wait_until(lambda: len(told.rows) == 3, 30)
        wait_until(told.looks(5), 30)
    assert told.bases(Outcome.COPIED) == [("epochs", 0), ("epochs", 285)]
    assert told.bases(Outcome.REFUSED) == [("epochs", 146)]
    (warning,) = told.warnings
    assert "leader-epoch-checkpoint" in warning
    assert told.statuses[-1].refused_segments == 1


def test_a_store_that_fails_is_tried_again(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    quick = RemoteLogConfig(
        manager_task_interval_ms=20,
        manager_task_retry_backoff_ms=10,
        manager_task_retry_backoff_max_ms=20,
    )
    store = tmp_path / "store"
    store.mkdir()
    with Sidecar([str(log_dir)], store.as_uri(), state_dir=str(tmp_path / "state")):
        # Claimed for this cluster. A file stands where the topic's folder has to be.
        topic_id = (log_dir / "epochs-0" / "partition.metadata").read_text().split()[-1]
        in_the_way = store / f"epochs-{topic_id}"
        in_the_way.write_text("")
    with running(tmp_path, [log_dir], Config(remote_log=quick)) as told:
        wait_until(lambda: told.bases(Outcome.FAILED) != [], 30)
        wait_until(told.looks(10), 30)
        assert told.bases(Outcome.COPIED) == []
        # Tried again and again, and said once.
        assert told.bases(Outcome.FAILED) == [("epochs", 0)]
        in_the_way.unlink()
        wait_until(lambda: len(told.bases(Outcome.COPIED)) == 3, 30)
    assert len(list(list_segments(open_store(store.as_uri())))) == 3
    assert told.failures == []


def test_an_archive_that_would_expire_as_a_whole_stays(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    with running(tmp_path, [log_dir], tier_config(QUICK, retention_ms=7)) as told:
        wait_until(lambda: len(told.bases(Outcome.COPIED)) == 3, 30)
        wait_until(lambda: told.failures != [], 30)
        wait_until(told.looks(5), 30)
    assert [one for one in told.rows if one.outcome is Outcome.EXPIRED] == []
    (failure,) = told.failures
    assert "the whole archive of epochs-0" in failure
    assert len(list(list_segments(open_store((tmp_path / "store").as_uri())))) == 3


def test_an_end_in_the_middle_leaves_nothing_half_done(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    quota = QuotaManager.for_copies(QuotaConfig(copy_max_bytes_per_second=1))
    with running(tmp_path, [log_dir], copy_quota=quota) as told:
        wait_until(lambda: len(told.rows) == 1, 30)
    store = open_store((tmp_path / "store").as_uri())
    problems: list[Any] = []
    assert len(list(list_segments(store, on_problem=problems.append))) == 1
    assert problems == []
    with Sidecar(
        [str(log_dir)], (tmp_path / "store").as_uri(), state_dir=str(tmp_path / "state")
    ) as sidecar:
        (partition,) = sidecar.metadata.partitions()
        states = {one.state for one in sidecar.metadata.list(partition)}
    assert states == {RemoteLogSegmentState.COPY_SEGMENT_FINISHED}


def test_a_first_look_that_fails_is_an_error(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    (tmp_path / "store").mkdir()
    with (
        pytest.raises(ConfigError, match="no log directory"),
        Sidecar([], (tmp_path / "store").as_uri(), state_dir=str(tmp_path / "state")),
    ):
        pass
    assert log_dir.is_dir()


class Later(SystemClock):
    """The machine's clock, set to later."""

    later_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.later_ms


def test_a_task_that_does_not_move_is_reported(tmp_path: Path) -> None:
    log_dir = copy_log_dir(tmp_path, "clean/disk1", "epochs-0")
    (tmp_path / "store").mkdir()
    clock, gate, began = Later(), threading.Event(), threading.Event()

    def blocked(task: Task) -> Again:
        began.set()
        gate.wait()
        return Again.NEVER

    with Sidecar(
        [str(log_dir)],
        (tmp_path / "store").as_uri(),
        state_dir=str(tmp_path / "state"),
        clock=clock,
    ) as sidecar:
        pool = sidecar.manager.copy_pool
        pool.add("a copy", blocked)
        pool.start()
        try:
            assert began.wait(30)
            clock.later_ms = STUCK_MS
            told, stop = Told(), threading.Event()
            stop.set()
            sidecar.run(stop, told)
        finally:
            gate.set()
    assert told.statuses[-1].stuck == 1
    assert "a copy: copy task stuck for over 5 minutes" in told.warnings

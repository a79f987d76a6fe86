"""Disks that fail for real: under the state directory, and a store that is full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.kafka_tools.support import wait_until
from tests.tools.golden_copy import copy_log_dir
from tierlog.cli import main

SOURCE = Path(__file__).with_name("failing_disk.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled for this machine."""
    built = tmp_path_factory.mktemp("library") / "failing_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(built), "-ldl"]
    subprocess.run(command, check=True)
    return built


def failing(library: Path, flag: Path, path_part: str, error: int) -> dict[str, str]:
    """The environment of a process whose writes to such files fail while `flag` exists."""
    return {
        "LD_PRELOAD": str(library),
        "FAILING_DISK": str(flag),
        "FAILING_PATH": path_part,
        "FAILING_ERROR": str(error),
    }


@contextmanager
def sidecar(
    log_dir: Path, folder: Path, *flags: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tierlog", "tier", str(log_dir), "--interval", "0.2"]
    command += ["--to", (folder / "store").as_uri(), "--state-dir", str(folder / "state")]
    with subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_failing_disk_ends_the_sidecar_and_the_next_one_goes_on(
    tmp_path: Path, library: Path
) -> None:
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1", "epochs-0")
    partition, flag = log_dir / "epochs-0", tmp_path / "disk fails"
    later = [path for base in (285, 410) for path in sorted(partition.glob(f"{base:020d}.*"))]
    for path in later:
        path.rename(tmp_path / path.name)

    def bases() -> list[int]:
        return sorted(int(path.name[:20]) for path in (tmp_path / "store").rglob("*.indexes"))

    broken = failing(library, flag, "-wal", errno.EIO)
    with sidecar(log_dir, tmp_path, **broken) as process:
        wait_until(lambda: bases() == [0], 60, what="the first segment in the store")
        flag.touch()
        for path in later:
            (tmp_path / path.name).rename(path)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"tierlog: {tmp_path / 'state' / 'metadata.sqlite'}: a change could not")
    assert "disk I/O error" in last
    assert len(err.splitlines()) < 10, err
    flag.unlink()
    state = ["--state-dir", str(tmp_path / "state")]
    store = (tmp_path / "store").as_uri()
    assert main(["tier", str(log_dir), "--to", store, "--once", *state]) == 0
    assert bases() == [0, 146, 285]
    assert main(["verify", store]) == 0


def test_a_warning_that_lasts_is_said_once(tmp_path: Path, library: Path) -> None:
    """Many partitions are being copied when the disk fails, and each says so once."""
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1")
    flag = tmp_path / "disk fails"
    broken = failing(library, flag, "-wal", errno.EIO)
    slowly = ["--copy-quota", "20K", "--copy-quota-mode", "pace"]
    with sidecar(log_dir, tmp_path, *slowly, **broken) as process:
        wait_until(lambda: any((tmp_path / "store").rglob("*.indexes")), 60)
        flag.touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = err.splitlines()
    assert len(lines) == len(set(lines)), err


FAILURES = 'tierlog_task_failures_total{error="RemoteMetadataError",pool="copy"}'
COPIED = "tierlog_segments_copied_total"
LAG = "kafka_server_brokertopicmetrics_remotecopylag"
ERRORS = "kafka_server_brokertopicmetrics_remotecopyerrors_total"


def scraped(process: subprocess.Popen[str]) -> Callable[[], dict[str, float]]:
    """Reads the metrics of a sidecar that has just begun."""
    assert process.stderr is not None
    url = next(line.split()[-1] for line in process.stderr if "metrics at http" in line)

    def read() -> dict[str, float]:
        with urlopen(url) as answer:
            lines = [line.split() for line in answer.read().decode().splitlines()]
        return {line[0]: float(line[1]) for line in lines if line and line[0] != "#"}

    return read


def test_a_full_store_shows_in_the_metrics(tmp_path: Path, library: Path) -> None:
    """One partition is copied and idle, the segments of the other do not fit."""
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1", "epochs-0", "codec-none-0")
    flag, aside = tmp_path / "store is full", tmp_path / "aside"
    (log_dir / "epochs-0").rename(aside)
    sizes = [path.stat().st_size for path in sorted(aside.glob("*.log"))[:-1]]
    full = failing(library, flag, f"{tmp_path}/store/", errno.ENOSPC)
    with sidecar(log_dir, tmp_path, "--metrics", "127.0.0.1:0", **full) as process:
        metrics = scraped(process)
        copied = len(list((log_dir / "codec-none-0").glob("*.log"))) - 1
        wait_until(
            lambda: metrics().get(COPIED) == copied,
            60,
            what="the first partition copied",
        )
        flag.touch()
        aside.rename(log_dir / "epochs-0")
        wait_until(lambda: metrics().get("tierlog_partitions_led") == 2, 60, what="both led")
        wait_until(lambda: metrics().get(ERRORS, 0) >= 2, 60, what="errors that are counted")
        found = metrics()
        assert found[f"{LAG}bytes"] == sum(sizes)
        assert found[f"{LAG}segments"] == len(sizes)
        assert found["tierlog_partitions_copy_lag_unknown"] == 0
        flag.unlink()
        wait_until(lambda: metrics().get(f"{LAG}bytes") == 0, 60, what="both copied")


def test_a_full_disk_of_the_state_directory_shows_in_the_metrics(
    tmp_path: Path, library: Path
) -> None:
    """It goes on by itself once there is room."""
    log_dir = copy_log_dir(tmp_path / "kafka", "clean/disk1", "epochs-0", "codec-none-0")
    flag, aside = tmp_path / "disk is full", tmp_path / "aside"
    (log_dir / "epochs-0").rename(aside)
    first = len(list((log_dir / "codec-none-0").glob("*.log"))) - 1
    both = first + len(list(aside.glob("*.log"))) - 1
    full = failing(library, flag, "-wal", errno.ENOSPC)
    with sidecar(log_dir, tmp_path, "--metrics", "127.0.0.1:0", **full) as process:
        metrics = scraped(process)
        wait_until(lambda: metrics().get(COPIED) == first, 60, what="the first one copied")
        assert metrics()[FAILURES] == 0
        flag.touch()
        aside.rename(log_dir / "epochs-0")
        wait_until(lambda: metrics().get(FAILURES, 0) >= 2, 60, what="failures that are counted")
        assert metrics()[ERRORS] >= 2
        flag.unlink()
        wait_until(lambda: metrics().get(COPIED) == both, 60, what="both copied")

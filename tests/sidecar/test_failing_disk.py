"""A disk under the state directory that fails: the sidecar ends, and its next start goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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

    broken = {"LD_PRELOAD": str(library), "FAILING_DISK": str(flag)}
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
    broken = {"LD_PRELOAD": str(library), "FAILING_DISK": str(flag)}
    slowly = ["--copy-quota", "20K", "--copy-quota-mode", "pace"]
    with sidecar(log_dir, tmp_path, *slowly, **broken) as process:
        wait_until(lambda: any((tmp_path / "store").rglob("*.indexes")), 60)
        flag.touch()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = err.splitlines()
    assert len(lines) == len(set(lines)), err

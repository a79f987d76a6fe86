"""Two brokers with one log, whose sidecars share only the store."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.sidecar.configs import tier_config
from tests.tools.golden_copy import copy_log_dir
from tierlog.clock import ManualClock
from tierlog.log.log_dir import open_log_dir
from tierlog.remote.segment.bucket import Problem, list_segments
from tierlog.remote.urls import open_store
from tierlog.sidecar import Sidecar

__all__ = [
    "END",
    "command",
    "make_brokers",
    "require_counted_once",
    "require_once",
    "sidecar_of",
    "url_of",
]

PARTITION = "epochs-0"
END = 410


def make_brokers(tmp_path: Path) -> tuple[Path, Path]:
    """The directories of two brokers with one log; the second one leads in a later epoch."""
    first = copy_log_dir(tmp_path, "clean/disk1", PARTITION)
    second = tmp_path / "disk2"
    shutil.copytree(first, second)
    properties = (second / "meta.properties").read_text()
    node_id = open_log_dir(first).node_id
    assert node_id is not None
    changed = properties.replace(f"node.id={node_id}", f"node.id={node_id + 1}")
    assert changed != properties
    (second / "meta.properties").write_text(changed)
    path = second / PARTITION / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()
    last_epoch = int(lines[-1].split()[0])
    lines[1] = str(int(lines[1]) + 1)
    path.write_text("\n".join([*lines, f"{last_epoch + 1} 100000"]) + "\n")
    return first, second


def url_of(log_dir: Path) -> str:
    return (log_dir.parent / "store").as_uri()


def sidecar_of(log_dir: Path, state: str | None = None, *, topics: Sequence[str] = ()) -> Sidecar:
    state_dir = str(log_dir.parent / (state or f"state-{log_dir.name}"))
    return Sidecar(
        [str(log_dir)],
        url_of(log_dir),
        state_dir=state_dir,
        config=tier_config(topics=tuple(topics)),
        clock=ManualClock(),
    )


def command(log_dir: Path, *arguments: str) -> list[str]:
    state_dir = str(log_dir.parent / f"state-{log_dir.name}")
    tier = [sys.executable, "-m", "tierlog", "tier", str(log_dir), "--to", url_of(log_dir)]
    return [*tier, "--once", "--state-dir", state_dir, *arguments]


def require_once(log_dir: Path) -> None:
    """The store has every offset in one segment, and no object besides."""
    assert require_counted_once(log_dir) == []


def require_counted_once(log_dir: Path) -> list[Problem]:
    """Every offset counts in one segment; return what does not count."""
    store, left_out = open_store(url_of(log_dir)), list[Problem]()
    segments = tuple(list_segments(store, on_problem=left_out.append))
    held = Counter(
        offset for one in segments for offset in range(one.start_offset, one.end_offset + 1)
    )
    assert held == Counter(range(END))
    assert {one.reason for one in left_out} <= {"deposed_copy", "log_without_indexes"}
    return left_out

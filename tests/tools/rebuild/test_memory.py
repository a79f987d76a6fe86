"""A worker stays below 200 MB whatever the segment: large, of tiny batches, or made to burst."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.native.bomb import zstd_of_zeros
from tests.oracle import build
from tests.oracle.primitives import crc32
from tierlog._core import crc32c

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
MOST_MB = 200
# Every task of a rebuild, one after the other in one process.
WORKER = """
import json, sys
from tierlog.tools.rebuild.index import plan_rebuild, rebuild_report, rebuild_task

source, target = sys.argv[1:]
plan = plan_rebuild(source, target=target, dry_run=False, now_ms=0)
report = rebuild_report(plan, [one for task in plan.tasks for one in rebuild_task(task)])
with open("/proc/self/status") as status:
    peak_kib = int(next(line for line in status if line.startswith("VmHWM")).split()[1])
rows = [(row.outcome, row.batches, row.findings, row.log_crc32c) for row in report.segments]
print(json.dumps([peak_kib / 1000, rows]))
"""


def run(source: Path) -> tuple[float, list[list[object]]]:
    """Return the peak of memory in MB and the rows of the report."""
    command = [sys.executable, "-c", WORKER, str(source), str(source.parent / "to")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak_mb, rows = json.loads(done.stdout)
    return peak_mb, rows


def log_dir(folder: Path) -> tuple[Path, Path]:
    """An empty log directory, and where its segment belongs."""
    source = folder / "logs"
    (source / "large-0").mkdir(parents=True)
    (source / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    return source, source / "large-0" / f"{0:020d}.log"


def header(body: bytes, *, records: int = 1) -> bytes:
    """The header of a plain batch; its base offset lies outside of the checksum."""
    fields = struct.pack(">hiqqqhii", 0, records - 1, 1000, 2000, -1, -1, -1, records)
    crc = crc32c(body, crc32c(fields))
    return struct.pack(">qiibI", 0, 9 + len(fields) + len(body), 3, 2, crc) + fields


def test_a_segment_of_2_gib(tmp_path: Path) -> None:
    """Its records are holes of the file: every byte is there, few take room."""
    source, path = log_dir(tmp_path)
    body_bytes, count = 32 * MIB - 61, 63
    bare = header(bytes(body_bytes))
    with path.open("wb") as file:
        for number in range(count):
            file.seek(number * 32 * MIB)
            file.write(struct.pack(">q", number) + bare[8:])
        file.truncate(count * 32 * MIB)
    peak_mb, rows = run(source)
    assert [row[:2] for row in rows] == [["written", count]]
    assert peak_mb <= MOST_MB


def test_a_segment_of_tiny_batches(tmp_path: Path) -> None:
    """There are two million of them, and no table of all."""
    source, path = log_dir(tmp_path)
    body = bytes(9)
    batch, count = np.frombuffer(header(body) + body, dtype=np.uint8), 2_000_000
    rows = np.tile(batch, (count, 1))
    rows[:, :8] = np.arange(count, dtype=">i8").view(np.uint8).reshape(-1, 8)
    rows.tofile(path)
    del rows
    peak_mb, found = run(source)
    assert [row[:2] for row in found] == [["written", count]]
    assert peak_mb <= MOST_MB


def legacy_bomb() -> bytes:
    """A message of magic 1 whose gzip value opens to 512 MiB of zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    value = b"".join(packer.compress(bytes(MIB)) for _ in range(512)) + packer.flush()
    body = struct.pack(">bbqii", 1, 1, 1000, -1, len(value)) + value
    return struct.pack(">qiI", 0, 4 + len(body), crc32(body)) + body


def control_bomb() -> bytes:
    """A transaction marker that opens to 4 GiB of zeros."""
    return build.seal(
        zstd_of_zeros(4 << 30), attributes=0x34, base_offset=0, record_count=1, producer_id=7
    )


@pytest.mark.parametrize("bomb", [legacy_bomb, control_bomb])
def test_a_bomb_is_quarantined(bomb: Callable[[], bytes], tmp_path: Path) -> None:
    source, path = log_dir(tmp_path)
    path.write_bytes(bomb())
    peak_mb, rows = run(source)
    ((outcome, _, findings, _),) = rows
    assert outcome == "quarantined"
    assert findings
    assert not list((tmp_path / "to").rglob("*.*"))
    assert peak_mb <= MOST_MB

"""A batch of 1 MiB that would open to 32 GiB is refused within the memory of its limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.native.bomb import zstd_of_zeros
from tests.oracle import build

ROOT = Path(__file__).resolve().parents[2]
DECODE = """
import sys, tierlog

def peak_kib():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("VmHWM")).split()[1])

decode = tierlog.decode_records
before = peak_kib()
try:
    decode(sys.argv[1])
except tierlog.CorruptDataError as error:
    print(error.reason, peak_kib() - before)
"""


def test_a_zstd_bomb_stays_within_64_mib(tmp_path: Path) -> None:
    payload = zstd_of_zeros(32 << 30)
    assert len(payload) <= 1 << 20 | 1 << 10
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(build.seal(payload, attributes=4, base_offset=0, record_count=1))
    done = subprocess.run(
        [sys.executable, "-c", DECODE, str(path)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reason, added_kib = done.stdout.split()
    assert reason == "too_large"
    # What it may open to, and the batch itself.
    assert int(added_kib) <= (64 << 10) + (2 << 10)

"""Runs one operation in a separate process, and prints by how many bytes the process grew.

``python -m benches.memory_child scan SEGMENT`` or ``... copy SEGMENT FOLDER``. The peak is VmHWM,
since ``ru_maxrss`` begins with the value of the parent process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tierlog import scan_segment

from .copying import Copying


def status_bytes(field: str) -> int:
    """Return a memory figure of this process from /proc."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise LookupError(f"/proc/self/status has no {field}")


def main(operation: str, segment: str, folder: str = "") -> None:
    before = status_bytes("VmRSS")
    if operation == "scan":
        scan_segment(segment)
    else:
        Copying.of(Path(segment), Path(folder)).run()
    print(max(0, status_bytes("VmHWM") - before))


if __name__ == "__main__":
    main(*sys.argv[1:])

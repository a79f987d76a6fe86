"""promtool, Prometheus' own judge of an exposition: the machine's, or unpacked from Debian's
package of Prometheus without installing that (``python -m tests.metrics.promtool``; ``make test``
does)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CACHED = Path(__file__).parents[2] / ".cache" / "promtool" / "promtool"
TIMEOUT_S = 300


def find_promtool() -> str | None:
    """Where it is, if it is."""
    return shutil.which("promtool") or (str(CACHED) if CACHED.exists() else None)


def unpack_promtool() -> None:
    """From the system's package archive, unless there is one."""
    if find_promtool() is not None:
        return
    CACHED.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHED.parent) as folder:
        for command in (
            ("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", "prometheus"),
            ("sh", "-c", "dpkg-deb -x prometheus_*.deb ."),
        ):
            subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
        os.replace(Path(folder) / "usr" / "bin" / "promtool", CACHED)


if __name__ == "__main__":
    try:
        unpack_promtool()
    except (OSError, subprocess.SubprocessError) as error:
        sys.exit(f"promtool: {error}")

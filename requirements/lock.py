"""Writes the lock files from pyproject.toml: exact versions with hashes, for every Python.

``run.lock`` is what the command and its build need, ``test.lock`` adds the tests and benches,
``check.lock`` the linters. Run by ``make lock``.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
LOCKS = {
    "run": (["kafka", "metrics", "zookeeper"], ["build"]),
    "test": (["arrow", "hdfs", "kafka", "metrics", "spark", "zookeeper"], ["build", "test"]),
    "check": (["kafka", "metrics", "zookeeper"], ["build", "check"]),
}


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    for name, (extras, groups) in LOCKS.items():
        wanted = list(project["project"]["dependencies"])
        for extra in extras:
            wanted += project["project"]["optional-dependencies"][extra]
        for group in groups:
            wanted += project["dependency-groups"][group]
        target = HERE / f"{name}.lock"
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
        command += ["--python-version", "3.11", "--generate-hashes", "--no-header"]
        command += ["--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]
        if name != "run":
            command += ["--constraint", str(HERE / "run.lock")]
        command += ["--output-file", str(target), "-"]
        subprocess.run(command, input="\n".join(wanted), text=True, check=True)


if __name__ == "__main__":
    main()

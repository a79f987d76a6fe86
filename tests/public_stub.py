"""``python -m tests.public_stub``: write ``tierlog/__init__.pyi``, which type checkers read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tierlog

STUB_PATH = Path(tierlog.__file__).with_suffix(".pyi")


def stub_text() -> str:
    """The stub as ruff formats it: the imports of the table in ``tierlog/__init__.py``."""
    imports = [
        f"from tierlog.{module} import {', '.join(names.split())}"
        for module, names in vars(tierlog)["_NAMES"].items()
    ]
    lines = ['"""Made by ``python -m tests.public_stub``."""', *imports]
    lines += ["__version__: str", f"__all__ = {tierlog.__all__!r}"]
    return formatted("\n".join(lines) + "\n")


def formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    for command in (["check", "--fix-only", "--quiet"], ["format", "--quiet"]):
        text = subprocess.run(
            [ruff, *command, "--stdin-filename", str(STUB_PATH), "-"],
            input=text,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return text


if __name__ == "__main__":
    STUB_PATH.write_text(stub_text(), encoding="utf-8")

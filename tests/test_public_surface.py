"""What users import is a list, and the list is tested."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import tierlog

ROOT = Path(__file__).resolve().parent.parent


def test_all_is_sorted_and_complete() -> None:
    assert list(tierlog.__all__) == sorted(tierlog.__all__)
    public = {
        name
        for name, value in vars(tierlog).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }
    assert public - {"annotations"} == set(tierlog.__all__)


def test_every_public_name_is_documented() -> None:
    bare = [
        name
        for name in tierlog.__all__
        if callable(getattr(tierlog, name)) and not getattr(tierlog, name).__doc__
    ]
    assert bare == []


def test_every_module_lists_its_names() -> None:
    for info in pkgutil.walk_packages(tierlog.__path__, "tierlog."):
        if info.name.rsplit(".", 1)[-1].startswith("_") or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        listed = getattr(module, "__all__", None)
        if listed is None:
            assert not vars(module).get("__file__", "").endswith(".py") or info.ispkg, info.name
            continue
        assert list(listed) == sorted(listed), info.name
        assert all(hasattr(module, name) for name in listed), info.name


def test_imports_point_down() -> None:
    """The layer contract of pyproject.toml; ``make check`` runs the same command."""
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_builds_without_python() -> None:
    command = ["cargo", "tree", "--locked", "-p", "tierlog-core", "-e", "no-dev"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "pyo3" not in done.stdout

"""What users import is a list, and the list is tested."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import tierlog

ROOT = Path(__file__).resolve().parent.parent


def test_the_list_of_names_is_what_type_checkers_and_users_see() -> None:
    """Names load when first used; `__all__`, the loader and the imports for type checkers agree."""
    tree = ast.parse((ROOT / "pysrc" / "tierlog" / "__init__.py").read_text())
    (typed,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.name: f"{node.module}".removeprefix("tierlog.")
        for node in typed.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == tierlog._HOMES
    assert set(imported) == set(tierlog.__all__)
    assert len(tierlog.__all__) == len(imported)
    assert all(getattr(tierlog, name) is not None for name in tierlog.__all__)
    assert set(tierlog.__all__) <= set(dir(tierlog))


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
        assert len(set(listed)) == len(listed), info.name
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

"""What users import is a list, and the list is tested."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import assert_type

import pytest

import tierlog
from tests.public_stub import STUB_PATH, stub_text

ROOT = Path(__file__).resolve().parent.parent


def test_every_public_name_loads() -> None:
    assert all(getattr(tierlog, name) is not None for name in tierlog.__all__)
    assert {*tierlog.__all__, "__version__"} <= set(dir(tierlog))


def test_type_checkers_see_the_names_that_load() -> None:
    assert STUB_PATH.read_text(encoding="utf-8") == stub_text()


def test_all_names_load_without_the_extras() -> None:
    extras = ("pyarrow", "prometheus_client", "hdfs_native", "confluent_kafka", "pyspark")
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); from tierlog import *; read"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


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


def test_examples_import_exported_names_only() -> None:
    """A page shows what users may rely on; the test suites are a public package of their own."""
    fenced = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    inner = [
        f"{path.name}: {node.module}"
        for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
        for block in fenced.findall(path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom)
        if f"{node.module}".startswith(("tierlog.", "spark_udfs."))
        if node.module != "tierlog.testing"
    ]
    assert inner == []


def test_the_version_is_that_of_the_installed_package() -> None:
    assert tierlog.__version__ == version("tierlog")
    assert "__version__" in dir(tierlog)


def test_read_and_read_async_take_the_same_arguments() -> None:
    """Names, kinds and defaults; a quota that `read_async` cancels has to be a `QuotaManager`."""
    taken, taken_async = (
        [(one.name, one.kind, one.default) for one in inspect.signature(read).parameters.values()]
        for read in (tierlog.read, tierlog.read_async)
    )
    assert taken_async == taken


def test_type_checkers_know_what_reading_returns(tmp_path: Path) -> None:
    """mypy checks these lines: the names are loaded when used, and their types are no `Any`."""
    with pytest.raises(FileNotFoundError):
        assert_type(tierlog.read(tmp_path / "no", "t", 0), Iterator[tierlog.RecordColumns])
    assert_type(tierlog.read_async(tmp_path, "t", 0), AsyncIterator[tierlog.RecordColumns])
    assert_type(tierlog.__version__, str)

"""No two modules of the Rust crates use each other, directly or through others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"\b(crate|super|self)((?:::\w+)*)(::\{)?")
COMMENT = re.compile(r"//[^\n]*")
TESTS = re.compile(
    r"#\[cfg\((?:test|all\(test[^)]*\))\)\]\n(?:#\[[^\n]*\n)*mod \w+ \{.*\Z", re.DOTALL
)


def modules_of(source: Path) -> dict[tuple[str, ...], str]:
    """The text of each module by its path, without comments and unit tests."""
    modules = {}
    for file in sorted(source.rglob("*.rs")):
        parts = file.relative_to(source).with_suffix("").parts
        name = parts[:-1] if parts[-1] in ("mod", "lib") else parts
        modules[name] = TESTS.sub("", COMMENT.sub("", file.read_text(encoding="utf-8")))
    return modules


def used_paths(module: tuple[str, ...], text: str) -> Iterator[tuple[str, ...]]:
    """Every path of this crate that the module names, each name of a group for itself."""
    for match in PATH.finditer(text):
        root, names, group = match[1], tuple(match[2].split("::")[1:]), match[3]
        base = {"crate": (), "super": module[:-1], "self": module}[root]
        if not group:
            yield (*base, *names)
            continue
        for item in group_items(text, match.end()):
            yield (*base, *names, *item)


def group_items(text: str, start: int) -> Iterator[tuple[str, ...]]:
    """The first names of each item in the braces that are open at `start`."""
    depth, item = 1, ""
    for letter in text[start:]:
        depth += (letter == "{") - (letter == "}")
        if depth == 0 or (letter == "," and depth == 1):
            yield tuple(re.findall(r"\w+", item.split("{")[0].split(" as ")[0]))
            item = ""
        else:
            item += letter
        if depth == 0:
            return


def uses_of(source: Path) -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Which modules each module uses: the longest part of each path that is a module."""
    modules = modules_of(source)
    uses: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module, text in modules.items():
        found = set()
        for path in used_paths(module, text):
            while path not in modules:
                path = path[:-1]
            found.add(path)
        uses[module] = found - {module, ()}
    return uses


@pytest.mark.parametrize("crate", ["core", "py"])
def test_no_module_uses_itself_through_others(crate: str) -> None:
    uses = uses_of(ROOT / "rust" / crate / "src")
    assert len(uses) > 20
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join("::".join(module) for module in error.args[1]))


def test_paths_of_a_group_are_found() -> None:
    text = """
    use crate::records::{Records, columns::{Cell, Row}, rows as lines};
    use super::sync;
    use crate::{codec::gzip, index};
    """
    assert set(used_paths(("batch", "runs"), text)) == {
        ("records", "Records"),
        ("records", "columns"),
        ("records", "rows"),
        ("batch", "sync"),
        ("codec", "gzip"),
        ("index",),
    }

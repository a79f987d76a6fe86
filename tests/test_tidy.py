"""The house rules that a machine can check, checked over every tracked source file."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
RUST_FUNCTION = re.compile(r"( *)(?:pub(?:\([a-z]+\))? )?(?:const |unsafe |extern \"C\" )*fn (\w+)")
CYTHON_FUNCTION = re.compile(r"( *)(?:def|cdef|cpdef) [^(=]*?(\w+)\(")
CYTHON = (".pyx", ".pxi", ".pxd")
THIS_FILE = "tests/test_tidy.py"

# Where looking at the clock, sleeping or chance is the job.
CHANCE_OWNERS = ("pysrc/tierlog/types.py", "pysrc/tierlog/testing/", "benches/", "tests/")
CLOCK_OWNERS = ("pysrc/tierlog/clock.py", "pysrc/tierlog/cli/", "benches/", "tests/")


def tracked(*suffixes: str) -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [name for name in listing.splitlines() if (ROOT / name).is_file()]
    return [name for name in names if name.endswith(suffixes)]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def rust_functions(source: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function that rustfmt has laid out."""
    found = []
    lines = source.splitlines()
    for start, line in enumerate(lines):
        match = RUST_FUNCTION.match(line)
        if match is None:
            continue
        for end in range(start, len(lines)):
            if lines[end].startswith(match[1] + "}") or lines[end].rstrip().endswith(("{}", ";")):
                found.append((match[2], end - start + 1))
                break
    return found


def cython_functions(source: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function, which ends where its indentation does."""
    found = []
    lines = [*source.splitlines(), "end"]
    for start, line in enumerate(lines):
        match = CYTHON_FUNCTION.match(line)
        if match is None:
            continue
        body = start
        while (text := "\n".join(lines[start : body + 1])).count("(") > text.count(")"):
            body += 1
        if not text.split("#")[0].rstrip().endswith(":"):
            continue  # A declaration.
        inner = match[1] + " "
        ends = (
            n for n in range(body + 1, len(lines)) if lines[n] and not lines[n].startswith(inner)
        )
        found.append((match[2], len("\n".join(lines[start : next(ends)]).rstrip().splitlines())))
    return found


def python_functions(source: str) -> list[tuple[str, int]]:
    return [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_files_and_functions_fit() -> None:
    too_long = []
    for name in tracked(".py", ".rs", *CYTHON):
        source = text_of(name)
        length = source.count("\n")
        if length > MAX_FILE_LINES:
            too_long.append(f"{name}: {length} lines")
        functions = rust_functions(source) if name.endswith(".rs") else []
        functions += python_functions(source) if name.endswith(".py") else []
        functions += cython_functions(source) if name.endswith(CYTHON) else []
        too_long += [
            f"{name}: {function} has {lines} lines"
            for function, lines in functions
            if lines > MAX_FUNCTION_LINES
        ]
    assert too_long == []


@pytest.mark.parametrize(
    ("suffixes", "pattern", "allowed"),
    [
        ((".py", ".rs", *CYTHON), r"\b(TODO|FIXME|XXX|HACK)\b", (THIS_FILE,)),
        ((".py", *CYTHON), r"NotImplementedError", (THIS_FILE,)),
        ((".py", *CYTHON), r"\btime\.(time|monotonic|sleep|perf_counter)\(", CLOCK_OWNERS),
        ((".py", *CYTHON), r"\b(random\.|uuid4\()", CHANCE_OWNERS),
        ((".rs",), r"\b(Instant|SystemTime)::now", ("rust/core/benches/",)),
        (
            (".py",),
            r"pytest\.(skip|xfail|importorskip)|mark\.(skip|xfail)",
            ("tests/test_tidy.py",),
        ),
    ],
)
def test_banned_words(suffixes: tuple[str, ...], pattern: str, allowed: tuple[str, ...]) -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in tracked(*suffixes)
        if not name.startswith(allowed or "\0")
        for number, line in enumerate(text_of(name).splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []


def test_unsafe_stands_where_it_is_allowed() -> None:
    allowed = {
        "rust/core/src/cache/map.rs",
        "rust/core/src/crc32_short.rs",
        "rust/core/src/memory/hints.rs",
        "rust/core/src/quota/shelves.rs",
        "rust/core/src/source.rs",
        "rust/fuzz/src/memory.rs",
        "rust/py/src/buffer.rs",
        "rust/py/src/cache.rs",
        "rust/py/src/capsule.rs",
        "rust/py/src/key.rs",
        "rust/py/src/load.rs",
        "rust/py/src/object.rs",
        "rust/py/src/pointers.rs",
        "rust/py/src/quota.rs",
    }
    found = {
        name for name in tracked(".rs") if re.search(r"\bunsafe (\{|fn|impl|extern)", text_of(name))
    }
    assert found <= allowed


# Rooms without a folder in `tierlog`: the native parts, the judges, and tests of the whole.
TEST_ROOMS = {
    "histories": "three real brokers under restarts, against a ledger",
    "hot": "the Cython module",
    "integration": "beside real brokers",
    "kafka_tools": "Kafka's own tools",
    "native": "the Rust module",
    "oracle": "the second implementation of each format",
    "oracle_tests": "tests of that one",
    "packaging": "wheels",
    "reliability": "promises, over faults",
    "settings": "every setting",
    "simulation": "sidecars over simulated brokers and a failing store",
    "spark": "spark_udfs",
}


def test_tests_mirror_the_package() -> None:
    folders = {
        Path(name).relative_to("tests").parent
        for name in tracked(".py")
        if name.startswith("tests/") and Path(name).name.startswith("test_")
    }
    strange = [
        str(folder)
        for folder in folders
        if folder.parts
        and folder.parts[0] not in TEST_ROOMS
        and not (ROOT / "pysrc" / "tierlog" / folder).is_dir()
    ]
    assert strange == []


def test_no_test_module_is_imported() -> None:
    """What several test modules use lies in a module of its own."""
    imports = re.compile(r"^\s*from tests\.(?:\w+\.)*test_\w+ import", re.MULTILINE)
    assert [name for name in tracked(".py") if imports.search(text_of(name))] == []

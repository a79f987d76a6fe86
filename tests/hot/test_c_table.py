"""The C function table: its two descriptions agree, and `_hot` refuses one that is not its own."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tierlog import _core

ROOT = Path(__file__).resolve().parents[2]
NAME = b"tierlog._core._C_API"

# Puts another table in the place of the core's before `_hot` is imported for the first time.
IMPORT_WITH = """
import ctypes, struct, sys
import tierlog._core as core
table = ctypes.create_string_buffer(struct.pack("=II", int(sys.argv[1]), int(sys.argv[2])), 4096)
new = ctypes.pythonapi.PyCapsule_New
new.restype = ctypes.py_object
new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
name = sys.argv[3].encode()
core._C_API = new(ctypes.addressof(table), name, None) if name else object()
try:
    import tierlog._hot
except ImportError as error:
    print("ImportError:", error)
except ValueError as error:
    print("ValueError:", error)
"""


def head_of_the_table() -> tuple[int, int]:
    """(version, size in bytes) of the core's."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype = ctypes.POINTER(ctypes.c_uint32)
    pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    head = pointer(_core._C_API, NAME)
    return head[0], head[1]


def body_of(text: str, opening: str, closing: str) -> str:
    start = text.index(opening)
    return text[start : text.index(closing, start)]


def test_both_descriptions_name_the_same_functions_in_the_same_order() -> None:
    rust = body_of((ROOT / "rust/py/src/capsule.rs").read_text(), "struct Api {", "\n}")
    cython = body_of(
        (ROOT / "pysrc/tierlog/_hot.pxd").read_text(), "ctypedef struct CoreApi:", "\n\n"
    )
    in_rust = re.findall(r"^    (\w+):", rust, re.MULTILINE)
    in_cython = re.findall(r"(?:int32_t|uint32_t) (\w+)$|\(\*(\w+)\)\(", cython, re.MULTILINE)
    assert in_rust == [field or function for field, function in in_cython]
    version, size_bytes = head_of_the_table()
    assert version == 4
    assert size_bytes == 8 + 8 * (len(in_rust) - 2)


@pytest.mark.parametrize(
    ("version", "size_bytes", "name", "expected"),
    [
        (1, 4096, NAME, "ImportError: tierlog._hot needs version 4 of the core's C API"),
        (5, 4096, NAME, "found version 5 (4096 bytes): install both from one wheel"),
        (4, 24, NAME, "found version 4 (24 bytes)"),
        (4, 4096, b"other", "ValueError: PyCapsule_GetPointer called with incorrect name"),
        (4, 4096, b"", "ValueError: PyCapsule_GetPointer called with invalid PyCapsule object"),
    ],
)
def test_another_table_is_refused(
    version: int, size_bytes: int, name: bytes, expected: str
) -> None:
    command = [sys.executable, "-c", IMPORT_WITH, str(version), str(size_bytes), name.decode()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert expected in done.stdout


def test_a_longer_table_of_the_same_version_will_do() -> None:
    command = [sys.executable, "-c", IMPORT_WITH, "4", "4096", NAME.decode()]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == ""

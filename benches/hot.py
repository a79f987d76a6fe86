"""Compiles the loops of ``hot_loops.pyx`` against the installed ``tierlog._hot``."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import tempfile
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tierlog import _hot

SOURCE = Path(__file__).with_name("hot_loops.pyx")


@cache
def hot_loops(directory: Path) -> Any:
    """Return the compiled module, which is kept in `directory`. The module is built like a module
    of another package."""
    interface = Path(str(_hot.__file__)).with_name("_hot.pxd")
    digest = hashlib.sha256(SOURCE.read_bytes() + interface.read_bytes()).hexdigest()[:16]
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    built = directory / f"hot-{digest}" / f"{SOURCE.stem}{suffix}"
    if not built.is_file():
        _build(built)
    spec = spec_from_file_location(SOURCE.stem, built)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        source = Path(scratch) / SOURCE.name
        source.write_bytes(SOURCE.read_bytes())
        command = [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{SOURCE.name} does not build: {done.stderr.strip()[-2000:]}")
        (Path(scratch) / target.name).rename(target)

"""The build backend: Cython first, then maturin, into one wheel.

``tierlog._hot`` is Cython and must lie beside the sources before maturin packs them; maturin
builds ``tierlog._core`` from Rust and makes the wheel. An extension left over from another Python
would be packed too, so stale ones are deleted first. Not a setuptools script: pip finds the hooks
through ``build-backend`` in pyproject.toml, and ``python setup.py build_hot`` builds the Cython
module in place for an editable checkout.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import zipfile
from pathlib import Path
from typing import Any

import maturin

# The maturin command lies beside the interpreter, which need not be on PATH.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

ROOT = Path(__file__).resolve().parent
HOT = ROOT / "pysrc" / "tierlog" / "_hot.pyx"

Settings = dict[str, Any] | None

get_requires_for_build_sdist = maturin.get_requires_for_build_sdist


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return [*maturin.get_requires_for_build_wheel(config_settings), "cython>=3.1", "setuptools>=77"]


get_requires_for_build_editable = get_requires_for_build_wheel


def build_hot() -> None:
    """Compiles ``_hot.pyx`` in place, unless what is there is newer than its sources."""
    import sysconfig

    target = HOT.with_name("_hot" + sysconfig.get_config_var("EXT_SUFFIX"))
    sources = [HOT, HOT.with_suffix(".pxd"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    for other in HOT.parent.glob("_hot.*.so"):
        if other != target or other.stat().st_mtime < newest:
            other.unlink()
    for core in HOT.parent.glob("_core*.so"):
        if core.name != "_core" + sysconfig.get_config_var("EXT_SUFFIX"):
            core.unlink()
    if target.exists():
        return
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(
        "tierlog._hot",
        [str(HOT)],
        extra_compile_args=["-O3", "-g0"],
        extra_link_args=["-s"] if sys.platform.startswith("linux") else [],
    )
    distribution = Distribution(
        {
            "package_dir": {"": str(HOT.parent.parent)},
            "ext_modules": cythonize([extension], build_dir=str(ROOT / "target" / "cython")),
        }
    )
    command = build_ext(distribution)
    command.build_temp = str(ROOT / "target" / "cython")
    command.build_lib = str(HOT.parent.parent)
    command.ensure_finalized()
    command.run()


def build_wheel(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    build_hot()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    build_hot()
    name = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    add_root_to_path(Path(wheel_directory) / name)
    return name


def add_root_to_path(wheel: Path) -> None:
    """Puts this folder on the path of an editable install: ``spark_udfs`` lies here."""
    with zipfile.ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    record = next(info for info in members if info.filename.endswith(".dist-info/RECORD"))
    path_file = next(info for info in members if info.filename.endswith(".pth"))
    members[path_file] = members[path_file].rstrip() + f"\n{ROOT}\n".encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(members[path_file]).digest()).rstrip(b"=")
    entry = f"{path_file.filename},sha256={digest.decode()},{len(members[path_file])}"
    lines = members[record].decode().splitlines()
    kept = [line for line in lines if not line.startswith(f"{path_file.filename},")]
    members[record] = "\n".join([entry, *kept, ""]).encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, data in members.items():
            archive.writestr(info, data)


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    return maturin.build_sdist(sdist_directory, config_settings)


prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable

if __name__ == "__main__":
    if sys.argv[1:] != ["build_hot"]:
        sys.exit("usage: python setup.py build_hot   (to install: pip install .)")
    build_hot()

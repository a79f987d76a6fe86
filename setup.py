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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import maturin

ROOT = Path(__file__).resolve().parent

# The maturin command lies beside the interpreter, which need not be on PATH.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# A binary names the source files of its panics: not by the paths of the machine that built it. Our
# own are relative already; a flag with their folder would have each build elsewhere compile all
# dependencies again.
CARGO_HOME = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
os.environ["CARGO_ENCODED_RUSTFLAGS"] = "\x1f".join(
    [
        *os.environ.get("RUSTFLAGS", "").split(),
        f"--remap-path-prefix={CARGO_HOME}=cargo",
    ]
)

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
    sources = [HOT, HOT.with_suffix(".pxd"), *HOT.parent.glob("_hot_*.pxi"), Path(__file__)]
    newest = max(path.stat().st_mtime for path in sources)
    for other in HOT.parent.glob("_hot.*.so"):
        if other != target or other.stat().st_mtime < newest:
            other.unlink()
    for core in HOT.parent.glob("_core*.so"):
        if core.name != "_core" + sysconfig.get_config_var("EXT_SUFFIX"):
            core.unlink()
    if target.exists():
        return
    # Without the library folders of the interpreter it is built with: they are this machine's.
    link = sysconfig.get_config_var("LDSHARED").split()
    os.environ["LDSHARED"] = " ".join(
        word for word in link if not word.startswith(("-L", "-Wl,-rpath", "-Wl,-R"))
    )
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
    name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
    edit_wheel(Path(wheel_directory) / name, forget_this_folder)
    return name


def build_editable(
    wheel_directory: str,
    config_settings: Settings = None,
    metadata_directory: str | None = None,
) -> str:
    build_hot()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    edit_wheel(Path(wheel_directory) / name, add_this_folder)
    return name


def forget_this_folder(name: str, data: bytes) -> bytes:
    """The bill of materials names where the crates lay when they were built."""
    if name.endswith(".cyclonedx.json"):
        return data.replace(str(ROOT).encode(), b"tierlog")
    return data


def add_this_folder(name: str, data: bytes) -> bytes:
    """An editable install finds ``spark_udfs`` here, not in pysrc."""
    return data.rstrip() + f"\n{ROOT}\n".encode() if name.endswith(".pth") else data


def edit_wheel(wheel: Path, edit: Callable[[str, bytes], bytes]) -> None:
    """Passes every member through `edit` and writes what RECORD says of the changed ones."""
    with zipfile.ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    record = next(info for info in members if info.filename.endswith(".dist-info/RECORD"))
    lines = members[record].decode().splitlines()
    for info, data in members.items():
        edited = edit(info.filename, data)
        if edited == data:
            continue
        members[info] = edited
        digest = base64.urlsafe_b64encode(hashlib.sha256(edited).digest()).rstrip(b"=").decode()
        lines = [line for line in lines if not line.startswith(f"{info.filename},")]
        lines.append(f"{info.filename},sha256={digest},{len(edited)}")
    members[record] = "\n".join([*lines, ""]).encode()
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

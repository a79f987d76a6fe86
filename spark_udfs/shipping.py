"""Sends this process's tierlog to workers that lack tierlog.

Spark unpacks an archive into a folder on the path of its Python workers. The name after the ``#``
is the name of the folder. So workers can import a package from an archive of the same name, with
its native code. Spark's own ``--py-files`` does not support native code.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tierlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["package_archive", "ship"]

# The packages that tierlog needs in a worker. numpy and pyarrow are not listed, because Spark
# itself needs these in a worker.
_PACKAGES = ("tierlog", "spark_udfs", "obstore")
_LEFT_OUT = (".pyx", ".pxd", ".c", ".pyc")
# Files in an archive have a fixed time, so that the same package makes the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def ship(spark: SparkSession) -> None:
    """Make tierlog importable in the workers of a session, also with Spark Connect.

    The workers need the same operating system, architecture and version of Python. The workers also
    need their own numpy, pandas and pyarrow, which Spark requires. A worker that has tierlog
    installed uses the shipped tierlog instead. Raises ConfigError when a package is not found.
    """
    # Spark reads a file when a worker asks for it, so the folder is kept until the process ends.
    folder = tempfile.mkdtemp(prefix="tierlog-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in _PACKAGES:
        archive = package_archive(name, folder)
        spark.addArtifacts(f"{archive}#{name}", archive=True)


def package_archive(name: str, folder: str) -> str:
    """Return the path of a new zip file in ``folder`` with the contents of a package's folder."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{name}: expected an installed package to ship, found none")
    top = spec.submodule_search_locations[0]
    path = os.path.join(folder, f"{name}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, folders, files in os.walk(top):
            folders[:] = sorted(one for one in folders if one != "__pycache__")
            for file in sorted(files):
                if not file.endswith(_LEFT_OUT):
                    _add(archive, os.path.join(place, file), top)
    return path


def _add(archive: zipfile.ZipFile, path: str, top: str) -> None:
    info = zipfile.ZipInfo(os.path.relpath(path, top), date_time=_EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    with open(path, "rb") as file:
        archive.writestr(info, file.read())

"""The settings with which tierlog is fast in Spark, and a session with these settings.

builder = SparkSession.builder.master("local[4]")
for name, value in session_config("local[4]").items():
    builder = builder.config(name, value)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_udfs.worker import NOT_INSTALLED
from tierlog.errors import TierlogError

__all__ = ["SPARK_ERRORS", "one_line", "session", "session_config"]

# The exceptions that a failing session raises, either with a Spark context or with Spark Connect.
SPARK_ERRORS = (PySparkException, Py4JError)

_CONNECT = "sc://"
_LOCAL = "local"
# The last line of a Python stack: the class of the error and its message.
_RAISED = re.compile(r"[\w.]+(?:Error|Exception|Exit|Interrupt)\b: ")
_RUNTIME = "spark.sql."
_SETTINGS = {
    # Rows are exchanged with Python through a Unix socket. With a Unix socket, a task ends 20 ms
    # sooner than with TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    # A worker that crashes in native code prints its stack.
    "spark.python.worker.faulthandler.enabled": "true",
    # Spark passes conditions on partition, offset and timestamp to the data source.
    "spark.sql.python.filterPushdown.enabled": "true",
}
# The driver's message when a worker has failed.
_WAITED = "Exception thrown in awaitResult"
# A program that starts a session here shows its own progress bar.
_QUIET = {"spark.ui.showConsoleProgress": "false"}
# These settings keep their defaults on purpose:
#   spark.python.worker.reuse (true): a new worker for each task would take 150 ms
#   spark.executor.pyspark.memory (unset): it limits addresses, not memory. Native threads and maps
#     reach that limit long before memory is short. Set spark.executor.memoryOverhead instead
#   spark.task.maxFailures (4): data never makes a task fail, so a repeat may help
#   spark.speculation (false): it is safe, but reads the data twice


def session_config(master: str = "") -> dict[str, str]:
    """Return the settings for the builder of a session.

    ``master`` is the master on which the session will start. For Spark Connect (``sc://host``),
    only the settings that a client may set are returned. The other settings must be set when the
    server starts.

    For a local master, this function sets the interpreter of this process in the environment,
    unless the environment already names an interpreter. If no interpreter were set, Spark would use
    the `python3` of the path. If that interpreter has no tierlog, Spark reports
    DATA_SOURCE_NOT_FOUND. For a cluster, this function cannot know the interpreters of the nodes.
    This function warns if the interpreter that Spark would use on this machine has no tierlog.
    """
    if master and not master.startswith((_LOCAL, _CONNECT)):
        _warn_of_other_python(master)
    return _settings_for(master)


def _settings_for(master: str) -> dict[str, str]:
    if master.startswith(_LOCAL) and "PYSPARK_DRIVER_PYTHON" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not master.startswith(_CONNECT):
        return dict(_SETTINGS)
    return {name: value for name, value in _SETTINGS.items() if name.startswith(_RUNTIME)}


def _warn_of_other_python(master: str) -> None:
    """Warn when Spark's driver would search data sources with an interpreter that has no
    tierlog."""
    chosen = os.environ.get("PYSPARK_DRIVER_PYTHON") or os.environ.get("PYSPARK_PYTHON")
    path = shutil.which(chosen or "python3")
    if path is not None and os.path.dirname(path) == os.path.dirname(sys.executable):
        return
    if path is not None:
        command = [path, "-c", "import pyspark_tierlog"]
        if subprocess.run(command, capture_output=True).returncode == 0:
            return
    why = "has no tierlog" if path else "is not on this machine"
    warnings.warn(
        f"{master}: Spark uses {chosen or path or 'python3'} for data sources, which {why}, so "
        "format('tierlog') will end with DATA_SOURCE_NOT_FOUND: set PYSPARK_PYTHON, before Spark "
        "starts, to an interpreter with tierlog that this machine and all workers have",
        stacklevel=3,
    )


@contextmanager
def session(master: str, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a session on a master (``local[4]``, ``spark://host:7077``, ``yarn``, ``sc://host``)
    until the context ends, in a process that has no session. ``settings`` override
    `session_config`.

    Raises TierlogError when Spark does not start.
    """
    wanted = {**_settings_for(master), **_QUIET, **(settings or {})}
    builder = SparkSession.builder.appName("tierlog").config(map=wanted)
    is_connect = master.startswith(_CONNECT)
    builder = builder.remote(master) if is_connect else builder.master(master)
    try:
        spark = builder.getOrCreate()
    except SPARK_ERRORS as error:
        raise TierlogError(f"{master}: Spark did not start: {one_line(error)}") from error
    try:
        if not is_connect:
            spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def one_line(error: BaseException) -> str:
    """Return the line of a Spark error that says what happened, without the stacks around it."""
    lines = [line.removeprefix("Caused by: ").strip(": ") for line in str(error).splitlines()]
    lines = [line for line in lines if line and _WAITED not in line]
    for line in lines:
        if NOT_INSTALLED in line:
            return line[line.index(NOT_INSTALLED) :]
    raised = [line for line in lines if _RAISED.match(line)]
    return (raised or lines or [type(error).__name__])[0]

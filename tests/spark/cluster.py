"""A standalone cluster of separate processes, and interpreters for its workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

__all__ = ["environment", "interpreter", "standalone_cluster"]

SPARK_HOME = Path(pyspark.__file__).parent
PACKAGES = Path(pyspark.__file__).parents[1]
# Two names of this machine, since Spark runs no task a second time on the host where it runs.
HOSTS = ("127.0.0.1", "127.0.0.2")
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"(Successfully registered with master)")


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[str]:
    """The URL of a master with a worker on each of ``HOSTS``, one core each; output in folder."""
    with ExitStack() as stack:
        service = "org.apache.spark.deploy"
        place = ["--port", "0", "--webui-port", "0"]
        master = [f"{service}.master.Master", "--host", HOSTS[0], *place]
        url = stack.enter_context(_process(folder / "master.txt", master, _STARTED))
        for number, host in enumerate(HOSTS):
            command = [f"{service}.worker.Worker", "--host", host, *place]
            command += ["--cores", "1", "--memory", "1g"]
            command += ["--work-dir", str(folder / f"worker-{number}"), url]
            output = folder / f"worker-{number}.txt"
            stack.enter_context(_process(output, command, _REGISTERED))
        yield url


@contextmanager
def _process(output: Path, command: Sequence[str], wanted: re.Pattern[str]) -> Iterator[str]:
    """A process of Spark's, once it has said what is wanted: what it said."""
    process = subprocess.Popen(
        [str(SPARK_HOME / "bin" / "spark-class"), *command],
        env={**environment(), "SPARK_DAEMON_MEMORY": "256m"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        with output.open("w") as file:
            for line in process.stderr:
                file.write(line)
                if found := wanted.search(line):
                    break
            else:
                raise AssertionError(f"it did not start: see {output}")
            rest = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, file))
            rest.start()
            yield found[1]
            process.terminate()
            rest.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def environment(python: Path | str | None = None, *settings: str) -> dict[str, str]:
    """Variables of a small driver whose workers run ``python``."""
    small = ("spark.driver.memory=512m", "spark.executor.memory=512m", "spark.ui.enabled=false")
    told = " ".join(f"--conf {one}" for one in (*small, *settings))
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "OPENBLAS_NUM_THREADS": "1",
        "PYSPARK_PYTHON": str(python or sys.executable),
        "PYSPARK_SUBMIT_ARGS": f"{told} pyspark-shell",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOSTS[0],
    }


def interpreter(folder: Path) -> Path:
    """A virtual environment with all packages of this one but ours and what we bring along."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in PACKAGES.iterdir():
        if not path.name.startswith(("tierlog", "obstore", "pip", "_")):
            (packages / path.name).symlink_to(path)
    return folder / "bin" / "python"

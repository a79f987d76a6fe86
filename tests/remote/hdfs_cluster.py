"""A real HDFS on loopback: NameNode and DataNodes in one JVM, see `HdfsCluster.java`.

Its jars are resolved by Maven once (``make test`` does it first of all, or
``python -m tests.remote.hdfs_cluster``) and found again without the network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from tests.kafka_tools import KafkaToolsError, classpath
from tests.kafka_tools.support import LOOPBACK, find_program, tail_text
from tierlog.remote.urls import ObjectStore, open_store

HERE = Path(__file__).resolve().parent
CACHE_DIR = HERE.parents[1] / ".cache" / "hdfs"
POM = HERE / "hdfs_pom.xml"
MAIN = HERE / "HdfsCluster.java"
JVM_FLAGS = ("-Xmx512m", "-Dfile.encoding=UTF-8")
ANSWER_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30


def hdfs_classpath() -> str:
    """The jars of HDFS with everything its cluster for tests needs, and its main class, compiled
    once: that is a fifth of what the start of a cluster costs."""
    jars = classpath(CACHE_DIR, pom=POM)
    digest = hashlib.sha256(MAIN.read_bytes()).hexdigest()[:16]
    classes = CACHE_DIR / f"classes-{digest}"
    if not classes.exists():
        with tempfile.TemporaryDirectory(dir=CACHE_DIR) as folder:
            compiled = Path(folder) / "classes"
            javac = find_program("javac", "default-jdk-headless")
            subprocess.run([javac, "-cp", jars, "-d", str(compiled), str(MAIN)], check=True)
            # Somebody else may have been faster.
            with suppress(OSError):
                compiled.rename(classes)
    return f"{classes}{os.pathsep}{jars}"


@dataclass
class HdfsCluster:
    """Where the NameNode listens, and what the cluster can be told to do."""

    port: int
    process: subprocess.Popen[str]
    _folders: count[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"hdfs://{LOOPBACK}:{self.port}"

    def new_url(self) -> str:
        """A store's URL that nobody has had before."""
        return f"{self.url}/stores/{next(self._folders)}"

    def new_store(self, **options: Any) -> ObjectStore:
        return open_store(self.new_url(), **options)

    def tell(self, *words: str) -> str:
        """What the cluster answers to a command; KafkaToolsError when it fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._lock, _impatience(self.process):
            self.process.stdin.write("\t".join(words) + "\n")
            self.process.stdin.flush()
            verdict, _, answer = self.process.stdout.readline().rstrip("\n").partition(" ")
        if verdict != "ok":
            raise KafkaToolsError(f"HDFS: {' '.join(words)}: {verdict} {answer}")
        return answer

    def shell(self, *words: str) -> tuple[int, bytes]:
        """Exit code and output of a command of Hadoop's own file system shell (``-ls``, ...)."""
        code, _, printed = self.tell("shell", *words).partition(" ")
        return int(code), base64.b64decode(printed)

    def datanodes(self) -> list[str]:
        """The addresses that clients know the DataNodes by."""
        return self.tell("datanodes").split()

    @contextmanager
    def without_namenode(self) -> Iterator[None]:
        """The NameNode is down; afterwards it is up again on the same port, out of safe mode."""
        self.tell("stop-namenode")
        try:
            yield
        finally:
            self.tell("start-namenode")

    @contextmanager
    def without_datanode(self, address: str) -> Iterator[None]:
        """One DataNode is down, which the NameNode does not notice for minutes."""
        self.tell("stop-datanode", address)
        try:
            yield
        finally:
            self.tell("start-datanode", address)


@contextmanager
def _impatience(process: subprocess.Popen[str]) -> Iterator[None]:
    """Ends a process that does not answer, so that nobody reads from it for ever."""
    timer = threading.Timer(ANSWER_TIMEOUT_S, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def running_hdfs(datanodes: int = 3) -> Iterator[HdfsCluster]:
    """A started cluster; it ends with its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "hdfs.log"
        command = [find_program("java", "default-jre-headless"), *JVM_FLAGS, "-cp"]
        command += [hdfs_classpath(), MAIN.stem, f"{folder}/dfs", str(datanodes)]
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with _impatience(process):
                words = process.stdout.readline().split()
            if words[:1] != ["ready"]:
                raise KafkaToolsError(f"HDFS did not start: {tail_text(log)}")
            yield HdfsCluster(port=int(words[1]), process=process)
        finally:
            process.stdin.close()
            try:
                process.wait(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=STOP_TIMEOUT_S)
            process.stdout.close()


if __name__ == "__main__":
    try:
        hdfs_classpath()
    except (KafkaToolsError, subprocess.SubprocessError) as error:
        sys.exit(f"HDFS: {error}")

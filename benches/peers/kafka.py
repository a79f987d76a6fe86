"""Kafka's own Java classes as a peer, in a JVM that runs one operation whenever it is told to."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from benches.frame import Bench, PeerMissingError, Timed
from tests.kafka_tools import KafkaToolsError, classpath
from tests.kafka_tools.support import find_program

SOURCE = Path(__file__).with_name("KafkaScan.java")
LOG_CONFIG = Path(__file__).parents[2] / "tests" / "kafka_tools" / "log4j2.properties"
# The collector and compiler stay what a broker would get; only the heap is sized for the corpora.
JVM_FLAGS = ("-Xms1500m", "-Xmx1500m", f"-Dlog4j2.configurationFile={LOG_CONFIG}")
# Only checks are wanted then, so the JVM need not become fast.
QUICK_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
WARMUP_S = 3.0
ANSWER_TIMEOUT_S = 300


def kafka_peer(
    stack: ExitStack, bench: Bench, operation: str, segment: Path
) -> Callable[[], Timed]:
    """A run of `operation` (see KafkaScan.java) on `segment`, in a JVM of its own.

    A JVM that has seen one kind of work only compiles it best. It starts and warms up at the first
    call, which raises PeerMissingError when there is no Java, and ends with `stack`.
    """
    started: list[_Jvm] = []

    def run() -> Timed:
        if not started:
            started.append(_Jvm(_command(bench, operation, segment)))
            stack.callback(started[0].close)
        return started[0].round()

    return run


class _Jvm:
    """KafkaScan as a child process: a line in, a round, a line of JSON out."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def round(self) -> Timed:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        watchdog = threading.Timer(ANSWER_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            stdin.write("\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            raise PeerMissingError(f"the JVM ended: {self._last_words()}")
        answer = json.loads(line)
        return Timed(
            seconds=answer["nanos"] / 1e9,
            cpu_seconds=answer["cpu_nanos"] / 1e9,
            result=answer["seen"],
        )

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def _last_words(self) -> str:
        lines = self._process.communicate()[1].strip().splitlines()
        return lines[0] if lines else f"exit code {self._process.returncode}"


def _command(bench: Bench, operation: str, segment: Path) -> list[str]:
    try:
        java, jars = find_program("java", "default-jre-headless"), classpath()
    except KafkaToolsError as error:
        raise PeerMissingError(str(error)) from error
    quick = bench.pace.warmup_s == 0
    flags = (*JVM_FLAGS, *QUICK_JVM_FLAGS) if quick else JVM_FLAGS
    arguments = [operation, str(segment.absolute()), str(0.0 if quick else WARMUP_S)]
    javac = shutil.which("javac")
    if javac is None:
        # Compiles in memory; without a full JDK java itself says that it cannot.
        return [java, *flags, "-cp", jars, str(SOURCE), *arguments]
    classes = _compiled(javac, jars, bench.corpora.directory)
    return [java, *flags, "-cp", f"{classes}:{jars}", "KafkaScan", *arguments]


@cache
def _compiled(javac: str, jars: str, directory: Path) -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes() + jars.encode()).hexdigest()[:16]
    classes = directory / f"classes-{digest}"
    if not classes.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            built = Path(scratch) / "classes"
            command = [javac, "-d", str(built), "-cp", jars, str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise PeerMissingError(f"javac failed: {done.stderr.strip()[:300]}")
            built.rename(classes)
    return classes

"""Runs Java classes as peers.

Each class runs in a separate JVM, since a JVM compiles best if it has only seen one kind of work.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benches.frame import Bench, PeerMissingError, Timed
from tests.kafka_tools import KafkaToolsError, classpath
from tests.kafka_tools.classpath import POM as KAFKA_POM
from tests.kafka_tools.support import find_program

from .child import child_peer

HERE = Path(__file__).parent
ROUNDS = HERE / "Rounds.java"
LOG_CONFIG = HERE.parents[1] / "tests" / "kafka_tools" / "log4j2.properties"
# Flags for runs that only check the answers, for which the JVM need not become fast.
QUICK_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
WARMUP_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A class of this folder, the pom that names its jars, and the heap it needs."""

    name: str
    pom: Path
    heap_mib: int


KAFKA_SCAN = Program(name="KafkaScan", pom=KAFKA_POM, heap_mib=1500)
KAFKA_SENSOR = Program(name="KafkaSensor", pom=KAFKA_POM, heap_mib=256)
CAFFEINE = Program(name="CaffeineCache", pom=HERE / "pom.xml", heap_mib=512)


def java_peer(
    stack: ExitStack, bench: Bench, program: Program, *arguments: str
) -> Callable[[], Timed]:
    """Return a run of `program` with these arguments (see its source), after a warm-up."""
    return child_peer(stack, lambda: _command(bench, program, arguments))


def _command(bench: Bench, program: Program, arguments: Sequence[str]) -> list[str]:
    try:
        java = find_program("java", "default-jre-headless")
        javac = find_program("javac", "default-jdk-headless")
        jars = classpath(pom=program.pom)
    except KafkaToolsError as error:
        raise PeerMissingError(str(error)) from error
    quick = bench.pace.warmup_s == 0
    # The garbage collector and the compiler are those of a broker. Only the size of the heap is
    # set.
    flags = [f"-Xms{program.heap_mib}m", f"-Xmx{program.heap_mib}m"]
    flags += [f"-Dlog4j2.configurationFile={LOG_CONFIG}", *(QUICK_FLAGS if quick else ())]
    classes = _compiled(javac, program, jars, bench.corpora.directory)
    warmup = str(0.0 if quick else WARMUP_S)
    return [java, *flags, "-cp", f"{classes}:{jars}", program.name, warmup, *arguments]


@cache
def _compiled(javac: str, program: Program, jars: str, directory: Path) -> Path:
    sources = [ROUNDS, HERE / f"{program.name}.java"]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources) + jars.encode())
    classes = directory / f"classes-{digest.hexdigest()[:16]}"
    if not classes.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            built = Path(scratch) / "classes"
            command = [javac, "-d", str(built), "-cp", jars, *map(str, sources)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise PeerMissingError(f"javac failed: {done.stderr.strip()[:300]}")
            built.rename(classes)
    return classes

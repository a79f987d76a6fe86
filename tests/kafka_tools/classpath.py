"""The class path of a real Apache Kafka, resolved by Maven once and remembered."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from .support import KafkaToolsError, find_program

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
DEFAULT_CACHE_DIR = HERE.parents[1] / ".cache" / "kafka"
PLUGIN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
RESOLVE_TIMEOUT_S = 600


def classpath(cache_dir: Path | None = None, *, pom: Path = POM) -> str:
    """Colon-separated jars of `pom`, ready for `java -cp`.

    Maven runs only when `pom` changed since the last call or a jar has gone. The answer is kept in
    `cache_dir` (default `<repository>/.cache/kafka`). KafkaToolsError if java or mvn is missing or
    Maven cannot resolve.
    """
    find_program("java", "default-jre-headless")
    cache_dir = DEFAULT_CACHE_DIR if cache_dir is None else cache_dir
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    cached = cache_dir / f"classpath-{digest}.txt"
    if cached.exists():
        jars = cached.read_text().strip()
        if jars and all(Path(jar).exists() for jar in jars.split(":")):
            return jars
    cache_dir.mkdir(parents=True, exist_ok=True)
    return _resolve(pom, cached)


def _resolve(pom: Path, cached: Path) -> str:
    """Ask Maven; renamed into place, so that parallel test runs never read half a file."""
    fresh = cached.with_suffix(f".{os.getpid()}.tmp")
    command = [
        find_program("mvn", "maven"),
        *("--quiet", "--batch-mode", "-Dstyle.color=never", "--file", str(pom)),
        PLUGIN_GOAL,
        f"-Dmdep.outputFile={fresh}",
    ]
    result = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S
    )
    if result.returncode != 0 or not fresh.exists():
        reason = next((x for x in result.stdout.splitlines() if "ERROR" in x), result.stderr[-300:])
        raise KafkaToolsError(f"Maven could not resolve Kafka from {pom}: {reason.strip()}")
    jars = fresh.read_text().strip()
    os.replace(fresh, cached)
    return jars

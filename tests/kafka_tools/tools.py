"""Kafka's command-line tools, run as what they are: main classes of a JVM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from .classpath import HERE, classpath
from .support import KafkaToolsError, find_program

DUMP_LOG_SEGMENTS = "org.apache.kafka.tools.DumpLogSegments"
JVM_FLAGS = ("-Xmx512m", "-Dfile.encoding=UTF-8")


def java_command(
    main_class: str, *args: str, log_level: str = "WARN", jvm_flags: Iterable[str] = ()
) -> list[str]:
    """The full command line of a Kafka main class; its own logging goes to stderr."""
    return [
        find_program("java", "default-jre-headless"),
        *JVM_FLAGS,
        *jvm_flags,
        f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}",
        f"-Dkafka.log.level={log_level}",
        *("-cp", classpath()),
        main_class,
        *args,
    ]


def run_tool(
    main_class: str,
    *args: str,
    cwd: Path | None = None,
    input_text: str | None = None,
    timeout_s: float = 120,
) -> str:
    """Run a Kafka main class and return its stdout; KafkaToolsError carries stderr if it fails."""
    command = java_command(main_class, *args)
    result = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        input=input_text,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
    )
    if result.returncode != 0:
        output = (result.stderr.strip() or result.stdout.strip())[-2000:]
        raise KafkaToolsError(
            f"{main_class} {' '.join(args)}: exit {result.returncode}: {output}",
            stdout=result.stdout,
            stderr=result.stderr,
        )
    return result.stdout


def dump_log_segments(
    paths: Path | str | Iterable[Path | str],
    *flags: str,
    cwd: Path | None = None,
    timeout_s: float = 120,
) -> str:
    """Kafka's own reading of `.log`, `.index`, `.timeindex`, `.txnindex` and `.snapshot` files.

    `flags` are DumpLogSegments' own (`--deep-iteration`, `--print-data-log`,
    `--index-sanity-check`, ...). Files keep their Kafka names, the tool goes by them. One call with
    many files costs one JVM start. With `cwd`, relative `paths` show up as such in the text.
    """
    names = [str(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not names or any("," in name for name in names):
        raise ValueError(f"need file names without commas, the tool splits on them: {names}")
    arguments = ("--files", ",".join(names), *flags)
    return run_tool(DUMP_LOG_SEGMENTS, *arguments, cwd=cwd, timeout_s=timeout_s)

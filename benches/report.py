"""Formats the results of a run: the machine, and a table for people, Markdown or programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from .corpus import WRITE_BYTES
from .frame import Row

COLUMNS = ("operation", "shape", "ours", "peer", "ratio", "goal", "met")
BUSY_LOAD_PER_CORE = 0.25


def machine_facts() -> dict[str, str]:
    """Return the facts of the machine and its software."""
    cores = len(os.sched_getaffinity(0))
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return {
        "cpu": _cpu_model(),
        "cores": str(cores),
        "load average": load,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "segments": f"seeded, just written in {WRITE_BYTES >> 20} MiB pieces, page cache warm",
    }


def busy_warning() -> str:
    """Return a warning when other processes use the machine, otherwise an empty text."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load <= BUSY_LOAD_PER_CORE * cores:
        return ""
    return (
        f"warning: the load average is {load:.1f} on {cores} cores: other processes are running, "
        "so only large differences mean anything"
    )


def as_table(rows: Sequence[Row]) -> str:
    """Return aligned columns for a terminal."""
    lines = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_markdown(rows: Sequence[Row], facts: Mapping[str, str]) -> str:
    """Return the rows as a table for docs/BENCHMARKS.md."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(_cells(row) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    where = "; ".join(f"{name}: {value}" for name, value in facts.items())
    return f"{table}\n\nMedians of interleaved rounds in one run of `python -m benches`. {where}."


def write_json(path: Path, rows: Sequence[Row], facts: Mapping[str, str]) -> None:
    """Write the machine and all rows as JSON."""
    document = {"machine": dict(facts), "rows": [row.as_dict() for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _cells(row: Row) -> tuple[str, ...]:
    per_second = "" if row.peer_name == "" else "/s"
    peer = row.note or (f"{_figure(row.peer)} ({row.peer_name})" if row.peer is not None else "")
    if row.note:
        peer = f"{row.peer_name}: {row.note}"
    return (
        row.operation,
        row.shape,
        f"{_figure(row.ours)} {row.unit}{per_second}",
        peer,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        row.goal,
        {True: "yes", False: "NO", None: ""}[row.met],
    )


def _figure(value: float | None) -> str:
    """Return a figure with about three significant digits."""
    if value is None:
        return ""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()

"""The golden log directories of tests/data: manifest, and Kafka's own words on each file."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .classpath import HERE
from .support import KafkaToolsError
from .tools import dump_log_segments

DATA_DIR = HERE.parent / "data"
LOG_FLAGS = ("--deep-iteration", "--print-data-log")
LINE_LIMIT_CHARS = 2_000
EXCEPTION = 'Exception in thread "main" '
# The tool gathers these over all its files and prints them last, so they need a run per file.
SUMMARIES = (
    "Mismatches in :",
    "Found timestamp mismatch in :",
    "Found out of order timestamp in :",
    "The following indexed offsets are not found in :",
    "Non-consecutive offsets in ",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenSegment:
    """One `.log` of the data sets; offsets and epochs as DumpLogSegments names them.

    `last_offset` is -1 for a segment without batches; `next_base_offset` is the base of the next
    segment, or the log end offset for the active one. `codecs` are those of data batches.
    """

    data_set: str
    log_dir: str
    topic: str
    partition: int
    path: Path
    base_offset: int
    last_offset: int
    next_base_offset: int
    size_bytes: int
    batch_count: int
    record_count: int
    codecs: tuple[str, ...]
    leader_epochs: tuple[int, ...]
    rolled: bool
    sha256: str
    exercises: tuple[str, ...]
    index_interval_bytes: int

    @property
    def name(self) -> str:
        """Readable in a test id."""
        return f"{self.data_set}/{self.topic}-{self.partition}/{self.base_offset}"


def manifest() -> dict[str, Any]:
    """tests/data/manifest.json; its keys are described in tests/data/README.md."""
    loaded: dict[str, Any] = json.loads((DATA_DIR / "manifest.json").read_text())
    return loaded


def golden_segments(topic: str | None = None, data_set: str | None = None) -> list[GoldenSegment]:
    """All golden segments, or those of one topic or data set, in log order."""
    return [
        _segment(name, row)
        for name, held in manifest()["data_sets"].items()
        for row in held["segments"]
        if data_set in (None, name) and topic in (None, row["topic"])
    ]


def _segment(data_set: str, row: dict[str, Any]) -> GoldenSegment:
    plain = {key: row[key] for key in row if key not in ("path", "files")}
    plain |= {key: tuple(row[key]) for key in ("codecs", "leader_epochs", "exercises")}
    return GoldenSegment(data_set=data_set, path=DATA_DIR / row["path"], **plain)


def truth_text(path: Path) -> str:
    """What DumpLogSegments printed about `path` (a golden .log, index or snapshot) when made."""
    stored = path.with_name(path.name + ".dump.txt")
    if stored.exists():
        return stored.read_text(encoding="utf-8")
    with gzip.open(f"{stored}.gz", "rt", encoding="utf-8", newline="") as packed:
        return packed.read()


def truth_records(data_set: str, topic: str, partition: int) -> list[dict[str, Any]]:
    """What a consumer read from the partition; fields as in tests/data/README.md."""
    stored = DATA_DIR / data_set / "truth" / f"{topic}-{partition}.records.jsonl.gz"
    with gzip.open(stored, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def dump_as_stored(paths: Sequence[Path]) -> dict[str, str]:
    """Run DumpLogSegments on files of one directory, and form its text as the stored one is.

    The answer maps file names to text. The tool runs inside the directory on bare names, so no
    path of the machine shows; lines beyond LINE_LIMIT_CHARS are cut, saying by how much. Where
    the tool gives up on a file, its exception is the last line.
    """
    if not paths:
        return {}
    directory = paths[0].parent
    texts: dict[str, str] = {}
    for flags, names in _by_flags(paths):
        output, failed = _dump(directory, names, flags)
        if len(names) > 1 and (failed or any(summary in output for summary in SUMMARIES)):
            texts |= {name: _dump(directory, [name], flags)[0] for name in names}
        else:
            texts |= _sections(output)
    return texts


def _by_flags(paths: Sequence[Path]) -> list[tuple[tuple[str, ...], list[str]]]:
    logs = [path.name for path in paths if path.suffix == ".log"]
    others = [path.name for path in paths if path.suffix != ".log"]
    return [(flags, names) for flags, names in ((LOG_FLAGS, logs), ((), others)) if names]


def _dump(directory: Path, names: list[str], flags: tuple[str, ...]) -> tuple[str, bool]:
    """The text, and whether the tool failed."""
    failed = False
    try:
        output = dump_log_segments(names, *flags, cwd=directory)
    except KafkaToolsError as error:
        failed = True
        exceptions = [x for x in error.stderr.splitlines() if x.startswith(EXCEPTION)]
        output = error.stdout.rstrip("\n") + "\n" + "\n".join(exceptions) + "\n"
    output = output.replace(f"{directory.resolve()}/", "").replace(f"{directory}/", "")
    return "\n".join(_cut(line) for line in output.split("\n")), failed


def _cut(line: str) -> str:
    beyond = len(line) - LINE_LIMIT_CHARS
    return line if beyond <= 0 else f"{line[:LINE_LIMIT_CHARS]} ...[{beyond} more characters]"


def _sections(output: str) -> dict[str, str]:
    """Cut the output of one run at its `Dumping <name>` lines."""
    sections: dict[str, str] = {}
    for chunk in ("\n" + output).split("\nDumping ")[1:]:
        name = chunk.split("\n", 1)[0]
        sections[name] = f"Dumping {chunk.rstrip(chr(10))}\n"
    return sections

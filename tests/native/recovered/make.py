"""Makes recovered.json.gz: what Kafka's own recovery writes for every golden segment.

    python -m tests.native.recovered.make       needs a JDK and Maven; run when tests/data changes

Each segment starts from the producer state that Kafka's recovery found at the end of the one
before, the first one from the snapshot at its base offset, if the broker left one.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.kafka_tools import classpath
from tests.kafka_tools.golden import GoldenSegment, golden_segments
from tests.kafka_tools.support import find_program

HERE = Path(__file__).parent
TARGET = HERE / "recovered.json.gz"
SUFFIXES = ("index", "timeindex", "txnindex")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        segments = golden_segments()
        directories = [Path(scratch) / str(number) for number in range(len(segments))]
        answers = _recover(_jobs(segments, directories))
        rows = {
            segment.name: _row(segment, directory, answer)
            for segment, directory, answer in zip(segments, directories, answers, strict=True)
        }
    text = json.dumps(rows, indent=0, sort_keys=True)
    TARGET.write_bytes(gzip.compress(text.encode(), mtime=0))


def _jobs(segments: list[GoldenSegment], directories: list[Path]) -> list[str]:
    jobs = []
    before: dict[tuple[str, str, int], Path] = {}
    for segment, directory in zip(segments, directories, strict=True):
        directory.mkdir()
        shutil.copy(segment.path, directory)
        partition = (segment.data_set, segment.topic, segment.partition)
        first = segment.path.with_suffix(".snapshot")
        snapshot = before.get(partition, first if first.exists() else "-")
        fields = (directory, segment.base_offset, segment.index_interval_bytes, snapshot)
        jobs.append("\t".join(map(str, fields)))
        before[partition] = directory / "end.snapshot"
    return jobs


def _recover(jobs: list[str]) -> list[str]:
    java = find_program("java", "default-jdk-headless")
    log_config = HERE.parents[1] / "kafka_tools" / "log4j2.properties"
    done = subprocess.run(
        [
            *(java, f"-Dlog4j2.configurationFile={log_config}", "-cp", classpath()),
            str(HERE / "KafkaRecover.java"),
        ],
        input="\n".join(jobs) + "\n",
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return done.stdout.splitlines()


def _row(segment: GoldenSegment, directory: Path, answer: str) -> dict[str, object]:
    end_offset, first_open, max_timestamp_ms, epochs = answer.split("\t")
    files = {
        suffix: directory / segment.path.with_suffix(f".{suffix}").name for suffix in SUFFIXES
    } | {"snapshot": directory / "end.snapshot"}
    pairs = [pair.split(":") for pair in epochs.split(",") if pair]
    return {
        "log_sha256": segment.sha256,
        "end_offset": int(end_offset),
        "first_open_transaction_offset": int(first_open),
        "max_timestamp_ms": int(max_timestamp_ms),
        "leader_epochs": [[int(epoch), int(start)] for epoch, start in pairs],
        **{
            name: base64.b64encode(path.read_bytes() if path.exists() else b"").decode()
            for name, path in files.items()
        },
    }


if __name__ == "__main__":
    main()

"""No input takes more than 512 MiB: not in a command, not in a reader, not in a worker of Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.batch_bombs import TOPIC, header_bomb, value_bomb, write_log_dir

ROOT = Path(__file__).resolve().parents[1]
MOST_KIB = 512 << 10
BOMBS = 40
OPENED_BYTES = (64 << 20) - 64
# What a child process runs, and how it says what it took.
PEAK = """
import sys

def peak():
    with open("/proc/self/status") as status:
        print(next(line for line in status if line.startswith("VmHWM")).split()[1], file=sys.stderr)
"""
COMMAND = """
from tierlog.cli import main
print(main(sys.argv[1:]), file=sys.stderr)
"""
READ = """
import tierlog
source, store = sys.argv[1], sys.argv[2] or None
values = 0
for records in tierlog.read(source, "bombs", 0, store=store):
    values += int(records.values.lengths.sum())
print(values, file=sys.stderr)
"""
FETCHED_BY_TIME = """
import tierlog
print(tierlog.open_reader(sys.argv[1]).offset_for_timestamp("bombs", 0, 2), file=sys.stderr)
"""
WORKER = """
from tests.spark.source import tasks_of
from spark_udfs.schemas import arrow_schema, schema_of
from tierlog.tables.options import parse_options
from tierlog.tables.read import read_task
options = {"path": sys.argv[1], "subscribe": "bombs"}
parsed = parse_options(options)
schema = arrow_schema(schema_of(parsed))
values = 0
for task in tasks_of(options):
    for batch in read_task(task, schema, parsed):
        values += sum(len(value) for value in batch.column("value").to_numpy(zero_copy_only=False))
        del batch
print(values, file=sys.stderr)
"""


def run(program: str, *arguments: str) -> tuple[str, str, int]:
    """What a child process says and prints, and the most KiB that it took."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK + program + "peak()", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    said = done.stderr.decode()
    assert done.returncode == 0, said[-2000:]
    *lines, taken = said.splitlines()
    return "\n".join(lines), done.stdout[:1000].decode(), int(taken)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 batches of 2 KiB that open to 64 MiB each, and a segment that a broker still writes to."""
    bombs = [value_bomb(offset, OPENED_BYTES) for offset in range(BOMBS)]
    assert sum(map(len, bombs)) < 90 << 10
    root = tmp_path_factory.mktemp("bombs") / "logs"
    return write_log_dir(root, [bombs, [value_bomb(BOMBS, 1)]])


@pytest.fixture(scope="module")
def store(logs: Path) -> str:
    url = (logs.parent / "store").as_uri()
    said, _, taken = run(COMMAND, "tier", str(logs), "--to", url, "--once")
    assert said.splitlines()[-1] == "0", said
    assert taken <= MOST_KIB
    return url


@pytest.mark.parametrize("place", ["logs", "store"])
def test_cat_of_one_record(place: str, logs: Path, store: str) -> None:
    source = str(logs) if place == "logs" else store
    said, out, taken = run(COMMAND, "cat", source, f"{TOPIC}:0", "-c", "1", "-f", "%o %S\\n")
    assert (said, out) == ("0", f"0 {OPENED_BYTES}\n")
    assert taken <= MOST_KIB


@pytest.mark.parametrize("place", ["logs", "store"])
def test_cat_of_all_records(place: str, logs: Path, store: str) -> None:
    source = str(logs) if place == "logs" else store
    said, out, taken = run(COMMAND, "cat", source, f"{TOPIC}:0", "-f", "%o\\n")
    count = BOMBS + (place == "logs")
    assert (said, out) == ("0", "".join(f"{offset}\n" for offset in range(count)))
    assert taken <= MOST_KIB


@pytest.mark.parametrize("place", ["logs", "store"])
def test_deep_verification(place: str, logs: Path, store: str) -> None:
    source = str(logs) if place == "logs" else store
    said, out, taken = run(COMMAND, "verify", source, "--deep")
    assert said == "0", out
    assert taken <= MOST_KIB


def test_deep_verification_of_many_segments(tmp_path: Path) -> None:
    """The segments of a store are read side by side, their large batches one after the other."""
    segments = [[value_bomb(offset, OPENED_BYTES)] for offset in range(24)]
    logs, url = write_log_dir(tmp_path / "logs", segments), (tmp_path / "store").as_uri()
    assert run(COMMAND, "tier", str(logs), "--to", url, "--once")[0].splitlines()[-1] == "0"
    said, out, taken = run(COMMAND, "verify", url, "--deep")
    assert said == "0", out
    assert taken <= MOST_KIB


@pytest.mark.parametrize("place", ["logs", "store", "both"])
def test_read(place: str, logs: Path, store: str) -> None:
    source = store if place == "store" else str(logs)
    said, _, taken = run(READ, source, store if place == "both" else "")
    last = 0 if place == "store" else 1
    assert said == str(BOMBS * OPENED_BYTES + last)
    assert taken <= MOST_KIB


@pytest.mark.parametrize("place", ["logs", "store"])
def test_search_by_time(place: str, logs: Path, store: str) -> None:
    source = str(logs) if place == "logs" else store
    said, _, taken = run(FETCHED_BY_TIME, source)
    assert said == "None"
    assert taken <= MOST_KIB


@pytest.mark.parametrize("place", ["logs", "store"])
def test_task_of_spark(place: str, logs: Path, store: str) -> None:
    source = str(logs) if place == "logs" else store
    said, _, taken = run(WORKER, source)
    last = 1 if place == "logs" else 0
    assert said == str(BOMBS * OPENED_BYTES + last)
    assert taken <= MOST_KIB


def test_headers_that_take_far_more_than_their_batch(tmp_path: Path) -> None:
    """A header of two bytes is 32 bytes of columns."""
    logs = write_log_dir(tmp_path / "logs", [[header_bomb(0, 30 << 20)]])
    said, _, taken = run(COMMAND, "cat", str(logs), f"{TOPIC}:0", "-c", "1", "-f", "%o\\n")
    assert said.endswith("1")
    assert "too_large" in said
    assert "tierlog.batch.max.decompressed.bytes is 67108864" in said
    assert taken <= MOST_KIB

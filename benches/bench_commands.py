"""Measures whole commands, from the start of the process to its end, beside the usual tools."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from tests.kafka_tools import KafkaBroker, KafkaToolsError
from tierlog import decode_records, rebuild_indexes

from .bench_rebuild import make_log_dir
from .corpus import FIRST_TIMESTAMP_MS, LEADER_EPOCH, MIB, SEED, make_record
from .frame import (
    Bench,
    Benchmark,
    Case,
    DisagreementError,
    Limit,
    PeerMissingError,
    Sides,
    Timed,
    run_side,
)

TIERLOG = (sys.executable, "-m", "tierlog")
KCAT = "kcat"
TOPIC = "bench"
RECORD_BYTES = 4096
READ_BYTES = 1 << 20
SEGMENT_BYTES = 64 * MIB
TOPIC_ID = "bench0bench1bench2benQ"
GB = 1e9
ROUNDS = 5
# Broker, consumer and command share the machine, so one warm-up run each is enough.
WARMUP_S = 0.1


def environment() -> dict[str, str]:
    """Return the environment of an installed tierlog, where modules are compiled once."""
    cached = {"PYTHONPYCACHEPREFIX": str(Path(gettempdir()) / "tierlog-bench-modules")}
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | cached


def items(bench: Bench) -> Sequence[Case | Limit]:
    records = 2_000 if bench.corpora.quick else 200_000
    return [
        cat(records, "values", (), goal=4),
        cat(records, "JSON", ("-J",), goal=4),
        tier(bench),
        limit(bench, "index rebuild of a directory", 1.0, rebuild),
        limit(bench, "verify --deep of a directory", 0.5, verify),
        limit(bench, "ls of a local store", 0.2, ls),
        limit(bench, "cat -c 1 of a local store", 0.2, first_record),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def cat(records: int, what: str, options: tuple[str, ...], *, goal: float) -> Case:
    """Write a whole topic to a pipe: from the broker's directory, and through the broker with
    kcat."""

    def prepare(stack: ExitStack) -> Sides:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        produce(broker, records)
        ours = [*TIERLOG, "cat", str(broker.log_dirs[0]), f"{TOPIC}:0", *options]
        theirs = [KCAT, "-b", broker.bootstrap_servers, "-C", "-t", TOPIC, "-p", "0", "-e", "-q"]
        theirs += options
        is_json = bool(options)
        if shutil.which(KCAT) and run(ours, Lines(is_json)) != run(theirs, Lines(is_json)):
            raise DisagreementError(f"cat of {records} records, {what}: other text than kcat's")
        return Sides(
            amount=records / 1e3,
            ours=lambda: timed(ours),
            peers={KCAT: unless_missing(theirs)},
            # The sizes differ: each JSON object of kcat also names its broker.
            answer=lambda found: {"lines": found["lines"]},
        )

    return Case(
        operation="cat of a topic to a pipe",
        shape=f"{records:,} records of 4 KB, {what}",
        unit="K records",
        peers={KCAT: goal},
        prepare=prepare,
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def unless_missing(command: list[str]) -> Callable[[], Timed]:
    """Run kcat; PeerMissingError when this machine does not have it."""

    def run_peer() -> Timed:
        if shutil.which(KCAT) is None:
            raise PeerMissingError("kcat is missing: apt-get install kcat")
        return timed(command)

    return run_peer


def produce(broker: KafkaBroker, records: int) -> None:
    """Produce records of text. The topic keeps them, however old their timestamps are."""
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, config={"retention.ms": -1, "segment.bytes": 1 << 30})
    settings = {"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 50}
    producer = Producer(settings | {"queue.buffering.max.messages": records})
    rng = random.Random(SEED)
    pool = [make_record(rng, index, RECORD_BYTES) for index in range(500)]
    for index in range(records):
        record = pool[index % len(pool)]
        moment = FIRST_TIMESTAMP_MS + index
        while True:
            try:
                producer.produce(TOPIC, record.value, record.key, timestamp=moment)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120):
        raise KafkaToolsError("not every record was produced within 120 s")


class Lines:
    """A digest of lines of text; of JSON without the broker that kcat names in each object."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._digest = hashlib.sha256()
        self._rest = b""

    def take(self, data: memoryview) -> None:
        """Add bytes that were read."""
        if not self._is_json:
            self._digest.update(data)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            document = json.loads(line)
            document.pop("broker", None)
            self._digest.update(repr(document).encode())

    def found(self) -> str:
        """Return the digest."""
        return self._digest.hexdigest() + self._rest.decode()


def run(command: Sequence[str], lines: Lines) -> str:
    """Return the standard output of a command."""
    for data in output(command):
        lines.take(data)
    return lines.found()


def timed(command: Sequence[str]) -> Timed:
    """Run a command with its output piped to ``wc -l``, until both have ended."""
    start, before = time.perf_counter(), os.times()
    with (
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment()
        ) as process,
        subprocess.Popen(["wc", "-l"], stdin=process.stdout, stdout=subprocess.PIPE) as counter,
    ):
        assert process.stdout is not None
        # Only wc holds the pipe now, so the command notices when wc ends.
        process.stdout.close()
        lines = int(counter.communicate()[0])
    after = os.times()
    if process.returncode:
        raise DisagreementError(f"{' '.join(command)}: exit code {process.returncode}")
    return Timed(
        seconds=time.perf_counter() - start,
        cpu_seconds=after.children_user + after.children_system - sum(before[2:4]),
        result={"lines": lines},
    )


def output(command: Sequence[str]) -> Iterator[memoryview]:
    """Yield the output of a command as it comes; an error if the command fails."""
    place = memoryview(bytearray(READ_BYTES))
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        while size := os.readv(process.stdout.fileno(), [place]):
            yield place[:size]
    if process.returncode:
        raise DisagreementError(f"{' '.join(command)}: exit code {process.returncode}")


def tier(bench: Bench) -> Case:
    """Run one pass over a directory into an empty store of files, against a durable copy of it."""

    def prepare(stack: ExitStack) -> Sides:
        folder, logs = log_dir(stack, bench)
        numbers = iter(range(10**6))

        def ours() -> Timed:
            place = folder / f"store-{next(numbers)}"
            command = [*TIERLOG, "tier", str(folder / "logs"), "--once", "--to", place.as_uri()]
            command += ["--state-dir", str(folder / f"{place.name}.state")]
            done = timed(command)
            return Timed(
                seconds=done.seconds, cpu_seconds=done.cpu_seconds, result=copied(place, logs)
            )

        def theirs() -> Timed:
            place = folder / f"copy-{next(numbers)}"
            script = 'cp -r "$0" "$1" && sync -f "$1"'
            done = timed(["sh", "-c", script, str(folder / "logs"), str(place)])
            return Timed(
                seconds=done.seconds, cpu_seconds=done.cpu_seconds, result=copied(place, logs)
            )

        def reset() -> None:
            for place in chain(folder.glob("store-*"), folder.glob("copy-*")):
                shutil.rmtree(place)

        return Sides(
            amount=sum(log.stat().st_size for log in logs) / GB,
            ours=ours,
            peers={"cp + sync": theirs},
            reset=reset,
        )

    return Case(
        operation="tier --once to a store of files",
        shape="1 GiB",
        unit="GB",
        peers={"cp + sync": 1 / 1.4},
        prepare=prepare,
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def copied(place: Path, logs: Sequence[Path]) -> dict[str, object]:
    """Return the digests of the copied segments at a place."""
    wanted = {log.stat().st_size for log in logs}
    found = [path for path in place.rglob("*.log") if path.stat().st_size in wanted]
    return {"segments": sorted(map(digest, found))}


def digest(path: Path) -> str:
    """Return a digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def log_dir(stack: ExitStack, bench: Bench) -> tuple[Path, list[Path]]:
    """Make a folder with a broker's directory ``logs`` of 1 GiB in rolled segments, and return the
    segments."""
    source = bench.corpora.path("none-1024-16k")
    folder = Path(stack.enter_context(TemporaryDirectory(dir=source.parent)))
    segment_bytes = MIB if bench.corpora.quick else SEGMENT_BYTES
    total_bytes = (4 if bench.corpora.quick else 16) * segment_bytes
    root = folder / "logs"
    logs = make_log_dir(root, source, segment_bytes, 4, total_bytes)
    end_offset = 4 * int(logs[1].stem)
    partitions = sorted({log.parent for log in logs})
    for partition in partitions:
        (partition / f"{end_offset:020}.log").touch()
        (partition / "leader-epoch-checkpoint").write_text(f"0\n1\n{LEADER_EPOCH} 0\n")
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")
    rows = [f"{TOPIC} {number} {end_offset}\n" for number in range(len(partitions))]
    checkpoint = f"0\n{len(rows)}\n{''.join(rows)}"
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (root / name).write_text(checkpoint)
    (root / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id=bench\ndirectory.id={TOPIC_ID}\n"
    )
    return folder, logs


def limit(
    bench: Bench,
    operation: str,
    at_most: float,
    prepare: Callable[[Path, Sequence[Path]], Callable[[int], float]],
) -> Limit:
    """Return the median of several runs of one command over 1 GiB."""

    def measure() -> float:
        with ExitStack() as stack:
            folder, logs = log_dir(stack, bench)
            run_once = prepare(folder, logs)
            run_once(0)
            rounds = 1 if bench.corpora.quick else ROUNDS
            return statistics.median(run_once(number) for number in range(1, rounds + 1))

    return Limit(operation=operation, shape="1 GiB", unit="s", at_most=at_most, measure=measure)


def require(is_right: bool, what: str) -> None:
    """Raise DisagreementError unless the output of a command is right."""
    if not is_right:
        raise DisagreementError(what)


def rebuild(folder: Path, logs: Sequence[Path]) -> Callable[[int], float]:
    """Require the index files of every segment, and those of the last one byte for byte."""
    expected = rebuild_indexes(logs[-1]).offset_index

    def run_once(number: int) -> float:
        target = folder / f"to-{number}"
        command = [*TIERLOG, "index", "rebuild", str(folder / "logs"), "--to", str(target)]
        seconds = timed(command).seconds
        made = target / logs[-1].parent.name / f"{logs[-1].stem}.index"
        require(made.read_bytes() == expected, "index rebuild: another offset index")
        return seconds

    return run_once


def verify(folder: Path, logs: Sequence[Path]) -> Callable[[int], float]:
    """Fail unless all bytes of the segments were verified and nothing was found."""

    def run_once(_number: int) -> float:
        command = [*TIERLOG, "verify", "--deep", str(folder / "logs"), "--format", "json"]
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True)
        seconds = time.perf_counter() - start
        seen = json.loads(done.stdout)["summary"]["size_bytes"]
        require(seen == sum(log.stat().st_size for log in logs), f"verify: {seen} bytes")
        return seconds

    return run_once


def tiered(folder: Path) -> str:
    """Return the URL of a store to which the directory was tiered."""
    url = (folder / "store").as_uri()
    state = str(folder / "state")
    command = [*TIERLOG, "tier", str(folder / "logs"), "--once", "--to", url, "--state-dir", state]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return url


def ls(folder: Path, logs: Sequence[Path]) -> Callable[[int], float]:
    """Fail unless the output counts every segment of the store."""
    command = [*TIERLOG, "ls", tiered(folder), "--format", "json"]

    def run_once(_number: int) -> float:
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True)
        seconds = time.perf_counter() - start
        rows = json.loads(done.stdout)["partitions"]
        require(sum(row["segments"] for row in rows) == len(logs), f"ls: {rows}")
        return seconds

    return run_once


def first_record(folder: Path, logs: Sequence[Path]) -> Callable[[int], float]:
    """Fail unless the output is the first record of a partition of the store."""
    command = [*TIERLOG, "cat", tiered(folder), f"{TOPIC}:0", "-c", "1"]
    expected = decode_records(logs[0], 0, MIB).values[0]

    def run_once(_number: int) -> float:
        start = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True)
        seconds = time.perf_counter() - start
        require(done.stdout == (expected or b"") + b"\n", "cat -c 1: another record")
        return seconds

    return run_once

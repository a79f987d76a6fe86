"""Serves consumers and producers. The peers are a real broker with the same bytes, and a responder
that only sends."""

from __future__ import annotations

import os
import resource
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from kafka.protocol.metadata import ApiVersionsRequest

from tests.kafka_tools import wait_until
from tests.node.running import RawClient
from tests.oracle import build
from tests.oracle.model import Record
from tests.remote.s3_server import S3_SERVERS, running_s3_server

from .big_bucket import BucketStart, start_on_bucket
from .corpus import FIRST_TIMESTAMP_MS
from .first_bytes import ROUND_TRIP_MS, first_byte_beyond_ms
from .frame import Bench, Benchmark, Case, Limit, Sides, Timed, run_side
from .serving import (
    OTHER_TOPIC,
    WAIT_S,
    Served,
    batches_of,
    create_topic,
    kafka,
    node,
    read,
    ready_frames,
    write,
)

SHAPE = "none-1024-16k"
MIB = 1 << 20
HOT_BYTES = 128 * MIB
COLD_BYTES = 96 * MIB
SEGMENT_BYTES = 16 * MIB
# A consumer's default limit for one partition.
FETCH_BYTES = MIB
RECORDS_OF_BATCH = 15
BARE, KAFKA = "ready frames", "Kafka"
ROUNDS = 7
# A JVM becomes faster during its first half minute.
WARMUP_S = 8.0
CONNECTIONS = 1_000
LATENCIES = 2_000
# A short window, so that copies go on for as long as the requests do.
COPY_QUOTA = {
    "remote.log.manager.copy.max.bytes.per.second": MIB,
    "remote.log.manager.copy.quota.window.num": 2,
}
TIERING = {"remote.log.manager.task.interval.ms": 200, "tierlog.retention.max.deleted.ratio": 1}


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [
        hot(bench),
        hot_cpu(bench),
        cold(bench, "file"),
        cold(bench, "S3"),
        produce(bench),
        produce_p99(bench),
        produce_beside_copies(bench),
        first_cold_bytes(bench),
        idle_connections(bench),
        *big_bucket(bench),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def folder_of(stack: ExitStack, bench: Bench) -> Path:
    """Return a folder on the same disk as the segments."""
    return Path(stack.enter_context(TemporaryDirectory(dir=bench.corpora.path(SHAPE).parent)))


def hot_sides(bench: Bench, stack: ExitStack, *, of_server: bool = False) -> Sides:
    """Start three servers with the same batches. Return a run for each that reads its topic."""
    folder = folder_of(stack, bench)
    batches = batches_of(bench.corpora.path(SHAPE), HOT_BYTES)
    (folder / "same.log").write_bytes(b"".join(batches))
    ours, peer = node(stack, folder), kafka(stack, folder)
    for one in (ours, peer):
        create_topic(one.bootstrap)
        write(one, batches)
    bare = ready_frames(stack, folder / "same.log", FETCH_BYTES)
    records = RECORDS_OF_BATCH * len(batches)

    def reading(server: Served) -> Callable[[], Timed]:
        return lambda: read(server, records, of_server=of_server)

    return Sides(
        amount=sum(map(len, batches)) / MIB,
        ours=reading(ours),
        peers={BARE: reading(bare), KAFKA: reading(peer)},
    )


def hot(bench: Bench) -> Case:
    """Read the local log with librdkafka over the loopback address."""
    return Case(
        operation="hot fetch by librdkafka",
        shape=f"{SHAPE}, {HOT_BYTES // MIB} MiB",
        unit="MiB",
        peers={BARE: 0.9, KAFKA: 1.0},
        prepare=lambda stack: hot_sides(bench, stack),
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def hot_cpu(bench: Bench) -> Case:
    """Read the local log, but measure only the CPU time of the server."""
    return Case(
        operation="hot fetch, a second of the server's processor time",
        shape=f"{SHAPE}, {HOT_BYTES // MIB} MiB",
        unit="MiB",
        peers={BARE: None, KAFKA: None},
        prepare=lambda stack: hot_sides(bench, stack, of_server=True),
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def cold(bench: Bench, kind: str) -> Case:
    """Read rolled segments from the tier. The broker reads its own tier, LocalTieredStorage."""

    def prepare(stack: ExitStack) -> Sides:
        folder = folder_of(stack, bench)
        batches = batches_of(bench.corpora.path(SHAPE), COLD_BYTES)
        store = (folder / "store").as_uri() if kind == "file" else s3_store(stack)
        ours = node(stack, folder, TIERING, store=store)
        peer = kafka(stack, folder, tiered=True)
        for one, logs in ((ours, folder / "data" / "logs"), (peer, folder / "kafka" / "disk1")):
            settings = {
                "remote.storage.enable": True,
                "local.retention.bytes": 1,
                "segment.bytes": MIB if bench.corpora.quick else SEGMENT_BYTES,
                "file.delete.delay.ms": 0,
            }
            create_topic(one.bootstrap, settings=settings)
            write(one, batches)
            wait_until_tiered(logs / "bench-0")
        records = RECORDS_OF_BATCH * len(batches)
        return Sides(
            amount=sum(map(len, batches)) / MIB,
            ours=lambda: read(ours, records),
            peers={KAFKA: lambda: read(peer, records)},
        )

    return Case(
        operation="cold fetch by librdkafka",
        shape=f"{SHAPE}, {COLD_BYTES // MIB} MiB, {kind}",
        unit="MiB",
        peers={KAFKA: 1.5},
        prepare=prepare,
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def s3_store(stack: ExitStack) -> str:
    """Return the URL of a new bucket. Processes that start later find the server in their
    environment."""
    server = stack.enter_context(running_s3_server(S3_SERVERS[-1]))
    before = dict(os.environ)
    os.environ.update(server.environment())
    stack.callback(os.environ.update, before)
    for name in server.environment().keys() - before.keys():
        stack.callback(os.environ.pop, name)
    return f"s3://{server.new_bucket()}"


def wait_until_tiered(partition: Path) -> None:
    """Wait until a partition has only its active segment."""
    wait_until(lambda: len(list(partition.glob("*.log"))) == 1, WAIT_S, what="local retention")


def written(bench: Bench, stack: ExitStack) -> tuple[Served, Served, list[bytes]]:
    """Start both servers with an empty topic, and return batches for it."""
    folder = folder_of(stack, bench)
    ours, peer = node(stack, folder), kafka(stack, folder)
    for one in (ours, peer):
        create_topic(one.bootstrap)
    batch = batch_of_zeros()
    return ours, peer, [batch] * ((1 if bench.corpora.quick else 16) * MIB // len(batch))


def batch_of_zeros() -> bytes:
    """Return a batch that may be written again and again: it has no producer id."""
    records = [
        Record(offset=row, timestamp_ms=FIRST_TIMESTAMP_MS, key=None, value=bytes(1024))
        for row in range(RECORDS_OF_BATCH)
    ]
    return build.batch(records)


def produce(bench: Bench) -> Case:
    """Append batches with acks=all. 20 requests are sent before the first answer is read."""

    def prepare(stack: ExitStack) -> Sides:
        ours, peer, batches = written(bench, stack)

        def writing(server: Served) -> Callable[[], dict[str, object]]:
            def run() -> dict[str, object]:
                write(server, batches)
                return {"batches": len(batches)}

            return run

        return Sides(
            amount=sum(map(len, batches)) / MIB, ours=writing(ours), peers={KAFKA: writing(peer)}
        )

    return Case(
        operation="produce, acks of all",
        shape="15 records of 1 KB to a batch",
        unit="MiB",
        peers={KAFKA: 0.7},
        prepare=prepare,
        one_thread=False,
        rounds=ROUNDS,
        warmup_s=WARMUP_S,
    )


def produce_p99(bench: Bench) -> Limit:
    """Return the 99th percentile of the time of a single request, divided by that of the broker."""

    def measure() -> float:
        with ExitStack() as stack:
            ours, peer, batches = written(bench, stack)
            count = 50 if bench.corpora.quick else LATENCIES

            def p99(server: Served) -> float:
                took = write(server, batches[:1] * count, pipelined=1)
                return sorted(took)[int(0.99 * count)]

            for one in (ours, peer):
                p99(one)
            pairs = [(p99(ours), p99(peer)) for _ in range(1 if bench.corpora.quick else ROUNDS)]
            return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)

    return Limit(
        operation="produce, p99 of a request",
        shape="15 records of 1 KB, of Kafka's",
        unit="x",
        at_most=1.5,
        measure=measure,
    )


def produce_beside_copies(bench: Bench) -> Limit:
    """Return the p99 of one request at a time while another topic is copied to the store under a
    quota, over the same without copies."""
    count = 50 if bench.corpora.quick else LATENCIES
    copied = (4 if bench.corpora.quick else 32) * MIB

    def measure() -> float:
        with ExitStack() as stack:
            folder = folder_of(stack, bench)
            store = folder / "store"
            server = node(stack, folder, TIERING | COPY_QUOTA, store=store.as_uri())
            create_topic(server.bootstrap)
            batch = batch_of_zeros()

            def p99() -> float:
                return sorted(write(server, [batch] * count, pipelined=1))[int(0.99 * count)]

            p99()
            alone = statistics.median(p99() for _ in range(3))
            settings = {"remote.storage.enable": True, "internal.segment.bytes": MIB}
            create_topic(server.bootstrap, OTHER_TOPIC, settings)
            write(server, [batch] * (copied // len(batch)), topic=OTHER_TOPIC)
            copies = f"{OTHER_TOPIC}-*/0/*.indexes"
            wait_until(lambda: any(store.glob(copies)), WAIT_S, what="a copy")
            beside = statistics.median(p99() for _ in range(3))
            if len(list(store.glob(copies))) >= copied // MIB - 1:
                raise RuntimeError("the copies ended before the requests did")
            return beside / alone

    return Limit(
        operation="produce while segments are copied under a quota, p99 of a request",
        shape="15 records of 1 KB, of the same without copies",
        unit="x",
        at_most=1.2,
        measure=measure,
    )


def first_cold_bytes(bench: Bench) -> Limit:
    """Return the p99 of the first byte of a cold read with a warm index, over one round trip to the
    store: the node's own share."""
    count = 20 if bench.corpora.quick else 300

    def measure() -> float:
        with ExitStack() as stack:
            return first_byte_beyond_ms(folder_of(stack, bench), batch_of_zeros(), count)

    return Limit(
        operation="first byte of a cold read, p99 beyond one round trip to the store",
        shape=f"a store that takes {ROUND_TRIP_MS} ms, warm index",
        unit="ms",
        at_most=1,
        measure=measure,
    )


def idle_connections(bench: Bench) -> Limit:
    """Return the memory that idle clients add to a node. Each client has requested the API
    versions."""

    def measure() -> float:
        count = 50 if bench.corpora.quick else CONNECTIONS
        allow_descriptors(count + 100)
        with ExitStack() as stack:
            server = node(stack, folder_of(stack, bench))
            connected(server, stack)
            before = server.resident_bytes()
            for _ in range(count):
                connected(server, stack)
            return (server.resident_bytes() - before) / MIB

    return Limit(
        operation="memory added by idle connections",
        shape=f"{CONNECTIONS} of them",
        unit="MiB",
        at_most=50,
        measure=measure,
    )


def big_bucket(bench: Bench) -> list[Limit]:
    """Start an archive server on a bucket of very many segments, and look at one partition."""
    segments, per_partition = (1_000, 10) if bench.corpora.quick else (1_000_000, 1_000)

    @cache
    def started() -> BucketStart:
        return start_on_bucket(segments, per_partition)

    return [
        Limit(
            operation="archive server, until clients may connect",
            shape=f"a bucket of {segments:,} segments",
            unit="s",
            at_most=10,
            measure=lambda: started().ready_s,
        ),
        Limit(
            operation="archive server, first look at a partition",
            shape=f"{per_partition:,} of {segments:,} segments",
            unit="s",
            at_most=10,
            measure=lambda: started().first_look_s,
        ),
        Limit(
            operation="archive server, memory",
            shape=f"a bucket of {segments:,} segments, one partition in use",
            unit="MiB",
            at_most=300,
            measure=lambda: started().resident_mib,
        ),
    ]


def connected(server: Served, stack: ExitStack) -> None:
    """Connect a client, and read one answer."""
    client = stack.enter_context(RawClient(server.address))
    client.request(ApiVersionsRequest(), 0)
    client.read_frame()


def allow_descriptors(count: int) -> None:
    """Raise the limit of open files, as far as this process is allowed to."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(count, 1024), hard), hard))

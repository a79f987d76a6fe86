"""Reads a topic as a Spark table, from the directories of a broker and through the broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from spark_udfs.datasource import TierlogDataSource
from spark_udfs.session import session
from tests.kafka_tools import KafkaBroker, KafkaToolsError, classpath

from .bench_datasource import workers_find_peers
from .datasource_peer import KeptDataSource
from .frame import Answer, Bench, Benchmark, Case, Limit, PeerMissingError, Sides, run_side
from .spark_child import MASTER, SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GB = 1e9
HERE = Path(__file__).parent
POM = HERE / "peers" / "spark_kafka_pom.xml"
CACHE = HERE.parent / ".cache" / "spark-kafka"
TOPIC, PARTITIONS = "bench", 4
KEPT = "same batches, kept"
RECORD_BYTES = 1024
# The columns of Spark's Kafka source. Both sides return the same columns.
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)
# The JVM compiles code while it runs, so the first runs take up to twice as long as later runs.
WARMUP_S = 6.0
# Each side reads all fields of every record.
SEEN = (
    "count(offset) AS records",
    "sum(offset) AS offsets",
    "sum(length(key) + length(value)) AS bytes",
    "max(timestamp) AS latest",
)


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [topic(2_000 if bench.corpora.quick else 1_000_000)]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def topic(records: int) -> Case:
    """Read a whole topic in one session. The broker runs during the measurement of both sides."""

    def prepare(stack: ExitStack) -> Sides:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        produce(broker, records)
        workers_find_peers(stack)
        spark = stack.enter_context(session(MASTER, SMALL))
        # The jars are added here and not by a setting, since the JVM of an earlier session would
        # not load them.
        for jar in jars():
            spark.sql(f"ADD JAR '{jar}'")
        spark.dataSource.register(TierlogDataSource)
        spark.dataSource.register(KeptDataSource)
        path = ",".join(map(str, broker.log_dirs))

        def ours() -> Answer:
            reader = spark.read.format("tierlog").option("subscribe", TOPIC)
            return counted(reader.schema(COLUMNS).load(path))

        def kept() -> Answer:
            """Read rows that exist already. No Python source is faster. The rows repeat, so the
            bench compares only their number."""
            found = counted(spark.read.format("kept").schema(COLUMNS).load(path))
            return {"records": found["records"]}

        def kafka_source() -> Answer:
            reader = spark.read.format("kafka").option("subscribe", TOPIC)
            servers = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
            return counted(servers.load())

        return Sides(
            amount=records * RECORD_BYTES / GB,
            ours=ours,
            peers={"Spark's Kafka source": kafka_source, KEPT: kept},
        )

    return Case(
        operation="a topic as a table of Spark",
        shape=f"{records} records of 1 KiB, {PARTITIONS} partitions",
        unit="GB",
        peers={"Spark's Kafka source": 5.0, KEPT: None},
        prepare=prepare,
        one_thread=False,
        rounds=5,
        warmup_s=WARMUP_S,
    )


def jars() -> list[str]:
    """Return the jars of Spark's Kafka source and its dependencies."""
    try:
        return classpath(CACHE, pom=POM).split(":")
    except KafkaToolsError as error:
        raise PeerMissingError(f"Spark's Kafka source: {error}") from error


def produce(broker: KafkaBroker, records: int) -> None:
    """Produce records of compressible text, without compression."""
    from confluent_kafka import Producer

    broker.create_topic(TOPIC, partitions=PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "batch.size": 1 << 20,
            "linger.ms": 20,
            "queue.buffering.max.messages": 100_000,
        }
    )
    for number in range(records):
        key = b"%010d" % number
        value = key * (RECORD_BYTES // len(key) - 1)
        value += b"x" * (RECORD_BYTES - len(key) - len(value))
        while True:
            try:
                producer.produce(TOPIC, key=key, value=value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def counted(rows: DataFrame) -> Answer:
    found = rows.selectExpr(*SEEN).first()
    assert found is not None
    return dict(found.asDict())

"""A topic as a table of Spark: out of the broker's directories, and through the broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from spark_udfs.datasource import TierlogDataSource
from spark_udfs.session import session
from tests.kafka_tools import KafkaBroker, KafkaToolsError, classpath

from .frame import Answer, Bench, Benchmark, Case, Limit, PeerMissingError, Sides, run_side
from .spark_child import MASTER, SMALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GB = 1e9
HERE = Path(__file__).parent
POM = HERE / "peers" / "spark_kafka_pom.xml"
CACHE = HERE.parent / ".cache" / "spark-kafka"
TOPIC, PARTITIONS = "bench", 4
RECORD_BYTES = 1024
# Whoever reads a record looks at all of it.
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
    """All of a topic, from one session; the broker runs for both."""

    def prepare(stack: ExitStack) -> Sides:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        broker = stack.enter_context(KafkaBroker(folder / "kafka"))
        produce(broker, records)
        spark = stack.enter_context(session(MASTER, SMALL))
        # Not a setting: the JVM of an earlier session would go on without them.
        for jar in jars():
            spark.sql(f"ADD JAR '{jar}'")
        spark.dataSource.register(TierlogDataSource)

        def ours() -> Answer:
            reader = spark.read.format("tierlog").option("subscribe", TOPIC)
            return counted(reader.load(",".join(map(str, broker.log_dirs))))

        def kafka_source() -> Answer:
            reader = spark.read.format("kafka").option("subscribe", TOPIC)
            servers = reader.option("kafka.bootstrap.servers", broker.bootstrap_servers)
            return counted(servers.load())

        return Sides(
            amount=records * RECORD_BYTES / GB,
            ours=ours,
            peers={"Spark's Kafka source": kafka_source},
        )

    return Case(
        operation="a topic as a table of Spark",
        shape=f"{records} records of 1 KiB, {PARTITIONS} partitions",
        unit="GB",
        peers={"Spark's Kafka source": 5.0},
        prepare=prepare,
        one_thread=False,
    )


def jars() -> list[str]:
    """Spark's Kafka source with what it needs."""
    try:
        return classpath(CACHE, pom=POM).split(":")
    except KafkaToolsError as error:
        raise PeerMissingError(f"Spark's Kafka source: {error}") from error


def produce(broker: KafkaBroker, records: int) -> None:
    """Records of text that compresses, sent as they are."""
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

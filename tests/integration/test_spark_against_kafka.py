"""Tables of Spark and a live consumer, record for record, over logs of every kind.

The broker tiers into its own LocalTieredStorage and deletes locally; Spark reads what it wrote
there, the same segments in a store of ours, and the broker's directories as they are, while they
are written to as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from spark_udfs.datasource import TierlogDataSource
from tests.data.maker.consuming import consume, shown_bytes
from tests.data.maker.producing import BatchProducer, grouped, mixed
from tests.integration.kafka_wire import KafkaWire
from tests.integration.tiered_logs import LOGS, SMALL, KafkaBeside, set_up, tiering_broker
from tests.kafka_tools import wait_until
from tests.remote.kafka_layouts import kafka_url
from tests.spark.conftest import spark  # noqa: F401  a fixture
from tests.spark.query import Query
from tierlog.fetch.offsets import SpecialTimestamp
from tierlog.reader.open import Isolation, open_reader
from tierlog.reader.sources import source_of
from tierlog.reader.types import FetchView
from tierlog.remote.metadata.manager import RemoteLogSegmentMetadata
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.kafka_layout import KAFKA_FOLDER, KAFKA_SCHEME
from tierlog.remote.urls import open_store
from tierlog.tools.ls import list_source
from tierlog.tools.verify.source import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

NAMES = [log.name for log in LOGS]
STREAMED = "streamed"
ISOLATIONS: tuple[Isolation, ...] = ("read_uncommitted", "read_committed")
TYPES = {0: "CreateTime", 1: "LogAppendTime"}
Row = dict[str, Any]
# Kafka's own layout does not say where a compacted segment ends, so nothing shows that the end of a
# transaction is not in what looks like a gap.
UNDECIDED = ("compacted-transactions", "kafka", "read_committed")


@dataclass(frozen=True)
class World:
    """A live broker, where its records lie, and what a consumer gets from it."""

    host: KafkaBeside
    kafka_tier: Path
    tiered_ends: dict[str, int]
    consumed: dict[str, list[Row]]

    def view(self, name: str) -> FetchView:
        return self.host.views[self.host.partitions[name]]

    @property
    def paths(self) -> dict[str, str]:
        return {
            "kafka": kafka_url(self.kafka_tier),
            "ours": (self.host.folder / "store").as_uri(),
            "logs": ",".join(map(str, self.host.broker.log_dirs)),
        }

    def bounds(self, kind: str, name: str, isolation: Isolation) -> tuple[int, int]:
        """What of a log is in one place and may be seen, as the broker says."""
        view = self.view(name)
        if kind == "logs":
            ends = {"read_uncommitted": view.high_watermark}
            return view.local_log_start_offset, ends.get(isolation, view.last_stable_offset)
        reader = open_reader(self.paths[kind], topic=name, isolation_level=isolation)
        end = reader.bounds(name, 0)[1]
        if isolation == "read_uncommitted":
            # Compaction may have taken the last records of a segment.
            last = max(row["offset"] for row in self.before(name, self.tiered_ends[name]))
            assert last < end <= self.tiered_ends[name]
        return view.log_start_offset, end

    def before(self, name: str, end_offset: int) -> list[Row]:
        return [row for row in self.consumed[name] if row["offset"] < end_offset]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("spark")
    broker = tiering_broker(folder)
    try:
        host, _whole = set_up(broker, folder / "ours")
        with KafkaWire(broker.bootstrap_servers) as wire:
            ends = {
                name: wire.list_offset(name, SpecialTimestamp.LATEST_TIERED).offset + 1
                for name in NAMES
            }
        consumed = {name: consume(broker, name, 0) for name in NAMES}
        yield World(host, folder / "kafka-tier", ends, consumed)
        host.close()
    finally:
        broker.kill()


@pytest.fixture(scope="module")
def tables(
    world: World,
    spark: SparkSession,  # noqa: F811
) -> dict[tuple[str, Isolation], dict[str, list[Row]]]:
    """The rows of every log as Spark reads them, one job for each place and isolation level."""
    spark.dataSource.register(TierlogDataSource)
    return {
        (kind, isolation): rows_by_topic(
            spark, path, isolation, [name for name in NAMES if (name, kind, isolation) != UNDECIDED]
        )
        for kind, path in world.paths.items()
        for isolation in ISOLATIONS
    }


def rows_by_topic(
    session: SparkSession, path: str, isolation: Isolation, names: list[str]
) -> dict[str, list[Row]]:
    reader = session.read.format("tierlog").option("path", path).option("includeHeaders", "true")
    reader = reader.option("subscribe", ",".join(names)).option("isolation.level", isolation)
    if "://" not in path:
        # The directories lack what the broker has tiered, which is an error by default.
        reader = reader.option("onCorrupt", "quarantine")
    if path.startswith(KAFKA_SCHEME):
        # Kafka's own layout does not say where a segment ends whose tail was compacted.
        reader = reader.option("onGap", "skip")
    columns = ("topic", "offset", "leader_epoch", "timestampType", "key", "value", "headers")
    rows = reader.load().selectExpr(*columns, "unix_millis(timestamp) AS timestamp_ms")
    found: dict[str, list[Row]] = {name: [] for name in names}
    for row in rows.orderBy("topic", "offset").collect():
        found[row.topic].append(
            {
                "offset": row.offset,
                "leader_epoch": row.leader_epoch,
                "timestamp_ms": row.timestamp_ms,
                "timestamp_type": TYPES[row.timestampType],
                "key": shown_bytes(row.key),
                "value": shown_bytes(row.value),
                "headers": [[one.key, shown_bytes(one.value)] for one in row.headers or ()],
            }
        )
    return found


def seen_by(consumed: list[Row], bounds: tuple[int, int], isolation: Isolation) -> list[Row]:
    """What a consumer of that isolation level gets between two offsets."""
    return [
        {name: value for name, value in row.items() if name != "read_committed"}
        for row in consumed
        if bounds[0] <= row["offset"] < bounds[1]
        and (isolation == "read_uncommitted" or row["read_committed"])
    ]


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("kind", ["kafka", "ours", "logs"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_consumer_gets(
    spark: SparkSession,  # noqa: F811
    world: World,
    tables: dict[tuple[str, Isolation], dict[str, list[Row]]],
    name: str,
    kind: str,
    isolation: Isolation,
) -> None:
    if (name, kind, isolation) == UNDECIDED:
        # Where the broker's cleaner left the ends of all transactions, nothing is undecided.
        try:
            rows = rows_by_topic(spark, world.paths[kind], isolation, [name])[name]
        except AnalysisException as error:
            if "GapError" not in str(error):
                raise
            return
    else:
        rows = tables[kind, isolation][name]
    bounds = world.bounds(kind, name, isolation)
    expected = seen_by(world.consumed[name], bounds, isolation)
    found = [row for row in rows if row["offset"] >= bounds[0]]
    assert found == expected
    assert expected or isolation == "read_committed"


@pytest.mark.parametrize("name", NAMES)
def test_both_tiers_hold_the_whole_log(
    world: World, tables: dict[tuple[str, Isolation], dict[str, list[Row]]], name: str
) -> None:
    """What Kafka has tiered, up to the border, and what is left in its directory."""
    view = world.view(name)
    border = view.local_log_start_offset
    assert view.log_start_offset < border <= world.tiered_ends[name]
    for kind in ("kafka", "ours"):
        tiered = tables[kind, "read_uncommitted"][name]
        found = [row for row in tiered if view.log_start_offset <= row["offset"] < border]
        found += [
            row for row in tables["logs", "read_uncommitted"][name] if row["offset"] >= border
        ]
        whole = (view.log_start_offset, view.high_watermark)
        assert found == seen_by(world.consumed[name], whole, "read_uncommitted")


# -- Kafka's own layout


def described(url: str) -> dict[tuple[str, int], RemoteLogSegmentMetadata]:
    found = list(list_segments(open_store(url)))
    by_place = {(one.topic_id_partition.topic, one.start_offset): one for one in found}
    assert len(by_place) == len(found)
    return by_place


def test_kafkas_segments_are_those_of_our_copies(world: World) -> None:
    """Offsets, epochs, times and sizes that its files say against those that our scan counted."""
    kafka, ours = described(world.paths["kafka"]), described(world.paths["ours"])
    for place in ours.keys() - kafka.keys():
        # Kafka has removed what lies below the log start.
        assert ours[place].end_offset < world.view(place[0]).log_start_offset
    assert len(kafka) > len(NAMES)
    for place, theirs in kafka.items():
        known = ours[place]
        assert theirs.topic_id_partition == known.topic_id_partition
        # Our copy knew the name of the next segment.
        assert theirs.end_offset == known.end_offset or (
            place[0].startswith("compacted") and theirs.end_offset < known.end_offset
        )
        assert theirs.segment_size_bytes == known.segment_size_bytes
        assert theirs.max_timestamp_ms == known.max_timestamp_ms
        assert theirs.leader_epochs == known.leader_epochs
        # The cleaner keeps an abort whose records it took, a rebuild knows nothing of it.
        assert theirs.txn_index_empty == known.txn_index_empty or (
            place[0].startswith("compacted") and known.txn_index_empty
        )


def test_the_verbs_read_it(world: World) -> None:
    folder = world.kafka_tier
    source = source_of(str(folder))
    assert source.location == f"{KAFKA_SCHEME}{(folder / KAFKA_FOLDER).as_uri()}"
    listed = list_source(source)
    assert {row.topic for row in listed.partitions} >= set(NAMES)
    assert listed.skipped == ()
    report = verify(source, now_ms=1 << 50, deep=True)
    what = {one.what for one in report.findings if one.severity == "problem"}
    assert what <= {"missing_offsets"}


# -- a stream


def test_a_stream_beside_a_live_broker(world: World) -> None:
    """Each record once, over its directory while it is written to, and over a restart."""
    broker = world.host.broker
    broker.create_topic(STREAMED, partitions=2, config=SMALL)
    path = ",".join(map(str, broker.log_dirs))
    query = Query(path, subscribe=STREAMED, maxOffsetsPerTrigger="150")
    producer = BatchProducer(broker, compression_type="lz4")
    sent = 0
    for phase in range(3):
        for partition in range(2):
            messages = mixed(f"{STREAMED}/{phase}/{partition}", 200, start_ms=1_700_000_000_000)
            placed = [replace(one, partition=partition) for one in messages]
            producer.send_all(STREAMED, grouped(f"{phase}", placed))
            sent += len(placed)

        def caught_up(wanted: int = sent) -> bool:
            query.trigger()
            return len(query.seen()) >= wanted

        wait_until(caught_up, 60, what=f"{sent} records in the broker's directory")
        query.restart()
    rows = [row for batch in query.batches for row in batch]
    for partition in range(2):
        found = [row for row in rows if row["partition"] == partition]
        expected = consume(broker, STREAMED, partition)
        assert [row["offset"] for row in found] == [row["offset"] for row in expected]
        assert [shown_bytes(row["value"]) for row in found] == [row["value"] for row in expected]

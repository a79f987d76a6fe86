"""Our fetch path and a real broker with tiering on, over the same bytes: what do both answer?

Every offset of every log, both isolation levels, several limits; times around every record and the
named offsets; requests over many partitions; and a log that grows, is tiered and expires meanwhile.
A proof asks more of everything.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.data.maker.consuming import consume, shown_bytes
from tests.fetch.views import Row, consumed
from tests.integration.growing_log import GROWING, GROWING_CONFIG, LiveHost, Reader, Writer
from tests.integration.kafka_wire import KafkaWire, WireAsk, WireData, WireOffset
from tests.integration.tiered_logs import LOGS, KafkaBeside, set_up, tiering_broker
from tests.kafka_tools import wait_until
from tests.oracle import batches as oracle
from tests.oracle.model import Batch, Record
from tests.proofs import usually
from tierlog.fetch.offsets import OffsetAnswer, SpecialTimestamp
from tierlog.log.index_files import AbortedTransaction
from tierlog.reader.types import (
    FetchError,
    FetchPartition,
    FetchRequest,
    FetchSource,
    FetchView,
    IsolationLevel,
    PartitionData,
)

pytestmark = pytest.mark.integration

SHOWN = ("offset", "timestamp_ms", "key", "value", "headers", "read_committed")
NAMES = [log.name for log in LOGS]
COMMITTED = IsolationLevel.READ_COMMITTED
BOTH = tuple(IsolationLevel)
# From the first batch alone to more than a segment, around the sizes of batches and indexes.
LIMITS = usually((0, 1, 700, 5000, 1 << 20), thorough=(*range(0, 16_384, 1201), 1 << 20))
SHORT_READERS = 20


@dataclass(frozen=True)
class Sides:
    """Ours, Kafka's, and what was written."""

    ours: KafkaBeside
    kafka: KafkaWire
    whole: dict[str, list[Batch]]

    def view(self, name: str) -> FetchView:
        return self.ours.views[self.ours.partitions[name]]

    def request(
        self, asks: Sequence[WireAsk], isolation: IsolationLevel, max_bytes: int = 50 << 20
    ) -> FetchRequest:
        wanted = [
            FetchPartition(
                partition=self.ours.partitions[ask.topic],
                fetch_offset=ask.offset,
                max_bytes=ask.max_bytes,
                current_leader_epoch=ask.leader_epoch,
            )
            for ask in asks
        ]
        return FetchRequest(
            partitions=tuple(wanted),
            max_bytes=max_bytes,
            max_wait_ms=0,
            isolation_level=isolation,
        )

    def ask_ours(
        self, asks: Sequence[WireAsk], isolation: IsolationLevel
    ) -> tuple[PartitionData, ...]:
        return self.ours.fetcher.fetch_sync(self.request(asks, isolation)).partitions

    def list_ours(
        self, name: str, timestamp: int, isolation: IsolationLevel = BOTH[0]
    ) -> OffsetAnswer:
        partition = self.ours.partitions[name]
        return self.ours.fetcher.list_offset_sync(partition, timestamp, isolation_level=isolation)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("fetch")
    broker = tiering_broker(folder)
    try:
        host, whole = set_up(broker, folder / "ours")
        host.fetcher.max_remote_wait_ms = 30_000
        with KafkaWire(broker.bootstrap_servers) as wire:
            yield Sides(host, wire, whole)
        host.close()
    finally:
        broker.kill()


def whole_batches(records: bytes) -> bytes:
    """Without the part of a batch that Kafka may end with."""
    _batches, reason, position = oracle.scan(records)
    # The first bytes of an offset are zeros.
    assert reason in ("end", "torn_tail") or len(records) - position < 12, reason
    return records[:position]


def check_same(ask: WireAsk, isolation: int, ours: PartitionData, kafka: WireData) -> None:
    """One answer: the same batches, the same borders, the same for a consumer."""
    case = (ask, isolation, ours.source, ours.text)
    assert ours.error == kafka.error, case
    borders = (ours.high_watermark, ours.last_stable_offset, ours.log_start_offset)
    if ours.error == 0:
        assert borders == (
            kafka.high_watermark,
            kafka.last_stable_offset,
            kafka.log_start_offset,
        ), case
    records = bytes(ours.records)
    if ask.max_bytes == 0 and ours.source is FetchSource.REMOTE:
        # Kafka gives no first batch out of the tier to who asks for no bytes: a reader stands
        # still there that went on in the local log. We give it in both.
        assert not kafka.records, case
        assert len(spans(records)) == 1, case
        return
    assert records == whole_batches(kafka.records), (
        case,
        spans(records),
        spans(whole_batches(kafka.records)),
    )
    if ours.aborted_transactions is None:
        assert kafka.aborted is None, case
        return
    found = [(one.producer_id, one.first_offset) for one in ours.aborted_transactions]
    said = kafka.aborted or ()
    # Kafka looks as far as its index is exact, which may be a little beyond what it sends.
    assert set(found) <= set(said), case
    if len(found) != len(set(said)):
        theirs = [aborted(*one) for one in said]
        assert consumed(records, ask.offset, ours.aborted_transactions) == consumed(
            records, ask.offset, theirs
        ), case


def aborted(producer_id: int, first_offset: int) -> AbortedTransaction:
    return AbortedTransaction(producer_id, first_offset, -1, -1)


def spans(records: bytes) -> list[tuple[int, int]]:
    return [(one.base_offset, one.last_offset) for one in oracle.scan(records)[0]]


@pytest.mark.parametrize("isolation", BOTH, ids=["uncommitted", "committed"])
@pytest.mark.parametrize("name", NAMES)
def test_every_offset(sides: Sides, name: str, isolation: IsolationLevel) -> None:
    """One before the log start to two behind the end."""
    view = sides.view(name)
    assert view.log_start_offset < view.local_log_start_offset < view.high_watermark
    remote = 0
    for limit in LIMITS:
        asks = [
            WireAsk(name, offset, limit)
            for offset in range(max(view.log_start_offset - 2, 0), view.log_end_offset + 3)
        ]
        answers = sides.kafka.fetch_each(asks, isolation=isolation)
        for ask, kafka in zip(asks, answers, strict=True):
            (ours,) = sides.ask_ours([ask], isolation)
            check_same(ask, isolation, ours, kafka)
            remote += ours.source is FetchSource.REMOTE and ours.size_bytes > 0
    assert remote >= len(LIMITS) * (view.local_log_start_offset - view.log_start_offset) // 2


def offset_matches(ours: OffsetAnswer, kafka: WireOffset) -> bool:
    if (ours.error, ours.timestamp_ms, ours.offset) != (
        kafka.error,
        kafka.timestamp_ms,
        kafka.offset,
    ):
        return False
    return kafka.leader_epoch < 0 or ours.leader_epoch == kafka.leader_epoch


def times(sides: Sides, name: str) -> list[tuple[int, int]]:
    """(offset, time) of every record, control records too, from the log start on."""
    return [
        (record.offset, record.timestamp_ms)
        for batch in sides.whole[name]
        for record in oracle.records(batch)
        if record.offset >= sides.view(name).log_start_offset
    ]


@pytest.mark.parametrize("isolation", BOTH, ids=["uncommitted", "committed"])
@pytest.mark.parametrize("name", NAMES)
def test_times_around_every_record(sides: Sides, name: str, isolation: IsolationLevel) -> None:
    rows = times(sides, name)
    view = sides.view(name)
    upper = view.last_stable_offset if isolation is COMMITTED else view.high_watermark
    asked = sorted({at + by for _, at in rows for by in (-1, 0, 1)} | {0, 2**62})
    answers = sides.kafka.list_offsets(name, asked, isolation=isolation)
    differ = []
    for timestamp_ms, kafka in zip(asked, answers, strict=True):
        ours = sides.list_ours(name, timestamp_ms, isolation)
        expected = first_late(rows, timestamp_ms, upper)
        assert (ours.offset, ours.timestamp_ms) == expected, timestamp_ms
        if not offset_matches(ours, kafka):
            differ.append((timestamp_ms, ours, kafka))
    if name.startswith("compacted"):
        # Kafka takes the first segment whose header says late enough; where all its records of
        # that time are gone it goes straight to the local log, past the rest of the tier.
        late = [row for row in rows if row[0] >= view.local_log_start_offset]
        differ = [
            one
            for one in differ
            if (one[2].offset, one[2].timestamp_ms) != first_late(late, one[0], upper)
        ]
    assert not differ, (len(differ), len(asked), differ[:5])


def first_late(rows: list[tuple[int, int]], timestamp_ms: int, upper: int) -> tuple[int, int]:
    """(offset, time) of the first record of that time or later, unless it is not to be seen."""
    first = next((row for row in rows if row[1] >= timestamp_ms), (-1, -1))
    return first if first[0] < upper else (-1, -1)


@pytest.mark.parametrize("isolation", BOTH, ids=["uncommitted", "committed"])
@pytest.mark.parametrize("name", NAMES)
def test_named_offsets(sides: Sides, name: str, isolation: IsolationLevel) -> None:
    for special in SpecialTimestamp:
        if special is SpecialTimestamp.MAX_TIMESTAMP:
            continue
        ours = sides.list_ours(name, special, isolation)
        (kafka,) = sides.kafka.list_offsets(name, [special], isolation=isolation)
        assert offset_matches(ours, kafka), (special, ours, kafka)


@pytest.mark.parametrize("isolation", BOTH, ids=["uncommitted", "committed"])
@pytest.mark.parametrize("name", NAMES)
def test_the_newest_record(sides: Sides, name: str, isolation: IsolationLevel) -> None:
    """Ours is the newest that a reader may see, in either tier. Kafka's is the newest of those that
    are local (KAFKA-17552), and none at all if a reader may not see that one."""
    view, rows = sides.view(name), times(sides, name)
    upper = view.last_stable_offset if isolation is COMMITTED else view.high_watermark
    ours = sides.list_ours(name, SpecialTimestamp.MAX_TIMESTAMP, isolation)
    visible = [row for row in rows if row[0] < upper]
    assert (ours.offset, ours.timestamp_ms) == newest(visible)
    (kafka,) = sides.kafka.list_offsets(name, [SpecialTimestamp.MAX_TIMESTAMP], isolation=isolation)
    local = newest([row for row in rows if row[0] >= view.local_log_start_offset])
    assert (kafka.offset, kafka.timestamp_ms) == (local if local[0] < upper else (-1, -1))
    if (kafka.offset, kafka.timestamp_ms) == newest(visible):
        assert offset_matches(ours, kafka)


def newest(rows: list[tuple[int, int]]) -> tuple[int, int]:
    return max(rows, key=lambda row: (row[1], -row[0]))


def test_requests_over_many_partitions(sides: Sides) -> None:
    """Partition limits and a response limit, local, remote and out of range mixed."""
    chance = random.Random(5)
    for number in range(usually(300, thorough=2000)):
        isolation = BOTH[number % 2]
        asks = []
        for name in chance.sample(NAMES, chance.randint(2, len(NAMES))):
            view = sides.view(name)
            offset = chance.randint(max(view.log_start_offset - 3, 0), view.log_end_offset + 3)
            asks.append(WireAsk(name, offset, chance.choice((1, 500, 3000, 12_000, 1 << 20))))
        max_bytes = chance.choice((1, 2000, 10_000, 40_000, 50 << 20))
        answers = sides.kafka.fetch(asks, isolation=isolation, max_bytes=max_bytes)
        request = sides.request(asks, isolation, max_bytes)
        found = asyncio.run(sides.ours.fetcher.fetch(request)).partitions
        exact = True
        for ask, ours, kafka in zip(asks, found, answers, strict=True):
            case = (number, asks, max_bytes, ask)
            if exact:
                check_same(ask, isolation, ours, kafka)
            else:
                check_run(ours, kafka, case)
            # A part of a batch that nobody can use takes its part of Kafka's limit, none of ours.
            exact = exact and len(kafka.records) == len(whole_batches(kafka.records))
        first = next((one for one in found if one.size_bytes), None)
        assert sum(one.size_bytes for one in found) <= max_bytes + largest_first(first)
        assert any(one.size_bytes for one in found) == any(one.records for one in answers)


def check_run(ours: PartitionData, kafka: WireData, case: object) -> None:
    """Both answers begin alike, as far as the budget of each went."""
    assert ours.error == kafka.error, case
    pair = sorted((bytes(ours.records), whole_batches(kafka.records)), key=len)
    assert pair[1].startswith(pair[0]), case


def largest_first(data: PartitionData | None) -> int:
    return 0 if data is None else oracle.scan(bytes(data.records))[0][0].size_bytes


def test_the_epoch_a_client_believes_in(sides: Sides) -> None:
    for name in NAMES:
        view = sides.view(name)
        for offset in (view.log_start_offset, view.local_log_start_offset, view.log_end_offset):
            for epoch in (-1, 0, view.leader_epoch - 1, view.leader_epoch, view.leader_epoch + 1):
                ask = WireAsk(name, offset, 5000, leader_epoch=epoch)
                (kafka,) = sides.kafka.fetch([ask], isolation=COMMITTED)
                (ours,) = sides.ask_ours([ask], COMMITTED)
                check_same(ask, COMMITTED, ours, kafka)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_consumer_reads(sides: Sides, name: str) -> None:
    """From the first record to the last: keys, values, headers and times, and what is committed."""
    rows = consume(sides.ours.broker, name, 0)
    assert len({row["offset"] for row in rows}) == len(rows)
    found = {isolation: read_through(sides, name, isolation) for isolation in BOTH}
    committed = {row[0] for row in found[COMMITTED][1]}
    assert [
        {
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            "key": shown_bytes(record.key),
            "value": shown_bytes(record.value),
            "headers": [[key.decode(), shown_bytes(value)] for key, value in record.headers],
            "read_committed": record.offset in committed,
        }
        for record in found[BOTH[0]][0]
    ] == [{key: row[key] for key in row if key in SHOWN} for row in rows]


def read_through(
    sides: Sides, name: str, isolation: IsolationLevel
) -> tuple[list[Record], list[Row]]:
    """All records, and of them those that a consumer is shown."""
    view = sides.view(name)
    offset, records, rows = view.log_start_offset, list[Record](), list[Row]()
    while True:
        (answer,) = sides.ask_ours([WireAsk(name, offset, 6000)], isolation)
        assert answer.error == 0, answer
        if not answer.size_bytes:
            return records, rows
        rows += consumed(answer.records, offset, answer.aborted_transactions)
        batches, _, _ = oracle.scan(bytes(answer.records))
        for batch in batches:
            if not batch.is_control:
                records += [one for one in oracle.records(batch) if one.offset >= offset]
        offset = batches[-1].last_offset + 1


def test_readers_of_a_log_that_grows_and_expires(sides: Sides, tmp_path: Path) -> None:
    """Whatever moves meanwhile, a reader sees every record once, from wherever it starts."""
    broker = sides.ours.broker
    broker.create_topic(GROWING, config=GROWING_CONFIG)
    host = LiveHost(tmp_path / "ours", broker=broker)
    host.fetcher.max_remote_wait_ms = 30_000
    wait_until(lambda: host.log(GROWING).topic_id is not None, 30, what="the topic's id on disk")
    host.copy(GROWING, 0)
    partition = host.partitions[GROWING]
    chance = random.Random(3)
    writer = Writer(broker, host, usually(200, thorough=1500))

    def reader(isolation: IsolationLevel, offset: int, *, hurry: bool = False) -> Reader:
        limits = [20_000] if hurry else [chance.choice((1, 900, 5000, 20_000)) for _ in range(7)]
        return Reader(host, partition, isolation, offset, limits)

    lasting = [reader(BOTH[0], 0, hurry=True), reader(COMMITTED, 0, hurry=True), reader(BOTH[0], 0)]
    short: list[Reader] = []
    writer.start()
    try:
        # On a slow machine the log is complete before as many have read.
        while writer.is_alive() or len(short) < SHORT_READERS:
            view = host.view(partition)
            assert view is not None
            # Anywhere, and more often than not a few batches before the border.
            around = view.local_log_start_offset - chance.randint(0, 60)
            anywhere = chance.randint(view.log_start_offset, view.high_watermark)
            offset = max(chance.choice((around, around, anywhere)), view.log_start_offset)
            short.append(reader(chance.choice(BOTH), offset))
            for _ in range(12):
                compare_growing(sides.kafka, short[-1])
            for one in lasting:
                one.step()
    finally:
        writer.join()
    assert writer.error is None
    for one in lasting:
        steps = iter(range(10_000))
        while one.offset < one.reachable():
            assert next(steps, None) is not None, one.offset
            one.step()
    for one in [*lasting, *short]:
        assert one.rows == one.expected(writer.rows(one.isolation))
    # The broker renames files a moment before it moves the border: a client asks again.
    assert sum(one.failed for one in [*lasting, *short]) <= 3 + len(short) // 5
    crossings = [one for one in [*lasting, *short] if FetchSource.REMOTE in one.sources[:-1]]
    assert len(crossings) >= 5
    assert writer.expired >= 5
    host.close()


def compare_growing(kafka: KafkaWire, reader: Reader) -> None:
    """One step, and what Kafka says of the same offset at about the same time."""
    ask = WireAsk(GROWING, reader.offset, 20_000)
    ours = reader.step()
    for _ in range(20):
        (theirs,) = kafka.fetch([ask], isolation=reader.isolation)
        start = kafka.list_offset(GROWING, SpecialTimestamp.EARLIEST).offset
        if theirs.error != FetchError.OFFSET_OUT_OF_RANGE or ask.offset < start:
            break
        # A segment has just left the broker's directory, and the border is not moved yet: for
        # that moment Kafka takes it for neither local nor remote.
    if ours.error == 0 == theirs.error:
        check_run(ours, theirs, ask)
    elif ours.error is not FetchError.KAFKA_STORAGE_ERROR:
        # It has expired, or does so between the two.
        assert ask.offset < start, (ours, theirs)

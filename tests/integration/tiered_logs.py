"""Logs of every kind on a real broker with tiering on, and the same segments in a store of ours.

Kafka tiers into its own LocalTieredStorage and then deletes locally down to a few segments. Our
store gets a copy of what Kafka has copied, made while that was still local; what is local we read
from the broker's own directories. The broker says where the borders are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.data.maker import workloads as w
from tests.data.maker.producing import BatchProducer, grouped, mixed
from tests.fetch.two_tiers import TwoTiers
from tests.integration.kafka_wire import KafkaWire
from tests.kafka_tools import KafkaBroker, wait_until
from tests.oracle import batches as oracle
from tests.oracle.model import Batch
from tierlog.clock import ManualClock
from tierlog.fetch.fetcher import Fetcher
from tierlog.fetch.offsets import OffsetReader, SpecialTimestamp
from tierlog.log.log_dir import PartitionLog, open_log_dir
from tierlog.reader.producer_states import ProducerStates
from tierlog.reader.types import FetchView
from tierlog.tiering.copy import SegmentCopier, prepare
from tierlog.types import TopicIdPartition

__all__ = ["LOGS", "KafkaBeside", "TieredLog", "set_up", "tiering_broker"]

BROKER_PROPERTIES = {
    "log.retention.check.interval.ms": 300,
    "remote.log.manager.task.interval.ms": 300,
    "log.initial.task.delay.ms": 300,
    "log.cleaner.backoff.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 300,
    "log.index.size.max.bytes": 65_536,
    "producer.id.expiration.ms": 2_000_000_000,
    # A slow machine is no difference between the two.
    "remote.fetch.max.wait.ms": 30_000,
}
SMALL = w.KEEP_FOR_EVER | {"internal.segment.bytes": 12_288, "index.interval.bytes": 512}
COMPACT = SMALL | {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 8_192,
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": 0,
}
TIERED = {"remote.storage.enable": "true", "cleanup.policy": "delete"}
# One or two rolled segments stay in both tiers.
LOCAL_RETENTION_BYTES = 20_480
PATIENCE_S = 90
WRITERS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredLog:
    """`phases[n]` is written after the broker's n-th start; at the end, with only the last part
    still local, records before `delete_before` are deleted."""

    name: str
    phases: tuple[w.Workload, ...]
    config: Mapping[str, object] = field(default_factory=lambda: SMALL)
    local_retention_bytes: int = LOCAL_RETENTION_BYTES
    delete_before: int | None = None


def codecs(stage: w.Stage, topic: w.Topic) -> None:
    """All codecs in one log, null and empty keys and values, headers, one very large batch."""
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd", "none")):
        messages = mixed(f"{topic.name}/{codec}/{number}", 90, start_ms=1_700_000_000_000 + number)
        batches = grouped(codec, messages, 80 if number == 5 else 20)
        BatchProducer(stage.broker, compression_type=codec).send_all(topic.name, batches)


def money(stage: w.Stage, topic: w.Topic) -> None:
    """Transactions of all kinds, short and long; two of them are open at the end, and two that
    began before these have ended behind where they begin."""
    w.transactions(stage, topic)
    script = w.TransactionScript(stage, topic)
    aborted, committed = script.producer("early-aborted"), script.producer("early-committed")
    between = script.producer("between")
    for early in (aborted, committed):
        early.begin()
        script.batch(early)
    for _ in range(12):
        script.whole(between, 2, commit=True)
    w.leave_open(stage, topic)
    aborted.abort()
    committed.commit()
    script.whole(between, 2, commit=True)


LOGS = [
    TieredLog(name="codecs", phases=(codecs,)),
    TieredLog(name="money", phases=(money,)),
    TieredLog(name="ended-money", phases=(w.transactions,), delete_before=90),
    TieredLog(name="epochs", phases=(w.plain(200), w.later(150, 1), w.later(150, 2))),
    TieredLog(
        name="append-time",
        phases=(w.plain(350), w.later(60, 1)),
        config=SMALL | {"message.timestamp.type": "LogAppendTime"},
    ),
    TieredLog(name="shuffled-times", phases=(w.shuffled_times,)),
    TieredLog(name="shuffled-deleted", phases=(w.shuffled_times,), delete_before=240),
    TieredLog(name="deleted-twice", phases=(w.delete_records(200),), delete_before=290),
    TieredLog(name="compacted", phases=(w.compacted,), config=COMPACT, local_retention_bytes=4096),
    TieredLog(
        name="compacted-transactions",
        phases=(w.compacted_transactions,),
        config=COMPACT | {"delete.retention.ms": 0, "compression.type": "zstd"},
        local_retention_bytes=4096,
    ),
]


@dataclass
class KafkaBeside(TwoTiers):
    """A host that shows the broker's partitions as the broker says they are."""

    broker: KafkaBroker = field(kw_only=True)
    partitions: dict[str, TopicIdPartition] = field(default_factory=dict)
    copied_upto: dict[str, int] = field(default_factory=dict)
    # Producers with open transactions; must live until the broker is down.
    held: list[BatchProducer] = field(default_factory=list)

    def make(self, **options: object) -> Fetcher:
        offsets = OffsetReader(self.remote, self.metadata)
        return super().make(offsets=offsets, **options)

    def log(self, topic: str) -> PartitionLog:
        return open_log_dir(*map(str, self.broker.log_dirs)).partition(topic, 0)

    def copy(self, topic: str, upto_offset: int) -> None:
        """Into our store: every rolled segment that ends before `upto_offset`, and only once."""
        log = self.log(topic)
        copier = SegmentCopier(self.storage, self.metadata, clock=ManualClock(), broker_id=1)
        producers = ProducerStates(log)
        assert log.topic_id is not None
        partition = TopicIdPartition(topic_id=log.topic_id, topic=topic, partition=0)
        self.partitions[topic] = partition
        gap_start_offset: int | None = None
        for segment in log.rolled_segments:
            after = segment.next_base_offset
            if after is None or not self.copied_upto.get(topic, 0) < after <= upto_offset:
                continue
            self.copied_upto[topic] = after
            if not segment.size_bytes:
                # The broker's cleaner left nothing of it.
                if gap_start_offset is None:
                    gap_start_offset = segment.base_offset
                continue
            snapshot = producers.before(segment)
            with segment.open() as handle:
                ready = prepare(log, segment, handle, producer_snapshot=snapshot, allow_gaps=True)
                copier.copy(ready, handle, gap_start_offset=gap_start_offset)
            gap_start_offset = None

    def look(self, wire: KafkaWire, topic: str) -> FetchView:
        """The partition with the borders that the broker names now."""
        stable = wire.list_offset(topic, SpecialTimestamp.LATEST, isolation=1)
        end = wire.list_offset(topic, SpecialTimestamp.LATEST)
        log = self.log(topic)
        start = wire.list_offset(topic, SpecialTimestamp.EARLIEST).offset
        local = wire.list_offset(topic, SpecialTimestamp.EARLIEST_LOCAL).offset
        kept = tuple(
            one
            for one in log.segments
            if one.next_base_offset is None or one.next_base_offset > local
        )
        view = FetchView(
            log=replace(log, segments=kept),
            log_start_offset=start,
            local_log_start_offset=local,
            high_watermark=end.offset,
            last_stable_offset=stable.offset,
            log_end_offset=end.offset,
            leader_epoch=end.leader_epoch,
        )
        self.views[self.partitions[topic]] = view
        return view


def tiering_broker(folder: Path) -> KafkaBroker:
    return KafkaBroker(
        folder / "kafka", tiered_dir=folder / "kafka-tier", properties=BROKER_PROPERTIES
    )


def alter(broker: KafkaBroker, topics: Iterable[str], settings: Mapping[str, object]) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    entries = [
        ConfigEntry(key, str(value), incremental_operation=AlterConfigOpType.SET)
        for key, value in settings.items()
    ]
    wanted = [
        ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries) for topic in topics
    ]
    for future in admin.incremental_alter_configs(wanted).values():
        future.result(30)


def set_up(broker: KafkaBroker, folder: Path) -> tuple[KafkaBeside, dict[str, list[Batch]]]:
    """Write the logs, let Kafka tier them, copy them, let Kafka delete; the broker is running then.

    Also all batches of each log, as they were when everything was local.
    """
    stage = w.Stage(broker=broker, now_ms=1_700_000_000_000)
    for number in range(max(len(log.phases) for log in LOGS)):
        if number:
            broker.stop()
        broker.start()
        # Their producers wait for the broker most of the time.
        with ThreadPoolExecutor(WRITERS) as writers:
            list(writers.map(partial(_write, stage, number), LOGS))
    names = [log.name for log in LOGS]
    alter(broker, names, TIERED)
    host = KafkaBeside(folder, broker=broker, held=stage.held)
    with KafkaWire(broker.bootstrap_servers) as wire:
        whole = {name: _tiered(host, wire, name) for name in names}
        for log in LOGS:
            alter(broker, [log.name], {"local.retention.bytes": log.local_retention_bytes})
        for log in LOGS:
            wait_until(
                partial(_is_settled, host, wire, log),
                PATIENCE_S,
                what=f"local retention of {log.name}",
            )
            if log.delete_before is not None:
                broker.delete_records(log.name, 0, log.delete_before)
            host.look(wire, log.name)
    return host, whole


def _write(stage: w.Stage, number: int, log: TieredLog) -> None:
    if number == 0:
        stage.broker.create_topic(log.name, config=log.config)
    if number < len(log.phases):
        log.phases[number](stage, w.Topic(name=log.name, exercises=(), phases=()))


def _tiered(host: KafkaBeside, wire: KafkaWire, name: str) -> list[Batch]:
    """Waits until Kafka has copied all it can, and copies that into our store."""
    stable = wire.list_offset(name, SpecialTimestamp.LATEST, isolation=1).offset
    log = host.log(name)
    ends = [one.next_base_offset or 0 for one in log.rolled_segments]
    upto = max(end for end in ends if end <= stable)

    def done() -> bool:
        found = wire.list_offset(name, SpecialTimestamp.LATEST_TIERED)
        return found.error == 0 and found.offset == upto - 1

    wait_until(done, PATIENCE_S, what=f"Kafka's copies of {name} up to {upto}")
    host.copy(name, upto)
    found: list[Batch] = []
    for segment in log.segments:
        batches, _reason, _position = oracle.scan(Path(segment.log_path).read_bytes())
        found += batches
    return found


def _is_settled(host: KafkaBeside, wire: KafkaWire, wanted: TieredLog) -> bool:
    """Whether local retention has nothing left to delete."""
    name = wanted.name
    border = wire.list_offset(name, SpecialTimestamp.EARLIEST_LOCAL).offset
    tiered = wire.list_offset(name, SpecialTimestamp.LATEST_TIERED).offset
    local = [one for one in host.log(name).segments if one.base_offset >= border]
    size_bytes = sum(one.size_bytes for one in local)
    oldest = local[0]
    too_much = size_bytes - oldest.size_bytes >= wanted.local_retention_bytes
    return not (too_much and (oldest.next_base_offset or 2**63) <= tiered + 1)

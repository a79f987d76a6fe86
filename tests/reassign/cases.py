"""The test plan of KIP-73 on real clusters: 100 partitions with 2 replicas, moved under a throttle.

    python -m tests.reassign.cases --seconds 60

For each case, the same move once at rest and once while producers write: how long it takes against
our estimate and against the KIP's words, whether each byte is the same afterwards, and whether a
throttle is left behind.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.kafka_tools import wait_until
from tests.kafka_tools.clusters import CLUSTERS, Cluster
from tests.reassign.writer import writing
from tierlog.admin import ClusterAdmin, Resource, ResourceKind
from tierlog.clock import SystemClock
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Placement
from tierlog.tools.reassign.estimate import estimate_move
from tierlog.tools.reassign.facts import measure_cluster
from tierlog.tools.reassign.moves import start_moves, verify_moves
from tierlog.tools.reassign.throttles import BROKER_RATES, REPLICA_LISTS

PARTITIONS = 100
BATCH_BYTES = 16_000
SAMPLE_MS = 4_000
PATIENCE = 5
"""A move may take this many times the estimate, and a minute, before the case fails."""


@dataclass(frozen=True)
class Case:
    """Where partition `n` is before and after: two variants, for even and for odd partitions."""

    name: str
    text: str
    before: tuple[tuple[int, int], tuple[int, int]]
    after: tuple[tuple[int, int], tuple[int, int]]
    bottleneck: int
    """Replicas of all partitions that pass through the slowest broker, in percent."""


CASES = (
    Case("a", "one node to another", ((1, 3), (1, 3)), ((2, 3), (2, 3)), 100),
    Case("c", "one node to two", ((1, 2), (1, 3)), ((3, 2), (2, 3)), 100),
    Case("d", "two nodes to one", ((1, 2), (2, 1)), ((3, 2), (3, 1)), 100),
)


@dataclass(frozen=True)
class Outcome:
    """What a case took. ``kip_seconds``: bytes / (throttle - what producers add), as the test plan
    says."""

    kafka: str
    case: Case
    produced_per_second: float
    throttle: int
    moved_bytes: int
    estimated_seconds: float
    kip_seconds: float
    seconds: float
    same_bytes: bool
    throttles_left: tuple[str, ...]

    @property
    def difference(self) -> float:
        """Measured against estimated time: 0.1 is 10 % longer."""
        return self.seconds / self.estimated_seconds - 1


def run_case(
    cluster: Cluster, kafka: str, case: Case, *, throttle: int, seconds: float, produce: float
) -> Outcome:
    """Move a topic that needs about `seconds` at `throttle` B/s; ``produce`` B/s are written
    meanwhile."""
    topic = f"case-{case.name}-{'busy' if produce else 'still'}"
    size = int(throttle * seconds * 100 / case.bottleneck)
    clock = SystemClock()
    with ClusterAdmin(cluster.bootstrap) as admin:
        create_topic(cluster, topic, case.before)
        fill_topic(cluster, topic, size)
        wait_until(lambda: is_in_sync(admin, topic), 60, what="followers in sync")
        target = {TopicPartition(topic, n): Placement(case.after[n % 2]) for n in range(PARTITIONS)}
        with writing(cluster, topic, partitions=PARTITIONS, bytes_per_second=produce):
            facts = measure_cluster(admin, clock, sample_ms=SAMPLE_MS)
            estimate = estimate_move(facts, target, throttle)
            assert estimate.seconds is not None, "the move would never end"
            started = time.monotonic()
            start_moves(admin, target, throttle_bytes_per_second=throttle)
            patience = PATIENCE * estimate.seconds + 60
            wait_until(lambda: not admin.reassignments(), patience, what="the move to end")
            took = time.monotonic() - started
        wait_until(lambda: is_in_sync(admin, topic), 60, what="replicas in sync")
        status = verify_moves(admin, target)
        assert status.is_done, status
        left = throttles_left_at_last(admin, topic)
        same = same_bytes(cluster, topic, case)
    slowest = max(max(one.send_bytes, one.receive_bytes) for one in estimate.brokers)
    delete_topic(cluster, topic)
    return Outcome(
        kafka=kafka,
        case=case,
        produced_per_second=produce,
        throttle=throttle,
        moved_bytes=estimate.move_bytes,
        estimated_seconds=estimate.seconds,
        kip_seconds=slowest / (throttle - produce),
        seconds=took,
        same_bytes=same,
        throttles_left=left,
    )


def create_topic(
    cluster: Cluster, topic: str, before: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    placed = {n: list(before[n % 2]) for n in range(PARTITIONS)}
    admin.create_topics([NewTopic(topic, replica_assignments=placed)])
    admin.close()


def delete_topic(cluster: Cluster, topic: str) -> None:
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    admin.delete_topics([topic])
    admin.close()


def fill_topic(cluster: Cluster, topic: str, size_bytes: int) -> None:
    """Write about `size_bytes` that no codec would shorten, the same to each partition."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "1", "log_level": 0})
    value = bytes(BATCH_BYTES)
    for number in range(size_bytes // BATCH_BYTES):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


def is_in_sync(admin: ClusterAdmin, topic: str) -> bool:
    states = admin.partitions([topic])
    return len(states) == PARTITIONS and all(
        set(one.in_sync) == set(one.replicas) for one in states.values()
    )


def throttles_left_at_last(admin: ClusterAdmin, topic: str) -> tuple[str, ...]:
    """The throttles that are left when the brokers have applied what the controller confirmed."""
    try:
        wait_until(lambda: not throttles_left(admin, topic), 60, what="no throttle")
    except TimeoutError:
        return throttles_left(admin, topic)
    return ()


def throttles_left(admin: ClusterAdmin, topic: str) -> tuple[str, ...]:
    """The throttles that are still set on the topic or on a broker."""
    resources = [Resource(ResourceKind.BROKER, str(number)) for number in (1, 2, 3)]
    resources.append(Resource(ResourceKind.TOPIC, topic))
    names = {*BROKER_RATES, *REPLICA_LISTS}
    return tuple(
        f"{resource}: {name}={value}"
        for resource, settings in admin.settings(resources).items()
        for name, value in settings.items()
        if name in names
    )


def same_bytes(cluster: Cluster, topic: str, case: Case) -> bool:
    """Whether both replicas of each partition hold the same bytes, on the brokers of the plan."""

    def are_same() -> bool:
        return all(
            _log_bytes(cluster, topic, n, case.after[n % 2][0])
            == _log_bytes(cluster, topic, n, case.after[n % 2][1])
            != b""
            for n in range(PARTITIONS)
        )

    try:
        # A follower in sync may still have the last batch to fetch.
        wait_until(are_same, 60, what="replicas with the same bytes")
    except TimeoutError:
        return False
    return True


def _log_bytes(cluster: Cluster, topic: str, partition: int, broker_id: int) -> bytes:
    for log_dir in cluster.log_dirs[broker_id]:
        folder = log_dir / f"{topic}-{partition}"
        if folder.is_dir():
            return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    return b""


def table(outcomes: list[Outcome]) -> Iterator[str]:
    """The outcomes as a table for docs/REASSIGN.md."""
    yield (
        "| Kafka | Case | Producers | Moved | Measured | Our estimate | Difference "
        "| Bytes / (throttle - inbound) | Same bytes | Throttles left |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for one in outcomes:
        busy = f"{one.produced_per_second / 1e6:.1f} MB/s" if one.produced_per_second else "none"
        yield (
            f"| {one.kafka} | ({one.case.name}) {one.case.text} | {busy} "
            f"| {one.moved_bytes / 1e6:.0f} MB | {one.seconds:.1f} s "
            f"| {one.estimated_seconds:.1f} s | {one.difference:+.1%} | {one.kip_seconds:.1f} s "
            f"| {'yes' if one.same_bytes else 'NO'} | {len(one.throttles_left)} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--throttle", type=int, default=10_000_000)
    parser.add_argument("--produce", type=float, default=1_000_000)
    parser.add_argument("--kafka", choices=CLUSTERS, action="append")
    parser.add_argument("--case", choices=[one.name for one in CASES], action="append")
    given = parser.parse_args()
    outcomes = []
    for kafka in given.kafka or CLUSTERS:
        with (
            tempfile.TemporaryDirectory() as root,
            CLUSTERS[kafka](Path(root) / "cluster") as running,
        ):
            for case in CASES:
                if given.case and case.name not in given.case:
                    continue
                for produce in (0.0, given.produce):
                    outcome = run_case(
                        running,
                        kafka,
                        case,
                        throttle=given.throttle,
                        seconds=given.seconds,
                        produce=produce,
                    )
                    outcomes.append(outcome)
                    print(list(table([outcome]))[-1], flush=True)
    print("\n".join(table(outcomes)))


if __name__ == "__main__":
    main()

"""Three brokers, their sidecars, the store, and the topics of a history."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.integration.ledger import Partition
from tests.integration.tier_process import LAG, LED, Tier, running
from tests.kafka_tools import KafkaBroker
from tests.kafka_tools.clusters import three_brokers
from tests.kafka_tools.support import LOOPBACK, free_ports, wait_until
from tierlog.log.log_dir import open_log_dir

__all__ = ["PARTITIONS", "PATIENCE_S", "RISKY", "SAFE", "HistoryCluster", "made_cluster"]

# Acks of two brokers; the brokers keep a minute of it at most.
SAFE: tuple[Partition, ...] = (("orders", 0), ("orders", 1), ("money", 0))
# Acks of one broker, and any replica may lead: records may be lost. No transactions: an election
# that loses the end of one would leave it open for ever.
RISKY: tuple[Partition, ...] = (("risky", 0), ("risky", 1))
PARTITIONS = SAFE + RISKY
REPLICAS = {
    "orders": [[1, 2, 3], [2, 3, 1]],
    "money": [[3, 1, 2]],
    "risky": [[1, 2], [2, 3]],
}
SMALL = {"internal.segment.bytes": 65_536, "file.delete.delay.ms": 1000}
POLICIES: dict[str, dict[str, object]] = {
    "orders": {**SMALL, "min.insync.replicas": 2, "retention.bytes": 4 << 20},
    "money": {**SMALL, "min.insync.replicas": 2, "retention.bytes": 4 << 20},
    "risky": {**SMALL, "min.insync.replicas": 1, "unclean.leader.election.enable": "true"},
}
BROKER = {
    "auto.leader.rebalance.enable": "false",
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 6000,
    # A busy machine must not depose controllers.
    "controller.quorum.fetch.timeout.ms": 10_000,
    "controller.quorum.election.timeout.ms": 4000,
    "controller.quorum.request.timeout.ms": 8000,
    "log.retention.check.interval.ms": 1000,
    "log.initial.task.delay.ms": 1000,
    "replica.high.watermark.checkpoint.interval.ms": 1000,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "offsets.topic.replication.factor": 3,
}
# A busy machine is no finding.
PATIENCE_S = 400


class HistoryCluster:
    """The parts of a history, and what is done to several of them at once."""

    def __init__(
        self, root: Path, brokers: dict[int, KafkaBroker], tiers: dict[int, Tier], store: Path
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self.brokers = brokers
        self.tiers = tiers
        self.store = store
        self.store_url = store.as_uri()
        self.bootstrap = ",".join(one.bootstrap_servers for one in brokers.values())
        self.scratch = root / "scratch"
        self._root = root
        self._admin: Any = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": -1,
            },
            error_cb=lambda _: None,
        )

    def create_topics(self) -> None:
        """Create all topics once every broker is known."""
        from confluent_kafka.cimpl import NewTopic

        wait_until(
            lambda: len(self._admin.list_topics(timeout=20).brokers) == 3,
            PATIENCE_S,
            what="three brokers",
        )
        wanted = [
            NewTopic(
                name,
                num_partitions=len(placed),
                replica_assignment=placed,
                config={key: str(value) for key, value in POLICIES[name].items()},
            )
            for name, placed in REPLICAS.items()
        ]
        for future in self._admin.create_topics(wanted).values():
            future.result(60)
        self.wait_in_sync()

    def remove_state(self, number: int) -> None:
        """Remove the state directory of a sidecar."""
        shutil.rmtree(state_dir(self._root, number))

    # -- asking

    def states(self) -> dict[Partition, tuple[int, frozenset[int]]]:
        """Return leader and in-sync replicas of each partition; empty when no broker answers."""
        from confluent_kafka import KafkaException

        try:
            topics = self._admin.list_topics(timeout=20).topics
        except KafkaException:
            return {}
        return {
            (topic, number): (found.leader, frozenset(found.isrs))
            for topic in REPLICAS
            if topic in topics
            for number, found in topics[topic].partitions.items()
        }

    def leader(self, partition: Partition) -> int:
        """Return the leader, -1 for none."""
        return self.states().get(partition, (-1, frozenset()))[0]

    def wait_in_sync(self) -> None:
        """Wait until every replica is in sync and every partition has a leader."""

        def is_whole() -> bool:
            found = self.states()
            return len(found) == len(PARTITIONS) and all(
                leader > 0 and in_sync == frozenset(REPLICAS[topic][number])
                for (topic, number), (leader, in_sync) in found.items()
            )

        wait_until(is_whole, PATIENCE_S, what="all replicas in sync", interval_s=0.3)

    # -- elections

    def elect_preferred(self) -> None:
        """Give each partition back to its first replica."""
        from confluent_kafka import ElectionType, KafkaException, TopicPartition

        wanted = [TopicPartition(*one) for one in PARTITIONS]
        try:
            self._admin.elect_leaders(ElectionType.PREFERRED, wanted).result(40)
        except KafkaException:
            # The controller may just be another one; leaders stay where they are then.
            return

    def take_risk(self, partition: Partition, meanwhile: Callable[[], None]) -> tuple[int, int]:
        """Lose what was acked `meanwhile`, by an unclean election; return both leaders."""
        leader = self.leader(partition)
        (follower,) = set(REPLICAS[partition[0]][partition[1]]) - {leader}
        self.brokers[follower].kill()
        wait_until(
            lambda: self.states().get(partition) == (leader, frozenset({leader})),
            PATIENCE_S,
            what=f"{partition} on broker {leader} alone",
        )
        meanwhile()
        self.brokers[leader].kill()
        self.brokers[follower].start()
        wait_until(
            lambda: self._elect_uncleanly(partition) == follower,
            PATIENCE_S,
            what=f"{partition} led by broker {follower}",
            interval_s=0.5,
        )
        self.brokers[leader].start()
        self.wait_in_sync()
        return leader, follower

    def _elect_uncleanly(self, partition: Partition) -> int:
        """Ask for an unclean election; return the leader."""
        from confluent_kafka import ElectionType, KafkaException, TopicPartition

        leader = self.leader(partition)
        if leader > 0:
            return leader
        try:
            wanted = [TopicPartition(*partition)]
            self._admin.elect_leaders(ElectionType.UNCLEAN, wanted).result(20)
        except KafkaException:
            return -1
        return self.leader(partition)

    # -- what lies on disk

    def leader_dir(self, partition: Partition) -> Path:
        """Return the log directory of the leader."""
        return self.brokers[self.leader(partition)].log_dirs[0]

    def active_base(self, partition: Partition) -> int:
        """Return where the active segment of the leader begins."""
        log = open_log_dir(self.leader_dir(partition)).partition(*partition)
        return log.segments[-1].base_offset

    def has_rolled_in_last_epoch(self, partition: Partition) -> bool:
        """Return whether the leader has rolled a segment since it was elected."""
        if self.leader(partition) < 0:
            return False
        log = open_log_dir(self.leader_dir(partition)).partition(*partition)
        epochs = log.leader_epochs
        return epochs is not None and log.segments[-1].base_offset > epochs.entries[-1].start_offset

    def last_stored_base(self, partition: Partition) -> int:
        """Return the highest base offset of a segment in the store, -1 without one."""
        found = self.store.glob(f"{partition[0]}-*/{partition[1]}/*.indexes")
        return max((int(path.name[:20]) for path in found), default=-1)

    def count_segments(self) -> int:
        """Return the number of segments in the store."""
        return len(list(self.store.rglob("*.indexes")))

    def wait_until_copied(self) -> None:
        """Wait until no sidecar has anything left to copy and each partition has one."""

        def is_copied() -> bool:
            lags = {tier.metric(LAG) for tier in self.tiers.values()}
            return lags == {0.0} and self.is_led() and all(map(self._is_copied, PARTITIONS))

        wait_until(is_copied, PATIENCE_S, what="a copy lag of 0 everywhere", interval_s=0.5)

    def is_led(self) -> bool:
        """Return whether each partition is led by one sidecar."""
        led = [tier.metric(LED) or 0 for tier in self.tiers.values()]
        return sum(led) == len(PARTITIONS)

    def _is_copied(self, partition: Partition) -> bool:
        log = open_log_dir(self.leader_dir(partition)).partition(*partition)
        if not log.rolled_segments:
            return True
        last = log.rolled_segments[-1].base_offset
        found = self.store.glob(f"{partition[0]}-{log.topic_id}/{partition[1]}/*.indexes")
        return max((int(path.name[:20]) for path in found), default=-1) >= last


def state_dir(root: Path, number: int) -> Path:
    return root / f"state-{number}"


@contextmanager
def made_cluster(root: Path) -> Iterator[HistoryCluster]:
    """Brokers, topics and sidecars, all running."""
    store = root / "store"
    store.mkdir(parents=True)
    with ExitStack() as stack:
        kafka = stack.enter_context(
            three_brokers(
                root / "kafka",
                dict.fromkeys((1, 2, 3), BROKER),
                controllers=3,
                start_timeout_s=PATIENCE_S,
            )
        )
        brokers = dict(kafka.brokers)
        tiers: dict[int, Tier] = {}
        cluster = HistoryCluster(root, brokers, tiers, store)
        cluster.create_topics()
        for number, port in zip(brokers, free_ports(len(brokers)), strict=True):
            arguments = [str(path) for path in brokers[number].log_dirs]
            arguments += ["--to", cluster.store_url, "--interval", "0.5"]
            arguments += ["--state-dir", str(state_dir(root, number))]
            arguments += ["--bootstrap", brokers[number].bootstrap_servers]
            arguments += ["--metrics", f"{LOOPBACK}:{port}"]
            for topic in REPLICAS:
                arguments += ["--topic", topic]
            tiers[number] = Tier(arguments, f"http://{LOOPBACK}:{port}/metrics")
            stack.enter_context(running(tiers[number]))
        wait_until(cluster.is_led, PATIENCE_S, what="a sidecar for each partition")
        yield cluster

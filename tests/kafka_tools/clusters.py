"""Clusters of three real brokers: Kafka 4.3 with KRaft, and 3.9 with ZooKeeper.

with three_brokers(tmp_path) as cluster:
    cluster.bootstrap  # of the first broker
    cluster.reassign("--list")  # Kafka's own kafka-reassign-partitions

``python -m tests.kafka_tools.clusters 3.9`` starts one by hand, until Ctrl-C.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from .broker import KafkaBroker
from .old_kafka import old_broker_process, run_old_tool, zookeeper
from .tools import run_tool

__all__ = ["CLUSTERS", "Cluster", "three_brokers", "three_old_brokers"]

OLD = "3.9"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
# Several test files run such clusters beside each other.
SMALL_HEAP = ("-Xmx320m",)


@dataclass(frozen=True)
class Cluster:
    """Brokers 1 to 3.

    ``addresses`` and ``log_dirs`` are those of each broker; ``kill`` ends one at once. ``brokers``
    can be started again, and are empty for an old cluster. ``run_tool`` runs a tool of the same
    version.
    """

    addresses: Mapping[int, str]
    log_dirs: Mapping[int, tuple[Path, ...]]
    run_tool: Callable[..., str]
    kill: Callable[[int], None]
    brokers: Mapping[int, KafkaBroker] = field(default_factory=dict)
    zookeeper: str = ""

    @property
    def bootstrap(self) -> str:
        return self.addresses[1]

    def reassign(self, *args: str) -> str:
        """The output of Kafka's own tool."""
        return self.run_tool(REASSIGN, "--bootstrap-server", self.bootstrap, *args)

    def configs(self, *args: str) -> str:
        """The output of kafka-configs."""
        return self.run_tool(CONFIGS, "--bootstrap-server", self.bootstrap, *args)


@contextmanager
def three_brokers(
    root: Path,
    properties: Mapping[int, Mapping[str, object]] | None = None,
    log_dirs: Mapping[int, int] | None = None,
    controllers: int = 1,
    start_timeout_s: float = 120,
) -> Iterator[Cluster]:
    """Kafka 4.3: the first `controllers` brokers are controllers as well. ``properties`` and the
    number of ``log_dirs`` by broker id."""
    brokers: dict[int, KafkaBroker] = {}
    with ExitStack() as stack:
        for number in (1, 2, 3):
            own = {"node.id": number} if number > 1 else {}
            brokers[number] = KafkaBroker(
                root / str(number),
                join=brokers.get(1),
                votes=number <= controllers,
                log_dirs=(log_dirs or {}).get(number, 1),
                properties={**own, **(properties or {}).get(number, {})},
                start_timeout_s=start_timeout_s,
                jvm_flags=SMALL_HEAP,
            )
            brokers[number].start()
            stack.callback(brokers[number].kill)
        yield Cluster(
            addresses={number: one.bootstrap_servers for number, one in brokers.items()},
            log_dirs={number: one.log_dirs for number, one in brokers.items()},
            run_tool=run_tool,
            kill=lambda number: brokers[number].kill(),
            brokers=brokers,
        )


@contextmanager
def three_old_brokers(
    root: Path, properties: Mapping[str, object] | None = None
) -> Iterator[Cluster]:
    """Kafka 3.9 with ZooKeeper; the same ``properties`` for each broker."""
    root.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = stack.enter_context(zookeeper(OLD, root))
        addresses: dict[int, str] = {}
        processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in (1, 2, 3):
            folder = root / str(number)
            folder.mkdir()
            settings = {"broker.id": number, **(properties or {})}
            addresses[number], processes[number] = stack.enter_context(
                old_broker_process(OLD, folder, servers, settings)
            )
        yield Cluster(
            addresses=addresses,
            log_dirs={number: (root / str(number) / "disk",) for number in (1, 2, 3)},
            run_tool=lambda *args: run_old_tool(OLD, *args),
            kill=lambda number: processes[number].kill(),
            zookeeper=servers,
        )


CLUSTERS: dict[str, Callable[[Path], AbstractContextManager[Cluster]]] = {
    "4.3": three_brokers,
    OLD: three_old_brokers,
}


def main() -> None:
    """Start a cluster, print where it is, and stop it on Ctrl-C."""
    version = sys.argv[1] if sys.argv[1:] else "4.3"
    with (
        tempfile.TemporaryDirectory() as root,
        CLUSTERS[version](Path(root) / "cluster") as cluster,
        suppress(KeyboardInterrupt),
    ):
        print(f"Kafka {version} at {cluster.bootstrap}, files below {root}", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()

"""A real single-node Kafka (KRaft, loopback only) as a context manager."""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import socket
import struct
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from .support import LOOPBACK, KafkaToolsError, free_ports, tail_text, wait_until
from .tools import java_command, run_tool

LOCAL_TIERED_STORAGE = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
START_ATTEMPTS = 3

# Few threads and small buffers: the tests share a small machine with the code under test.
BASE_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "4194304",
}


def random_uuid() -> str:
    """A Kafka Uuid: 22 characters of URL-safe base64, never starting with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class KafkaBroker:
    """One broker and controller in one JVM, under `root`.

        with KafkaBroker(tmp_path / "kafka", log_dirs=2) as broker:
            broker.create_topic("orders", config={"internal.segment.bytes": 65536})
            ...                      # any client, at broker.bootstrap_servers
            broker.stop()            # clean; or broker.kill(): SIGKILL, as a crash would
            broker.start()           # same ports, same directories, higher leader epochs

    `properties` are added to (and win over) server.properties. `tiered_dir` switches tiered storage
    on, with Kafka's LocalTieredStorage writing below it. Small segments: topics may be given
    `internal.segment.bytes`, as `segment.bytes` below 1 MiB is refused. `jvm_flags` go to its JVM.
    With `join` it is a further broker of the cluster that one is the controller of, and with
    `votes` a further controller as well; it needs a `node.id` other than 1 in its `properties`.

    Attributes: `bootstrap_servers`; `log_dirs` (paths); `log_path` (what the broker logged);
    `properties_path`; `cluster_id`; `pid` (None when down).
    """

    def __init__(
        self,
        root: Path,
        *,
        log_dirs: int | Iterable[Path] = 1,
        properties: Mapping[str, object] | None = None,
        tiered_dir: Path | None = None,
        cluster_id: str | None = None,
        join: KafkaBroker | None = None,
        votes: bool = False,
        start_timeout_s: float = 120,
        jvm_flags: Iterable[str] = (),
    ) -> None:
        self.root = root.absolute()
        if isinstance(log_dirs, int):
            self.log_dirs = tuple(self.root / f"disk{n + 1}" for n in range(log_dirs))
        else:
            self.log_dirs = tuple(path.absolute() for path in log_dirs)
        self.log_path = self.root / "broker.log"
        self.properties_path = self.root / "server.properties"
        self.cluster_id: str = cluster_id or (join.cluster_id if join else random_uuid())
        self._join = join
        self._votes = votes
        self._extra = {key: str(value) for key, value in (properties or {}).items()}
        self._tiered_dir = tiered_dir
        self._start_timeout_s = start_timeout_s
        self._jvm_flags = tuple(jvm_flags)
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            self.stop()
        else:
            self.kill()

    @property
    def bootstrap_servers(self) -> str:
        if not self._ports:
            raise KafkaToolsError("the broker has no address before its first start()")
        return f"{LOOPBACK}:{self._ports[0]}"

    @property
    def pid(self) -> int | None:
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process is not None else None

    def start(self) -> None:
        """Start and return once the broker answers clients; formats the storage the first time."""
        running = self.pid
        if running is not None:
            raise KafkaToolsError(f"the broker already runs as process {running}")
        if self._ports:
            self._start_once()
            return
        for left in reversed(range(START_ATTEMPTS)):
            formatted = self._configure()
            try:
                self._start_once()
                return
            except KafkaToolsError:
                lost_port = "Address already in use" in tail_text(self.log_path, 200)
                if not lost_port or not left:
                    raise
            # The formatted metadata names the port that somebody else took meanwhile.
            for path in formatted:
                shutil.rmtree(path)
            self._ports = []

    def _start_once(self) -> None:
        self._spawn()
        try:
            wait_until(self._up_or_gone, self._start_timeout_s, what="Kafka broker start")
        except TimeoutError:
            self.kill()
            raise
        if self._process is None:
            raise KafkaToolsError(f"Kafka broker did not start:\n{tail_text(self.log_path)}")

    def stop(self, timeout_s: float = 60) -> None:
        """Clean stop (SIGTERM): logs flushed, `.kafka_cleanshutdown` written. No-op when down.

        Under a second as a rule; with tiered storage at times half a minute, for Kafka's own
        metadata consumer waits for the broker it is part of.
        """
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise KafkaToolsError(
                f"Kafka broker did not stop within {timeout_s:g} s, killed:\n"
                f"{tail_text(self.log_path)}"
            ) from None
        self._reap()

    def kill(self) -> None:
        """SIGKILL, as a crash: nothing is flushed or cut to size. No-op when down."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._reap()

    def partition_dir(self, topic: str, partition: int) -> Path:
        """The directory of a partition, in whichever log directory the broker put it."""
        name = f"{topic}-{partition}"
        for log_dir in self.log_dirs:
            if (log_dir / name).is_dir():
                return log_dir / name
        raise FileNotFoundError(f"no {name} under {', '.join(map(str, self.log_dirs))}")

    def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        timeout_s: float = 30,
    ) -> None:
        """Create a topic and wait until the broker leads all its partitions on disk."""
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        settings = {key: str(value) for key, value in (config or {}).items()}
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([wanted], operation_timeout=timeout_s)[topic].result(timeout_s)
        wait_until(
            lambda: all(self._has_partition(topic, p) for p in range(partitions)),
            timeout_s,
            what=f"partitions of {topic} on disk",
        )

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """DeleteRecords: move the partition's log start offset up to `before_offset`."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        request = [TopicPartition(topic, partition, before_offset)]
        for future in admin.delete_records(request).values():
            future.result(30)

    def _has_partition(self, topic: str, partition: int) -> bool:
        return any((d / f"{topic}-{partition}").is_dir() for d in self.log_dirs)

    def _configure(self) -> list[Path]:
        """Choose ports, write server.properties; format and return what is not formatted yet."""
        self.root.mkdir(parents=True, exist_ok=True)
        self._ports = free_ports(2)
        properties = BASE_PROPERTIES | self._address_properties() | self._tiered_properties()
        properties |= self._extra
        text = "".join(f"{key}={value}\n" for key, value in properties.items())
        self.properties_path.write_text(text)
        unformatted = [d for d in self.log_dirs if not (d / "meta.properties").exists()]
        if unformatted:
            quorum = "--no-initial-controllers" if self._join else "--standalone"
            arguments = ("-t", self.cluster_id, "-c", str(self.properties_path), quorum)
            run_tool("kafka.tools.StorageTool", "format", "--ignore-formatted", *arguments)
        return unformatted

    def _address_properties(self) -> dict[str, str]:
        client, controller = (f"{LOOPBACK}:{port}" for port in self._ports)
        listeners = f"PLAINTEXT://{client}"
        role: dict[str, str] = {}
        if self._join is None or self._votes:
            listeners += f",CONTROLLER://{controller}"
        if self._join is not None:
            controller = f"{LOOPBACK}:{self._join._ports[1]}"
            votes = {"controller.quorum.auto.join.enable": "true"}
            role = votes if self._votes else {"process.roles": "broker"}
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": ",".join(map(str, self.log_dirs)),
            **role,
        }

    def _tiered_properties(self) -> dict[str, str]:
        if self._tiered_dir is None:
            return {}
        return {
            "remote.log.storage.system.enable": "true",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "remote.log.storage.manager.class.name": LOCAL_TIERED_STORAGE,
            "rsm.config.dir": str(self._tiered_dir.absolute()),
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.min.isr": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "5",
            "log.retention.check.interval.ms": "1000",
            "remote.log.manager.task.interval.ms": "1000",
        }

    def _spawn(self) -> None:
        command = java_command(
            "kafka.Kafka",
            str(self.properties_path),
            log_level="INFO",
            jvm_flags=self._jvm_flags,
        )
        self._log = self.log_path.open("ab")
        # A session of its own: Ctrl-C reaches the tests only, which then stop the broker.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self.root,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
        atexit.register(self.kill)

    def _reap(self) -> None:
        atexit.unregister(self.kill)
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None

    def _up_or_gone(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._reap()
            return True
        return answers(self._ports[0])


def answers(port: int, timeout_s: float = 2) -> bool:
    """True once the broker at `port` lists itself in a Metadata response (v1, no topics asked)."""
    body = struct.pack(">hhihi", 3, 1, 1, -1, 0)
    try:
        with socket.create_connection((LOOPBACK, port), timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            reply = connection.makefile("rb")
            _size, _correlation_id, brokers = struct.unpack(">iii", reply.read(12))
            return bool(brokers > 0)
    except (OSError, struct.error):
        return False

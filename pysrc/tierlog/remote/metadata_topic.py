"""The metadata manager that keeps its segments in a cluster's ``__remote_log_metadata`` topic.

Every event is a record; all events of a user partition share one partition of the topic and so have
one order. A manager reads the topic from its beginning and applies what it reads; what a state does
not allow is dropped, by every reader alike. A write returns when this manager has read its own
record back: then it is durable, visible here, and known whether it was accepted or dropped because
somebody else was faster (Kafka's ``TopicBasedRemoteLogMetadataManager``, which does not tell).

Needs the extra ``kafka``. Kafka's brokers and tierlog may follow and write the same topic.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tierlog.errors import (
    ClosedError,
    ConfigError,
    CorruptDataError,
    MetadataNotReadyError,
    RemoteMetadataError,
)
from tierlog.remote.metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from tierlog.remote.metadata_memory import InMemoryRemoteLogMetadataManager
from tierlog.remote.metadata_records import (
    RemoteLogMetadata,
    decode_record,
    encode_record,
    metadata_partition,
)
from tierlog.types import TopicIdPartition

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["METADATA_TOPIC", "TopicBasedRemoteLogMetadataManager"]

METADATA_TOPIC = "__remote_log_metadata"
# Names a write, so that whoever wrote it knows it again; Kafka does not look at headers.
WRITE_HEADER = "tierlog-write"
_POLL_S = 0.1
_POLL_RECORDS = 500


class TopicBasedRemoteLogMetadataManager(InMemoryRemoteLogMetadataManager):
    """A `RemoteLogMetadataManager` over the metadata topic of a running cluster.

        with TopicBasedRemoteLogMetadataManager("broker:9092") as metadata:
            metadata.wait_until_ready(timeout_s=30)

    ``bootstrap`` is ``host:port[,host:port]``, ``settings`` what the client library needs besides
    (security). Until a partition's events up to the end at the start are read, every question about
    it is a MetadataNotReadyError. A record that cannot be read stops its partition of the topic for
    good, and every question about what it holds is the CorruptDataError. ConfigError without the
    client library, RemoteMetadataError when the cluster or the topic does not answer.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        topic: str = METADATA_TOPIC,
        settings: Mapping[str, object] | None = None,
        timeout_s: float = 30.0,
        write_timeout_s: float = 120.0,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        super().__init__(ready=False)
        self._topic = topic
        self._write_timeout_s = write_timeout_s
        self._client = _Client(bootstrap, topic, settings or {}, timeout_s)
        self._writer_id = random_bytes(16)
        self._write_numbers = itertools.count()
        self._caught_up = threading.Condition(self._lock)
        self._writes: dict[bytes, Future[None]] = {}
        self._next_offsets = dict.fromkeys(self._client.end_offsets, 0)
        self._stopped: dict[int, CorruptDataError] = {}
        self._dropped_count = 0
        self._failure: RemoteMetadataError | None = None
        self._reader = threading.Thread(
            target=self._follow, name=f"tierlog-{topic}-reader", daemon=True
        )
        self._reader.start()

    def __enter__(self) -> TopicBasedRemoteLogMetadataManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- events

    def add(self, metadata: RemoteLogSegmentMetadata, *, leader_epoch: int | None = None) -> None:
        partition = metadata.topic_id_partition
        with self._lock:
            self._check_usable(partition)
            known = self._partition(partition)
            known.change_of_add(metadata, leader_epoch)
            if known.get(metadata.segment_id) is not None:
                return
        self._write(partition, metadata)

    def update(
        self, update: RemoteLogSegmentMetadataUpdate, *, leader_epoch: int | None = None
    ) -> None:
        partition = update.segment_id.topic_id_partition
        with self._lock:
            self._check_usable(partition)
            if self._partition(partition).change_of_update(update, leader_epoch) is None:
                return
        self._write(partition, update)

    @property
    def dropped_count(self) -> int:
        """Events read so far that the state of their segment did not allow."""
        return self._dropped_count

    def _write(self, partition: TopicIdPartition, event: RemoteLogMetadata) -> None:
        """Returns when the event was read back and accepted."""
        token = self._writer_id + next(self._write_numbers).to_bytes(8, "big")
        outcome: Future[None] = Future()
        with self._lock:
            self._check_usable(partition)
            self._writes[token] = outcome

        def delivered(error: object, _: object) -> None:
            if error is not None:
                _settle(outcome, _unavailable(f"{self._topic}: not written: {error}"))

        try:
            number = metadata_partition(partition, len(self._client.end_offsets))
            self._client.produce(number, encode_record(event), token, delivered)
            outcome.result(self._write_timeout_s)
        except TimeoutError:
            raise _unavailable(
                f"{self._topic}: a record for {partition} was not read back within "
                f"{self._write_timeout_s:g} s; it may still take effect"
            ) from None
        finally:
            with self._lock:
                self._writes.pop(token, None)

    # -- following the topic

    def _follow(self) -> None:
        """The reader thread: everything from the beginning, until closed."""
        try:
            while not self._closed:
                messages = self._client.consume(_POLL_RECORDS, _POLL_S)
                with self._caught_up:
                    for message in messages:
                        self._take(message)
                    self._caught_up.notify_all()
        except self._client.failure as error:
            # Nobody reads on: every question and every write under way has to know.
            with self._caught_up:
                self._failure = _unavailable(f"{self._topic}: no longer followed: {error}")
                for outcome in self._writes.values():
                    _settle(outcome, self._failure)
                self._caught_up.notify_all()
        finally:
            self._client.close_consumer()

    def _take(self, message: Message) -> None:
        number, offset = message.partition(), message.offset()
        if number is None or offset is None or number in self._stopped:
            return
        if message.error() is not None:
            # What can be repeated the client library repeats by itself.
            if self._client.is_end(message):
                self._next_offsets[number] = max(self._next_offsets[number], offset)
            return
        try:
            event, _ = decode_record(
                message.value() or b"", path=f"{self._topic}-{number} offset {offset}"
            )
        except CorruptDataError as error:
            self._stopped[number] = error
            return
        outcome = self._writes.get(_token(message))
        try:
            self._apply(event)
        except RemoteMetadataError as error:
            self._dropped_count += 1
            _settle(outcome, error)
        else:
            _settle(outcome, None)
        self._next_offsets[number] = offset + 1

    def _apply(self, event: RemoteLogMetadata) -> None:
        if isinstance(event, RemoteLogSegmentMetadata):
            self._partition(event.topic_id_partition).add(event)
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            self._partition(event.segment_id.topic_id_partition).update(event)
        elif event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._forget(event)

    def _forget(self, event: RemotePartitionDeleteMetadata) -> None:
        self._partitions.pop(event.partition, None)

    # -- readiness

    def wait_until_ready(self, *, timeout_s: float) -> None:
        """Returns when everything is read that the topic held at the start.

        MetadataNotReadyError after `timeout_s`, CorruptDataError when a record cannot be read.
        """
        with self._caught_up:
            ready = self._caught_up.wait_for(self._all_read, timeout_s)
            self._check_usable(None)
            if not ready:
                raise MetadataNotReadyError(f"{self._topic}: not read within {timeout_s:g} s")

    def is_ready(self, partition: TopicIdPartition) -> bool:
        with self._lock:
            number = metadata_partition(partition, len(self._next_offsets))
            ended = self._closed or self._failure is not None or number in self._stopped
            return not ended and self._is_read(number)

    def _is_read(self, number: int) -> bool:
        return self._next_offsets[number] >= self._client.end_offsets[number]

    def _all_read(self) -> bool:
        ended = self._closed or self._failure is not None or bool(self._stopped)
        return ended or all(map(self._is_read, self._next_offsets))

    def _check_usable(self, partition: TopicIdPartition | None) -> None:
        if self._closed:
            raise ClosedError("the metadata manager is closed")
        if self._failure is not None:
            raise _unavailable(str(self._failure))
        numbers = list(self._next_offsets)
        if partition is not None:
            numbers = [metadata_partition(partition, len(numbers))]
        for number in numbers:
            if number in self._stopped:
                error = self._stopped[number]
                raise error.located(error.path or self._topic)
            if not self._is_read(number):
                raise MetadataNotReadyError(
                    f"metadata of {partition or 'all partitions'} is not loaded yet: "
                    f"{self._topic}-{number} is read up to {self._next_offsets[number]} of "
                    f"{self._client.end_offsets[number]}; try again"
                )

    def close(self) -> None:
        """Stops following; writes under way end with a ClosedError, though they may be durable."""
        with self._caught_up:
            self._closed = True
            for outcome in self._writes.values():
                _settle(outcome, ClosedError("the metadata manager is closed"))
            self._caught_up.notify_all()
        self._reader.join()
        self._client.close_producer()


class _Client:
    """The client library: one producer, one consumer of every partition of the topic."""

    def __init__(
        self, bootstrap: str, topic: str, settings: Mapping[str, object], timeout_s: float
    ) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise ConfigError(
                "the metadata topic needs the extra 'kafka': pip install 'tierlog[kafka]'"
            ) from error
        self.failure = confluent_kafka.KafkaException
        common = {"bootstrap.servers": bootstrap, "log_level": 0, **settings}
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                **common,
                "client.id": "tierlog-metadata-producer",
                "enable.idempotence": True,
                "linger.ms": 0,
                "error_cb": _ignore,
            }
        )
        self._consumer = confluent_kafka.Consumer(
            {
                **common,
                "client.id": "tierlog-metadata-consumer",
                "group.id": "tierlog-metadata",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                # Tells where a partition ends, also when its last records are gone.
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "error_cb": _ignore,
            }
        )
        try:
            self.end_offsets = self._end_offsets(timeout_s)
            self._consumer.assign(
                [
                    confluent_kafka.TopicPartition(topic, number, confluent_kafka.OFFSET_BEGINNING)
                    for number in self.end_offsets
                ]
            )
        except confluent_kafka.KafkaException as error:
            self._consumer.close()
            raise _unavailable(f"{bootstrap}: {topic}: {error}") from error

    def _end_offsets(self, timeout_s: float) -> dict[int, int]:
        """The end of every partition now; what lies below it has to be read first."""
        from confluent_kafka import TopicPartition

        found = self._consumer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        if found.error is not None or not found.partitions:
            raise _unavailable(f"{self._topic}: {found.error or 'no partitions'}")
        ends = {}
        for number in sorted(found.partitions):
            one = TopicPartition(self._topic, number)
            begin, end = self._consumer.get_watermark_offsets(one, timeout=timeout_s)
            # Below the beginning there is nothing to wait for.
            ends[number] = end if end > begin else 0
        return ends

    def produce(
        self,
        number: int,
        value: bytes,
        token: bytes,
        delivered: Callable[[object, object], None],
    ) -> None:
        from confluent_kafka import KafkaException

        try:
            self._producer.produce(
                self._topic,
                value=value,
                partition=number,
                headers=[(WRITE_HEADER, token)],
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            raise _unavailable(f"{self._topic}: not written: {error}") from error

    def consume(self, records: int, timeout_s: float) -> list[Any]:
        """What has come in; delivery reports of the producer are served on the way."""
        self._producer.poll(0)
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [first, *self._consumer.consume(records, 0)]

    def is_end(self, message: Message) -> bool:
        """Whether a message without a record says that all of its partition is read."""
        from confluent_kafka import KafkaError

        error = message.error()
        return error is not None and error.code() == KafkaError._PARTITION_EOF

    def close_consumer(self) -> None:
        self._consumer.close()

    def close_producer(self) -> None:
        self._producer.flush(0)
        self._producer.purge()


def _token(message: Message) -> bytes:
    for name, value in message.headers() or ():
        if name == WRITE_HEADER and isinstance(value, bytes):
            return value
    return b""


def _settle(outcome: Future[None] | None, error: Exception | None) -> None:
    if outcome is None or outcome.done():
        return
    if error is None:
        outcome.set_result(None)
    else:
        outcome.set_exception(error)


def _unavailable(message: str) -> RemoteMetadataError:
    error = RemoteMetadataError(message)
    error.retriable = True
    return error


def _ignore(_: object) -> None:
    """The client library reports a broker that is away; it goes on trying by itself."""

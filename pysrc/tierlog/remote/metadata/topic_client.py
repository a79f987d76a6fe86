"""Producer and consumer of the metadata topic, through the client library confluent-kafka.

Needs the extra ``kafka``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tierlog.errors import ConfigError, RemoteMetadataError

if TYPE_CHECKING:
    from confluent_kafka import Message

__all__ = ["MetadataTopicClient", "unavailable", "write_token"]

# Header that identifies a write, so that its writer recognizes the record. Kafka ignores headers.
WRITE_HEADER = "tierlog-write"


class MetadataTopicClient:
    """Holds one producer, and one consumer of all partitions of the metadata topic."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        settings: Mapping[str, object],
        *,
        timeout_s: float,
        write_timeout_s: float,
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
        self._producer_settings: dict[str, Any] = {
            **common,
            "client.id": "tierlog-metadata-producer",
            "enable.idempotence": True,
            "linger.ms": 0,
            # With this limit, no record is sent after its writer has stopped waiting.
            "message.timeout.ms": max(1, round(write_timeout_s * 1_000)),
            "error_cb": _ignore,
        }
        consumer_settings = {
            **common,
            "client.id": "tierlog-metadata-consumer",
            "group.id": "tierlog-metadata",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Reading starts at an explicit offset; a later gap must be an error.
            "auto.offset.reset": "error",
            # With this setting, the client reports the end of a partition, even when its last
            # records are gone.
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "error_cb": _ignore,
        }
        try:
            self._producer = confluent_kafka.Producer(self._producer_settings)
            self._consumer = confluent_kafka.Consumer(consumer_settings)
        except confluent_kafka.KafkaException as error:
            raise ConfigError(f"{topic}: the client library refuses a setting: {error}") from error
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
            raise unavailable(f"{bootstrap}: {topic}: {error}") from error

    def _end_offsets(self, timeout_s: float) -> dict[int, int]:
        """Return the present end offset of every partition. A manager must read up to this
        offset."""
        from confluent_kafka import TopicPartition

        found = self._consumer.list_topics(self._topic, timeout=timeout_s).topics[self._topic]
        if found.error is not None or not found.partitions:
            raise unavailable(f"{self._topic}: {found.error or 'no partitions'}")
        ends = {}
        for number in sorted(found.partitions):
            one = TopicPartition(self._topic, number)
            begin, end = self._consumer.get_watermark_offsets(one, timeout=timeout_s)
            # A manager need not wait for an empty partition.
            ends[number] = end if end > begin else 0
        return ends

    def produce(
        self,
        number: int,
        value: bytes,
        token: bytes,
        delivered: Callable[[object, object], None],
    ) -> None:
        """Send a record. The client later calls `delivered` with an error or None. Raises
        RemoteMetadataError when the record cannot be sent."""
        from confluent_kafka import KafkaException, Producer

        try:
            self._producer.produce(
                self._topic,
                value=value,
                partition=number,
                headers=[(WRITE_HEADER, token)],
                on_delivery=delivered,
            )
        except (BufferError, KafkaException) as error:
            if isinstance(error, KafkaException) and error.args[0].fatal():
                # After a fatal error, a producer can never write again, so replace it.
                self._producer = Producer(self._producer_settings)
            raise unavailable(f"{self._topic}: the record was not written: {error}") from error

    def consume(self, records: int, timeout_s: float) -> list[Any]:
        """Return received messages. This call also runs the callbacks of the producer's delivery
        reports."""
        self._producer.poll(0)
        first = self._consumer.poll(timeout_s)
        return [] if first is None else [first, *self._consumer.consume(records, 0)]

    def is_end(self, message: Message) -> bool:
        """Return whether this message has no record but reports the end of its partition."""
        from confluent_kafka import KafkaError

        error = message.error()
        return error is not None and error.code() == KafkaError._PARTITION_EOF

    def is_truncated(self, message: Message) -> bool:
        """Return whether this message has no record but reports that the next records are gone."""
        from confluent_kafka import KafkaError

        error = message.error()
        codes = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION)
        return error is not None and error.code() in codes

    def close_consumer(self) -> None:
        self._consumer.close()

    def close_producer(self) -> None:
        self._producer.flush(0)
        self._producer.purge()


def write_token(message: Message) -> bytes:
    """Return the token of the write that made a record; ``b""`` for records of other programs."""
    for name, value in message.headers() or ():
        if name == WRITE_HEADER and isinstance(value, bytes):
            return value
    return b""


def unavailable(message: str) -> RemoteMetadataError:
    """Return a retriable error."""
    error = RemoteMetadataError(message)
    error.retriable = True
    return error


def _ignore(_: object) -> None:
    """Ignore reports of unreachable brokers; the client library retries by itself."""

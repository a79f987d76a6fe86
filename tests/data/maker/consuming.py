"""What a consumer reads back, as a second truth beside the dump texts."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.kafka_tools import KafkaBroker, wait_until

WHOLE_UP_TO_BYTES = 1_024
NOT_YET = (
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
)


def partition_offsets(broker: KafkaBroker, topic: str, partition: int) -> dict[str, int]:
    """Log start offset, high watermark and last stable offset, as the broker answers."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    where = TopicPartition(topic, partition)

    def ask(spec: OffsetSpec, isolation: IsolationLevel) -> int:
        future = admin.list_offsets({where: spec}, isolation_level=isolation)[where]
        return int(future.result(30).offset)

    def leads() -> bool:
        try:
            return ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED) >= 0
        except KafkaException as error:
            # A broker just started may know of its leadership a little after its clients do.
            if not error.args[0].retriable() and error.args[0].code() not in NOT_YET:
                raise
            return False

    wait_until(leads, 30, what=f"leader of {topic}-{partition}")
    return {
        "log_start_offset": ask(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
        "high_watermark": ask(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        "last_stable_offset": ask(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
    }


def consume(broker: KafkaBroker, topic: str, partition: int) -> list[dict[str, Any]]:
    """Every record of the partition, saying which of them a read-committed consumer gets too."""
    committed = {message.offset() for message in _read(broker, topic, partition, "read_committed")}
    return [
        _row(message) | {"read_committed": message.offset() in committed}
        for message in _read(broker, topic, partition, "read_uncommitted")
    ]


def _read(broker: KafkaBroker, topic: str, partition: int, isolation: str) -> list[Message]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "golden",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    messages: list[Message] = []
    while True:
        message = consumer.poll(30)
        if message is None:
            raise TimeoutError(f"{topic}-{partition}: no answer after {len(messages)} records")
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            break
        else:
            raise RuntimeError(f"{topic}-{partition}: {error}")
    consumer.close()
    return messages


def _row(message: Message) -> dict[str, Any]:
    timestamp_type, timestamp_ms = message.timestamp()
    headers = message.headers() or []
    return {
        "offset": message.offset(),
        "leader_epoch": message.leader_epoch(),
        "timestamp_ms": timestamp_ms,
        "timestamp_type": {1: "CreateTime", 2: "LogAppendTime"}[timestamp_type],
        "key": shown_bytes(message.key()),
        "value": shown_bytes(message.value()),
        "headers": [[name, shown_bytes(value)] for name, value in headers],
    }


def shown_bytes(data: str | bytes | None) -> Any:
    """Base64 text; None for null; size and SHA-256 of what is long."""
    if data is None:
        return None
    raw = data.encode() if isinstance(data, str) else data
    if len(raw) > WHOLE_UP_TO_BYTES:
        return {"size_bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    return base64.b64encode(raw).decode()


def as_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)

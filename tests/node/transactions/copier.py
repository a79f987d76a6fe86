"""A process that copies the topic ``in`` to ``out`` in transactions, together with its offsets.

It prints a line after every step. Arguments: the address of the node, a seed, the last offset.
"""

from __future__ import annotations

import sys
from random import Random

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.node.transactions.clients import QUIET

GROUP = "copiers"


def copy(address: str, chance: Random, last_offset: int) -> None:
    """Copy all records after the committed offset, up to the last one."""
    servers = {"bootstrap.servers": address}
    producer = Producer({**servers, "transactional.id": "copier", **QUIET})
    consumer = Consumer(
        {
            **servers,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            **QUIET,
        }
    )
    producer.init_transactions(60)
    (at,) = consumer.committed([TopicPartition("in", 0)], 60)
    at.offset = max(at.offset, 0)
    consumer.assign([at])
    next_offset = at.offset
    while next_offset <= last_offset:
        next_offset = _copy_some(producer, consumer, chance, next_offset)
    consumer.close()


def _copy_some(producer: Producer, consumer: Consumer, chance: Random, start: int) -> int:
    """Copy some records from an offset; return the offset to go on from."""
    messages: list[Message] = []
    while not messages:
        found = consumer.consume(chance.randint(1, 60), 0.1)
        messages = [one for one in found if one.error() is None]
    print("read", flush=True)
    producer.begin_transaction()
    for message in messages:
        producer.produce("out", message.value(), partition=chance.randint(0, 1))
    producer.flush(60)
    print("written", flush=True)
    end = (messages[-1].offset() or 0) + 1
    offsets = [TopicPartition("in", 0, end)]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
    print("offsets", flush=True)
    if chance.random() < 0.2:
        producer.abort_transaction(60)
        consumer.seek(TopicPartition("in", 0, start))
        print("aborted", flush=True)
        return start
    producer.commit_transaction(60)
    print("committed", flush=True)
    return end


if __name__ == "__main__":
    copy(sys.argv[1], Random(int(sys.argv[2])), int(sys.argv[3]))

"""Bytes that hostile clients send: whole attacks, and real requests with some bytes changed.

    python -m tests.node.hostile_frames HOST PORT ATTACKS

attacks that often over 64 connections at a time, then prints the number of each attack as one JSON
object.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import ProduceRequest

from tests.batch_bombs import header_bomb, value_bomb
from tests.node.test_decoder import REQUESTS, made_struct
from tests.oracle import build
from tests.oracle.model import Record

__all__ = ["ATTACKS", "TARGET"]

MIB = 1 << 20
# The topic that batches are sent to; other names are made up.
TARGET = "target"
LIMIT = 16 * MIB
CONNECTIONS = 64
_SOCKET_TIMEOUT_S = 5.0

# Each returns what one connection sends.
Attack = Callable[[random.Random], bytes]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(key: int, version: int, *, flexible: bool = False) -> bytes:
    return struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")


def encoded(message: Any, version: int) -> bytes:
    message.API_VERSION = version
    message.with_header(correlation_id=1, client_id="hostile")
    return bytes(message.encode(version=version, header=True, framed=True))


def wrong_size(random_: random.Random) -> bytes:
    """NET1."""
    sizes = [-1, -5, 0, 2**31 - 1, -(2**31), LIMIT + 1]
    return struct.pack(">i", random_.choice(sizes)) + bytes(1000)


def cut_frame(random_: random.Random) -> bytes:
    """A frame of the largest size, of which a part comes."""
    return struct.pack(">i", LIMIT) + bytes(random_.choice([0, 1, MIB]))


def many_elements(random_: random.Random) -> bytes:
    """NET2: an array of millions, with the bytes for it or without."""
    count = random_.choice([2**31 - 1, 4_000_000, 100_001, -2])
    names = b"\0\1t" * random_.choice([0, 1, 200_000])
    return frame(head(3, 1) + struct.pack(">i", count) + names)


def many_tags(random_: random.Random) -> bytes:
    """NET3: millions of tagged fields of two bytes, in the header or in the body."""
    count = random_.choice([b"\x80\x80\x80\x08", b"\xff\xff\xff\xff\x0f", b"\x41"])
    tags = count + b"\x64\0" * random_.choice([65, MIB])
    if random_.random() < 0.5:
        return frame(head(18, 3) + tags)
    return frame(head(18, 3, flexible=True) + b"\2a\2b" + tags)


def bomb(random_: random.Random) -> bytes:
    """NET4: records that open to far more than they take, in one batch or in a hundred."""
    size, count = random_.choice([(60 * MIB, 1), (512 * MIB, 1), (60 * MIB, 100)])
    batch = value_bomb(0, size) if random_.random() < 0.5 else header_bomb(0, size // 8)
    return produced(batch * count)


def bad_batch(random_: random.Random) -> bytes:
    """NET10: some bytes of a batch changed, with the old checksum or with a right one."""
    batch = bytearray(build.batch([Record(offset=0, timestamp_ms=1, key=None, value=b"v" * 99)]))
    for _ in range(random_.randrange(1, 4)):
        batch[random_.randrange(len(batch))] = random_.getrandbits(8)
    return produced(bytes(batch))


def produced(records: bytes) -> bytes:
    topic = ProduceRequest.TopicProduceData
    partition = topic.PartitionProduceData(index=0, records=records)
    data = [topic(name=TARGET, partition_data=[partition])]
    return encoded(ProduceRequest(acks=-1, timeout_ms=1, topic_data=data), 7)


def other_protocol(random_: random.Random) -> bytes:
    """NET8 and NET11."""
    return random_.choice(
        [
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
            frame(head(3, 99)),
            frame(head(999, 0)),
            frame(b"\0\3"),
            random_.randbytes(1000),
        ]
    )


def many_partitions(random_: random.Random) -> bytes:
    """NET16 and NET12: a fetch of 10,000 partitions, also as a broker's."""
    topic = FetchRequest.FetchTopic
    partitions = [
        topic.FetchPartition(
            partition=number % 7,
            current_leader_epoch=-1,
            fetch_offset=random_.choice([0, -1, 2**63 - 1]),
            log_start_offset=-1,
            partition_max_bytes=2**31 - 1,
        )
        for number in range(10_000)
    ]
    request = FetchRequest(
        replica_id=random_.choice([-1, 1, 2]),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=2**31 - 1,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[topic(topic=TARGET, partitions=partitions)],
        forgotten_topics_data=[],
        rack_id="",
    )
    return encoded(request, 11)


def unread_answers(random_: random.Random) -> bytes:
    """NET7: many requests, none of whose answers is read."""
    return encoded(MetadataRequest(topics=None), 1) * random_.choice([10, 1000])


def mutated(random_: random.Random) -> bytes:
    """NET9 and NET15: real requests of every API, each with some bytes changed or cut off."""
    return b"".join(_mutated(random_) for _ in range(50))


def _mutated(random_: random.Random) -> bytes:
    message = random_.choice(list(REQUESTS.values()))
    version = random_.randrange(message.valid_versions[0], message.valid_versions[1] + 1)
    data = bytearray(encoded(made_struct(message._struct, version, random_, message), version)[4:])
    for _ in range(random_.randrange(3)):
        evil = random_.choice([b"\xff", b"\x7f", b"\xff\xff\xff\xff\x0f", random_.randbytes(2)])
        position = random_.randrange(8, len(data))
        data[position : position + len(evil)] = evil
    return frame(bytes(data[: random_.choice([len(data), random_.randrange(1, len(data))])]))


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack
    for attack in (
        wrong_size,
        cut_frame,
        many_elements,
        many_tags,
        bomb,
        bad_batch,
        other_protocol,
        many_partitions,
        unread_answers,
        mutated,
    )
}


def attack(address: tuple[str, int], seed: int, count: int, done: Counter[str]) -> None:
    """Attack that often, over one connection after the other."""
    random_ = random.Random(seed)
    while done.total() < count:
        name = random_.choice(list(ATTACKS))
        data = ATTACKS[name](random_)
        try:
            with socket.create_connection(address, timeout=_SOCKET_TIMEOUT_S) as made:
                made.sendall(data)
                if random_.random() < 0.7:
                    made.recv(1 << 16)
        except ConnectionRefusedError:
            # The node is gone.
            return
        except OSError:
            # It ended the connection, as it should.
            pass
        done[name] += 1


def main(host: str, port: str, attacks: str) -> None:
    counts = [Counter[str]() for _ in range(CONNECTIONS)]
    each = -(-int(attacks) // CONNECTIONS)
    threads = [
        threading.Thread(target=attack, args=((host, int(port)), seed, each, done))
        for seed, done in enumerate(counts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(sum(counts, Counter())))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Fetch and ListOffsets as they go over the wire: what a broker answers, byte by byte.

A client library would hide the aborted transactions, cut batches and retry; this shows them.
Kafka's message schemas: Fetch version 11, ListOffsets version 11.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.oracle.primitives import Cursor

__all__ = ["KafkaWire", "WireAsk", "WireData", "WireOffset"]

FETCH, LIST_OFFSETS = 1, 2
FETCH_VERSION = LIST_OFFSETS_VERSION = 11
CONSUMER = -1
REQUEST_TIMED_OUT = 7
CLIENT_ID = b"wire"
# Requests that are on their way before the first answer is read.
PIPELINE = 16


@dataclass(frozen=True, slots=True)
class WireAsk:
    """One partition of a fetch."""

    topic: str
    offset: int
    max_bytes: int
    partition: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class WireData:
    """The answer for it; ``records`` may end in the middle of a batch."""

    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    records: bytes


@dataclass(frozen=True, slots=True)
class WireOffset:
    """The answer for a time."""

    error: int
    timestamp_ms: int
    offset: int
    leader_epoch: int


class KafkaWire:
    """One connection to one broker."""

    def __init__(self, bootstrap_servers: str, timeout_s: float = 60) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")

    def __enter__(self) -> KafkaWire:
        return self

    def __exit__(self, *_: object) -> None:
        self._replies.close()
        self._socket.close()

    def fetch(
        self, asks: Sequence[WireAsk], *, isolation: int, max_bytes: int = 50 << 20
    ) -> list[WireData]:
        """One request over distinct partitions; answers in their order."""
        body = _fetch_body(asks, isolation, max_bytes)
        (reply,) = self._ask_all(FETCH, FETCH_VERSION, [body])
        found = _fetch_answers(reply)
        return [found[ask.topic, ask.partition] for ask in asks]

    def fetch_each(self, asks: Sequence[WireAsk], *, isolation: int) -> list[WireData]:
        """One request for each."""
        bodies = [_fetch_body([ask], isolation, 50 << 20) for ask in asks]
        replies = self._ask_all(FETCH, FETCH_VERSION, bodies)
        return [next(iter(_fetch_answers(reply).values())) for reply in replies]

    def list_offsets(
        self, topic: str, timestamps: Sequence[int], *, isolation: int, partition: int = 0
    ) -> list[WireOffset]:
        """One request for each time."""
        bodies = [_offsets_body(topic, partition, one, isolation) for one in timestamps]
        answers = self._list_all(bodies)
        late = [row for row, one in enumerate(answers) if one.error == REQUEST_TIMED_OUT]
        # Now and then the broker answers so at once; clients ask again.
        for row, again in zip(late, self._list_all([bodies[row] for row in late]), strict=True):
            answers[row] = again
        return answers

    def list_offset(self, topic: str, timestamp: int, *, isolation: int = 0) -> WireOffset:
        """One of them."""
        return self.list_offsets(topic, [timestamp], isolation=isolation)[0]

    def _list_all(self, bodies: Sequence[bytes]) -> list[WireOffset]:
        replies = self._ask_all(LIST_OFFSETS, LIST_OFFSETS_VERSION, bodies)
        return [_offset_answer(reply) for reply in replies]

    def _ask_all(self, api: int, version: int, bodies: Sequence[bytes]) -> list[bytes]:
        replies: list[bytes] = []
        for number, body in enumerate(bodies):
            # ListOffsets has had a flexible header since version 6, that ends with its tags.
            tags = b"\0" if api == LIST_OFFSETS else b""
            header = struct.pack(">hhih", api, version, number, len(CLIENT_ID)) + CLIENT_ID + tags
            self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            if number >= PIPELINE:
                replies.append(self._reply(len(replies)))
        while len(replies) < len(bodies):
            replies.append(self._reply(len(replies)))
        return replies

    def _reply(self, number: int) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        reply = self._read(size)
        assert struct.unpack_from(">i", reply) == (number,)
        return reply[4:]

    def _read(self, size: int) -> bytes:
        data = self._replies.read(size)
        if len(data) < size:
            raise ConnectionError("the broker has closed the connection")
        return data


def _fetch_body(asks: Sequence[WireAsk], isolation: int, max_bytes: int) -> bytes:
    # No session: every request says everything. Neither side waits for more.
    parts = [struct.pack(">iiiibiii", CONSUMER, 0, 0, max_bytes, isolation, 0, -1, len(asks))]
    for ask in asks:
        parts.append(_string(ask.topic) + struct.pack(">ii", 1, ask.partition))
        parts.append(struct.pack(">iqqi", ask.leader_epoch, ask.offset, -1, ask.max_bytes))
    return b"".join([*parts, struct.pack(">i", 0), _string("")])


def _fetch_answers(reply: bytes) -> dict[tuple[str, int], WireData]:
    cursor = Cursor(reply)
    _throttle_ms, error, _session = cursor.i32(), cursor.i16(), cursor.i32()
    assert error == 0, error
    found = {}
    for _ in range(cursor.i32()):
        topic = cursor.take(cursor.i16()).decode()
        for _ in range(cursor.i32()):
            partition = cursor.i32()
            found[topic, partition] = _fetch_answer(cursor)
    return found


def _fetch_answer(cursor: Cursor) -> WireData:
    error = cursor.i16()
    high_watermark, last_stable_offset, log_start_offset = cursor.i64(), cursor.i64(), cursor.i64()
    count = cursor.i32()
    aborted = None
    if count >= 0:
        aborted = tuple((cursor.i64(), cursor.i64()) for _ in range(count))
    _preferred_replica = cursor.i32()
    records = cursor.take(max(cursor.i32(), 0))
    return WireData(error, high_watermark, last_stable_offset, log_start_offset, aborted, records)


def _offsets_body(topic: str, partition: int, timestamp: int, isolation: int) -> bytes:
    name = topic.encode()
    return b"".join(
        [
            struct.pack(">ibB", CONSUMER, isolation, 2),
            bytes([len(name) + 1]) + name,
            struct.pack(">BiiqB", 2, partition, -1, timestamp, 0),
            struct.pack(">BiB", 0, 30_000, 0),
        ]
    )


def _offset_answer(reply: bytes) -> WireOffset:
    cursor = Cursor(reply)
    # Tags of the header; the lengths of compact arrays and strings are one more than they say.
    assert cursor.take(1) == b"\0"
    _throttle_ms = cursor.i32()
    assert cursor.take(1) == b"\2"
    cursor.take(cursor.take(1)[0] - 1)
    assert cursor.take(1) == b"\2"
    _partition = cursor.i32()
    error, timestamp_ms, offset, leader_epoch = (
        cursor.i16(),
        cursor.i64(),
        cursor.i64(),
        cursor.i32(),
    )
    return WireOffset(error, timestamp_ms, offset, leader_epoch)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data

"""Answers every Fetch with the next of the frames that it made at its start: what the socket and
the client alone take.

``python -m benches.peers.ready_frames SEGMENT TOPIC BYTES`` prints its port and serves each client,
which begins at offset 0, the batches of a segment, at most so many bytes at a time.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import (
    ApiVersionsResponse,
    FindCoordinatorResponse,
    MetadataResponse,
)

from tierlog import scan_segment

HOST = "127.0.0.1"
FETCH, API_VERSIONS = 1, 18
# Clients look for Produce before they fetch. None of these versions has tagged fields.
VERSIONS = {0: (0, 8), FETCH: (4, 11), 2: (1, 5), 3: (1, 8), 10: (0, 2), API_VERSIONS: (0, 2)}
COORDINATOR_NOT_AVAILABLE = 15
HEAD = struct.Struct(">hhi")


def frames(segment: Path, topic: str, frame_bytes: int) -> Iterator[bytes]:
    """Yield the bodies of Fetch answers."""
    data, table = segment.read_bytes(), scan_segment(segment, verify_crc=False)
    borders = [*table.position.tolist(), table.stop_position]
    end_offset = int(table.last_offset[-1]) + 1
    start = 0
    for border, after in zip(borders, [*borders[1:], sys.maxsize], strict=True):
        if after - start > frame_bytes:
            yield fetch_answer(topic, data[start:border], end_offset)
            start = border


def fetch_answer(topic: str, records: bytes, end_offset: int) -> bytes:
    """Return the body of a Fetch answer."""
    made: Any = FetchResponse.FetchableTopicResponse
    partition = made.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=end_offset,
        last_stable_offset=end_offset,
        log_start_offset=0,
        aborted_transactions=[],
        preferred_read_replica=-1,
        records=records,
    )
    answer = FetchResponse(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[made(topic=topic, partitions=[partition])],
    )
    return bytes(answer.encode(version=VERSIONS[FETCH][1]))


def other_answer(api_key: int, port: int, topic: str) -> Any:
    """Return the answer that shows one broker with the topic and without groups."""
    if api_key == API_VERSIONS:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in VERSIONS.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)
    if api_key == 3:
        made: Any = MetadataResponse.MetadataResponseTopic
        partition = made.MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=1,
            leader_epoch=-1,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        broker = MetadataResponse.MetadataResponseBroker(node_id=1, host=HOST, port=port, rack=None)
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[broker],
            cluster_id="ready",
            controller_id=1,
            topics=[made(error_code=0, name=topic, is_internal=False, partitions=[partition])],
        )
    return FindCoordinatorResponse(
        throttle_time_ms=0,
        error_code=COORDINATOR_NOT_AVAILABLE,
        error_message=None,
        node_id=-1,
        host="",
        port=-1,
    )


def serve(client: socket.socket, port: int, topic: str, ready: list[bytes]) -> None:
    """Answer one client until it disconnects; after the last frame no Fetch is answered."""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = client.makefile("rb")
    left = iter(ready)
    with client, suppress(ConnectionError):
        while size := reader.read(4):
            api_key, version, correlation_id = HEAD.unpack_from(reader.read(int.from_bytes(size)))
            if api_key == FETCH:
                body = next(left, b"")
            else:
                body = bytes(other_answer(api_key, port, topic).encode(version=version))
            if body:
                client.sendall(struct.pack(">ii", 4 + len(body), correlation_id))
                client.sendall(body)


def main(segment: str, topic: str, frame_bytes: str) -> None:
    ready = list(frames(Path(segment), topic, int(frame_bytes)))
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    print(port, flush=True)
    while True:
        client, _ = listener.accept()
        arguments = (client, port, topic, ready)
        threading.Thread(target=serve, args=arguments, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""What settings change in a server."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from tests.integration.kafka_wire import KafkaWire, WireAsk
from tests.node.running import PATIENCE_S, RawClient, running, serving
from tests.settings.observing import TOPIC, Place
from tierlog.clock import ManualClock
from tierlog.fetch.offsets import OffsetAnswer

__all__ = [
    "answer_bytes",
    "clients_at_a_time",
    "ends_after_ms",
    "largest_request",
    "listens_at",
    "looks_again",
    "requests_in_memory",
    "time_limit_ms",
]


def _metadata_of(count: int) -> MetadataRequest:
    """A request of about 14 bytes a topic."""
    names = [MetadataRequest.MetadataRequestTopic(name=f"topic-{one:06}") for one in range(count)]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False)


def largest_request(place: Place) -> list[bool]:
    """Whether requests of growing sizes are answered."""
    answered = []
    with running(config=place.config) as server:
        for count in (1, 10, 1_000):
            with RawClient(server.address) as client:
                client.request(_metadata_of(count), 9)
                answered.append(client.read_frame() is not None)
    return answered


def requests_in_memory(place: Place) -> int:
    """How many of some clients may send the rest of a request of 100 KiB."""
    clients = []
    with running(config=place.config) as server:
        try:
            for _ in range(12):
                client = RawClient(server.address)
                client.send((100 << 10).to_bytes(4) + b"\0")
                clients.append(client)
            # Every client is in the middle of its request: it has a permit or waits for one.
            while server.call(server.server.phases) != ["REST_OF_REQUEST"] * len(clients):
                pass
            waiting: int = server.call(lambda: server.server.requests.waiting_count)
            return len(clients) - waiting
        finally:
            for client in clients:
                client.socket.close()


def clients_at_a_time(place: Place) -> int:
    """How many of five clients are not disconnected."""
    clients = []
    with running(config=place.config) as server:
        try:
            for number in range(5):
                client = RawClient(server.address)
                clients.append(client)
                client.request(_metadata_of(0), 9, number)
                if client.read_frame() is None:
                    return number
            return len(clients)
        finally:
            for client in clients:
                client.socket.close()


def ends_after_ms(place: Place) -> tuple[int, int]:
    """How long an idle client and one with an unfinished request are waited for."""
    found = []
    for data in (b"", b"\0\0\0\x10"):
        clock = ManualClock()
        with running(config=place.config, clock=clock) as server:
            passed_ms = 0
            with RawClient(server.address) as client:
                client.request(_metadata_of(0), 9)
                client.read_frame()
                client.send(data)
                waiting = "REST_OF_REQUEST" if data else "REQUEST"
                while server.call(server.server.phases) != [waiting]:
                    pass
                while server.call(server.server.end_overdue_clients) == 0:
                    clock.advance(500)
                    passed_ms += 500
                assert client.is_disconnected()
        found.append(passed_ms)
    return found[0], found[1]


def _golden(place: Place) -> str:
    """The store of a pass over the golden logs."""
    return place.tiered().store.as_uri()


def listens_at(place: Place) -> str:
    """The first lines that the command prints, but for a free port."""
    url = _golden(place)
    properties = {"tierlog.serve.listen": "127.0.0.1:0", **place.properties}
    done = serve_until_it_answers(Place(place.folder, properties), url)
    return re.sub(r":\d+$", "", done, flags=re.MULTILINE)


def serve_until_it_answers(place: Place, url: str) -> str:
    """Start the command, and end it when it has printed where to connect; that line."""
    tool = str(Path(sys.executable).with_name("tierlog"))
    command = [tool, "serve", url, "--config", place.write_config()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "bootstrap.servers=" in line)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    return line


def answer_bytes(place: Place) -> int:
    """The bytes of one answer for a consumer that asks for as much as there is."""
    served = serving(_golden(place), config=place.config)
    with served as server, KafkaWire(server.bootstrap) as wire:
        (answer,) = wire.fetch([WireAsk(TOPIC, 0, 1 << 20)], isolation=0)
        return len(answer.records)


def time_limit_ms(place: Place) -> int:
    """How long the server waits for a search by time, when the client sets no limit."""
    with serving(_golden(place), config=place.config) as server:
        waited: list[int] = []
        node = server.server.node
        search = node.fetcher.list_offset

        async def noted(*arguments: Any, **options: Any) -> OffsetAnswer:
            waited.append(options["timeout_ms"])
            return await search(*arguments, **options)

        node.fetcher.list_offset = noted  # type: ignore[method-assign]
        with RawClient(server.address) as client:
            partition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                partition_index=0, timestamp=1, current_leader_epoch=-1
            )
            topic = ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[partition])
            client.request(ListOffsetsRequest(replica_id=-1, topics=[topic]), 4)
            assert client.read_frame() is not None
        return waited[0]


def looks_again(place: Place) -> bool:
    """Whether a topic that was archived after the start appears soon."""
    _golden(place)
    kept = place.folder / "kept"
    (folder,) = place.store.glob(f"{TOPIC}-*")
    folder.rename(kept)
    with serving(place.store.as_uri(), config=place.config) as server:
        kept.rename(folder)
        for _ in range(40):
            if TOPIC in server.call(lambda: server.server.node.view.by_name):
                return True
            time.sleep(0.05)
    return False

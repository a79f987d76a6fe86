"""What settings change in a server."""

from __future__ import annotations

from kafka.protocol.metadata import MetadataRequest

from tests.node.running import RawClient, running
from tests.settings.observing import Place
from tierlog.clock import ManualClock

__all__ = ["clients_at_a_time", "ends_after_ms", "largest_request", "requests_in_memory"]


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

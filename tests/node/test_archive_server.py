"""What an archive server does while it runs: it grows, refuses, and outlives its clients."""

from __future__ import annotations

import random
import re
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from tests.integration.kafka_wire import KafkaWire, WireAsk
from tests.node.golden_archive import golden_archive, records_of
from tests.node.running import PATIENCE_S, RawClient, Running, running, serving
from tests.pages import ROOT
from tierlog.clock import SystemClock
from tierlog.columns import RecordColumns
from tierlog.config import Config, NodeConfig
from tierlog.log.records import decode_records
from tierlog.node.apis import APIS
from tierlog.remote.store.local_store import LocalStore
from tierlog.remote.store.object_store import ObjectInfo

QUICK = Config(node=NodeConfig(refresh_interval_ms=100))
ROW = re.compile(r"^\| (\w+) \| (\d+) \| (\d+)(?: to (\d+))? \|", re.MULTILINE)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    return golden_archive(tmp_path_factory.mktemp("archive"))


def fetched(wire: KafkaWire, topic: str, offset: int) -> RecordColumns:
    (answer,) = wire.fetch([WireAsk(topic, offset, 1 << 20)], isolation=0)
    assert answer.error == 0
    return decode_records(answer.records)


def test_new_segments_appear_while_it_runs(tmp_path: Path) -> None:
    url = golden_archive(tmp_path)
    rows = records_of(url, "codec-none", 0)
    (folder,) = (tmp_path / "store").glob("codec-none-*/0")
    last = sorted(folder.glob("*.indexes"))[-1]
    missing = sorted(folder.glob(last.stem + ".*"))
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in missing:
        shutil.move(path, kept)
    with serving(url, config=QUICK) as server, KafkaWire(server.bootstrap) as wire:
        offset, before = 0, 0
        while offset < rows[-1][0] + 1:
            found = fetched(wire, "codec-none", offset)
            if len(found):
                offset = int(found.offset[-1]) + 1
            elif not before:
                # All that was there is read: now the rest arrives, as a copy writes it.
                before = offset
                for path in sorted(kept.iterdir(), key=lambda one: one.suffix == ".indexes"):
                    shutil.move(path, folder)
    assert 0 < before < offset


def test_produce_is_refused_by_name(archive: str) -> None:
    with serving(archive) as server:
        errors: list[str] = []
        producer = Producer({"bootstrap.servers": server.bootstrap})
        producer.produce(
            "codec-none", b"x", on_delivery=lambda error, _: errors.append(error.name())
        )
        assert producer.flush(PATIENCE_S) == 0
        assert errors == ["TOPIC_AUTHORIZATION_FAILED"]


@pytest.mark.parametrize("acks", [1, 0])
def test_every_version_of_produce_is_refused_on_an_open_connection(acks: int) -> None:
    topic = ProduceRequest.TopicProduceData
    with running() as server, RawClient(server.address) as client:
        for version in range(14):
            partition = topic.PartitionProduceData(index=0, records=b"no batch")
            data = [topic(name="orders", partition_data=[partition])]
            client.request(ProduceRequest(acks=acks, timeout_ms=1, topic_data=data), version)
            if acks:
                answer = client.read_frame()
                assert answer is not None
                found = ProduceResponse.decode(answer[5 if version >= 9 else 4 :], version=version)
                assert found.responses[0].partition_responses[0].error_code == 29
        client.request(ApiVersionsRequest(), 0)
        assert client.read_frame() is not None


def test_a_client_that_is_no_broker_fetches_as_none(archive: str) -> None:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        replica_id=2,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1000,
        session_epoch=-1,
        topics=[topic(topic="codec-none", partitions=[partition])],
        forgotten_topics_data=[],
    )
    with serving(archive) as server, RawClient(server.address) as client:
        client.request(request, 11)
        answer = client.read_frame()
        assert answer is not None
        assert struct.pack(">ih", 0, 29) in answer


def attack(server: Running, seed: int, stop: threading.Event) -> None:
    """Send mutated and cut requests, and disconnect in their middle."""
    chance = random.Random(seed)
    frames = []
    for message, version in (
        (MetadataRequest(topics=None), 12),
        (ApiVersionsRequest(), 4),
        (MetadataRequest(topics=[]), 1),
    ):
        message.API_VERSION = version
        message.with_header(correlation_id=1, client_id="evil")
        frames.append(bytes(message.encode(version=version, header=True, framed=True)))
    while not stop.is_set():
        data = bytearray(chance.choice(frames))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.choice((0, 0x7F, 0x80, 0xFF))
        with RawClient(server.address) as client:
            client.socket.settimeout(0.05)
            try:
                client.send(bytes(data[: chance.randrange(len(data) + 1)]))
                client.socket.recv(100)
            except OSError:
                continue


def test_hostile_clients_do_not_disturb_an_honest_one(archive: str) -> None:
    rows = records_of(archive, "codec-none", 0)
    stop = threading.Event()
    with serving(archive) as server:
        threads = [threading.Thread(target=attack, args=(server, seed, stop)) for seed in range(8)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                with KafkaWire(server.bootstrap) as wire:
                    offset, found = 0, []
                    while offset <= rows[-1][0]:
                        records = fetched(wire, "codec-none", offset)
                        found += records.offset.tolist()
                        offset = found[-1] + 1
                assert sorted(set(found)) == [row[0] for row in rows]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        while server.call(lambda: server.server.connection_count):
            pass


def test_a_partition_is_listed_when_it_is_first_used(
    archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a bucket with a million segments is ready at once."""
    listed: list[str] = []
    whole = LocalStore.list

    def noted(store: LocalStore, prefix: str = "") -> Iterator[ObjectInfo]:
        listed.append(prefix)
        return whole(store, prefix)

    monkeypatch.setattr(LocalStore, "list", noted)
    with serving(archive) as server, KafkaWire(server.bootstrap) as wire:
        assert listed == ["topic-ids/"]
        for offset in (0, 1, 2):
            fetched(wire, "codec-none", offset)
        assert len(listed) == 2
        assert listed[1].startswith("codec-none-")


def fetch_of(offset: int, max_bytes: int, max_wait_ms: int) -> FetchRequest:
    topic = FetchRequest.FetchTopic
    partition = topic.FetchPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[topic(topic="codec-none", partitions=[partition])],
        forgotten_topics_data=[],
    )


class ShiftedClock(SystemClock):
    """The machine's clock, and later by as much as a test says."""

    shift_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.shift_ms


def test_a_client_that_takes_no_answer_is_disconnected(archive: str) -> None:
    clock = ShiftedClock()
    with serving(archive, clock=clock) as server, RawClient(server.address) as client:
        request = fetch_of(0, 1 << 20, 0)
        for _ in range(2_000):
            client.request(request, 11)
        while server.call(server.server.phases) != ["CLIENT_TAKES_ANSWER"]:
            pass
        clock.shift_ms = 10_001
        server.call(server.server.end_overdue_clients)
        while server.call(lambda: server.server.connection_count):
            pass


def test_a_wait_ends_with_its_client(archive: str) -> None:
    """Nothing waits for new records for a client that is gone."""
    with serving(archive) as server:
        with RawClient(server.address) as client:
            client.request(fetch_of(542, 1000, 2**31 - 1), 11)
            while server.call(server.server.phases) != ["ANSWER"]:
                pass
        while server.call(lambda: server.server.connection_count):
            pass


def test_the_page_shows_the_versions_of_the_table() -> None:
    page = (ROOT / "docs" / "COMPATIBILITY.md").read_text(encoding="utf-8")
    shown: dict[int, Any] = {
        int(key): (int(low), int(high or low)) for _, key, low, high in ROW.findall(page)
    }
    assert shown == {key: handler.VERSIONS for key, handler in APIS.items()}


@pytest.mark.parametrize("handler", APIS.values(), ids=lambda one: str(one.KEY))
def test_the_first_line_of_a_handler_names_its_api(handler: Any) -> None:
    low, high = handler.VERSIONS
    name = handler.REQUEST.__name__.removesuffix("Request")
    versions = f"version {low}" if low == high else f"versions {low} to {high}"
    assert handler.__doc__.startswith(f"{name} ({handler.KEY}), {versions}")
    assert handler.REQUEST.API_KEY == handler.KEY

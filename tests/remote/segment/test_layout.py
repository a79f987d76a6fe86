"""Object keys, RDIs and the cluster marker: round trips, parsing traps, hostile input."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracle.strategies import profile
from tierlog.errors import ConfigError, CorruptDataError, RemoteResourceNotFoundError
from tierlog.remote.segment.layout import (
    CLUSTER_KEY,
    ObjectKey,
    claim_cluster,
    encode_rdi,
    indexes_key,
    log_key,
    parse_key,
    parse_rdi,
    partition_prefix,
    read_cluster_id,
)
from tierlog.remote.store.object_store import check_key
from tierlog.remote.urls import ObjectStore, open_store
from tierlog.testing.segments import PARTITION, segment, uuid_of
from tierlog.types import RemoteLogSegmentId, TopicIdPartition, kafka_uuid

DASHED = "--AAAAAAAAAAAAAAAAAAAQ"

st_uuid = st.binary(min_size=16, max_size=16).filter(any).map(kafka_uuid)
st_topic = st.text("abzAZ019._-", min_size=1, max_size=249).filter(lambda t: t not in (".", ".."))
st_partition = st.builds(
    TopicIdPartition, topic_id=st_uuid, topic=st_topic, partition=st.integers(0, 2**31 - 1)
)


def test_the_shape_of_keys() -> None:
    metadata = segment("a", 12345, 20000)
    stem = f"orders-{PARTITION.topic_id}/0/00000000000000012345-{uuid_of('a')}"
    assert log_key(metadata) == stem + ".log"
    assert indexes_key(metadata) == stem + ".indexes"
    assert partition_prefix(PARTITION) == f"orders-{PARTITION.topic_id}/0/"


@given(partition=st_partition, segment_id=st_uuid, start_offset=st.integers(0, 2**63 - 2))
@profile(150)
def test_keys_come_back(partition: TopicIdPartition, segment_id: str, start_offset: int) -> None:
    metadata = segment(
        "a",
        start_offset,
        start_offset,
        max_timestamp_ms=0,
        segment_id=RemoteLogSegmentId(topic_id_partition=partition, id=segment_id),
    )
    for key, suffix in ((log_key(metadata), ".log"), (indexes_key(metadata), ".indexes")):
        assert check_key(key) == key
        assert parse_key(key) == ObjectKey(
            topic_label=partition.topic[:232],
            topic_id=partition.topic_id,
            partition=partition.partition,
            base_offset=start_offset,
            segment_id=segment_id,
            suffix=suffix,
        )
        assert str(parse_key(key)) == key


def test_ids_that_start_with_dashes() -> None:
    key = parse_key(f"a-b--{DASHED}/3/00000000000000000007-{DASHED}.log")
    assert (key.topic_label, key.topic_id, key.segment_id) == ("a-b-", DASHED, DASHED)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "cluster.json",
        f"t-{DASHED}/0/00000000000000000007-{DASHED}",
        f"t-{DASHED}/0/00000000000000000007-{DASHED}.rsm-manifest",
        f"t-{DASHED}/0/00000000000000000007-{DASHED}.log\n",
        f"t-{DASHED}/0/00000000000000000007-{DASHED}.log.tmp",
        f"t-{DASHED}/0/7-{DASHED}.log",
        f"t-{DASHED}/0/-0000000000000000007-{DASHED}.log",
        f"t-{DASHED}/00/00000000000000000007-{DASHED}.log",
        f"t-{DASHED}/-1/00000000000000000007-{DASHED}.log",
        f"t-{DASHED}/2147483648/00000000000000000007-{DASHED}.log",
        f"t-{DASHED}/0/09223372036854775808-{DASHED}.log",
        f"t-{DASHED}/0/00000000000000000007-{DASHED[:-1]}B.log",
        f"t-{'A' * 22}/0/00000000000000000007-{DASHED}.log",
        f"t-{DASHED}/0/{'٠' * 19}٧-{DASHED}.log",
        f"t-{DASHED}/٠/00000000000000000007-{DASHED}.log",
        f"..-{DASHED}/0/00000000000000000007-{DASHED}.log",
        f"{'x' * 233}-{DASHED}/0/00000000000000000007-{DASHED}.log",
        f"../t-{DASHED}/0/00000000000000000007-{DASHED}.log",
        f"/t-{DASHED}/0/00000000000000000007-{DASHED}.log",
        f"-{DASHED}/0/00000000000000000007-{DASHED}.log",
    ],
)
def test_no_keys_of_ours(key: str) -> None:
    with pytest.raises(ValueError, match=r"segment object|topic|uuid|partition"):
        parse_key(key)


class TestRdi:
    def test_round_trip(self) -> None:
        metadata = segment("a", 100, 199, size_bytes=5_000)
        rdi = encode_rdi(metadata, 4_999)
        assert rdi == f"{log_key(metadata)}:4999".encode()
        key, position = parse_rdi(rdi, PARTITION)
        assert (str(key), position) == (log_key(metadata), 4_999)
        with pytest.raises(ValueError, match="found 5000"):
            encode_rdi(metadata, 5_000)

    @pytest.mark.parametrize(
        "change",
        [
            lambda rdi: b"",
            lambda rdi: rdi + b"0" * 1_000,
            lambda rdi: b"s3://other-bucket/" + rdi,
            lambda rdi: b"http://169.254.169.254/" + rdi,
            lambda rdi: b"/" + rdi,
            lambda rdi: b"../" + rdi,
            lambda rdi: rdi.replace(b"/0/", b"/1/"),
            lambda rdi: rdi.replace(b"/0/", b"/0/../0/"),
            lambda rdi: rdi.replace(b"orders-", b"orders2-"),
            lambda rdi: rdi.replace(b".log", b".indexes"),
            lambda rdi: rdi.replace(b".log:", b".log"),
            lambda rdi: rdi.rpartition(b":")[0] + b":",
            lambda rdi: rdi.rpartition(b":")[0] + b":-1",
            lambda rdi: rdi.rpartition(b":")[0] + b":+1",
            lambda rdi: rdi.rpartition(b":")[0] + b":01",
            lambda rdi: rdi.rpartition(b":")[0] + b": 1",
            lambda rdi: rdi.rpartition(b":")[0] + b":1_0",
            lambda rdi: rdi.rpartition(b":")[0] + b":1\n",
            lambda rdi: rdi.rpartition(b":")[0] + b":99999999999999999999",
            lambda rdi: rdi.rpartition(b":")[0] + b":9999999999999999999",
            lambda rdi: rdi.rpartition(b":")[0] + ":٣".encode(),
            lambda rdi: b"\xff\xfe" + rdi,
            lambda rdi: rdi.replace(b"orders", b"ord\0rs"),
        ],
    )
    def test_hostile(self, change: object) -> None:
        assert callable(change)
        rdi = change(encode_rdi(segment("a", 100, 199), 42))
        with pytest.raises(CorruptDataError) as caught:
            parse_rdi(rdi, PARTITION)
        assert caught.value.reason == "bad_rdi"
        assert len(str(caught.value)) < 700

    @given(rdi=st.binary(max_size=1_100))
    @profile(150)
    def test_any_bytes_are_refused_in_words(self, rdi: bytes) -> None:
        with pytest.raises(CorruptDataError):
            parse_rdi(rdi, PARTITION)


class TestClusterMarker:
    @pytest.fixture
    def store(self, tmp_path: object) -> ObjectStore:
        return open_store(f"file://{tmp_path}/store")

    def test_claim(self, store: ObjectStore) -> None:
        claim_cluster(store, "MkU3OEVBNTcwNTJENDM2Qk")
        claim_cluster(store, "MkU3OEVBNTcwNTJENDM2Qk")
        assert read_cluster_id(store) == "MkU3OEVBNTcwNTJENDM2Qk"
        assert json.loads(bytes(store.get_range(CLUSTER_KEY, 0, 1_000))) == {
            "cluster_id": "MkU3OEVBNTcwNTJENDM2Qk",
            "format_version": 1,
        }
        with pytest.raises(ConfigError, match=r"belongs to cluster MkU3.*not to other"):
            claim_cluster(store, "other")

    def test_one_of_two_clusters_gets_it(self, store: ObjectStore) -> None:
        barrier = threading.Barrier(4)
        lost: list[ConfigError] = []

        def claim(name: str) -> None:
            barrier.wait()
            try:
                claim_cluster(store, name)
            except ConfigError as error:
                lost.append(error)

        threads = [threading.Thread(target=claim, args=(f"c{n % 2}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(lost) == 2
        assert read_cluster_id(store) in ("c0", "c1")

    def test_nobody_s(self, store: ObjectStore) -> None:
        with pytest.raises(RemoteResourceNotFoundError):
            read_cluster_id(store)

    @pytest.mark.parametrize("cluster_id", ["", "line\nbreak", "\x1b[2J"])
    def test_no_cluster_id(self, store: ObjectStore, cluster_id: str) -> None:
        with pytest.raises(ConfigError, match="expected a printable cluster id"):
            claim_cluster(store, cluster_id)

    @pytest.mark.parametrize(
        "marker",
        [
            b"",
            b"{",
            b"[]",
            b"[" * 60_000,
            b"\xff\xfe",
            b" " * 70_000,
            b'{"cluster_id": "x"}',
            b'{"cluster_id": "x", "format_version": 2}',
            b'{"cluster_id": 7, "format_version": 1}',
            b'{"cluster_id": "", "format_version": 1}',
        ],
        ids=lambda marker: ascii(marker)[:24],
    )
    def test_damaged_marker(self, store: ObjectStore, marker: bytes) -> None:
        store.put_bytes(CLUSTER_KEY, marker)
        for call in (lambda: read_cluster_id(store), lambda: claim_cluster(store, "x")):
            with pytest.raises(CorruptDataError, match=CLUSTER_KEY):
                call()
        assert store.head(CLUSTER_KEY).size_bytes == len(marker)

"""Requests are decoded as kafka-python decodes them, and no length is trusted."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import kafka.protocol.metadata as metadata
import pytest

from tests.node.made_requests import REQUESTS, made_struct
from tierlog.node.decoder import MAX_ELEMENTS, BadRequestError, Reader, decoder_of

CASES = [
    pytest.param(message, version, id=f"{name}-{version}")
    for name, message in sorted(REQUESTS.items())
    for version in range(message.valid_versions[0], message.valid_versions[1] + 1)
]
FLEXIBLE = [
    pytest.param(message, id=name)
    for name, message in sorted(REQUESTS.items())
    if message.flexible_version_q(message.max_version)
]


def decode(message: Any, version: int, data: bytes) -> tuple[Any, int]:
    reader = Reader(memoryview(data))
    return decoder_of(message, version)(reader), reader.position


@pytest.mark.parametrize(("message", "version"), CASES)
def test_a_request_is_decoded_as_kafka_python_does(message: Any, version: int) -> None:
    random_ = random.Random(f"{message.__name__}-{version}")
    for _ in range(20):
        request = made_struct(message._struct, version, random_, message)
        data = bytes(request.encode(version=version))
        found, position = decode(message, version, data)
        assert found == message.decode(data, version=version)
        assert position == len(data)


@pytest.mark.parametrize(("message", "version"), CASES)
def test_a_cut_request_is_refused(message: Any, version: int) -> None:
    random_ = random.Random(f"{message.__name__}-{version}")
    data = bytes(made_struct(message._struct, version, random_, message).encode(version=version))
    for end in range(len(data)):
        with pytest.raises(BadRequestError):
            decode(message, version, data[:end])


@pytest.mark.parametrize("message", FLEXIBLE)
def test_any_bytes_are_a_request_or_refused_in_little_memory(message: Any) -> None:
    """Also the five bytes of an array of 2^32 - 2 elements, at every position."""
    version, random_ = message.max_version, random.Random(message.__name__)
    data = bytes(made_struct(message._struct, version, random_, message).encode(version=version))
    tracemalloc.start()
    try:
        for position in range(len(data) + 1):
            for evil in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff" * 12):
                mutated = data[:position] + evil + data[position + len(evil) :]
                try:
                    decode(message, version, mutated)
                except BadRequestError:
                    continue
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_request_has_a_bounded_number_of_elements() -> None:
    message = metadata.MetadataRequest
    names = [message.MetadataRequestTopic(name="t") for _ in range(MAX_ELEMENTS + 1)]
    request = message(topics=names, allow_auto_topic_creation=False)
    data = bytes(request.encode(version=4))
    with pytest.raises(BadRequestError, match=f"expected at most {MAX_ELEMENTS}"):
        decode(message, 4, data)
    names.pop()
    found, _ = decode(message, 4, bytes(request.encode(version=4)))
    assert len(found.topics) == MAX_ELEMENTS


@pytest.mark.parametrize("count", [64, 65])
def test_a_structure_has_at_most_64_tagged_fields(count: int) -> None:
    """CVE-2026-111115: millions of tagged fields of two bytes."""
    body = bytes([count]) + bytes([100, 0]) * count
    data = b"\x00\x00\x00" + body  # no topics, and two flags
    message = metadata.MetadataRequest
    if count > 64:
        with pytest.raises(BadRequestError, match="65 tagged fields"):
            decode(message, 12, data)
    else:
        assert decode(message, 12, data)[0].topics is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xff\xff\xff\xff\xff\x01", id="varint of six bytes"),
        pytest.param(b"\xff\xff\xff\xff\x7f", id="varint above 32 bits"),
        pytest.param(b"\x02\x03\xff\xfe\x00\x00\x00\x00", id="bad UTF-8"),
        pytest.param(b"\x02\x00\x00\x00\x00\x00", id="null where none is allowed"),
        pytest.param(b"\x00\x00\x00\x00\x01\x00\x7f", id="tagged field past the end"),
    ],
)
def test_malformed_values_are_refused(data: bytes) -> None:
    with pytest.raises(BadRequestError):
        decode(metadata.MetadataRequest, 9, data)

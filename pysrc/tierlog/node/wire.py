"""Frames of Kafka's protocol: request headers and bodies, and answers as a list of buffers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from tierlog.node.decoder import MAX_ELEMENTS, MAX_TAGS, BadRequestError, Reader, decoder_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "API_VERSIONS_KEY",
    "ELEMENT_MEMORY_BYTES",
    "DecodedRequest",
    "RawBody",
    "RequestHead",
    "decode_request",
    "encode_answer",
    "frame_size",
    "read_head",
]

API_VERSIONS_KEY = 18
# Approximate maximum memory of a decoded array element of a request.
ELEMENT_MEMORY_BYTES = 256
_HEAD = struct.Struct(">hhi")
_INT16 = struct.Struct(">h")
_ANSWER = struct.Struct(">ii")
_SIZE = struct.Struct(">i")


class RequestHead(NamedTuple):
    """The first fields of every request, and the position after them."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    end_position: int


class DecodedRequest(NamedTuple):
    """A request. ``body`` is None when only its head could be read. ``memory_bytes`` is the
    approximate memory of the request."""

    head: RequestHead
    body: Any
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class RawBody:
    """The encoded body of an answer, in parts that are sent without a copy. ``flexible`` says
    whether its version has tagged fields."""

    parts: Sequence[Buffer]
    flexible: bool


def frame_size(prefix: Buffer) -> int:
    """Return the size of a frame from its four prefix bytes."""
    size_bytes: int = _SIZE.unpack_from(prefix)[0]
    return size_bytes


def read_head(data: memoryview) -> RequestHead:
    """Return the head of a request, without the tagged fields that newer versions have."""
    reader = Reader(data)
    start = reader.skip(_HEAD.size)
    api_key, api_version, correlation_id = _HEAD.unpack_from(data, start)
    size_bytes = reader.unpack(_INT16)
    client_id = ""
    if size_bytes >= 0:
        start = reader.skip(size_bytes)
        # The id is only shown and counted, so no byte of it is a reason to refuse the client.
        client_id = str(data[start : start + size_bytes], "utf-8", "replace")
    return RequestHead(api_key, api_version, correlation_id, client_id, reader.position)


def decode_request(data: memoryview, head: RequestHead, message: Any) -> DecodedRequest:
    """Return the request as an object of `message`, a class of kafka-python. Raises BadRequestError
    when the bytes are no such request.

    Bytes after the request are ignored, as in Kafka. For example, librdkafka 2.16 sends three such
    bytes with a Metadata request for all topics.
    """
    reader = Reader(data, head.end_position)
    if message.flexible_version_q(head.api_version):
        _skip_tags(reader)
    body = decoder_of(message, head.api_version)(reader)
    elements = MAX_ELEMENTS - reader.left_elements
    return DecodedRequest(head, body, len(data) + elements * ELEMENT_MEMORY_BYTES)


def _skip_tags(reader: Reader) -> None:
    count = reader.read_uvarint()
    if count > MAX_TAGS:
        raise BadRequestError(f"{count} tagged fields in the header: expected at most {MAX_TAGS}")
    for _ in range(count):
        reader.read_uvarint()
        reader.skip(reader.read_uvarint())


def encode_answer(head: RequestHead, version: int, answer: Any) -> list[Buffer]:
    """Return the frame that answers a request: the buffers of a `RawBody`, or an object of
    kafka-python encoded in `version`."""
    if isinstance(answer, RawBody):
        parts, flexible = list(answer.parts), answer.flexible
    else:
        parts = [answer.encode(version=version)]
        flexible = type(answer).flexible_version_q(version)
    # The head of an ApiVersions answer never has tagged fields, since the client does not know yet
    # which versions it shares with the node.
    tags = b"\0" if flexible and head.api_key != API_VERSIONS_KEY else b""
    size_bytes = 4 + len(tags) + sum(memoryview(part).nbytes for part in parts)
    return [_ANSWER.pack(size_bytes, head.correlation_id) + tags, *parts]

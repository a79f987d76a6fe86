"""Records of ``__transaction_state``, as Kafka writes them (``TransactionLogKey`` and ``-Value``).

Versions 0 and 1 of a value are read, 1 is written.
"""

from __future__ import annotations

import struct
from itertools import groupby

from tierlog.errors import CorruptDataError
from tierlog.node.transactions.types import Partition, Transaction, TransactionState

__all__ = ["decode_state", "encode_key", "encode_state"]

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hqhib")
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_TIMES = struct.Struct(">qq")
_INT64 = struct.Struct(">q")
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION = 0, 1, 2


def encode_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id."""
    text = transactional_id.encode("utf-8")
    return _KEY.pack(0, len(text)) + text


def encode_state(found: Transaction) -> bytes:
    """Return the value of a transaction."""
    return b"".join(
        (
            _VALUE.pack(1, *found.producer, found.timeout_ms, found.state),
            _encode_partitions(found),
            _TIMES.pack(found.updated_ms, found.started_ms),
            _encode_tags(found),
        )
    )


def _encode_partitions(found: Transaction) -> bytes:
    if found.state is TransactionState.EMPTY:
        return _uvarint(0)
    topics = [
        (topic.encode("utf-8"), [one.number for one in some])
        for topic, some in groupby(sorted(found.partitions), key=lambda one: one.topic)
    ]
    parts = [_uvarint(len(topics) + 1)]
    for name, indexes in topics:
        parts += (_uvarint(len(name) + 1), name, _uvarint(len(indexes) + 1))
        parts += (_INT32.pack(index) for index in indexes)
        parts.append(b"\0")
    return b"".join(parts)


def _encode_tags(found: Transaction) -> bytes:
    tags = []
    for tag, form, value, default in (
        (_PREVIOUS_ID, _INT64, found.previous_producer_id, -1),
        (_NEXT_ID, _INT64, found.next_producer_id, -1),
        (_CLIENT_VERSION, _INT16, found.client_version, 0),
    ):
        if value != default:
            tags.append(bytes((tag, form.size)) + form.pack(value))
    return _uvarint(len(tags)) + b"".join(tags)


def _uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_state(key: bytes, value: bytes | None) -> tuple[str, Transaction | None]:
    """Return a transactional id with its state; None after it was removed. CorruptDataError for
    other bytes."""
    try:
        version, size_bytes = _KEY.unpack_from(key)
        if version != 0 or len(key) != _KEY.size + size_bytes:
            raise ValueError(f"a key of version {version} and {len(key)} bytes")
        transactional_id = str(key[_KEY.size :], "utf-8")
        if value is None:
            return transactional_id, None
        return transactional_id, _Reader(value).read_transaction(transactional_id)
    except (struct.error, ValueError, IndexError) as error:
        raise CorruptDataError(
            reason="bad_record",
            position=0,
            expected="a record of __transaction_state",
            found=str(error),
        ) from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = True

    def read_transaction(self, transactional_id: str) -> Transaction:
        version, producer_id, epoch, timeout_ms, state = self._unpack(_VALUE)
        if version not in (0, 1):
            raise ValueError(f"a value of version {version}")
        self._flexible = version > 0
        partitions = frozenset(self._partitions())
        updated_ms, started_ms = self._unpack(_TIMES)
        tags = self._tags() if self._flexible else {}
        return Transaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            timeout_ms=timeout_ms,
            state=TransactionState(state),
            partitions=partitions,
            updated_ms=updated_ms,
            started_ms=started_ms,
            previous_producer_id=_number(tags, _PREVIOUS_ID, _INT64, -1),
            next_producer_id=_number(tags, _NEXT_ID, _INT64, -1),
            client_version=_number(tags, _CLIENT_VERSION, _INT16, 0),
        )

    def _partitions(self) -> list[Partition]:
        found = []
        for _ in range(self._count()):
            topic = str(self._take(self._length()), "utf-8")
            found += [Partition(topic, self._unpack(_INT32)[0]) for _ in range(self._count())]
            if self._flexible:
                self._tags()
        return found

    def _tags(self) -> dict[int, bytes]:
        return {self._uvarint(): self._take(self._uvarint()) for _ in range(self._uvarint())}

    def _count(self) -> int:
        """Return the length of an array; none is empty."""
        count = self._uvarint() - 1 if self._flexible else self._unpack(_INT32)[0]
        if count > len(self._data) - self._position:
            raise ValueError(f"an array of {count} elements")
        return max(int(count), 0)

    def _length(self) -> int:
        return self._uvarint() - 1 if self._flexible else int(self._unpack(_INT16)[0])

    def _take(self, size_bytes: int) -> bytes:
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise ValueError(f"{size_bytes} bytes at byte {self._position}")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _unpack(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._take(form.size))

    def _uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a varint above 32 bits")


def _number(tags: dict[int, bytes], tag: int, form: struct.Struct, default: int) -> int:
    return int(form.unpack(tags[tag])[0]) if tag in tags else default

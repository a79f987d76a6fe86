"""Decodes requests by the schemas of kafka-python, with a limit on every length that a client
chooses.

kafka-python's own decoder trusts its input: it uses a length before it compares the length with the
bytes that follow, and it reads a number of any length. This decoder reads the same schemas and
makes objects of the same classes, but it first compares each length with the rest of the request.
This decoder also limits the total number of elements, because a decoded element takes far more
memory than its bytes.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from typing import Any

__all__ = ["MAX_ELEMENTS", "MAX_TAGS", "BadRequestError", "Reader", "decoder_of"]

# Maximum number of elements in all arrays of one request.
MAX_ELEMENTS = 100_000
# Maximum number of tagged fields in one structure.
MAX_TAGS = 64
_MAX_VARINT_BYTES = 5
_ZERO_UUID = uuid.UUID(int=0)
_FORMATS = {
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "bool": "?",
}
_INT8 = struct.Struct(">b")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")

_Read = Callable[["Reader"], Any]
_Step = Callable[["Reader", Any], None]


class BadRequestError(Exception):
    """A request that does not match the schema of its API. The connection of the client is
    closed."""


class Reader:
    """A position in the bytes of one request, and the number of elements that the request may still
    have."""

    __slots__ = ("data", "end", "left_elements", "position")

    def __init__(self, data: memoryview, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.end = len(data)
        self.left_elements = MAX_ELEMENTS

    def skip(self, size_bytes: int) -> int:
        """Return the position of the next `size_bytes`, and move past them."""
        start = self.position
        if size_bytes > self.end - start:
            raise BadRequestError(
                f"expected {size_bytes} bytes at byte {start} of the request, found "
                f"{self.end - start}"
            )
        self.position = start + size_bytes
        return start

    def unpack(self, form: struct.Struct) -> Any:
        """Return one number."""
        return form.unpack_from(self.data, self.skip(form.size))[0]

    def read_uvarint(self) -> int:
        """Return an unsigned varint of at most 32 bits."""
        value, data = 0, self.data
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 32:
                    break
                return value
        raise BadRequestError(f"a varint above 32 bits before byte {self.position}")

    def count_elements(self, count: int, minimum_bytes: int) -> None:
        """Check that an array of `count` elements fits into the rest of the request."""
        if count * minimum_bytes > self.end - self.position or count > self.left_elements:
            raise BadRequestError(
                f"an array of {count} elements at byte {self.position}: expected at most "
                f"{self.left_elements} in {self.end - self.position} bytes"
            )
        self.left_elements -= count


_DECODERS: dict[tuple[Any, int], _Read] = {}


def decoder_of(message: Any, version: int) -> _Read:
    """Return the function that reads the body of `message`, a class of kafka-python."""
    key = (message, version)
    if key not in _DECODERS:
        flexible = message.flexible_version_q(version)
        _DECODERS[key] = _struct_reader(message._struct, version, flexible, message)[0]
    return _DECODERS[key]


def _struct_reader(schema: Any, version: int, flexible: bool, made: Any) -> tuple[_Read, int]:
    """Return the reader of a structure, and the minimum number of bytes that it reads."""
    steps: list[_Step] = []
    minimum_bytes = 0
    names: list[str] = []
    forms = ""
    for field in schema.untagged_fields(version):
        form = _FORMATS.get(field.type_str)
        if form is not None:
            names.append(field.name)
            forms += form
            continue
        if names:
            steps.append(_fixed_step(tuple(names), struct.Struct(">" + forms)))
            minimum_bytes += struct.calcsize(">" + forms)
            names, forms = [], ""
        read, size_bytes = _field_reader(field, version, flexible)
        steps.append(_field_step(field.name, read))
        minimum_bytes += size_bytes
    if names:
        steps.append(_fixed_step(tuple(names), struct.Struct(">" + forms)))
        minimum_bytes += struct.calcsize(">" + forms)
    if flexible:
        steps.append(_tags_step(schema, version))
        minimum_bytes += 1

    def read_struct(reader: Reader) -> Any:
        value = made.__new__(made)
        value._version, value.tags, value.unknown_tags = version, None, None
        for step in steps:
            step(reader, value)
        return value

    return read_struct, minimum_bytes


def _fixed_step(names: tuple[str, ...], form: struct.Struct) -> _Step:
    """Return a step that reads adjacent numbers together."""
    size_bytes, unpack = form.size, form.unpack_from

    def step(reader: Reader, value: Any) -> None:
        found = unpack(reader.data, reader.skip(size_bytes))
        for name, one in zip(names, found, strict=True):
            setattr(value, name, one)

    return step


def _field_step(name: str, read: _Read) -> _Step:
    def step(reader: Reader, value: Any) -> None:
        setattr(value, name, read(reader))

    return step


def _tags_step(schema: Any, version: int) -> _Step:
    """Return a step that reads the tagged fields. It skips unknown fields."""
    known = {
        field.tag: (field.name, _field_reader(field, version, True)[0])
        for field in schema.fields.values()
        if field.for_version_q(version) and field.tagged_field_q(version)
    }

    def step(reader: Reader, value: Any) -> None:
        count = reader.read_uvarint()
        if count > MAX_TAGS:
            raise BadRequestError(f"{count} tagged fields: expected at most {MAX_TAGS}")
        for _ in range(count):
            tag, size_bytes = reader.read_uvarint(), reader.read_uvarint()
            start = reader.skip(size_bytes)
            if tag in known:
                name, read = known[tag]
                reader.position, end = start, start + size_bytes
                setattr(value, name, read(reader))
                if reader.position != end:
                    raise BadRequestError(f"tagged field {name}: expected to end at byte {end}")

    return step


def _field_reader(field: Any, version: int, flexible: bool) -> tuple[_Read, int]:
    """Return the reader of a field, and the minimum number of bytes that it reads."""
    nullable = field.nullable_for_version_q(version)
    if field.is_struct():
        read, size_bytes = _struct_reader(field, version, flexible, field.data_class)
        return (_nullable_struct(read), 1) if nullable else (read, size_bytes)
    if field.is_array():
        return _array_reader(field, version, flexible, nullable)
    return _simple_reader(field.name, field.type_str, flexible, nullable)


def _nullable_struct(read: _Read) -> _Read:
    def read_nullable(reader: Reader) -> Any:
        return read(reader) if reader.unpack(_INT8) >= 0 else None

    return read_nullable


def _array_reader(field: Any, version: int, flexible: bool, nullable: bool) -> tuple[_Read, int]:
    name = field.name
    if field.is_struct_array():
        element, minimum_bytes = _struct_reader(field, version, flexible, field.data_class)
    else:
        inner = field.array_of
        element, minimum_bytes = _simple_reader(name, inner.type_str, flexible, False)

    def read_array(reader: Reader) -> list[Any] | None:
        count = reader.read_uvarint() - 1 if flexible else reader.unpack(_INT32)
        if count < 0:
            _check_null(name, nullable and count == -1)
            return None
        reader.count_elements(count, minimum_bytes)
        return [element(reader) for _ in range(count)]

    return read_array, 1 if flexible else 4


def _check_null(name: str, allowed: bool) -> None:
    if not allowed:
        raise BadRequestError(f"{name}: expected a value, found null or a negative length")


def _simple_reader(name: str, kind: str, flexible: bool, nullable: bool) -> tuple[_Read, int]:
    if kind in _FORMATS:
        form = struct.Struct(">" + _FORMATS[kind])
        return lambda reader: reader.unpack(form), form.size
    if kind == "uuid":
        return _read_uuid, 16
    length = _INT16 if kind == "string" else _INT32

    def read_bytes(reader: Reader) -> memoryview | None:
        size_bytes = reader.read_uvarint() - 1 if flexible else reader.unpack(length)
        if size_bytes < 0:
            _check_null(name, nullable and size_bytes == -1)
            return None
        start = reader.skip(size_bytes)
        return reader.data[start : start + size_bytes]

    def read_text(reader: Reader) -> str | None:
        found = read_bytes(reader)
        try:
            return None if found is None else str(found, "utf-8")
        except UnicodeDecodeError as error:
            raise BadRequestError(f"{name}: not UTF-8: {error.reason}") from None

    def read_copy(reader: Reader) -> bytes | None:
        found = read_bytes(reader)
        return None if found is None else bytes(found)

    readers: dict[str, _Read] = {"string": read_text, "bytes": read_copy, "records": read_bytes}
    return readers[kind], 1 if flexible else length.size


def _read_uuid(reader: Reader) -> uuid.UUID | None:
    start = reader.skip(16)
    found = uuid.UUID(bytes=bytes(reader.data[start : start + 16]))
    return None if found == _ZERO_UUID else found

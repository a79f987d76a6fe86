"""Requests of every API with values made at random, as kafka-python's classes."""

from __future__ import annotations

import random
import uuid
from typing import Any

import kafka.protocol.admin as admin
import kafka.protocol.consumer as consumer
import kafka.protocol.metadata as metadata
import kafka.protocol.producer as producer

__all__ = ["REQUESTS", "made_struct"]

REQUESTS = {
    name: getattr(module, name)
    for module in (admin, consumer, metadata, producer)
    for name in module.__all__
    if name.endswith("Request")
}


def made_value(field: Any, version: int, random_: random.Random) -> Any:
    """A value for a field of a schema."""
    if field.nullable_for_version_q(version) and random_.random() < 0.2:
        return None
    if field.is_struct():
        return made_struct(field, version, random_, field.data_class)
    if field.is_struct_array():
        count = random_.randrange(3)
        return [made_struct(field, version, random_, field.data_class) for _ in range(count)]
    if field.is_array():
        return [made_simple(field.array_of.type_str, random_) for _ in range(random_.randrange(3))]
    return made_simple(field.type_str, random_)


def made_simple(kind: str, random_: random.Random) -> Any:
    bits = {"int8": 7, "int16": 15, "uint16": 16, "int32": 31, "int64": 63}
    if kind in bits:
        return random_.getrandbits(bits[kind])
    if kind == "bool":
        return random_.random() < 0.5
    if kind == "float64":
        return random_.random()
    if kind == "uuid":
        return uuid.UUID(int=random_.getrandbits(128))
    text = "".join(random_.choice("abcäöü") for _ in range(random_.randrange(200)))
    return text if kind == "string" else text.encode()


def made_struct(schema: Any, version: int, random_: random.Random, made: Any) -> Any:
    values = {
        field.name: made_value(field, version, random_)
        for field in schema.fields.values()
        if field.for_version_q(version) and not field.tagged_field_q(version)
    }
    return made(version=version, **values)

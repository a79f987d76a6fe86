"""Converts rows to Arrow tables. The fields of a dataclass determine the columns.

Needs pyarrow (the extra ``arrow``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from types import NoneType
from typing import Any, get_args, get_type_hints

import pyarrow as pa

__all__ = ["row_schema", "row_table", "row_values"]

_KINDS = {bool: pa.bool_(), int: pa.int64(), str: pa.string()}
# Fields that are 32-bit numbers in Kafka's protocol.
_INT32 = frozenset({"broker_id", "epoch", "leader_epoch", "partition"})


def row_schema(row_type: type, **given: pa.DataType) -> pa.Schema:
    """Return the schema for rows of the dataclass `row_type`. `given` maps column names to types
    that replace the types from the dataclass."""
    hints = get_type_hints(row_type)
    names = [one.name for one in fields(row_type)]
    return pa.schema({name: given.get(name) or _kind(name, hints[name]) for name in names})


def row_table(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Return a table of `rows`, in their order."""
    return pa.Table.from_pylist(row_values(rows, schema), schema)


def row_values(rows: Iterable[Any], schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the fields of each row as a dictionary, by column name."""
    return [{name: getattr(row, name) for name in schema.names} for row in rows]


def _kind(name: str, hint: Any) -> pa.DataType:
    """Return the Arrow type of a field from its type hint: text, a number, a flag, a list of these
    for a tuple, or a struct for a named tuple. Every type allows null for None."""
    choices = [one for one in get_args(hint) if one not in (NoneType, ...)]
    if choices:
        kind = _kind(name, choices[0])
        return pa.list_(kind) if ... in get_args(hint) else kind
    if issubclass(hint, tuple):
        parts = get_type_hints(hint)
        return pa.struct({part: _kind(part, parts[part]) for part in parts})
    if hint is int and name in _INT32:
        return pa.int32()
    return next(kind for of_type, kind in _KINDS.items() if issubclass(hint, of_type))

"""Makes Arrow tables of rows: the columns follow from the fields of a dataclass.

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
# The numbers that Kafka's protocol has in 32 bits.
_INT32 = frozenset({"broker_id", "epoch", "leader_epoch", "partition"})


def row_schema(row_type: type, **given: pa.DataType) -> pa.Schema:
    """Return the columns of rows of a dataclass; `given` has the types that differ from the
    fields'."""
    hints = get_type_hints(row_type)
    names = [one.name for one in fields(row_type)]
    return pa.schema({name: given.get(name) or _kind(name, hints[name]) for name in names})


def row_table(rows: Iterable[Any], schema: pa.Schema) -> pa.Table:
    """Return a table with a row for each of `rows`, in their order."""
    return pa.Table.from_pylist(row_values(rows, schema), schema)


def row_values(rows: Iterable[Any], schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the fields of each row by the names of the columns."""
    return [{name: getattr(row, name) for name in schema.names} for row in rows]


def _kind(name: str, hint: Any) -> pa.DataType:
    """Return the type of a field: text, numbers, flags, tuples of them, and named tuples as
    structs. None is null in each."""
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

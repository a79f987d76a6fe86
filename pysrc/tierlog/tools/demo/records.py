"""The records of the live demo. A record is computed from its number, so records are not kept."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

__all__ = ["DemoRecord", "demo_record", "find_difference"]

# Every 97th record has no value, every 7th record has no key, and every 3rd record has headers.
_NO_VALUE, _NO_KEY, _HEADERS = 97, 7, 3
_NOTE_BYTES = 300


class DemoRecord(NamedTuple):
    """A record that a producer sends and a consumer must receive unchanged."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int


def demo_record(number: int, start_ms: int) -> DemoRecord:
    """Return record `number`. Some records have no key, no value or headers."""
    note = hashlib.shake_128(b"%d" % number).hexdigest(_NOTE_BYTES)
    order = {
        "order": number,
        "customer": f"customer-{number % 1_000:04}",
        "amount_cents": number * 37 % 100_000,
        "items": [{"sku": f"sku-{(number + one) % 500}", "count": one} for one in range(1, 6)],
        "note": note,
    }
    value = None if number % _NO_VALUE == 0 else json.dumps(order).encode()
    # A client refuses a record without key and value.
    has_key = value is None or number % _NO_KEY != 0
    return DemoRecord(
        key=b"customer-%04d" % (number % 1_000) if has_key else None,
        value=value,
        headers=[("trace", b"%032x" % number)] if number % _HEADERS == 0 else [],
        timestamp_ms=start_ms + number,
    )


def find_difference(found: DemoRecord, expected: DemoRecord) -> str | None:
    """Return the name of the first field that differs, with both values; None for equal records."""
    for name, one, other in zip(DemoRecord._fields, found, expected, strict=True):
        if one != other:
            return f"{name}: expected {other!r:.60}, found {one!r:.60}"
    return None

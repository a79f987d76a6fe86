"""A streaming query without Spark: triggers asked for, planned and read as Spark does it."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_udfs.schemas import schema_of
from spark_udfs.stream import TierlogStreamReader
from tierlog.clock import Clock
from tierlog.tables.options import parse_options

__all__ = ["Offsets", "Query"]

Offsets = dict[str, dict[str, int]]


class Query:
    """What Spark keeps of a query and makes of a reader; `restart` is a new process."""

    # Of the readers from the next `restart` on.
    clock: Clock | None = None

    def __init__(self, path: str, **options: str) -> None:
        self._options = {"path": path, "startingOffsets": "earliest", **options}
        if "subscribePattern" not in options:
            self._options.setdefault("subscribe", "epochs")
        self.offsets: Offsets | None = None
        self.batches: list[list[dict[str, Any]]] = []
        self.restart()

    def restart(self) -> None:
        options = parse_options(self._options, streaming=True)
        self.reader = TierlogStreamReader(options, schema_of(options), self.clock)

    def start(self) -> Offsets:
        if self.offsets is None:
            self.offsets = over_the_wire(self.reader.initialOffset())
        return self.offsets

    def trigger(self, *, every: bool = False) -> list[dict[str, Any]]:
        """One trigger; nothing where there is nothing new."""
        start = self.start()
        limit = ReadAllAvailable() if every else self.reader.getDefaultReadLimit()
        end = over_the_wire(self.reader.latestOffset(start, limit))
        if json.dumps(end) == json.dumps(start):
            return []
        rows = self.read(start, end)
        self.offsets = end
        self.batches.append(rows)
        return rows

    def read(self, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
        """What the tasks of a trigger give."""
        return [
            row
            for task in self.reader.partitions(start, end)
            for batch in self.reader.read(task)
            for row in batch.to_pylist()
        ]

    def seen(self) -> list[int]:
        return [row["offset"] for batch in self.batches for row in batch]


def over_the_wire(offsets: Offsets) -> Offsets:
    """As Spark hands it back."""
    return dict(json.loads(json.dumps(offsets)))

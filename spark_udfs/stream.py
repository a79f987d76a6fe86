"""``readStream.format("tierlog")``: records that are added to a store or to a broker's log
directory.

The path is listed once per trigger. A stream reads the finished segments of a store, or a log
directory up to the high watermark. The stream stops before records of open transactions. New
partitions and, with ``subscribePattern``, new topics are read from their first offset.

The plan of a trigger depends only on its start and end offsets, so a trigger that is repeated after
a crash reads the same records. If retention removed records before they were read, the trigger
fails; with ``failOnDataLoss=false``, the trigger leaves these records out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from spark_udfs.brief_errors import briefly
from spark_udfs.schemas import arrow_schema
from spark_udfs.stream_offsets import (
    StreamOffsets,
    advanced,
    as_json,
    check_all_there,
    from_json,
    limited,
)
from spark_udfs.worker import freeze_once
from tierlog.clock import Clock, SystemClock
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tables.catalog import open_catalog
from tierlog.tables.options import EARLIEST, Bound, SourceOptions
from tierlog.tables.plan import (
    Catalog,
    Partition,
    chosen_partitions,
    partition_offsets,
    plan_tasks,
    resolve,
)
from tierlog.tables.read import read_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    has_limits = True
except ImportError:
    # PySpark 4.1 does not ask for limits, so a trigger reads all records.
    ReadLimit = ReadAllAvailable = ReadMaxRows = ReadMinRows = SupportsTriggerAvailableNow = object
    has_limits = False

__all__ = ["TierlogStreamReader"]

_log = logging.getLogger(__name__)
_Json = Mapping[str, Mapping[str, int]]


class TierlogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Gives Spark the offsets and the tasks of each trigger. In the workers, it gives Spark the
    rows of these tasks."""

    def __init__(
        self, options: SourceOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        """Raises ConfigError for limits that the installed PySpark does not support."""
        check_limits(options)
        self._options = options
        self._schema = schema
        self._clock = clock or SystemClock()
        # The time of the last trigger.
        self._triggered_ms: int | None = None
        # The last listing of the path, the offsets in this listing, and the offsets at which a
        # query with ``availableNow`` ends.
        self._catalog: Catalog | None = None
        self._seen: StreamOffsets | None = None
        self._last: StreamOffsets | None = None

    @briefly
    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        found = partition_offsets(self._options, self._look())
        return as_json({_key(one.partition): one.start_offset for one in found})

    @briefly
    def latestOffset(  # noqa: N802
        self, start: _Json | None = None, limit: ReadLimit | None = None
    ) -> dict[str, dict[str, int]]:
        known = from_json(start or {})
        begin, end = self._advanced(known, gone=known)
        if self._last is not None:
            end = _up_to(self._last, begin, end, known)
        if limit is None or isinstance(limit, ReadAllAvailable):
            return as_json(end)
        now_ms = self._clock.monotonic_ms()
        if self._is_early(begin, end, now_ms):
            return as_json(known)
        self._triggered_ms = now_ms
        most = self._options.triggers.max_offsets
        return as_json(end if most is None else limited(begin, end, most))

    @briefly
    def partitions(self, start: _Json, end: _Json) -> list[InputPartition]:
        """Return the tasks of a trigger. Raises OutOfRangeError when the records of the trigger no
        longer exist."""
        begin, upto = from_json(start), from_json(end)
        options = replace(
            self._options,
            start=Bound(option="checkpoint", by_partition=dict.fromkeys(upto, EARLIEST) | begin),
            end=Bound(option="checkpoint", by_partition=upto),
        )
        catalog = self._catalog or self._look()
        chosen = chosen_partitions(options, catalog.partitions(), gone=upto)
        there = {_key(one): one for one in chosen}
        if self._options.fail_on_data_loss:
            check_all_there(begin, upto, there)
        offsets = [resolve(options, catalog, there[key]) for key in upto if key in there]
        tasks = plan_tasks(options, catalog, offsets)
        for found in catalog.findings():
            _log.warning("left out: %s", found)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_once()
        yield from read_task(partition.value or (), arrow_schema(self._schema), self._options, None)

    @briefly
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query at the offsets that exist now."""
        # The topics of the query are not known yet.
        _, self._last = self._advanced({}, gone=None)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        size = self._options.triggers
        if size.max_offsets is not None:
            return ReadMaxRows(size.max_offsets)
        return ReadAllAvailable() if size.min_offsets is None else ReadMinRows(size.min_offsets)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        return None if self._seen is None else as_json(self._seen)

    def _is_early(self, begin: StreamOffsets, end: StreamOffsets, now_ms: int) -> bool:
        """Return whether to wait for more records. The first trigger never waits, as in Spark's
        Kafka source. A query with ``availableNow`` never waits either."""
        size = self._options.triggers
        if size.min_offsets is None or self._triggered_ms is None or self._last is not None:
            return False
        waiting = sum(after - begin[key] for key, after in end.items())
        return waiting < size.min_offsets and now_ms - self._triggered_ms < size.max_delay_ms

    def _advanced(
        self, known: StreamOffsets, *, gone: Iterable[TopicPartition] | None
    ) -> tuple[StreamOffsets, StreamOffsets]:
        """List the path, and return the offsets from which and up to which the stream can read."""
        catalog = self._look()
        chosen = chosen_partitions(self._options, catalog.partitions(), gone=gone)
        held = [(one, catalog.bounds(one)) for one in chosen]
        begin, end = advanced(known, held, fail_on_data_loss=self._options.fail_on_data_loss)
        self._seen = dict(end)
        return begin, end

    def _look(self) -> Catalog:
        self._catalog = open_catalog(self._options, settled=True)
        return self._catalog


def check_limits(options: SourceOptions) -> None:
    """Raise ConfigError if limits are set and PySpark does not ask for them. PySpark 4.1 reads all
    records."""
    size = options.triggers
    if not has_limits and (size.max_offsets is not None or size.min_offsets is not None):
        raise ConfigError(
            "maxOffsetsPerTrigger, minOffsetsPerTrigger: expected PySpark 4.2 or newer, which asks "
            f"a stream how far to go; found {pyspark.__version__}"
        )


def _up_to(
    last: StreamOffsets, begin: StreamOffsets, end: StreamOffsets, known: StreamOffsets
) -> StreamOffsets:
    """Return the offsets of `end`, each limited to the offset of its partition in `last`. The next
    run reads partitions that were added after `last`."""
    return {
        key: max(begin[key], min(after, last.get(key, begin[key])))
        for key, after in end.items()
        if key in last or key in known
    }


def _key(partition: Partition) -> TopicPartition:
    return TopicPartition(partition.topic, partition.partition)

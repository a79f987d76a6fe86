"""The options of ``format("tierlog")``. The options are those of Spark's Kafka source, with a path
instead of brokers.

| Option | Value |
|---|---|
| ``path`` | a store URL, or the log directories of a broker, separated by commas |
| ``subscribe`` | names (or ids) of topics, separated by commas |
| ``subscribePattern`` | a regular expression that a topic's whole name matches |
| ``assign`` | ``{"topic": [0, 1]}`` |
| ``startingOffsets``, ``endingOffsets`` | earliest, latest or ``{"topic": {"0": 23, "1": -2}}`` |
| ``startingTimestamp``, ``endingTimestamp`` | milliseconds, or a time ``2024-02-29T12:00:00Z`` |
| ``startingOffsetsByTimestamp``, ``endingOffsetsByTimestamp`` | ``{"topic": {"0": "a time"}}`` |
| ``startingOffsetsByTimestampStrategy`` | if no record is that late: error (default), latest |
| ``isolation.level`` | read_uncommitted (default), read_committed |
| ``includeHeaders``, ``failOnDataLoss`` | false, true by default |
| ``minPartitions``, ``taskBytes`` | least number of tasks, and most bytes of input per task |
| ``view`` | records (default), batches, segments, quarantine |
| ``onCorrupt`` | fail (default for records), quarantine (default for the other views) |
| ``onGap`` | if a store lacks offsets that it should have: fail (default), skip |
| ``tierlog.batch.max.decompressed.bytes`` | bytes; the driver's setting by default |
| ``pushDownPredicate`` | false (default), true: the plan leaves out what a query filters out |

The offset -2 means earliest, and -1 means latest. If several start options are set, the first one
of this list is used, as in Spark: a timestamp, timestamps by partition, offsets. A stream starts at
``latest`` by default. A stream also accepts ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger`` and
``maxTriggerDelay`` (a time such as ``90s``; 15m by default). The case of option names is ignored.
An unknown name is an error.

``pushDownPredicate`` is false by default. When a query of a data frame has a condition, Spark keeps
its plan, and also uses this plan for later queries of the same data frame.

This module does not depend on Spark.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tierlog.config import Config, load_config
from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.reader.offset_range import date_ms

__all__ = [
    "BATCH_LIMIT",
    "EARLIEST",
    "LATEST",
    "Bound",
    "SourceOptions",
    "TopicChoice",
    "TriggerSize",
    "View",
    "parse_options",
]

BATCH_LIMIT = "tierlog.batch.max.decompressed.bytes"
# Settings for reads of a store. The option for a setting has the same name. A setting such as a
# quota applies to each Spark worker separately.
_SETTINGS = (
    BATCH_LIMIT,
    "tierlog.fetch.memory.bytes",
    "tierlog.fetch.quota.mode",
    "remote.log.reader.threads",
    "remote.log.manager.fetch.max.bytes.per.second",
    "remote.log.manager.fetch.quota.window.num",
    "remote.log.manager.fetch.quota.window.size.seconds",
    "remote.log.manager.quota.rate.mode",
)
# Kafka's numbers for the offsets "latest" and "earliest".
LATEST, EARLIEST = -1, -2

_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1
_DEFAULT_TASK_BYTES = 256 << 20
_DEFAULT_TRIGGER_DELAY_MS = 15 * 60_000
# Units of times in Spark's options. A number without a unit is in milliseconds.
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Topics that ``subscribePattern`` never selects, as in Kafka's consumers.
_INTERNAL_TOPICS = frozenset(
    ("__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata")
)
_ISOLATION_NAMES = ("isolation.level", "isolationLevel", "kafka.isolation.level")
_NAMES = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    *_ISOLATION_NAMES,
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "taskBytes",
    "view",
    "onCorrupt",
    "onGap",
    *_SETTINGS,
    "pushDownPredicate",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)


class View(StrEnum):
    """What a row of the result describes."""

    RECORDS = "records"
    BATCHES = "batches"
    SEGMENTS = "segments"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChoice:
    """The partitions to read. By default, these are all partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: frozenset[TopicPartition] = frozenset()

    def wants(self, topic: str, topic_id: str | None, partition: int) -> bool:
        """Return whether the partition is selected, by the name or the id of its topic."""
        if self.assigned:
            return any((name, partition) in self.assigned for name in (topic, topic_id))
        if self.pattern is not None:
            internal = topic in _INTERNAL_TOPICS
            return not internal and re.fullmatch(self.pattern, topic) is not None
        return not self.names or topic in self.names or topic_id in self.names

    @property
    def required(self) -> frozenset[str]:
        """The topic names or ids that must exist."""
        return frozenset(self.names) | {one.topic for one in self.assigned}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The start or end of a read: an offset, `LATEST`, `EARLIEST`, or a time.

    ``everywhere`` applies to all partitions. If ``everywhere`` is None, ``by_partition`` has a
    number for each partition.
    """

    option: str
    is_time: bool = False
    everywhere: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)

    def of(self, topic: str, topic_id: str | None, partition: int) -> int:
        """Return the number for a partition; raise ConfigError when there is none."""
        if self.everywhere is not None:
            return self.everywhere
        for name in (topic, topic_id):
            if name is not None and (name, partition) in self.by_partition:
                return self.by_partition[TopicPartition(name, partition)]
        raise ConfigError(
            f"{self.option}: expected a number for every partition, found none for "
            f"{topic}-{partition}; -2 is earliest, -1 is latest"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of a read."""

    path: str
    topics: TopicChoice
    start: Bound
    end: Bound
    late_start_is_end: bool
    read_committed: bool
    include_headers: bool
    fail_on_data_loss: bool
    fail_on_corrupt: bool
    fail_on_gap: bool
    config: Config
    view: View
    push_down: bool
    task_bytes: int
    min_partitions: int
    triggers: TriggerSize


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerSize:
    """The size of a stream's trigger. A trigger reads at most ``max_offsets`` offsets, and waits up
    to ``max_delay_ms`` for ``min_offsets``."""

    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int


def parse_options(given: Mapping[str, str], *, streaming: bool | None = False) -> SourceOptions:
    """Return the options of a read. Raises ConfigError, which names the wrong option and the
    expected value.

    ``streaming`` is None when Spark does not say whether the read is a stream."""
    options = _Options(given)
    view = options.choice("view", View)
    if streaming and view is not View.RECORDS:
        raise ConfigError(f"view: expected records for a stream, found {view.value}")
    path = options.text("path")
    if not path:
        raise ConfigError("path: expected a store URL or a broker's log directory, found nothing")
    first = LATEST if streaming else EARLIEST
    return SourceOptions(
        path=path,
        topics=_topics(options, required=view is View.RECORDS),
        start=_bound(options, "starting", first, (LATEST,) if streaming is False else ()),
        end=_end(options, streaming),
        late_start_is_end=options.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
        == "latest",
        read_committed=_isolation(options) == "read_committed",
        include_headers=options.flag("includeHeaders", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        fail_on_corrupt=_fail_on_corrupt(options, view),
        fail_on_gap=options.one_of("onGap", ("fail", "skip")) == "fail",
        config=options.config(),
        view=view,
        push_down=options.flag("pushDownPredicate", default=False),
        task_bytes=options.count("taskBytes", default=_DEFAULT_TASK_BYTES),
        min_partitions=options.count("minPartitions", default=1),
        triggers=_triggers(options),
    )


class _Options:
    """Parses options by name."""

    def __init__(self, given: Mapping[str, str]) -> None:
        known = {name.lower(): name for name in _NAMES}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise ConfigError(f"{name}: no such option{_nearest(name, known)}")
            self._given[known[name.lower()]] = value

    def text(self, name: str) -> str | None:
        return self._given.get(name)

    def config(self) -> Config:
        """Return the settings among the options. Raises ConfigError, which names the wrong
        setting."""
        given = {name: value for name, value in self._given.items() if name in _SETTINGS}
        return load_config(properties=given, source="options")

    def one_of(self, name: str, values: tuple[str, ...]) -> str:
        """Return the option's value, which must be one of `values`. The first of `values` is the
        default."""
        found = self._given.get(name, values[0]).strip().lower()
        if found not in values:
            raise self.wrong(name, " or ".join(values))
        return found

    def choice(self, name: str, kind: type[View]) -> View:
        return kind(self.one_of(name, tuple(kind)))

    def flag(self, name: str, *, default: bool) -> bool:
        found = self._given.get(name, str(default)).strip().lower()
        if found not in ("true", "false"):
            raise self.wrong(name, "true or false")
        return found == "true"

    def count(self, name: str, *, default: int) -> int:
        text = self._given.get(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", text.strip()) or int(text) < 1:
            raise self.wrong(name, "a whole number above 0")
        return int(text)

    def count_or_none(self, name: str) -> int | None:
        return None if name not in self._given else self.count(name, default=1)

    def time_ms(self, name: str, *, default: int) -> int:
        text = self._given.get(name)
        if text is None:
            return default
        found = re.fullmatch(r"([0-9]{1,12})([a-z]*)", text.strip().lower())
        unit_ms = None if found is None else _UNIT_MS.get(found[2] or "ms")
        if found is None or unit_ms is None:
            raise self.wrong(name, f"a number and one of {', '.join(_UNIT_MS)}")
        return int(found[1]) * unit_ms

    def wrong(self, name: str, expected: str) -> ConfigError:
        return ConfigError(
            f"{name}: expected {expected}, found {self._given.get(name, '')[:200]!r}"
        )


def _nearest(name: str, known: Mapping[str, str]) -> str:
    if name.lower().startswith("kafka."):
        return "; settings of a Kafka client mean nothing here, where no broker is asked"
    if name.lower() == "paths":
        return "; several log directories are one path, with commas between them"
    if name.lower() == "location":
        return "; Spark keeps none for a table: use CREATE TEMPORARY VIEW ... USING tierlog OPTIONS"
    near = difflib.get_close_matches(name.lower(), known, 1)
    return f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(_NAMES)}"


def _fail_on_corrupt(options: _Options, view: View) -> bool:
    """Return whether damage fails the read. By default damage fails only reads of records, because
    the other views show damage."""
    words = ("fail", "quarantine") if view is View.RECORDS else ("quarantine", "fail")
    return options.one_of("onCorrupt", words) == "fail"


def _isolation(options: _Options) -> str:
    given = [name for name in _ISOLATION_NAMES if options.text(name) is not None]
    levels = ("read_uncommitted", "read_committed")
    found = {options.one_of(name, levels) for name in given or _ISOLATION_NAMES[:1]}
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(given)}: expected one isolation level, found two")
    return found.pop()


def _topics(options: _Options, *, required: bool) -> TopicChoice:
    ways = ("subscribe", "subscribePattern", "assign")
    given = [name for name in ways if options.text(name) is not None]
    if len(given) > 1 or (required and not given):
        found = " and ".join(given) or "none"
        raise ConfigError(f"expected one of {', '.join(ways)}, found {found}")
    names = options.text("subscribe")
    if names is not None:
        topics = tuple(name.strip() for name in names.split(",") if name.strip())
        if not topics:
            raise options.wrong("subscribe", "names of topics, by commas")
        return TopicChoice(names=topics)
    pattern = options.text("subscribePattern")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise options.wrong("subscribePattern", f"a regular expression ({error})") from None
        return TopicChoice(pattern=pattern)
    return TopicChoice(assigned=_assigned(options))


def _assigned(options: _Options) -> frozenset[TopicPartition]:
    text = options.text("assign")
    if text is None:
        return frozenset()
    expected = '{"topic": [0, 1]}'
    found = _json(options, "assign", expected)
    pairs: set[TopicPartition] = set()
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(map(_is_partition, partitions)):
            raise options.wrong("assign", expected)
        pairs.update(TopicPartition(topic, partition) for partition in partitions)
    if not pairs:
        raise options.wrong("assign", expected)
    return frozenset(pairs)


def _is_partition(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INT32


def _end(options: _Options, streaming: bool | None) -> Bound:
    if not streaming:
        return _bound(options, "ending", LATEST, (EARLIEST,))
    for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
        if options.text(name) is not None:
            raise ConfigError(f"{name}: a stream has no end")
    return Bound(option="endingOffsets", everywhere=LATEST)


def _triggers(options: _Options) -> TriggerSize:
    size = TriggerSize(
        max_offsets=options.count_or_none("maxOffsetsPerTrigger"),
        min_offsets=options.count_or_none("minOffsetsPerTrigger"),
        max_delay_ms=options.time_ms("maxTriggerDelay", default=_DEFAULT_TRIGGER_DELAY_MS),
    )
    if size.min_offsets and size.max_offsets and size.min_offsets > size.max_offsets:
        raise options.wrong(
            "minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger, {size.max_offsets}"
        )
    return size


def _bound(options: _Options, side: str, default: int, refused: tuple[int, ...]) -> Bound:
    """Return the start (`side` is ``starting``) or the end (``ending``) of a read. A bound with an
    offset in `refused` would read nothing, so such an offset is an error."""
    time = options.text(f"{side}Timestamp")
    if time is not None:
        time_ms = _time_ms(time.strip())
        if time_ms is None:
            raise options.wrong(
                f"{side}Timestamp",
                "milliseconds since 1970, from 0 on, or a time as in 2024-02-29T12:00:00Z",
            )
        return Bound(option=f"{side}Timestamp", is_time=True, everywhere=time_ms)
    name = f"{side}OffsetsByTimestamp"
    if options.text(name) is not None:
        times = _by_partition(options, name, lowest=0, may_be_date=True)
        return Bound(option=name, is_time=True, by_partition=times)
    return _offsets(options, f"{side}Offsets", default, refused)


def _offsets(options: _Options, name: str, default: int, refused: tuple[int, ...]) -> Bound:
    text = options.text(name)
    if text is None:
        return Bound(option=name, everywhere=default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    allowed = [word for word, number in words.items() if number not in refused]
    word = text.strip().lower()
    if word in allowed:
        return Bound(option=name, everywhere=words[word])
    if not text.lstrip().startswith("{"):
        raise options.wrong(name, f"{' or '.join(allowed)} or offsets as JSON")
    numbers = _by_partition(options, name, lowest=EARLIEST)
    if not set(refused).isdisjoint(numbers.values()):
        raise options.wrong(name, f"offsets other than {', '.join(map(str, refused))}")
    return Bound(option=name, by_partition=numbers)


def _time_ms(text: str) -> int | None:
    """Return the milliseconds that a number or a date stands for; None for other text."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    try:
        moment_ms = date_ms(text, text)
    except ValueError:
        return None
    return moment_ms if moment_ms >= 0 else None


def _by_partition(
    options: _Options, name: str, *, lowest: int, may_be_date: bool = False
) -> dict[TopicPartition, int]:
    expected = f'{{"topic": {{"0": 23}}}} with numbers from {lowest} on'
    if may_be_date:
        expected += ' or times as in "2024-02-29T12:00:00Z"'
    found = {}
    for topic, numbers in _json(options, name, expected).items():
        if not isinstance(numbers, dict):
            raise options.wrong(name, expected)
        for partition, given in numbers.items():
            number = _time_ms(given) if may_be_date and isinstance(given, str) else given
            is_sound = re.fullmatch(r"[0-9]{1,10}", partition) and _is_partition(int(partition))
            if not is_sound or type(number) is not int or not lowest <= number <= _MAX_INT64:
                raise options.wrong(name, expected)
            found[TopicPartition(topic, int(partition))] = number
    return found


def _json(options: _Options, name: str, expected: str) -> dict[str, Any]:
    try:
        found = json.loads(options.text(name) or "")
    except (ValueError, RecursionError):
        raise options.wrong(name, expected) from None
    if not isinstance(found, dict):
        raise options.wrong(name, expected)
    return found

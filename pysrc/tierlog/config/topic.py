"""The settings of a node's topics, with Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum

from tierlog.config.kinds import (
    MAX_INT32,
    MAX_INT64,
    Setting,
    decimal,
    names,
    one_of,
    setting,
    settings,
    true_or_false,
    whole_number,
)
from tierlog.config.sections import Section
from tierlog.errors import ConfigError

__all__ = ["TOPIC_SETTINGS", "TimestampType", "TopicConfig", "topic_config"]

_DELETE, _COMPACT = "delete", "compact"


class TimestampType(StrEnum):
    """Which clock sets the timestamps of records."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig(Section):
    """The settings of a topic of a node (`tierlog serve --data-dir`)."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        names(),
        ("delete",),
        "What happens to old segments: `delete`, `compact` (the last record of each key stays), or "
        "both.",
        broker_names=(("log.cleanup.policy", 1),),
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        whole_number(0, MAX_INT64),
        86_400_000,
        "How long compaction keeps a tombstone after it was compacted for the first time.",
        broker_names=(("log.cleaner.delete.retention.ms", 1),),
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        whole_number(0, MAX_INT64),
        60_000,
        "How long the files of a deleted segment are kept under another name. The files of a "
        "deleted topic are removed at once.",
        broker_names=(("log.segment.delete.delay.ms", 1),),
    )
    flush_messages: int = setting(
        "flush.messages",
        whole_number(1, MAX_INT64),
        MAX_INT64,
        "Number of records after which the log is synced. With the default, the operating system "
        "decides when to write.",
        broker_names=(("log.flush.interval.messages", 1),),
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        whole_number(0, MAX_INT32),
        4096,
        "Bytes of log between two entries of an offset index. A change applies from the next "
        "segment on.",
        broker_names=(("log.index.interval.bytes", 1),),
    )
    local_retention_bytes: int = setting(
        "local.retention.bytes",
        whole_number(-2, MAX_INT64),
        -2,
        "Bytes of each partition of a tiered topic to keep on the local disk. -2 means the value "
        "of retention.bytes; -1 keeps all.",
        broker_names=(("log.local.retention.bytes", 1),),
    )
    local_retention_ms: int = setting(
        "local.retention.ms",
        whole_number(-2, MAX_INT64),
        -2,
        "How long to keep segments of a tiered topic on the local disk. -2 means the value of "
        "retention.ms; -1 keeps all.",
        broker_names=(("log.local.retention.ms", 1),),
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        whole_number(1, MAX_INT64),
        MAX_INT64,
        "Age at which a record is compacted, whatever min.cleanable.dirty.ratio says.",
        broker_names=(("log.cleaner.max.compaction.lag.ms", 1),),
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        whole_number(0, MAX_INT32),
        1_048_588,
        "Size of the largest batch.",
        broker_names=(("message.max.bytes", 1),),
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        whole_number(0, MAX_INT64),
        3_600_000,
        "How far a record's timestamp may be in the future.",
        broker_names=(("log.message.timestamp.after.max.ms", 1),),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        whole_number(0, MAX_INT64),
        MAX_INT64,
        "How far a record's timestamp may be in the past.",
        broker_names=(("log.message.timestamp.before.max.ms", 1),),
    )
    message_timestamp_type: TimestampType = setting(  # noqa: RUF009 - a field, as all others
        "message.timestamp.type",
        one_of(TimestampType, any_case=False),
        TimestampType.CREATE_TIME,
        "Which clock sets the timestamps of records: the producer's or the node's.",
        broker_names=(("log.message.timestamp.type", 1),),
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        decimal(0, 1),
        0.5,
        "Compact when more than this part of a log's rolled segments was not compacted yet.",
        broker_names=(("log.cleaner.min.cleanable.ratio", 1),),
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        whole_number(0, MAX_INT64),
        0,
        "How long a record stays as it is before it may be compacted.",
        broker_names=(("log.cleaner.min.compaction.lag.ms", 1),),
    )
    remote_copy_disable: bool = setting(
        "remote.log.copy.disable",
        true_or_false(),
        False,
        "Copy no more segments to the store. Segments in the store can still be read.",
    )
    remote_delete_on_disable: bool = setting(
        "remote.log.delete.on.disable",
        true_or_false(),
        False,
        "Allow remote.storage.enable to be switched off. This deletes all segments of the topic in "
        "the store.",
    )
    remote_storage_enable: bool = setting(
        "remote.storage.enable",
        true_or_false(),
        False,
        "Copy rolled segments to the store of the node.",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        whole_number(0, MAX_INT64, or_off=-1),
        -1,
        "Bytes of a partition to keep, in both tiers together; -1 keeps all.",
        broker_names=(("log.retention.bytes", 1),),
    )
    retention_ms: int = setting(
        "retention.ms",
        whole_number(0, MAX_INT64, or_off=-1),
        604_800_000,
        "How long to keep a segment, measured from its newest record; -1 keeps all.",
        broker_names=(
            ("log.retention.ms", 1),
            ("log.retention.minutes", 60_000),
            ("log.retention.hours", 3_600_000),
        ),
    )
    segment_bytes: int = setting(
        "segment.bytes",
        whole_number(1 << 20, MAX_INT32),
        1 << 30,
        "Size at which a segment is rolled.",
        broker_names=(("log.segment.bytes", 1),),
    )
    internal_segment_bytes: int | None = setting(
        "internal.segment.bytes",
        whole_number(14, MAX_INT32),
        None,
        "Like segment.bytes, but it may be smaller; for tests.",
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        whole_number(4, MAX_INT32),
        10 << 20,
        "Size at which a full index rolls its segment.",
        broker_names=(("log.index.size.max.bytes", 1),),
    )
    segment_ms: int = setting(
        "segment.ms",
        whole_number(1, MAX_INT64),
        604_800_000,
        "Age at which a segment is rolled, at the next append.",
        broker_names=(
            ("log.roll.ms", 1),
            ("log.roll.hours", 3_600_000),
        ),
    )

    def __post_init__(self) -> None:
        for name, its_setting in settings(type(self)):
            value = getattr(self, name)
            if value is not None:
                its_setting.check(value)
        policy = set(self.cleanup_policy)
        if not policy or not policy <= {_DELETE, _COMPACT}:
            found = ",".join(self.cleanup_policy) or "none"
            raise ConfigError(f"cleanup.policy: expected delete, compact or both, found {found}")
        if self.is_compacted and self.remote_storage_enable:
            # As in Kafka: segments that were copied would be rewritten.
            raise ConfigError("remote.storage.enable: a compacted topic cannot be tiered")
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms, {self.min_compaction_lag_ms}, is larger than "
                f"max.compaction.lag.ms, {self.max_compaction_lag_ms}"
            )

    @property
    def is_compacted(self) -> bool:
        """Whether only the last record of each key is kept."""
        return _COMPACT in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention deletes segments by time and size."""
        return _DELETE in self.cleanup_policy

    @property
    def rolls_at_ms(self) -> int:
        """Age at which a segment is rolled: a compacted one before its records are overdue."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    def check_tiering(self, before: TopicConfig | None) -> None:
        """Check the combination of settings as Kafka does when a topic is created or changed
        (KIP-405, KIP-950). `before` are the topic's present settings. Raises ConfigError for an
        invalid combination."""
        if not self.remote_storage_enable:
            if before is not None and before.remote_storage_enable:
                self._check_switch_off()
            return
        for kind, limit, local in (
            ("ms", self.retention_ms, self.local_retention_ms),
            ("bytes", self.retention_bytes, self.local_retention_bytes),
        ):
            name = f"local.retention.{kind}: expected -2 or"
            if self.remote_copy_disable and local not in (-2, limit):
                raise ConfigError(
                    f"{name} retention.{kind}, {limit}, since remote.log.copy.disable is true; "
                    f"found {local}"
                )
            if limit != -1 and (local == -1 or local > limit):
                text = f"{name} at most retention.{kind}, {limit}"
                raise ConfigError(f"{text}; found {local}")

    def _check_switch_off(self) -> None:
        if not self.remote_delete_on_disable:
            raise ConfigError(
                "remote.storage.enable: switching it off deletes what is in the store, so "
                "remote.log.delete.on.disable=true has to be given with it; to keep the data and "
                "copy no more, set remote.log.copy.disable=true"
            )

    @property
    def rolls_at_bytes(self) -> int:
        """Size at which a segment is rolled."""
        return self.internal_segment_bytes or self.segment_bytes


TOPIC_SETTINGS: dict[str, Setting] = {one.name: one for _, one in settings(TopicConfig)}


def topic_config(properties: Mapping[str, str]) -> TopicConfig:
    """Return the settings of a topic. Raises ConfigError for an unknown name or an invalid
    value."""
    fields = {one.name: name for name, one in settings(TopicConfig)}
    values = {}
    for key, text in properties.items():
        if key not in TOPIC_SETTINGS:
            near = get_close_matches(key, TOPIC_SETTINGS, 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown topic setting {key}{hint}")
        values[fields[key]] = TOPIC_SETTINGS[key].parse(text, key, "topic")
    return TopicConfig(**values)

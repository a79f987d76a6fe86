"""Changes of settings in a running sidecar: which take effect and which need a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tierlog.config import Config, Setting, settings
from tierlog.tiering.local_log import TopicSettings

__all__ = ["COPY_LIMIT", "Change", "list_changes", "topic_settings"]

COPY_LIMIT = "remote.log.manager.copy.max.bytes.per.second"
# All other settings are used only when the sidecar starts.
_TAKES_EFFECT = frozenset(
    {
        COPY_LIMIT,
        "remote.log.copy.disable",
        "remote.log.manager.task.interval.ms",
        "tierlog.copy.lag.bytes",
        "tierlog.copy.lag.ms",
        "tierlog.copy.quota.mode",
        "tierlog.deleted.topic.retention.ms",
        "tierlog.retention.bytes",
        "tierlog.retention.max.deleted.ratio",
        "tierlog.retention.ms",
        "tierlog.topics",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting with its value before and after; private values are not shown."""

    setting: Setting
    before: Any
    after: Any

    @property
    def takes_effect(self) -> bool:
        """Whether the change takes effect at once; else with the next start."""
        return self.setting.name in _TAKES_EFFECT

    def __str__(self) -> str:
        if self.setting.private:
            text = f"{self.setting.name} changed"
        else:
            show = self.setting.kind.show
            text = f"{self.setting.name}: {show(self.before)} -> {show(self.after)}"
        return text if self.takes_effect else f"{text}; needs a restart"


def list_changes(before: Config, after: Config) -> Iterator[Change]:
    """Return every setting whose value differs, in the order of the sections."""
    for section in ("log", "remote_log", "remote_index", "quota", "tier"):
        old, new = getattr(before, section), getattr(after, section)
        for name, setting in settings(type(old)):
            values = getattr(old, name), getattr(new, name)
            if values[0] != values[1]:
                yield Change(setting=setting, before=values[0], after=values[1])


def topic_settings(config: Config) -> TopicSettings:
    """Return the settings that apply to every topic."""
    tier = config.tier
    return TopicSettings(
        retention_ms=_unless_off(tier.retention_ms),
        retention_bytes=_unless_off(tier.retention_bytes),
        copy_lag_ms=tier.copy_lag_ms,
        copy_lag_bytes=tier.copy_lag_bytes,
        copy_disabled=tier.copy_disable,
    )


def _unless_off(value: int) -> int | None:
    return None if value < 0 else value

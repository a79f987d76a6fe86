"""Finds which changed settings take effect in a running sidecar, and which need a restart.

While the running broker has a copy limit, it replaces the copy limit of the settings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tierlog.config import Config, Setting, load_config, settings
from tierlog.errors import ConfigError
from tierlog.quota import QuotaManager
from tierlog.tiering.local_log import TopicSettings

__all__ = [
    "COPY_LIMIT",
    "Change",
    "CopyLimit",
    "list_changes",
    "topic_settings",
    "unless_off",
]

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
        """Whether the change takes effect at once; if not, it does after a restart."""
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
        retention_ms=unless_off(tier.retention_ms),
        retention_bytes=unless_off(tier.retention_bytes),
        copy_lag_ms=tier.copy_lag_ms,
        copy_lag_bytes=tier.copy_lag_bytes,
        copy_disabled=tier.copy_disable,
    )


def unless_off(value: int) -> int | None:
    """Return the value of a setting, or None if the value is negative, which means off."""
    return None if value < 0 else value


class CopyLimit:
    """Sets the limit of a quota. Thread-safe: a broker's settings may come from another thread."""

    def __init__(
        self,
        quota: QuotaManager,
        own: int | None,
        *,
        on_change: Callable[[str], None],
        on_warning: Callable[[str], None],
    ) -> None:
        self._quota = quota
        self._own = own
        self._on_change = on_change
        self._on_warning = on_warning
        self._lock = threading.Lock()
        self._given: tuple[bool, int | None] = False, None

    def set_own(self, limit: int | None) -> None:
        """Set the limit of the sidecar's settings, in bytes per second; None is unlimited."""
        with self._lock:
            self._own = limit
            self._apply()

    def follow(self, settings: Mapping[str, str], broker_id: int) -> None:
        """Use the limit in the broker's dynamic settings. If they have none, use the own limit."""
        is_given = COPY_LIMIT in settings
        try:
            limit = load_config(
                properties={COPY_LIMIT: settings[COPY_LIMIT]} if is_given else {},
                source=f"dynamic settings of broker {broker_id}",
            ).quota.copy_max_bytes_per_second
        except ConfigError as error:
            self._on_warning(str(error))
            return
        with self._lock:
            if (is_given, limit) == self._given:
                return
            before = self._quota.limit
            self._given = is_given, limit
            self._apply()
            now = self._quota.limit
        source = "dynamic setting" if is_given else "no dynamic setting any more"
        self._on_change(
            f"{COPY_LIMIT}: {_rate(before)} -> {_rate(now)}; {source} of broker {broker_id}"
        )

    def _apply(self) -> None:
        is_given, limit = self._given
        self._quota.set_limit(limit if is_given else self._own)


def _rate(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)

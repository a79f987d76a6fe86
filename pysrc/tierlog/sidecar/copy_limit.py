"""The copy limit in force: that of a running broker while it has one, else that of the settings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from tierlog.config import load_config
from tierlog.errors import ConfigError
from tierlog.quota import QuotaManager
from tierlog.sidecar.changes import COPY_LIMIT

__all__ = ["CopyLimit"]


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
        """Take the limit of the broker's dynamic settings, or that it has none any more."""
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

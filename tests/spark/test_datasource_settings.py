"""Settings of reading a store, as options of a read of Spark."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.settings.observing import Place
from tests.spark.source import rows_of
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError
from tierlog.tables.options import parse_options

LIMIT = "remote.log.manager.fetch.max.bytes.per.second"


def test_a_read_waits_for_the_fetch_quota_of_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr("tierlog.quota.SystemClock", lambda: clock)
    url = Place(tmp_path, {}).tiered().store.as_uri()
    options = {"path": url, "subscribe": "epochs"}
    whole = rows_of(options)
    assert clock.monotonic_ms() == 0
    # The same name in other letters, as Spark hands options on.
    assert rows_of({**options, LIMIT.upper(): "201"}) == whole
    assert clock.monotonic_ms() > 10_000


def test_settings_go_to_the_workers_with_the_options() -> None:
    given = {"path": "/logs", "subscribe": "a", "tierlog.fetch.memory.bytes": "1000000"}
    options = pickle.loads(pickle.dumps(parse_options(given)))
    assert options.config.remote_log.fetch_memory_bytes == 1_000_000
    with pytest.raises(ConfigError, match=r"tierlog.fetch.memory.bytes: expected a whole number"):
        parse_options({**given, "tierlog.fetch.memory.bytes": "much"})
    with pytest.raises(ConfigError, match=r"no such option; did you mean tierlog.fetch.memory"):
        parse_options({**given, "tierlog.fetch.memory.byte": "1"})

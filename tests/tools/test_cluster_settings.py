"""Values of settings as brokers take them."""

from __future__ import annotations

import pytest

from tierlog.errors import ConfigError
from tierlog.tools.cluster_settings import check_setting
from tierlog.tools.reassign.throttles import FOLLOWER_REPLICAS, LEADER_RATE


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        (LEADER_RATE, "10MiB", "10485760"),
        (LEADER_RATE, "7", "7"),
        ("remote.log.manager.copy.max.bytes.per.second", "1K", "1024"),
        (FOLLOWER_REPLICAS, "1-3,0:3", "0:3,1:3"),
        (FOLLOWER_REPLICAS, "*", "*"),
        ("retention.ms", "7d", "7d"),
    ],
)
def test_values_are_written_as_brokers_take_them(name: str, value: str, taken: str) -> None:
    assert check_setting(name, value) == taken


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (LEADER_RATE, "-1", "expected bytes as in 10485760, 10240K or 10MiB, found '-1'"),
        (LEADER_RATE, "fast", "found 'fast'"),
        (FOLLOWER_REPLICAS, "0:1, 1:2", "found ' 1:2'"),
        (FOLLOWER_REPLICAS, "zero:1", "found 'zero:1'"),
        (FOLLOWER_REPLICAS, "0:-1", "found '0:-1'"),
    ],
)
def test_a_wrong_value_names_setting_and_entry(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}: .*{message}"):
        check_setting(name, value)

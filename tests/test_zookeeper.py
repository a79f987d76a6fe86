"""A real ZooKeeper as the source of a broker's settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kafka_tools import wait_until
from tests.kafka_tools.old_kafka import zookeeper
from tierlog.errors import ConfigError
from tierlog.zookeeper import ZooKeeperError, ZooKeeperSettings, parse_config_node

PATIENCE_S = 60
OWN, DEFAULT = "/config/brokers/7", "/config/brokers/<default>"


def node(**config: str) -> bytes:
    return json.dumps({"version": 1, "config": config}).encode()


def watch(
    servers: str, seen: list[Mapping[str, str]], states: list[str | None]
) -> ZooKeeperSettings:
    return ZooKeeperSettings(
        servers, 7, on_change=seen.append, on_state=states.append, timeout_s=PATIENCE_S
    )


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with zookeeper("3.9", tmp_path_factory.mktemp("zookeeper")) as address:
        yield address


@pytest.mark.integration
def test_the_brokers_settings_win_over_the_default_at_each_change(servers: str) -> None:
    from kazoo.client import KazooClient

    seen: list[Mapping[str, str]] = []
    states: list[str | None] = []
    writer: Any = KazooClient(hosts=servers)
    writer.start()
    watched = watch(servers, seen, states)
    try:
        wait_until(lambda: seen == [{}], PATIENCE_S, what="no settings")
        writer.create(DEFAULT, node(quota="1", other="2"), makepath=True)
        wait_until(lambda: seen[-1] == {"quota": "1", "other": "2"}, PATIENCE_S, what="the default")
        writer.create(OWN, node(quota="3"))
        wait_until(lambda: seen[-1] == {"quota": "3", "other": "2"}, PATIENCE_S, what="its own")
        writer.set(OWN, b"{")
        wait_until(lambda: states[-1] is not None, PATIENCE_S, what="an unreadable node")
        assert str(states[-1]).startswith(f"ZooKeeper node {OWN}: expected JSON")
        assert seen[-1] == {"quota": "3", "other": "2"}, "the last settings hold"
        writer.set(OWN, node(quota="4"))
        wait_until(lambda: seen[-1] == {"quota": "4", "other": "2"}, PATIENCE_S, what="a change")
        assert states[-1] is None
        writer.delete(OWN)
        wait_until(
            lambda: seen[-1] == {"quota": "1", "other": "2"}, PATIENCE_S, what="the default again"
        )
    finally:
        watched.close()
        writer.stop()
        writer.close()


@pytest.mark.integration
def test_a_server_that_goes_away_is_reported(tmp_path: Path) -> None:
    seen: list[Mapping[str, str]] = []
    states: list[str | None] = []
    with zookeeper("3.9", tmp_path) as servers:
        watched = watch(servers, seen, states)
        wait_until(lambda: seen == [{}], PATIENCE_S, what="no settings")
    try:
        wait_until(lambda: bool(states and states[-1]), PATIENCE_S, what="an error")
        assert states[-1] == f"ZooKeeper {servers} does not answer; the last settings hold"
        assert seen == [{}]
    finally:
        watched.close()


def test_no_server_answers() -> None:
    with pytest.raises(ZooKeeperError, match=r"ZooKeeper 127\.0\.0\.1:1 does not answer"):
        ZooKeeperSettings(
            "127.0.0.1:1", 7, on_change=print, on_state=lambda text: None, timeout_s=0.5
        )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected JSON"),
        (b"\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b"[]", "expected version 1 and an object 'config'"),
        (b'{"version":2,"config":{}}', "expected version 1"),
        (b'{"version":1,"config":[]}', "expected version 1 and an object 'config'"),
        (b'{"version":1,"config":{"a":1}}', "expected text for a, found 1"),
    ],
)
def test_a_node_with_anything_else_is_named(data: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^ZooKeeper node {OWN}: {message}"):
        parse_config_node(data, OWN)

"""Follow the dynamic settings of a broker in ZooKeeper (KIP-73: ``/config/brokers/<id>``).

Clusters of Kafka up to 3.9 may keep their settings in ZooKeeper. Needs the extra ``zookeeper``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tierlog.errors import ConfigError, TierlogError

__all__ = ["ZooKeeperError", "ZooKeeperSettings", "parse_config_node"]

_DEFAULT = "<default>"


class ZooKeeperError(TierlogError):
    """ZooKeeper does not answer."""

    retriable = True


class ZooKeeperSettings:
    """Watches the settings of one broker and the default of all brokers.

    ``on_change`` is called with all settings, once at the start and after each change, in a thread
    of the client. The broker's own settings override the default of all brokers. ``on_state`` is
    called with an error text when the connection is lost or a node is unreadable, and with None
    when the problem is over. Meanwhile the last settings apply. ``connect`` is
    ``host:port[,host:port][/chroot]``. Raises ZooKeeperError when no server answers within
    `timeout_s`, and ConfigError when the client library is not installed.
    """

    def __init__(
        self,
        connect: str,
        broker_id: int,
        *,
        on_change: Callable[[Mapping[str, str]], None],
        on_state: Callable[[str | None], None],
        timeout_s: float = 10.0,
    ) -> None:
        try:
            from kazoo.client import KazooClient
            from kazoo.handlers.threading import KazooTimeoutError
        except ImportError as error:
            raise ConfigError(
                "following ZooKeeper needs the extra 'zookeeper': pip install 'tierlog[zookeeper]'"
            ) from error
        # The caller gets the state of the connection. Without a logging handler, the client would
        # also write the state to stderr.
        logging.getLogger("kazoo").addHandler(logging.NullHandler())
        self._connect = connect
        self._on_change = on_change
        self._on_state = on_state
        self._nodes: dict[str, Mapping[str, str] | None] = {}
        self._names = (_DEFAULT, str(broker_id))
        self._client: Any = KazooClient(hosts=connect, timeout=timeout_s, read_only=True)
        self._client.add_listener(self._state_changed)
        try:
            self._client.start(timeout=timeout_s)
        except KazooTimeoutError as error:
            self._client.close()
            raise ZooKeeperError(f"ZooKeeper {connect} does not answer: {error}") from error
        for name in self._names:
            self._watch(name)

    def close(self) -> None:
        """Close the connection."""
        self._client.stop()
        self._client.close()

    def _watch(self, name: str) -> None:
        path = f"/config/brokers/{name}"

        def changed(data: bytes | None, _: Any) -> None:
            try:
                self._nodes[name] = {} if data is None else parse_config_node(data, path)
            except ConfigError as error:
                self._on_state(str(error))
                return
            if len(self._nodes) == len(self._names):
                self._on_state(None)
                found: dict[str, str] = {}
                for one in self._names:
                    found.update(self._nodes[one] or {})
                self._on_change(found)

        self._client.DataWatch(path, changed)

    def _state_changed(self, state: str) -> None:
        """Report a new state of the connection. After a new connection, the client's watches call
        `changed` again."""
        if state == "CONNECTED":
            self._on_state(None)
        elif self._client.client_state != "CLOSED":
            self._on_state(f"ZooKeeper {self._connect} does not answer; the last settings hold")


def parse_config_node(data: bytes, path: str) -> dict[str, str]:
    """Return the settings in a node below ``/config``: ``{"version":1,"config":{...}}``.

    Raises ConfigError, which names `path`, when the node has any other content.
    """
    try:
        node = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"ZooKeeper node {path}: expected JSON: {error}") from error
    config = node.get("config") if isinstance(node, dict) else None
    if not isinstance(config, dict) or node.get("version") != 1:
        raise ConfigError(
            f"ZooKeeper node {path}: expected version 1 and an object 'config', found {data[:80]!r}"
        )
    for name, value in config.items():
        if not isinstance(value, str):
            raise ConfigError(f"ZooKeeper node {path}: expected text for {name}, found {value!r}")
    return config

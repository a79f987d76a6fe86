"""``tierlog config`` on a real broker, beside kafka-configs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

import pytest

from tests.kafka_tools import KafkaBroker, run_tool, wait_until
from tierlog.cli import main

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as running:
        running.create_topic("orders", partitions=2)
        yield running


@pytest.fixture
def config(broker: KafkaBroker) -> Callable[..., Ran]:
    def run(*args: str) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(["config", "--bootstrap", broker.bootstrap_servers, *args])
        return Ran(code, out.getvalue(), err.getvalue())

    return run


def kafkas(broker: KafkaBroker, *entity: str) -> list[str]:
    """The settings that kafka-configs shows, `name=value` each."""
    text = run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", broker.bootstrap_servers, "--describe", *entity),
    )
    return [line.split()[0] for line in text.splitlines() if line.startswith("  ")]


def settings(config: Callable[..., Ran], *args: str) -> list[str]:
    rows = json.loads(config(*args, "--format", "json").out)["settings"]
    return [f"{row['name']}={row['value']}" for row in rows]


def wait_for_settings(
    config: Callable[..., Ran], resource: tuple[str, str], wanted: list[str]
) -> None:
    """A broker applies a little later what the controller has confirmed."""
    wait_until(lambda: settings(config, *resource) == wanted, 60, what="settings")


def test_kafkas_tool_sees_what_was_set_and_removed(
    broker: KafkaBroker, config: Callable[..., Ran]
) -> None:
    """Rates and lists for a broker that is being filled, as in question 2 of KIP-73."""
    lists = "follower.replication.throttled.replicas"
    rate, window = "follower.replication.throttled.rate", "log.cleaner.threads"
    topic, own = ("--topic", "orders"), ("--broker", "1")
    ran = config(*topic, "--set", f"{lists}=[1-1,0:1]", "--set", "retention.ms=60000")
    assert (ran.code, ran.out) == (0, "Completed updating config for topic orders\n")
    assert config(*own, "--set", f"{rate}=10MiB").code == 0
    assert config("--broker", "default", "--set", f"{window}=2").code == 0
    expected = {
        topic: [f"{lists}=0:1,1:1", "retention.ms=60000"],
        own: [f"{rate}=10485760"],
        # The controller sets the other one itself.
        ("--broker", "default"): [f"{window}=2", "min.insync.replicas=1"],
    }
    for resource, wanted in expected.items():
        wait_for_settings(config, resource, wanted)
    shown = kafkas(broker, "--entity-type", "topics", "--entity-name", "orders")
    assert sorted(shown) == expected[topic]
    assert kafkas(broker, "--entity-type", "brokers", "--entity-name", "1") == expected[own]
    assert f"{window}=2" in kafkas(broker, "--entity-type", "brokers", "--entity-default")
    assert config(*topic, "--remove", lists, "--set", "retention.ms=70000").code == 0
    assert config(*own, "--remove", rate).code == 0
    assert config("--broker", "default", "--remove", window).code == 0
    wait_for_settings(config, own, [])
    assert kafkas(broker, "--entity-type", "topics", "--entity-name", "orders") == [
        "retention.ms=70000"
    ]


def test_all_settings_in_force_are_shown_on_request(config: Callable[..., Ran]) -> None:
    found = settings(config, "--topic", "orders", "--all")
    assert len(found) > 20
    assert any(one.startswith("cleanup.policy=") for one in found)
    assert "NAME" in config("--broker", "1").out


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "expected --topic or --broker"),
        (("--broker", "one"), 2, "expected a broker id or 'default', found 'one'"),
        (("--broker", "1", "--set", "x"), 2, "expected NAME=VALUE, found 'x'"),
        (
            ("--broker", "1", "--set", "leader.replication.throttled.rat=1"),
            2,
            "rat; did you mean leader.replication.throttled.rate?",
        ),
        (
            ("--topic", "orders", "--set", "leader.replication.throttled.replicas=0:a"),
            2,
            "leader.replication.throttled.replicas: expected partition:broker",
        ),
        (
            ("--topic", "orders", "--set", "retention.ms=1", "--remove", "retention.ms"),
            2,
            "retention.ms is both set and removed",
        ),
        (
            ("--topic", "orders", "--set", "retention.ms=1", "--set", "retention.ms=2"),
            2,
            "a setting is set twice",
        ),
        (("--topic", "nosuch"), 1, "topic nosuch: UNKNOWN_TOPIC_OR_PARTITION"),
        (("--topic", "orders", "--set", "retention.ms=7d"), 1, "retention.ms"),
        (("--broker", "7"), 1, "cluster 127.0.0.1"),
    ],
)
def test_wrong_usage_changes_nothing(
    config: Callable[..., Ran], args: tuple[str, ...], code: int, message: str
) -> None:
    before = settings(config, "--topic", "orders")
    ran = config(*args, "--timeout", "3")
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert settings(config, "--topic", "orders") == before

"""The JSON of Kafka's tool, from friends and from others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.errors import ConfigError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import (
    Placement,
    format_assignment,
    parse_assignment,
    parse_topics,
    read_json,
)

# Printed by Kafka 4.3's kafka-reassign-partitions --generate.
KAFKAS = (
    '{"version":1,"partitions":[{"topic":"bar","partition":0,"replicas":[2],'
    '"log_dirs":["/data/2/disk1"]},{"topic":"foo","partition":1,"replicas":[3,1],'
    '"log_dirs":["any","any"]}]}'
)
REPLICAS = st.lists(st.integers(0, 50), min_size=1, max_size=5, unique=True)
PARTITIONS = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True), st.integers(0, 99)
)


def test_kafkas_own_json_comes_back_as_it_was() -> None:
    found = parse_assignment(KAFKAS, "plan.json")
    assert found == {
        TopicPartition("bar", 0): Placement((2,), ("/data/2/disk1",)),
        TopicPartition("foo", 1): Placement((3, 1)),
    }
    assert format_assignment(found) == KAFKAS


@given(st.dictionaries(PARTITIONS, REPLICAS.map(lambda some: Placement(tuple(some))), min_size=1))
def test_every_assignment_survives_its_json(plan: dict[TopicPartition, Placement]) -> None:
    assert parse_assignment(format_assignment(plan), "plan.json") == plan


def test_topics_to_move() -> None:
    assert parse_topics('{"version":1,"topics":[{"topic":"foo"},{"topic":"a.b"}]}', "t") == [
        "foo",
        "a.b",
    ]


def entry(**changes: object) -> str:
    given = {"topic": "foo", "partition": 0, "replicas": [1, 2]} | changes
    return json.dumps({"version": 1, "partitions": [given]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", "expected an object with a list 'partitions'"),
        ('{"version":2,"partitions":[]}', "expected version 1, found 2"),
        ('{"version":true,"partitions":[]}', "expected version 1, found true"),
        ('{"version":1,"partitions":[]}', "at least one partition"),
        ('{"version":1,"partitions":[7]}', r"partitions\[0\]: expected an object, found 7"),
        (entry(topic="../x"), r"partitions\[0\]: expected a topic's name, found '../x'"),
        (entry(topic=None), "expected a topic's name, found null"),
        (entry(partition=-1), "partition: expected a number from 0 to 2147483647, found -1"),
        (entry(partition=1 << 31), "found 2147483648"),
        (entry(partition=True), "found true"),
        (entry(partition="0"), "found '0'"),
        (entry(replicas=[]), r"\(foo-0\): expected a list of broker ids, found \[\]"),
        (entry(replicas=[1, 1]), "broker 1 occurs twice"),
        (entry(replicas=[1, -2]), "found -2"),
        (entry(replicas=[1, 2.5]), "found 2.5"),
        (entry(replicas="1,2"), "found '1,2'"),
        (entry(log_dirs=["any"]), "for each of the 2 replicas"),
        (entry(log_dirs=["any", 5]), "for each of the 2 replicas"),
        (entry(log_dirs=["any", "data"]), "expected an absolute path, found 'data'"),
    ],
)
def test_a_bad_entry_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^plan.json: .*{message}"):
        parse_assignment(text, "plan.json")


def test_a_partition_given_twice_is_refused() -> None:
    one = {"topic": "foo", "partition": 0, "replicas": [1]}
    text = json.dumps({"version": 1, "partitions": [one, one]})
    with pytest.raises(ConfigError, match="foo-0 occurs twice"):
        parse_assignment(text, "plan.json")


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b'{"version":\xff')
    with pytest.raises(ConfigError, match="expected UTF-8, found another byte at 11"):
        read_json(str(path))


def test_an_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected at most 67108864 bytes, found more"):
        read_json("/dev/zero")

"""Lists of throttled replicas."""

from __future__ import annotations

import pytest

from tierlog.log.checkpoint import TopicPartition
from tierlog.tools.reassign.assignment import Placement
from tierlog.tools.reassign.throttles import (
    TopicThrottle,
    format_replicas,
    merge_replicas,
    parse_replicas,
    throttled_replicas,
)


def test_kafkas_form_and_the_kips_form_are_read() -> None:
    assert parse_replicas("0:101,1:102") == frozenset({(0, 101), (1, 102)})
    assert parse_replicas("0-101,1-102") == frozenset({(0, 101), (1, 102)})
    assert parse_replicas("*") is None
    assert parse_replicas("") == frozenset()


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("0:1, 1:2", "' 1:2'"),
        ("0:1,", "''"),
        ("0:-1", "'0:-1'"),
        ("-1:0", "'-1:0'"),
        ("a:b", "'a:b'"),
        ("0", "'0'"),
        ("0:1,*", r"'\*'"),
        ("0:2147483648", "'0:2147483648'"),
        ("٠:1", "'٠:1'"),
        ("0:1:2", "'0:1:2'"),
    ],
)
def test_what_kafka_refuses_is_refused_with_the_entry(text: str, entry: str) -> None:
    with pytest.raises(ValueError, match=f"expected partition:broker.*found {entry}"):
        parse_replicas(text)


def test_entries_are_sorted_as_text() -> None:
    assert format_replicas([(10, 1), (2, 1), (2, 10), (2, 1)]) == "10:1,2:1,2:10"


def test_merging_keeps_what_was_set() -> None:
    assert merge_replicas("0:1", [(1, 2)]) == "0:1,1:2"
    assert merge_replicas(None, [(1, 2)]) == "1:2"
    assert merge_replicas("*", [(1, 2)]) == "*"
    assert merge_replicas("none", [(1, 2)]) == "1:2"


def test_all_origins_lead_and_only_new_replicas_follow() -> None:
    origins = {TopicPartition("foo", 0): (1, 2), TopicPartition("foo", 1): (2, 3)}
    target = {one: Placement((2, 3)) for one in origins}
    assert throttled_replicas(origins, target) == {
        "foo": TopicThrottle(
            leader=frozenset({(0, 1), (0, 2), (1, 2), (1, 3)}), follower=frozenset({(0, 3)})
        )
    }

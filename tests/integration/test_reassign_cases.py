"""A short form of the test plan of KIP-73 (``make reassign-cases`` runs all of it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka_tools.clusters import three_brokers, three_old_brokers
from tests.reassign.cases import CASES, Outcome, run_case

pytestmark = pytest.mark.integration

THROTTLE = 2_000_000
SECONDS = 6.0
# The first response of each follower is not throttled: 10 MB by default.
SMALL_RESPONSES = {"replica.fetch.response.max.bytes": 500_000, "replica.fetch.max.bytes": 100_000}


def check(outcome: Outcome) -> None:
    """Short moves on a busy machine: half the estimate to three times of it."""
    assert outcome.same_bytes
    assert outcome.throttles_left == ()
    assert 0.5 * outcome.estimated_seconds < outcome.seconds < 3 * outcome.estimated_seconds


def test_two_nodes_to_one_while_producers_write(tmp_path: Path) -> None:
    (case,) = (one for one in CASES if one.name == "d")
    with three_brokers(tmp_path, dict.fromkeys((1, 2, 3), SMALL_RESPONSES)) as cluster:
        outcome = run_case(
            cluster, "4.3", case, throttle=THROTTLE, seconds=SECONDS, produce=300_000
        )
    check(outcome)
    assert outcome.estimated_seconds > 1.1 * SECONDS, "producers slow the move"


def test_one_node_to_another_with_zookeeper(tmp_path: Path) -> None:
    (case,) = (one for one in CASES if one.name == "a")
    with three_old_brokers(tmp_path / "old", SMALL_RESPONSES) as cluster:
        check(run_case(cluster, "3.9", case, throttle=THROTTLE, seconds=SECONDS, produce=0))

"""Limits of remote reads for all, for a topic and for a client."""

from __future__ import annotations

import threading

import pytest

from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.fetch import quotas
from tierlog.fetch.quotas import FetchQuotas

KIB = 1 << 10


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=1_000_000)


def made(clock: ManualClock, **settings: object) -> FetchQuotas:
    return FetchQuotas(QuotaConfig(**settings), clock)  # type: ignore[arg-type]


def admitted(limits: FetchQuotas, topic: str, client: str, size_bytes: int) -> None:
    assert limits.try_charge(topic, client, size_bytes) == 0


def refused(limits: FetchQuotas, topic: str, client: str, size_bytes: int = KIB) -> int:
    wait_ms = limits.try_charge(topic, client, size_bytes)
    assert wait_ms > 0, "admitted"
    return wait_ms


def test_without_limits_everything_passes(clock: ManualClock) -> None:
    limits = made(clock)
    for _ in range(100):
        admitted(limits, "t", "c", 1 << 30)
    assert limits.throttle_ms("t", "c") == 0


def test_the_limit_for_all_counts_when_a_request_goes_and_resumes_by_itself(
    clock: ManualClock,
) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB)
    admitted(limits, "t", "a", 100 * KIB)
    # The document's race, in which both looked before either was counted, does not happen.
    wait_ms = refused(limits, "t", "b", 100 * KIB)
    assert limits.throttle_ms("other", "c") == wait_ms
    clock.advance(wait_ms)
    admitted(limits, "other", "c", KIB)


@pytest.mark.parametrize("mode", QuotaMode)
def test_of_requests_that_go_at_the_same_moment_one_goes_above_the_limit(
    clock: ManualClock, mode: QuotaMode
) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB, fetch_quota_mode=mode)
    start = threading.Barrier(8)
    passed: list[int] = []

    def ask() -> None:
        start.wait()
        passed.extend(4 * KIB for _ in range(100) if not limits.try_charge("t", "c", 4 * KIB))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(passed) == 12 * KIB, "11 seconds of 1 KiB, and the one that goes over"
    assert limits.broker.snapshot().reserved_bytes == 0
    assert limits.broker.snapshot().total_bytes == 12 * KIB


def test_a_greedy_client_stops_only_itself(clock: ManualClock) -> None:
    limits = made(clock, fetch_client_max_bytes_per_second=KIB)
    admitted(limits, "t", "greedy", 1 << 30)
    refused(limits, "t", "greedy")
    refused(limits, "other topic", "greedy")
    for number in range(9):
        admitted(limits, "t", f"polite {number}", KIB)


def test_a_topic_limit_holds_for_all_its_clients(clock: ManualClock) -> None:
    limits = made(clock, fetch_topic_max_bytes_per_second=KIB)
    admitted(limits, "hot", "a", 1 << 30)
    refused(limits, "hot", "b")
    admitted(limits, "cold", "a", KIB)


def test_what_a_lower_limit_refuses_is_given_back_above(clock: ManualClock) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB, fetch_quota_mode=QuotaMode.RESERVE)
    limits.set_client_limit(None, 0)
    for _ in range(100):
        refused(limits, "t", "c")
    assert limits.broker.snapshot().reserved_bytes == 0
    assert limits.broker.snapshot().total_bytes == 0


def test_limits_change_while_reads_go_on(clock: ManualClock) -> None:
    limits = made(clock)
    admitted(limits, "t", "c", 1 << 30)
    limits.set_client_limit("c", 0)
    refused(limits, "t", "c")
    admitted(limits, "t", "d", KIB)
    limits.set_client_limit(None, 0)
    refused(limits, "t", "d")
    limits.set_client_limit("c", None)
    admitted(limits, "t", "c", KIB)
    limits.set_topic_limit("t", 0)
    refused(limits, "t", "c")
    limits.set_topic_limit("t", None)
    limits.set_client_limit(None, None)
    admitted(limits, "t", "d", KIB)


def test_limits_of_single_names_come_from_the_settings(clock: ManualClock) -> None:
    limits = made(
        clock,
        fetch_client_max_bytes_per_second=KIB,
        fetch_client_max_bytes_per_second_overrides=(("reports", 100 * KIB), ("trusted", None)),
        fetch_topic_max_bytes_per_second_overrides=(("hot", 10),),
    )
    admitted(limits, "t", "reports", 1_000 * KIB)
    admitted(limits, "t", "reports", 1_000 * KIB)
    refused(limits, "t", "reports")
    admitted(limits, "t", "trusted", 1 << 30)
    admitted(limits, "t", "trusted", KIB)
    admitted(limits, "t", "other", 12 * KIB)
    refused(limits, "t", "other")
    admitted(limits, "hot", "trusted", KIB)
    refused(limits, "hot", "trusted")


def test_invented_client_ids_share_a_place_and_forget_nobody_who_reads(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_NAMES", 4)
    limits = made(clock, fetch_client_max_bytes_per_second=KIB)
    known = [f"client {number}" for number in range(4)]
    for name in known:
        admitted(limits, "t", name, 1 << 20)
    # All places are taken by clients that have read lately: the invented ones are one client.
    admitted(limits, "t", "invented 0", 1 << 20)
    for number in range(1, 50):
        refused(limits, "t", f"invented {number}")
    for name in known:
        refused(limits, "t", name)
    # Once those have been quiet for a window, their places are free.
    clock.advance(12_000)
    admitted(limits, "t", "newcomer", 1 << 20)
    refused(limits, "t", "newcomer")
    admitted(limits, "t", "x" * 100_000, KIB)

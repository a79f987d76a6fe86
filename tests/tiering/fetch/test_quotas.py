"""Limits of remote reads for all, for a topic and for a client."""

from __future__ import annotations

import threading

import pytest

from tierlog.clock import ManualClock
from tierlog.config import QuotaConfig, QuotaMode
from tierlog.tiering.fetch import quotas
from tierlog.tiering.fetch.quotas import FetchAdmission, FetchQuotas

KIB = 1 << 10


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(monotonic_ms=1_000_000)


def made(clock: ManualClock, **settings: object) -> FetchQuotas:
    return FetchQuotas(QuotaConfig(**settings), clock)  # type: ignore[arg-type]


def admitted(limits: FetchQuotas, topic: str, client: str, size_bytes: int) -> FetchAdmission:
    answer = limits.admit(topic, client, size_bytes)
    assert isinstance(answer, FetchAdmission)
    return answer


def refused(limits: FetchQuotas, topic: str, client: str, size_bytes: int = KIB) -> int:
    answer = limits.admit(topic, client, size_bytes)
    assert isinstance(answer, int), "admitted"
    assert answer > 0
    return answer


def test_without_limits_everything_passes(clock: ManualClock) -> None:
    limits = made(clock)
    for _ in range(100):
        admitted(limits, "t", "c", 1 << 30).settle(1 << 30)
    assert limits.throttle_ms("t", "c") == 0


def test_the_limit_for_all_counts_after_the_read_and_resumes_by_itself(
    clock: ManualClock,
) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB)
    first = admitted(limits, "t", "a", KIB)
    second = admitted(limits, "t", "b", KIB)  # the document's own race: both looked before
    first.settle(100 * KIB)
    second.settle(100 * KIB)
    wait_ms = refused(limits, "other", "c")
    assert limits.throttle_ms("other", "c") == wait_ms
    clock.advance(wait_ms)
    admitted(limits, "other", "c", KIB).settle(0)


def test_reserving_lets_only_as_many_pass_as_there_is_room_for(clock: ManualClock) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB, fetch_quota_mode=QuotaMode.RESERVE)
    passed = []
    while isinstance(one := limits.admit("t", "c", 4 * KIB), FetchAdmission):
        passed.append(one)
    assert len(passed) == 3, "11 seconds of 1 KiB, and the one that goes over"
    for one in passed:
        one.settle(0)
    admitted(limits, "t", "c", 4 * KIB).settle(4 * KIB)
    assert limits.broker.snapshot().reserved_bytes == 0
    assert limits.broker.snapshot().total_bytes == 4 * KIB


def test_a_greedy_client_stops_only_itself(clock: ManualClock) -> None:
    limits = made(clock, fetch_client_max_bytes_per_second=KIB)
    admitted(limits, "t", "greedy", KIB).settle(1 << 30)
    refused(limits, "t", "greedy")
    refused(limits, "other topic", "greedy")
    for number in range(9):
        admitted(limits, "t", f"polite {number}", KIB).settle(KIB)


def test_a_topic_limit_holds_for_all_its_clients(clock: ManualClock) -> None:
    limits = made(clock, fetch_topic_max_bytes_per_second=KIB)
    admitted(limits, "hot", "a", KIB).settle(1 << 30)
    refused(limits, "hot", "b")
    admitted(limits, "cold", "a", KIB).settle(KIB)


def test_what_a_lower_limit_refuses_is_given_back_above(clock: ManualClock) -> None:
    limits = made(clock, fetch_max_bytes_per_second=KIB, fetch_quota_mode=QuotaMode.RESERVE)
    limits.set_client_limit(None, 0)
    for _ in range(100):
        refused(limits, "t", "c")
    assert limits.broker.snapshot().reserved_bytes == 0
    assert limits.broker.snapshot().total_bytes == 0


def test_limits_change_while_reads_go_on(clock: ManualClock) -> None:
    limits = made(clock)
    admitted(limits, "t", "c", KIB).settle(1 << 30)
    limits.set_client_limit("c", 0)
    refused(limits, "t", "c")
    admitted(limits, "t", "d", KIB).settle(KIB)
    limits.set_client_limit(None, 0)
    refused(limits, "t", "d")
    limits.set_client_limit("c", None)
    admitted(limits, "t", "c", KIB).settle(KIB)
    limits.set_topic_limit("t", 0)
    refused(limits, "t", "c")
    limits.set_topic_limit("t", None)
    limits.set_client_limit(None, None)
    admitted(limits, "t", "d", KIB).settle(KIB)


def test_settling_counts_once_from_whatever_thread(clock: ManualClock) -> None:
    limits = made(clock, fetch_client_max_bytes_per_second=KIB)
    one = admitted(limits, "t", "c", KIB)
    threads = [threading.Thread(target=one.settle, args=(KIB,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limits.broker.snapshot().total_bytes == KIB


def test_invented_client_ids_share_a_place_and_forget_nobody_who_reads(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "MAX_NAMES", 4)
    limits = made(clock, fetch_client_max_bytes_per_second=KIB)
    known = [f"client {number}" for number in range(4)]
    for name in known:
        admitted(limits, "t", name, KIB).settle(1 << 20)
    # All places are taken by clients that have read lately: the invented ones are one client.
    admitted(limits, "t", "invented 0", KIB).settle(1 << 20)
    for number in range(1, 50):
        refused(limits, "t", f"invented {number}")
    for name in known:
        refused(limits, "t", name)
    # Once those have been quiet for a window, their places are free.
    clock.advance(12_000)
    admitted(limits, "t", "newcomer", KIB).settle(1 << 20)
    refused(limits, "t", "newcomer")
    admitted(limits, "t", "x" * 100_000, KIB).settle(KIB)

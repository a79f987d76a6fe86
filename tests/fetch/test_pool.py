"""The pool of reader threads: bounded, shared, never interrupted, nothing thrown away too soon."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest

from tierlog.clock import SystemClock
from tierlog.errors import ClosedError, RemoteStorageError
from tierlog.fetch.pool import ReaderPool, ReaderPoolFullError, ReadTicket

WAIT_S = 30


class ShiftedClock(SystemClock):
    """The machine's clock, moved on by hand."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.shift_ms


class Data(bytes):
    """A result that has a size."""

    @property
    def size_bytes(self) -> int:
        return len(self)


class Gate:
    """A read that begins, and ends when it is let go."""

    def __init__(self, result: Any = b"data") -> None:
        self.began, self.go_on = threading.Event(), threading.Event()
        self.result = result
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        self.began.set()
        assert self.go_on.wait(WAIT_S)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result

    def let_go(self) -> None:
        assert self.began.wait(WAIT_S)
        self.go_on.set()


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def pool(clock: ShiftedClock) -> Iterator[ReaderPool]:
    made = ReaderPool(2, 3, late_result_ms=10_000, late_result_bytes=100, clock=clock)
    yield made
    assert made.close()


def busy(pool: ReaderPool, count: int) -> list[Gate]:
    """Threads that have something to do."""
    gates = [Gate() for _ in range(count)]
    for number, gate in enumerate(gates):
        pool.submit(("busy", number), gate)
        assert gate.began.wait(WAIT_S)
    return gates


def settled(pool: ReaderPool, runs: int) -> bool:
    done = threading.Event()
    while pool.runs < runs and not done.wait(0.001):
        pass
    # It takes the pool's lock, under which a run is counted before its result is put away.
    pool.running()
    return pool.runs == runs


def test_a_read_is_done_in_a_thread_of_the_pool(pool: ReaderPool) -> None:
    ticket = pool.submit("a", lambda: threading.current_thread().name)
    assert ticket.future.result(WAIT_S).startswith("tierlog-reader-")
    assert not ticket.joined
    assert pool.submit("a", lambda: b"again").future.result(WAIT_S) == b"again"


def test_threads_that_have_just_been_started_count_as_free(clock: ShiftedClock) -> None:
    pool = ReaderPool(32, 0, clock=clock)
    tickets = [pool.submit(number, lambda: b"data") for number in range(32)]
    assert {ticket.future.result(WAIT_S) for ticket in tickets} == {b"data"}
    assert pool.close()


def test_equal_keys_share_one_read(pool: ReaderPool) -> None:
    gate = Gate()
    first = pool.submit("a", gate)
    others = [pool.submit("a", gate) for _ in range(5)]
    gate.let_go()
    assert {ticket.future.result(WAIT_S) for ticket in (first, *others)} == {b"data"}
    assert [ticket.joined for ticket in (first, *others)] == [False] + [True] * 5
    assert gate.calls == 1


def test_the_queue_is_bounded_and_what_is_shared_needs_no_room(pool: ReaderPool) -> None:
    gates = busy(pool, 2)
    pending = [pool.submit(number, lambda: b"") for number in range(3)]
    assert pool.queued() == 3
    with pytest.raises(ReaderPoolFullError, match="2 reader threads are busy and 3 reads wait"):
        pool.submit("one too many", lambda: b"")
    assert pool.submit(0, lambda: b"").joined
    for gate in gates:
        gate.let_go()
    wait([ticket.future for ticket in pending], WAIT_S)
    assert pool.submit("now there is room", lambda: b"x").future.result(WAIT_S) == b"x"


def test_what_has_not_begun_is_cancelled_when_nobody_wants_it(pool: ReaderPool) -> None:
    gates = busy(pool, 2)
    calls: list[str] = []
    first = pool.submit("a", lambda: calls.append("a"))
    second = pool.submit("a", lambda: calls.append("a"))
    first.give_up()
    first.give_up()
    assert pool.queued() == 1, "one still wants it"
    second.give_up()
    assert pool.queued() == 0
    with pytest.raises(CancelledError):
        second.future.result(0)
    for gate in gates:
        gate.let_go()
    assert settled(pool, 2)
    assert calls == []


def test_what_runs_is_not_interrupted_and_waits_for_the_next_who_asks(
    pool: ReaderPool, clock: ShiftedClock
) -> None:
    gate = Gate(Data(b"late"))
    ticket = pool.submit("a", gate)
    assert gate.began.wait(WAIT_S)
    ticket.give_up()
    gate.let_go()
    assert settled(pool, 1)
    assert pool.late_bytes == 4
    again = pool.submit("a", gate)
    assert (again.joined, again.future.result(0)) == (True, b"late")
    assert pool.late_bytes == 0
    # Once: what is asked for after that is read anew.
    fresh = Gate(b"fresh")
    third = pool.submit("a", fresh)
    fresh.let_go()
    assert (third.joined, third.future.result(WAIT_S)) == (False, b"fresh")
    assert clock.shift_ms == 0


def test_late_results_go_by_age_and_by_size(pool: ReaderPool, clock: ShiftedClock) -> None:
    def late(key: str, size_bytes: int) -> None:
        gate = Gate(Data(b"x" * size_bytes))
        ticket = pool.submit(key, gate)
        assert gate.began.wait(WAIT_S)
        runs = pool.runs
        ticket.give_up()
        gate.let_go()
        assert settled(pool, runs + 1)

    late("old", 60)
    late("young", 50)
    assert pool.late_bytes == 50, "the older one made room"
    clock.shift_ms += 10_001
    fresh = pool.submit("young", lambda: b"")
    assert (fresh.joined, fresh.future.result(WAIT_S)) == (False, b"")
    late("too large", 101)
    assert pool.late_bytes == 0


def test_late_results_make_room_for_who_lacks_it(pool: ReaderPool) -> None:
    for number, key in enumerate("abc", start=1):
        gate = Gate(Data(key.encode() * 10))
        ticket = pool.submit(key, gate)
        assert gate.began.wait(WAIT_S)
        ticket.give_up()
        gate.let_go()
        assert settled(pool, number)
    assert pool.late_bytes == 30
    pool.drop_late(11)
    assert pool.late_bytes == 10
    assert pool.submit("c", Gate()).joined, "the oldest ones went"
    pool.drop_late(1)
    assert pool.late_bytes == 0


def test_what_helps_nobody_is_not_kept(pool: ReaderPool) -> None:
    class Nothing(Data):
        is_worth_keeping = False

    gate = Gate(Nothing(b"refused"))
    ticket = pool.submit("a", gate)
    assert gate.began.wait(WAIT_S)
    ticket.give_up()
    gate.let_go()
    assert settled(pool, 1)
    again = pool.submit("a", lambda: b"fresh")
    assert (again.joined, again.future.result(WAIT_S)) == (False, b"fresh")


def test_a_read_ahead_waits_for_its_request(pool: ReaderPool) -> None:
    gate = Gate(Data(b"next"))
    pool.read_ahead("a", gate)
    # The read is known, and a second one would be the same.
    pool.read_ahead("a", gate)
    gate.let_go()
    assert settled(pool, 1)
    assert pool.late_bytes == 4
    ticket = pool.submit("a", lambda: Data(b"again"))
    assert (ticket.joined, ticket.future.result(0)) == (True, b"next")
    assert gate.calls == 1


def test_a_request_joins_a_read_ahead_that_runs(pool: ReaderPool) -> None:
    gate = Gate(Data(b"next"))
    pool.read_ahead("a", gate)
    ticket = pool.submit("a", gate)
    gate.let_go()
    assert ticket.future.result(WAIT_S) == b"next"
    assert (gate.calls, pool.late_bytes) == (1, 0)


def test_a_read_ahead_leaves_a_thread_for_requests(pool: ReaderPool) -> None:
    (gate,) = busy(pool, 1)
    pool.read_ahead("a", Gate())
    assert "a" not in pool
    gate.let_go()
    assert settled(pool, 1)
    ahead = Gate(Data(b"next"))
    pool.read_ahead("a", ahead)
    assert pool.submit("b", lambda: b"other").future.result(WAIT_S) == b"other"
    ahead.let_go()


@pytest.mark.parametrize("error", [RemoteStorageError("no"), MemoryError(), BaseException("panic")])
def test_a_failure_reaches_all_who_wait_and_is_not_kept(
    pool: ReaderPool, error: BaseException
) -> None:
    gate = Gate(error)
    tickets = [pool.submit("a", gate) for _ in range(3)]
    gate.let_go()
    for ticket in tickets:
        with pytest.raises(type(error)):
            ticket.future.result(WAIT_S)
    assert pool.submit("a", lambda: b"ok").future.result(WAIT_S) == b"ok"
    late = Gate(error)
    given_up = pool.submit("b", late)
    assert late.began.wait(WAIT_S)
    given_up.give_up()
    late.let_go()
    assert settled(pool, 3)
    assert pool.submit("b", lambda: b"ok").future.result(WAIT_S) == b"ok"


def test_a_future_that_somebody_cancels_all_the_same_breaks_nothing(pool: ReaderPool) -> None:
    gates = busy(pool, 2)
    calls: list[str] = []
    pending = pool.submit("a", lambda: calls.append("a"))
    shared = pool.submit(("busy", 0), gates[0])
    assert pending.future.cancel()
    assert shared.future.cancel()
    for gate in gates:
        gate.let_go()
    assert pool.submit("b", lambda: b"ok").future.result(WAIT_S) == b"ok"
    assert pool.submit("a", lambda: b"ok").future.result(WAIT_S) == b"ok"
    assert calls == []
    assert settled(pool, 4)


def test_who_is_told_may_give_up_for_others(pool: ReaderPool) -> None:
    gate = Gate()
    tickets = [pool.submit("a", gate) for _ in range(10)]

    def give_up(_: object) -> None:
        for ticket in tickets:
            ticket.give_up()

    for ticket in tickets:
        ticket.future.add_done_callback(give_up)
    gate.let_go()
    assert wait([ticket.future for ticket in tickets], WAIT_S).not_done == set()
    assert sum(not ticket.future.cancelled() for ticket in tickets) == 1
    assert pool.submit("b", lambda: b"ok").future.result(WAIT_S) == b"ok"


def test_resize(pool: ReaderPool) -> None:
    gates = busy(pool, 2)
    third = Gate()
    ticket = pool.submit("third", third)
    assert not third.began.is_set()
    pool.resize(3)
    third.let_go()
    assert ticket.future.result(WAIT_S) == b"data"
    assert pool.size == 3
    for gate in gates:
        gate.let_go()


def test_close_waits_for_what_runs_and_cancels_the_rest(clock: ShiftedClock) -> None:
    pool = ReaderPool(1, 3, clock=clock)
    (gate,) = busy(pool, 1)
    pending = pool.submit("a", lambda: b"")
    assert not pool.close(1)
    # As `concurrent.futures.wait` waits, which a mere `cancel` does not wake.
    assert wait([pending.future], 0).done
    with pytest.raises(CancelledError):
        pending.future.result(0)
    with pytest.raises(ClosedError):
        pool.submit("b", lambda: b"")
    (running,) = pool.running()
    assert running.key == ("busy", 0)
    gate.let_go()
    assert pool.close()
    assert pool.running() == ()


def test_nothing_is_kept_after_close(clock: ShiftedClock) -> None:
    pool = ReaderPool(1, 3, clock=clock)
    gate = Gate(Data(b"late"))
    ticket = pool.submit("a", gate)
    assert gate.began.wait(WAIT_S)
    ticket.give_up()
    assert not pool.close(0)
    gate.let_go()
    assert pool.close()
    assert pool.late_bytes == 0


def test_a_forked_child_has_no_threads_and_says_so(pool: ReaderPool) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            pool.submit("a", lambda: b"")
        except ClosedError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pool.submit("a", lambda: b"here").future.result(WAIT_S) == b"here"


def test_idle_ratio(pool: ReaderPool, clock: ShiftedClock) -> None:
    assert pool.idle_ratio() == 1
    (gate,) = busy(pool, 1)
    clock.shift_ms += 30_000
    # The machine's clock goes on as well: a tenth is twelve seconds of it.
    assert pool.idle_ratio() == pytest.approx(0.75, abs=0.1)
    gate.let_go()
    assert settled(pool, 1)
    assert pool.idle_ratio() == pytest.approx(0.75, abs=0.1)
    clock.shift_ms += 61_000
    assert pool.idle_ratio() == 1


def test_many_threads_ask_for_few_things(clock: ShiftedClock) -> None:
    """Every answer belongs to its key, no key is read twice at once, and all is let go."""
    pool = ReaderPool(4, 10_000, clock=clock)
    reading: set[int] = set()
    lock = threading.Lock()
    wrong: list[str] = []

    def read_of(key: int) -> Callable[[], int]:
        def read() -> int:
            with lock:
                if key in reading:
                    wrong.append(f"{key} twice at once")
                reading.add(key)
            with lock:
                reading.discard(key)
            return key

        return read

    def ask() -> None:
        for number in range(2_000):
            key = number % 17
            ticket: ReadTicket[int] = pool.submit(key, read_of(key))
            if number % 5 == 0:
                ticket.give_up()
            elif ticket.future.result(WAIT_S) != key:
                wrong.append(f"{key} got another's")

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert wrong == []
    assert pool.close()
    assert pool.queued() == 0

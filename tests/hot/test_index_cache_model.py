"""The index cache against a model of a dozen lines: any calls in any order, the same answers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.hot.support import Listener
from tests.oracle.strategies import profile
from tierlog import IndexCache
from tierlog.clock import ManualClock

KEYS = st.one_of(
    st.sampled_from(["a", "b", b"a", b"b", 0, 1, ("a", 1), ("a", b"1")]),
    st.integers(0, 6).map(lambda number: ("topic", number)),
)
WEIGHTS = st.integers(0, 8)


class Model:
    """LRU with expiry after the last use, oldest first in the dictionary."""

    def __init__(self, max_bytes: int, ttl_ms: int) -> None:
        self.max_bytes, self.ttl_ms, self.now_ms = max_bytes, ttl_ms, 0
        self.entries: OrderedDict[Any, tuple[Any, int, int]] = OrderedDict()

    def alive(self, key: Any) -> bool:
        entry = self.entries.get(key)
        return entry is not None and (self.ttl_ms <= 0 or self.now_ms - entry[2] < self.ttl_ms)

    def get(self, key: Any) -> Any:
        if not self.alive(key):
            return None
        value, weight, _ = self.entries.pop(key)
        self.entries[key] = (value, weight, self.now_ms)
        return value

    def put(self, key: Any, value: Any, weight: int) -> None:
        self.entries.pop(key, None)
        if weight <= self.max_bytes:
            self.entries[key] = (value, weight, self.now_ms)
            self.shrink()

    def shrink(self) -> None:
        while sum(weight for _, weight, _ in self.entries.values()) > self.max_bytes:
            self.entries.popitem(last=False)

    def forget_dead(self) -> None:
        for key in [key for key in self.entries if not self.alive(key)]:
            del self.entries[key]


class CacheMachine(RuleBasedStateMachine):
    """Everything that one thread can do."""

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.listener = ManualClock(), Listener()
        self.cache = IndexCache(20, 100, self.clock, self.listener)
        self.model = Model(20, 100)
        self.kept: list[int] = []
        self.next_value = 0

    def fresh(self) -> int:
        self.next_value += 1
        self.kept.append(self.next_value)
        return self.next_value

    @rule(key=KEYS, weight=WEIGHTS)
    def put(self, key: Any, weight: int) -> None:
        value = self.fresh()
        self.model.put(key, value, weight)
        self.cache.put(key, value, weight)

    @rule(key=KEYS, weight=WEIGHTS)
    def get_or_load(self, key: Any, weight: int) -> None:
        expected = self.model.get(key)
        if expected is None:
            expected = self.fresh()
            self.model.put(key, expected, weight)
        assert self.cache.get_or_load(key, lambda _: (expected, weight)) == expected

    @rule(key=KEYS)
    def get(self, key: Any) -> None:
        assert self.cache.get(key) == self.model.get(key)

    @rule(key=KEYS)
    def look(self, key: Any) -> None:
        assert (key in self.cache) == self.model.alive(key)

    @rule(key=KEYS)
    def remove(self, key: Any) -> None:
        self.cache.remove(key)
        self.model.entries.pop(key, None)

    @rule(remainder=st.integers(0, 2))
    def remove_if(self, remainder: int) -> None:
        def doomed(key: Any) -> bool:
            return len(repr(key)) % 3 == remainder

        self.cache.remove_if(doomed)
        for key in filter(doomed, list(self.model.entries)):
            del self.model.entries[key]

    @rule(duration_ms=st.integers(0, 60))
    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.model.now_ms += duration_ms

    @rule(max_bytes=st.integers(0, 30))
    def resize(self, max_bytes: int) -> None:
        # What is dead weighs as well until it is swept; the model has no room for such finesse.
        self.sweep()
        self.model.max_bytes = max_bytes
        self.model.shrink()
        self.cache.resize(max_bytes)

    @rule(ttl_ms=st.sampled_from([-1, 0, 1, 50, 100, 1000]))
    def set_ttl(self, ttl_ms: int) -> None:
        self.sweep()
        self.model.ttl_ms = ttl_ms
        self.cache.set_ttl(ttl_ms)

    @rule()
    def sweep(self) -> None:
        self.cache.sweep()
        self.model.forget_dead()

    @invariant()
    def agree(self) -> None:
        alive = [key for key in self.model.entries if self.model.alive(key)]
        assert all(key in self.cache for key in alive)
        assert len(alive) <= len(self.cache)
        assert self.cache.weight_bytes <= self.model.max_bytes == self.cache.max_bytes

    def teardown(self) -> None:
        self.cache.close()
        told = [value for _, value, _ in self.listener.seen]
        assert sorted(told) == self.kept, "every value leaves once"


CacheMachine.TestCase.settings = settings(profile(150), stateful_step_count=60)
TestCacheAgainstModel = CacheMachine.TestCase

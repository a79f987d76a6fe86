"""The index cache from Python: keys, bounds, expiry, removal, look-ups, closing."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from tests.hot.support import Listener
from tests.vectors import vector
from tierlog import CacheStats, ClosedError, IndexCache, encode_remote_log_index
from tierlog._hot import CachedIndex, CachedOffsetIndex, native_key
from tierlog.clock import ManualClock

GIB = 1 << 30
TEN_YEARS_MS = 10 * 365 * 86_400_000
OFFSETS = vector("offset_index")


@contextmanager
def unraisable(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    caught: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda report: caught.append(report.exc_value))
        yield caught


# ---- Keys and values --------------------------------------------------------------------------

KEYS: list[Any] = [
    "",
    "a",
    "topic-0",
    "\u00e4\u20ac\U0001f600",
    "x" * 10_000,
    b"",
    b"a",
    b"\0" * 119,
    b"\0" * 120,
    0,
    1,
    -1,
    2**63 - 1,
    -(2**63),
    2**63,
    -(2**63) - 1,
    2**127 - 1,
    -(2**127),
    (),
    ("a",),
    ("a", "b"),
    ("ab",),
    ("a", b"b"),
    ("a", 1),
    (1, "a"),
    ("", ""),
    ("", "", ""),
    (b"x" * 200, 2**100, "y" * 200),
]


def test_every_key_is_a_key_of_its_own() -> None:
    cache = IndexCache(len(KEYS))
    for number, key in enumerate(KEYS):
        cache.put(key, number, 1)
    assert len(cache) == len(KEYS) == len({native_key(key) for key in KEYS})
    assert [cache.get(key) for key in KEYS] == list(range(len(KEYS)))
    assert all(key in cache for key in KEYS)
    assert all(cache.remove(key) for key in KEYS)
    assert len(cache) == 0


def test_native_keys() -> None:
    assert native_key("a\u00e4") == b"sa\xc3\xa4"
    assert native_key(b"a") == b"ba"
    assert native_key(-2) == b"i" + (-2).to_bytes(8, "little", signed=True)
    assert native_key(2**64) == b"I" + (2**64).to_bytes(16, "little")
    assert native_key(("a", 1)) == (
        b"t" + (2).to_bytes(8, "little") + b"sa" + (9).to_bytes(8, "little") + native_key(1)
    )


class Text(str):
    __slots__ = ()


class Pair(NamedTuple):
    topic: str
    partition: int


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (True, TypeError),
        (1.0, TypeError),
        (math.nan, TypeError),
        (None, TypeError),
        ([], TypeError),
        (bytearray(b"a"), TypeError),
        (Text("a"), TypeError),
        (Pair("a", 1), TypeError),
        (("a", True), TypeError),
        ((("a",),), TypeError),
        (2**127, OverflowError),
        (-(2**127) - 1, OverflowError),
        ("\ud800", UnicodeEncodeError),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_what_is_no_key(key: Any, error: type[Exception]) -> None:
    cache = IndexCache(10)
    calls: list[Callable[[], object]] = [
        lambda: native_key(key),
        lambda: cache.get(key),
        lambda: key in cache,
        lambda: cache.put(key, 1, 1),
        lambda: cache.remove(key),
        lambda: cache.get_or_load(key, lambda _: (1, 1)),
        lambda: cache.lookup_position(key, 1),
    ]
    for call in calls:
        with pytest.raises(error):
            call()
    assert len(cache) == 0


def test_a_miss_is_the_default() -> None:
    cache = IndexCache(10)
    fallback = object()
    assert cache.get("a") is None
    assert cache.get("a", fallback) is fallback
    cache.put("a", None, 0)
    assert cache.get("a", fallback) is None
    assert "a" in cache


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (math.nan, TypeError),
        (1.0, TypeError),
        (True, TypeError),
        (None, TypeError),
        (-1, ValueError),
        (-(2**80), ValueError),
        (2**63, OverflowError),
        (2**64, OverflowError),
    ],
)
def test_bad_weights_and_bounds(weight: Any, error: type[Exception]) -> None:
    cache = IndexCache(10)
    cache.put("a", 1, 1)
    with pytest.raises(error):
        cache.put("a", 2, weight)
    with pytest.raises(error):
        cache.get_or_load("b", lambda _: (1, weight))
    with pytest.raises(error):
        cache.resize(weight)
    with pytest.raises(error):
        IndexCache(weight)
    assert (cache.get("a"), cache.max_bytes, len(cache)) == (1, 10, 1)


@pytest.mark.parametrize("ttl_ms", [-2, 1.5, True, "1", 2**63])
def test_bad_times_to_live(ttl_ms: Any) -> None:
    cache = IndexCache(1, 500)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        IndexCache(1, ttl_ms)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        cache.set_ttl(ttl_ms)
    assert cache.ttl_ms == 500


def test_bad_clocks_and_listeners() -> None:
    with pytest.raises(AttributeError):
        IndexCache(1, clock=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_removal"):
        IndexCache(1, on_removal=7)  # type: ignore[arg-type]

    class Broken:
        def monotonic_ms(self) -> Any:
            return math.nan

    cache = IndexCache(1, clock=Broken())
    with pytest.raises(TypeError, match="monotonic_ms"):
        cache.get("a")


# ---- Bound, order, expiry ---------------------------------------------------------------------


def test_least_recently_used_goes_first() -> None:
    listener = Listener()
    cache = IndexCache(3, on_removal=listener)
    for key in "abc":
        cache.put(key, key.upper(), 1)
    assert cache.get("a") == "A"
    assert "b" in cache  # looking is no use
    cache.put("d", "D", 1)
    assert listener.take() == [("b", "B", "size")]
    cache.put("e", "E", 2)
    assert listener.take() == [("c", "C", "size"), ("a", "A", "size")]
    assert cache.weight_bytes == 3


def test_weights_above_four_gibibytes() -> None:
    listener = Listener()
    cache = IndexCache(20 * GIB, on_removal=listener)
    for number in range(5):
        cache.put(number, number, 6 * GIB)
        assert cache.weight_bytes <= 20 * GIB
    assert [key for key, _, _ in listener.take()] == [0, 1]
    assert cache.weight_bytes == 18 * GIB
    cache.put("huge", 0, 2**63 - 1)
    assert listener.take() == [("huge", 0, "size")]
    assert cache.weight_bytes == 18 * GIB
    whole = IndexCache(2**63 - 1)
    whole.put("a", 1, 2**63 - 1)
    whole.put("b", 2, 2**63 - 1)
    assert (whole.get("a"), whole.get("b"), whole.weight_bytes) == (None, 2, 2**63 - 1)


def test_too_heavy_a_value_replaces_nothing_but_its_own_key() -> None:
    listener = Listener()
    cache = IndexCache(10, on_removal=listener)
    cache.put("a", "old", 5)
    cache.put("b", "other", 5)
    cache.put("a", "new", 11)
    assert sorted(listener.take()) == [("a", "new", "size"), ("a", "old", "replaced")]
    assert cache.get("a") is None
    assert cache.get("b") == "other"


def test_a_cache_of_no_bytes_keeps_what_weighs_nothing() -> None:
    cache = IndexCache(0)
    cache.put("a", 1, 1)
    cache.put("b", 2, 0)
    assert (cache.get("a"), cache.get("b")) == (None, 2)


def test_use_resets_the_time_to_live() -> None:
    clock, listener = ManualClock(), Listener()
    cache = IndexCache(10, 1000, clock, listener)
    cache.put("a", 1, 1)
    cache.put("b", 2, 1)
    clock.advance(999)
    assert cache.get("a") == 1
    clock.advance(1)
    assert cache.get("b") is None
    assert cache.sweep() == 1
    assert listener.take() == [("b", 2, "expired")]
    clock.advance(998)
    assert cache.sweep() == 0
    clock.advance(1)
    assert "a" not in cache
    assert cache.sweep() == 1
    assert (len(cache), cache.weight_bytes) == (0, 0)


def test_sweep_at_a_given_time() -> None:
    cache = IndexCache(10, 1000, ManualClock())
    cache.put("a", 1, 1)
    assert cache.sweep(999) == 0
    assert cache.sweep(1000) == 1
    with pytest.raises(TypeError):
        cache.sweep(1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl_ms", [0, -1])
def test_expiry_switched_off(ttl_ms: int) -> None:
    clock = ManualClock()
    cache = IndexCache(10, ttl_ms, clock)
    cache.put("a", 1, 1)
    clock.advance(TEN_YEARS_MS)
    assert cache.sweep() == 0
    assert cache.get("a") == 1


def test_live_changes() -> None:
    clock, listener = ManualClock(), Listener()
    cache = IndexCache(10, 1000, clock, listener)
    for number in range(10):
        cache.put(number, number, 1)
    cache.resize(4)
    assert [key for key, _, cause in listener.take() if cause == "size"] == [0, 1, 2, 3, 4, 5]
    assert (len(cache), cache.max_bytes) == (4, 4)
    cache.set_ttl(5000)
    clock.advance(4999)
    assert cache.get(9) == 9
    cache.set_ttl(100)
    assert cache.ttl_ms == 100
    assert cache.get(8) is None
    assert cache.get(9) == 9
    assert cache.sweep() == 3
    cache.set_ttl(-1)
    clock.advance(TEN_YEARS_MS)
    assert cache.get(9) == 9


class JumpingClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms


@pytest.mark.parametrize("jump_ms", [TEN_YEARS_MS, -TEN_YEARS_MS])
def test_a_clock_that_jumps_ten_years(jump_ms: int) -> None:
    clock = JumpingClock()
    cache = IndexCache(10, 1000, clock)
    cache.put("a", 1, 1)
    clock.now_ms += jump_ms
    expected = 1 if jump_ms < 0 else None
    assert cache.get("a") == expected
    cache.put("b", 2, 1)
    assert cache.get("b") == 2
    clock.now_ms += 999
    assert cache.get("b") == 2
    # Neither kept for ten years nor dropped at once.
    clock.now_ms += 3000
    assert cache.get("a") is None
    assert cache.get("b") is None
    cache.sweep()
    assert len(cache) == 0


def test_a_million_keys() -> None:
    cache = IndexCache(10**6)
    for number in range(10**6):
        cache.put(number, number, 1)
    assert (len(cache), cache.weight_bytes) == (10**6, 10**6)
    used = range(0, 10**6, 997)
    assert all(cache.get(number) == number for number in used)
    cache.resize(10)
    assert [number for number in used if number in cache] == list(used)[-10:]
    assert len(cache) == 10


# ---- Removal ----------------------------------------------------------------------------------


def test_causes() -> None:
    listener = Listener()
    cache = IndexCache(3, on_removal=listener, record_stats=True)
    cache.put("a", 1, 1)
    cache.put("a", 2, 1)
    assert listener.take() == [("a", 1, "replaced")]
    assert cache.remove("a") is True
    assert cache.remove("a") is False
    assert listener.take() == [("a", 2, "explicit")]
    cache.put("b", 3, 3)
    cache.put("c", 4, 3)
    assert listener.take() == [("b", 3, "size")]
    cache.close()
    assert listener.take() == [("c", 4, "closed")]
    stats = cache.stats()
    assert (stats.removed_size, stats.removed_explicit, stats.removed_replaced) == (1, 1, 1)
    assert (stats.removed_closed, stats.removed_expired) == (1, 0)


def test_remove_if() -> None:
    listener = Listener()
    cache = IndexCache(100, on_removal=listener)
    for partition, segment in itertools.product(range(4), range(5)):
        cache.put((f"topic-{partition}", segment), segment, 1)
    assert cache.remove_if(lambda key: key[0] == "topic-2") == 5
    assert {key[0] for key, _, _ in listener.take()} == {"topic-2"}
    assert len(cache) == 15
    assert cache.remove_if(lambda _: []) == 0
    assert cache.remove_if(lambda _: "yes") == 15


def test_a_predicate_that_raises() -> None:
    cache = IndexCache(100)
    for number in range(10):
        cache.put(number, number, 1)
    asked = []

    def predicate(key: Any) -> bool:
        asked.append(key)
        if len(asked) == 4:
            raise OSError("predicate")
        return True

    with pytest.raises(OSError, match="predicate"):
        cache.remove_if(predicate)
    assert len(asked) == 4
    assert len(cache) == 7
    with pytest.raises(TypeError):
        cache.remove_if(None)  # type: ignore[arg-type]


def test_the_predicate_may_use_the_cache() -> None:
    cache = IndexCache(100)
    for number in range(10):
        cache.put(number, number, 1)
    assert cache.remove_if(lambda key: cache.remove(key) and False) == 0
    assert len(cache) == 0


def test_the_listener_may_use_the_cache() -> None:
    cache: IndexCache

    def put_aside(key: Any, value: Any, cause: str) -> None:
        if isinstance(key, int):
            cache.put(str(key), value, 0)

    cache = IndexCache(2, on_removal=put_aside)
    for number in range(5):
        cache.put(number, number, 1)
    assert [cache.get(str(number)) for number in range(5)] == [0, 1, 2, None, None]


def test_a_listener_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def listener(key: Any, value: Any, cause: str) -> None:
        raise (KeyboardInterrupt if key == "b" else OSError)(key)

    cache = IndexCache(10, on_removal=listener)
    for key in "abc":
        cache.put(key, 1, 1)
    with unraisable(monkeypatch) as caught:
        assert cache.remove_if(lambda _: True) == 3
    assert sorted(map(repr, caught)) == ["KeyboardInterrupt('b')", "OSError('a')", "OSError('c')"]
    assert len(cache) == 0


def test_the_key_object_is_handed_back() -> None:
    listener = Listener()
    cache = IndexCache(10, on_removal=listener)
    key = ("topic", 10**6)
    cache.put(key, 1, 1)
    seen: list[Any] = []
    assert cache.remove_if(lambda given: seen.extend([given])) == 0
    assert seen[0] is key
    cache.remove(("topic", 10**6))
    assert listener.take()[0][0] is key


# ---- Look-ups ---------------------------------------------------------------------------------


def log_index(rows: int) -> CachedIndex:
    """Entries of 100 offsets each."""
    firsts = [100 * row for row in range(rows)]
    lasts = [first + 99 for first in firsts]
    return CachedIndex(
        encode_remote_log_index(firsts, lasts, firsts, firsts, [7] * rows, [b"o:0"] * rows)
    )


def test_lookup_position() -> None:
    cache = IndexCache(100)
    index = log_index(50)
    cache.put("log", index, 1)
    for offset in (-1, 0, 99, 100, 4999, 5000, 2**63 - 1):
        assert cache.lookup_position("log", offset) == index.lookup_position(offset)
    assert cache.lookup_position("log", 5000) == -1
    offsets = CachedOffsetIndex(OFFSETS, 100)
    cache.put("offsets", offsets, 1)
    for offset in (99, 103, 149, 150, 999):
        assert cache.lookup_position("offsets", offset) == offsets.lookup(offset)[1]
    assert cache.lookup_position("other", 0) is None
    cache.put("text", "text", 1)
    with pytest.raises(TypeError, match="CachedIndex"):
        cache.lookup_position("text", 0)
    with pytest.raises(OverflowError):
        cache.lookup_position("log", 2**63)


def test_looking_up_is_a_use() -> None:
    clock = ManualClock()
    cache = IndexCache(2, 1000, clock)
    cache.put("a", log_index(1), 1)
    cache.put("b", log_index(1), 1)
    clock.advance(500)
    assert cache.lookup_position("a", 0) == 0
    cache.put("c", 0, 1)
    assert "b" not in cache
    clock.advance(999)
    assert cache.lookup_position("a", 0) == 0
    clock.advance(1000)
    assert cache.lookup_position("a", 0) is None


# ---- Closing, statistics ----------------------------------------------------------------------


def test_use_after_close() -> None:
    clock = ManualClock()
    with IndexCache(10, clock=clock) as cache:
        cache.put("a", 1, 1)
    assert cache.closed
    calls: list[Callable[[], object]] = [
        lambda: cache.get("a"),
        lambda: "a" in cache,
        lambda: cache.put("a", 1, 1),
        lambda: cache.remove("a"),
        lambda: cache.remove_if(lambda _: True),
        lambda: cache.get_or_load("a", lambda _: (1, 1)),
        lambda: cache.lookup_position("a", 1),
        lambda: cache.sweep(),
        lambda: cache.resize(5),
        lambda: cache.set_ttl(5),
    ]
    for call in calls:
        with pytest.raises(ClosedError, match="closed"):
            call()
    cache.close()
    assert (len(cache), cache.weight_bytes, cache.max_bytes) == (0, 0, 10)
    assert "closed" in repr(cache)


def test_statistics() -> None:
    clock = ManualClock()
    cache = IndexCache(2, 1000, clock, record_stats=True)
    cache.put("a", 1, 1)
    cache.get("a")
    cache.get("b")
    cache.lookup_position("b", 0)

    def loader(key: Any) -> tuple[Any, int]:
        clock.advance(20)
        return key, 1

    cache.get_or_load("c", loader)
    cache.get_or_load("c", loader)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("d", lambda _: (1 // 0, 0))
    cache.put("e", 1, 1)
    clock.advance(1000)
    cache.sweep()
    assert cache.stats() == CacheStats(
        hits=2,
        misses=4,
        loads=1,
        failed_loads=1,
        load_ms=20,
        removed_size=1,
        removed_expired=2,
        removed_explicit=0,
        removed_replaced=0,
        removed_closed=0,
        entries=0,
        weight_bytes=0,
    )
    silent = IndexCache(10)
    silent.put("a", 1, 3)
    silent.get("a")
    assert silent.stats()._asdict() == dict.fromkeys(CacheStats._fields, 0) | {
        "entries": 1,
        "weight_bytes": 3,
    }
    assert "1 entries, 3 of 10 bytes" in repr(silent)

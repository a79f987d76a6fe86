"""Measures a call that records bytes in a quota and returns the time to wait.

All sensors were used before, so every sample has a value. The amounts are far below the limit
unless the shape says otherwise. Kafka's sensor also gets the time as an argument, so it does not
read a clock.
"""

from __future__ import annotations

import statistics
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from tierlog import QuotaSensor

from .frame import Answer, Bench, Benchmark, Case, Goals, Limit, Run, Sides, Timed, run_side
from .hot import hot_loops
from .peers import quotas as peers
from .peers.kafka import kafka_sensor

MILLION = 1e6
SAMPLES = 11
WINDOW_MS = 1000
AMOUNT = 100
PER_MS = 100
FIRST_MS = 1_000_000
AMPLE = 10**12
TIGHT = 1000
# The number of records with calls from the interpreter, and with calls without it.
RECORDS = 200_000
NOGIL_RECORDS = 1_000_000
QUICK_RECORDS = 2_000
BATCH = 1_000
BATCH_GOAL_NS = 6.0

Rate = Literal["window", "elapsed"]
PYTHON = {"pure Python": 20.0, "Kafka Sensor": 1.8}


def items(bench: Bench) -> Sequence[Case | Limit]:
    return [
        python_given(bench, "elapsed", {**PYTHON, "kafka-python": None}),
        python_given(bench, "window", PYTHON),
        python_exceeded(bench),
        python_clocked(bench),
        batches(bench),
        nogil_given(bench, "elapsed"),
        nogil_given(bench, "window"),
        nogil_clocked(bench, coarse=True),
        nogil_clocked(bench, coarse=False),
        two_threads(bench, "elapsed"),
        two_threads(bench, "window"),
    ]


def test_side(case: Case, side: str, benchmark: Benchmark) -> None:
    run_side(case, side, benchmark)


def records_of(bench: Bench, records: int) -> int:
    return QUICK_RECORDS if bench.corpora.quick else records


def used(rate: Rate, limit: int, now_ms: int) -> QuotaSensor:
    """Return a sensor that has a record in every sample before `now_ms`."""
    sensor = QuotaSensor(
        num_samples=SAMPLES, window_ms=WINDOW_MS, limit_bytes_per_second=limit, rate=rate
    )
    for before in range(SAMPLES, 0, -1):
        sensor.record(AMOUNT, now_ms - before * WINDOW_MS)
    return sensor


def used_peer(limit: int, now_ms: int) -> peers.SampledRate:
    sensor = peers.SampledRate(SAMPLES, WINDOW_MS, limit)
    for before in range(SAMPLES, 0, -1):
        sensor.record(AMOUNT, now_ms - before * WINDOW_MS)
    return sensor


def called(record_and_throttle_ms: Callable[[int, int], int], records: int) -> int:
    """Record each amount with a call from Python. Return how many calls exceeded the quota."""
    exceeded = 0
    for now_ms in range(FIRST_MS, FIRST_MS + records // PER_MS):
        for _ in range(PER_MS):
            if record_and_throttle_ms(AMOUNT, now_ms):
                exceeded += 1
    return exceeded


def told(sensor: QuotaSensor | peers.SampledRate, exceeded: int, records: int) -> Answer:
    """Return the answer of a sensor. The rate is in thousandths, since the Java peer reports whole
    numbers."""
    last_ms = FIRST_MS + (records - 1) // PER_MS
    return {"exceeded": exceeded, "rate_milli": round(sensor.rate(last_ms) * 1000)}


def pure(limit: int, records: int, *, says_rate: bool) -> Answer:
    sensor = used_peer(limit, FIRST_MS)
    found = told(sensor, called(sensor.record_and_throttle_ms, records), records)
    return found if says_rate else {"exceeded": found["exceeded"]}


def exceeded_of(run: Callable[[], Timed]) -> Run:
    """Return a run that reports only how often the quota was exceeded, for a peer that computes
    rates in another way."""

    def only() -> Timed:
        timed = run()
        return replace(timed, result={"exceeded": timed.result["exceeded"]})

    return only


def python_given(bench: Bench, rate: Rate, goals: Goals, limit: int = AMPLE) -> Case:
    records = records_of(bench, RECORDS)
    same = rate == "elapsed"

    def ours() -> Answer:
        sensor = used(rate, limit, FIRST_MS)
        return told(sensor, called(sensor.record_and_throttle_ms, records), records)

    def kafka_python() -> Answer:
        sensor = peers.kafka_python_sensor(SAMPLES, WINDOW_MS, limit)
        span = range(FIRST_MS, FIRST_MS + records // PER_MS)
        return {"exceeded": peers.kafka_python_records(sensor, AMOUNT, span, PER_MS)}

    def prepare(stack: ExitStack) -> Sides:
        kafka = kafka_sensor(stack, bench, "given" if limit == AMPLE else "exceeded", records)
        runs: Mapping[str, Run] = {
            "pure Python": lambda: pure(limit, records, says_rate=same),
            "Kafka Sensor": kafka if same else exceeded_of(kafka),
            "kafka-python": kafka_python,
        }
        chosen = {name: runs[name] for name in goals}
        return Sides(amount=records / MILLION, ours=ours, peers=chosen)

    over = ", exceeded" if limit == TIGHT else ""
    return Case(
        operation="quota record + check",
        shape=f"{rate}, time given{over}",
        unit="M",
        peers=goals,
        prepare=prepare,
    )


def python_exceeded(bench: Bench) -> Case:
    """Measure calls that exceed the quota. Kafka then throws an exception."""
    return python_given(bench, "elapsed", {"pure Python": None, "Kafka Sensor": None}, TIGHT)


def python_clocked(bench: Bench) -> Case:
    """Measure calls that read the clock. tierlog reads a coarse clock. Each peer reads its own
    clock."""
    records = records_of(bench, RECORDS)

    def ours() -> Answer:
        record_and_throttle_ms = used("window", AMPLE, now_ms()).record_and_throttle_ms
        exceeded = 0
        for _ in range(records):
            if record_and_throttle_ms(AMOUNT):
                exceeded += 1
        return {"exceeded": exceeded}

    def pure_clocked() -> Answer:
        sensor = used_peer(AMPLE, now_ms())
        return {"exceeded": peers.clocked_records(sensor, AMOUNT, records)}

    def bucket() -> Answer:
        return {"exceeded": peers.token_bucket_records(AMOUNT, AMPLE, records)}

    def prepare(stack: ExitStack) -> Sides:
        return Sides(
            amount=records / MILLION,
            ours=ours,
            peers={
                "pure Python": pure_clocked,
                "token-bucket": bucket,
                "Kafka Sensor": exceeded_of(kafka_sensor(stack, bench, "given", records)),
                "Kafka Sensor, its clock": kafka_sensor(stack, bench, "clock", records),
            },
        )

    return Case(
        operation="quota record + check",
        shape="window, own clock",
        unit="M",
        peers={**PYTHON, "token-bucket": None, "Kafka Sensor, its clock": None},
        prepare=prepare,
    )


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def batches(bench: Bench) -> Limit:
    """Record all amounts of an array, and check the quota once for all of them."""
    rounds, calls = (1, 1) if bench.corpora.quick else (15, 1_000)
    amounts = array("q", [AMOUNT]) * BATCH

    def measure() -> float:
        seconds = []
        for _ in range(rounds):
            record_many = used("window", AMPLE, FIRST_MS).record_many
            start = time.perf_counter()
            for now in range(FIRST_MS, FIRST_MS + calls):
                record_many(amounts, now)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds) / (calls * BATCH) * 1e9

    return Limit(
        operation="quota record_many",
        shape=f"{BATCH:,} amounts a call",
        unit="ns each",
        at_most=BATCH_GOAL_NS,
        measure=measure,
    )


def nogil_given(bench: Bench, rate: Rate) -> Case:
    records = records_of(bench, NOGIL_RECORDS)

    def prepare(stack: ExitStack) -> Sides:
        record_given = hot_loops(bench.corpora.directory).record_given
        kafka = kafka_sensor(stack, bench, "given", records)

        def ours() -> Answer:
            sensor = used(rate, AMPLE, FIRST_MS)
            until_ms = FIRST_MS + records // PER_MS
            exceeded = record_given(sensor, AMOUNT, FIRST_MS, until_ms, PER_MS)
            return told(sensor, exceeded, records)

        return Sides(
            amount=records / MILLION,
            ours=ours,
            peers={"Kafka Sensor": kafka if rate == "elapsed" else exceeded_of(kafka)},
        )

    return Case(
        operation="quota record + check, nogil",
        shape=f"{rate}, time given",
        unit="M",
        peers={"Kafka Sensor": 8.0},
        prepare=prepare,
    )


def nogil_clocked(bench: Bench, *, coarse: bool) -> Case:
    records = records_of(bench, NOGIL_RECORDS)

    def prepare(stack: ExitStack) -> Sides:
        record_clocked = hot_loops(bench.corpora.directory).record_clocked

        def ours() -> Answer:
            sensor = used("window", AMPLE, now_ms())
            return {"exceeded": record_clocked(sensor, AMOUNT, records, coarse)}

        return Sides(
            amount=records / MILLION,
            ours=ours,
            peers={
                "Kafka Sensor": exceeded_of(kafka_sensor(stack, bench, "given", records)),
                "Kafka Sensor, its clock": kafka_sensor(stack, bench, "clock", records),
            },
        )

    return Case(
        operation="quota record + check, nogil",
        shape=f"window, {'coarse' if coarse else 'exact'} clock",
        unit="M",
        peers={"Kafka Sensor": 8.0 if coarse else 3.0, "Kafka Sensor, its clock": None},
        prepare=prepare,
    )


def two_threads(bench: Bench, rate: Rate) -> Case:
    """Compare records by two threads on one sensor with as many records by one thread."""
    records = records_of(bench, NOGIL_RECORDS)

    def prepare(stack: ExitStack) -> Sides:
        record_given = hot_loops(bench.corpora.directory).record_given
        pool = stack.enter_context(ThreadPoolExecutor(2))
        until_ms = FIRST_MS + records // PER_MS

        def half(sensor: QuotaSensor) -> int:
            exceeded: int = record_given(sensor, AMOUNT, FIRST_MS, until_ms, PER_MS)
            return exceeded

        def ours() -> Answer:
            sensor = used(rate, AMPLE, FIRST_MS)
            exceeded = sum(pool.map(half, [sensor, sensor]))
            return {"exceeded": exceeded, "total": sensor.total()}

        def alone() -> Answer:
            sensor = used(rate, AMPLE, FIRST_MS)
            exceeded = half(sensor) + half(sensor)
            return {"exceeded": exceeded, "total": sensor.total()}

        kafka = kafka_sensor(stack, bench, "given", records, threads=2)
        return Sides(
            amount=2 * records / MILLION,
            ours=ours,
            peers={"one thread": alone, "Kafka Sensor, two threads": kafka},
        )

    return Case(
        operation="quota record + check, nogil, two threads",
        shape=f"{rate}, time given",
        unit="M",
        peers={"one thread": 1.7, "Kafka Sensor, two threads": None},
        prepare=prepare,
        one_thread=False,
    )
